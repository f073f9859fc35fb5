#include "tests/gpu/backend/mirror_ops.h"

#include <algorithm>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/logging.h"
#include "kernels/cuda/cuda_ops.h"
#include "runtime/memory.h"
#include "runtime/stream.h"
#include "tests/gpu/backend/device_copies.h"

namespace lodestone {
namespace {

constexpr int64_t kArenaBytes = int64_t{4} << 30;

bool IsF32(const TensorView& view) { return view.dtype == DType::kF32; }
// Residual streams [T, M, D].
bool OnlyOnHost(const TensorView& streams) {
  return IsF32(streams) || streams.shape[1] != 4 || streams.shape[2] % 8 != 0;
}

struct Machine {
  Stream stream;
  Buffer arena;
  std::unique_ptr<Ops> ops;
};

class MirrorOps final : public Ops {
 public:
  explicit MirrorOps(std::unique_ptr<Machine> machine)
      : machine_(std::move(machine)), inner_(*machine_->ops) {}

  std::string_view name() const override { return inner_.name(); }
  int64_t PackedBytes(const MatrixSpec& spec) const override { return inner_.PackedBytes(spec); }
  PackedWeight PackWeight(const MatrixSource& source, const TensorView& packed) const override {
    return inner_.PackWeight(source, packed);
  }

  void EmbedTokens(const EmbedTokensParams& params, Stream& host) const override {
    if (IsF32(params.streams)) return host_->EmbedTokens(params, host);
    Run(params, &Ops::EmbedTokens);
  }
  int64_t HcPreScratchBytes(int64_t num_tokens, int64_t num_streams) const override {
    return inner_.HcPreScratchBytes(num_tokens, num_streams);
  }
  void HcPre(const HcPreParams& params, Stream& host) const override {
    if (OnlyOnHost(params.streams)) return host_->HcPre(params, host);
    Run(params, &Ops::HcPre);
  }
  void HcPost(const HcPostParams& params, Stream& host) const override {
    if (OnlyOnHost(params.streams)) return host_->HcPost(params, host);
    Run(params, &Ops::HcPost);
  }
  void HcBoundary(const HcBoundaryParams& params, Stream& host) const override {
    if (OnlyOnHost(params.pre.streams)) return host_->HcBoundary(params, host);
    Run(params, &Ops::HcBoundary);
  }
  void HcHead(const HcHeadParams& params, Stream& host) const override {
    if (OnlyOnHost(params.streams)) return host_->HcHead(params, host);
    Run(params, &Ops::HcHead);
  }
  int64_t LinearScratchBytes(int64_t num_tokens, int64_t k, bool round_fp8) const override {
    return inner_.LinearScratchBytes(num_tokens, k, round_fp8);
  }
  void Linear(const LinearParams& params, Stream& host) const override {
    if (IsF32(params.x) || params.weight.format == WeightFormat::kF32 || params.weight.k % 8 != 0) {
      return host_->Linear(params, host);
    }
    LinearParams p = params;
    HostScratch scratch(inner_.LinearScratchBytes(p.x.shape[0], p.x.shape[1], p.round_fp8));
    p.scratch = scratch.view;
    Run(p, &Ops::Linear);
  }
  void RmsNorm(const RmsNormParams& params, Stream& host) const override {
    if (IsF32(params.x)) return host_->RmsNorm(params, host);
    Run(params, &Ops::RmsNorm);
  }
  void QueryNormRope(const QueryNormRopeParams& params, Stream& host) const override {
    if (IsF32(params.q)) return host_->QueryNormRope(params, host);
    Run(params, &Ops::QueryNormRope);
  }
  void WindowLatent(const WindowLatentParams& params, Stream& host) const override {
    if (IsF32(params.kv)) return host_->WindowLatent(params, host);
    Run(params, &Ops::WindowLatent);
  }
  void StoreWindow(const StoreWindowParams& params, Stream& host) const override {
    if (IsF32(params.latents) || params.format == KvFormat::kF32) {
      return host_->StoreWindow(params, host);
    }
    Run(params, &Ops::StoreWindow);
  }
  void CompressKv(const CompressKvParams& params, Stream& host) const override {
    if (params.act == DType::kF32) return host_->CompressKv(params, host);
    Run(params, &Ops::CompressKv);
  }
  void IndexQuery(const IndexQueryParams& params, Stream& host) const override {
    if (IsF32(params.q)) return host_->IndexQuery(params, host);
    Run(params, &Ops::IndexQuery);
  }
  void AttentionRows(const AttentionRowsParams& params, Stream& host) const override {
    if (IsF32(params.query.x) || params.ring.format == KvFormat::kF32) {
      return host_->AttentionRows(params, host);
    }
    Run(params, &Ops::AttentionRows);
  }
  void QueryRows(const QueryRowsParams& params, Stream& host) const override {
    if (IsF32(params.query.q)) return host_->QueryRows(params, host);
    Run(params, &Ops::QueryRows);
  }
  int64_t IndexTopKScratchBytes(int64_t num_tokens, int64_t max_visible) const override {
    return inner_.IndexTopKScratchBytes(num_tokens, max_visible);
  }
  void IndexTopK(const IndexTopKParams& params, Stream& host) const override {
    if (IsF32(params.q)) return host_->IndexTopK(params, host);
    IndexTopKParams p = params;
    // Test batches may have wider block tables than their tokens need.
    HostScratch scratch(inner_.IndexTopKScratchBytes(
        p.q.shape[0], p.batch.block_table.shape[1] * (kPageTokens / 4)));
    p.scratch = scratch.view;
    Run(p, &Ops::IndexTopK);
  }
  int64_t SparseAttentionScratchBytes(int64_t max_keys, int64_t num_heads, int64_t head_dim,
                                      KvFormat format) const override {
    return inner_.SparseAttentionScratchBytes(max_keys, num_heads, head_dim, format);
  }
  void SparseAttention(const SparseAttentionParams& params, Stream& host) const override {
    if (IsF32(params.q)) return host_->SparseAttention(params, host);
    SparseAttentionParams p = params;
    const int64_t entries = p.ratio == 4     ? p.top_entries.shape[1]
                            : p.ratio == 128 ? p.batch.block_table.shape[1] * (kPageTokens / 128)
                                             : 0;
    HostScratch scratch(inner_.SparseAttentionScratchBytes(p.window + entries, p.q.shape[1],
                                                           p.q.shape[2], p.format));
    p.scratch = scratch.view;
    Run(p, &Ops::SparseAttention);
  }
  void MoeRoute(const MoeRouteParams& params, Stream& host) const override {
    if (IsF32(params.x)) return host_->MoeRoute(params, host);
    Run(params, &Ops::MoeRoute);
  }
  int64_t MoeExpertsScratchBytes(int64_t num_tokens, int64_t experts_per_token, int64_t hidden,
                                 int64_t width, int64_t num_experts) const override {
    return inner_.MoeExpertsScratchBytes(num_tokens, experts_per_token, hidden, width, num_experts);
  }
  void MoeExperts(const MoeExpertsParams& params, Stream&) const override;
  void PackRows(const MoveRowsParams& params, Stream&) const override { MoveRows(params, true); }
  void ScatterRows(const MoveRowsParams& params, Stream&) const override {
    MoveRows(params, false);
  }

 private:
  struct HostScratch {
    explicit HostScratch(int64_t num_bytes)
        : bytes(static_cast<size_t>(std::max<int64_t>(num_bytes, 1))),
          view(bytes.data(), DType::kU8, {static_cast<int64_t>(bytes.size())}) {}
    std::vector<std::byte> bytes;
    TensorView view;
  };

  DeviceCopies NewCopies() const { return DeviceCopies(machine_->stream, machine_->arena); }
  // The op on copies of all that `params` views.
  template <typename Params>
  void Run(Params params, void (Ops::*op)(const Params&, Stream&) const) const {
    DeviceCopies copies = NewCopies();
    copies.Take(params);
    copies.Upload();
    (inner_.*op)(params, machine_->stream);
    copies.Finish();
  }
  void MoveRows(const MoveRowsParams& params, bool pack) const;

  const std::unique_ptr<Machine> machine_;
  const Ops& inner_;
  const std::unique_ptr<Ops> host_ = MakeReferenceOps();  // for what is for the CPU only
};

// Experts side by side, as the loader packs them.
void MirrorOps::MoeExperts(const MoeExpertsParams& params, Stream& host) const {
  if (IsF32(params.x)) return host_->MoeExperts(params, host);
  MoeExpertsParams p = params;
  std::vector<ExpertWeights> routed(p.routed.begin(), p.routed.end());
  std::vector<std::byte> memory;
  const auto matrices = [](ExpertWeights& expert) {
    return std::vector<PackedWeight*>{&expert.w1, &expert.w3, &expert.w2};
  };
  const bool on_device = routed[0].w1.data.device == Device::kCuda;
  for (ExpertWeights& expert : on_device ? std::span<ExpertWeights>() : std::span(routed)) {
    for (PackedWeight* matrix : matrices(expert)) {
      const auto* from = matrix->data.as<const std::byte>();
      memory.insert(memory.end(), from, from + inner_.PackedBytes(*matrix));
      memory.resize(static_cast<size_t>(RoundUpToCopyAlignment(std::ssize(memory))));
    }
  }
  std::byte* next = memory.data();
  DeviceCopies copies = NewCopies();
  for (ExpertWeights& expert : on_device ? std::span<ExpertWeights>() : std::span(routed)) {
    for (PackedWeight* matrix : matrices(expert)) {
      const int64_t bytes = RoundUpToCopyAlignment(inner_.PackedBytes(*matrix));
      matrix->data = TensorView(std::exchange(next, next + bytes), DType::kU8, {bytes});
    }
  }
  // One range, so that the distances stay.
  std::byte* base = memory.data();
  copies.Add(&base, static_cast<int64_t>(memory.size()), false);
  for (ExpertWeights& expert : routed) {
    for (PackedWeight* matrix : matrices(expert)) copies.Read(*matrix);
  }
  std::optional<ExpertWeights> shared;
  if (p.shared != nullptr) {
    shared = *p.shared;
    for (PackedWeight* matrix : matrices(*shared)) copies.Read(*matrix);
    p.shared = &*shared;
  }
  p.routed = routed;
  for (TensorView* view : {&p.x, &p.experts, &p.weights}) copies.Read(*view);
  copies.Write(p.scratch);
  copies.Write(p.out);
  copies.Upload();
  inner_.MoeExperts(p, machine_->stream);
  copies.Finish();
}

void MirrorOps::MoveRows(const MoveRowsParams& params, bool pack) const {
  MoveRowsParams p = params;
  std::vector<RowRun> runs(p.runs.begin(), p.runs.end());
  DeviceCopies copies = NewCopies();
  for (RowRun& run : runs) {
    PageId last_page(0);
    for (int64_t page = 0; page < run.num_pages(); ++page) {
      last_page = std::max(last_page, run.pages[page]);
    }
    const int64_t rows = run.pages == nullptr ? run.num_rows : run.rows_per_page;
    for (int i = 0; i < run.num_parts && run.num_rows > 0; ++i) {
      copies.Add(&run.part[i],
                 last_page.value() * run.page_stride[i] + (rows - 1) * run.part_stride[i] +
                     run.part_bytes[i],
                 !pack);
    }
  }
  p.runs = runs;
  copies.Add(&p.slot, p.slot_bytes, pack);
  auto* digests = reinterpret_cast<std::byte*>(p.digests);
  copies.Add(&digests, sizeof(RowDigests), true);
  copies.Upload();
  p.digests = reinterpret_cast<uint64_t*>(digests);
  if (pack) {
    inner_.PackRows(p, machine_->stream);
  } else {
    inner_.ScatterRows(p, machine_->stream);
  }
  copies.Finish();
}

}  // namespace

std::unique_ptr<Ops> MakeMirrorOps(std::string* why) {
  constexpr DeviceId kDevice{.cuda = 0};
  static ThreadPool pool(1);
  absl::StatusOr<Stream> stream = Stream::Create(kDevice, &pool);
  absl::StatusOr<std::unique_ptr<Ops>> ops = MakeCudaOps(kDevice);
  absl::StatusOr<Buffer> arena = Buffer::Allocate(kArenaBytes, WorkMemory(kDevice));
  for (const absl::Status& status : {stream.status(), ops.status(), arena.status()}) {
    if (status.ok()) continue;
    *why = std::string(status.message());
    return nullptr;
  }
  auto machine = std::unique_ptr<Machine>(new Machine{
      .stream = *std::move(stream), .arena = *std::move(arena), .ops = *std::move(ops)});
  return std::make_unique<MirrorOps>(std::move(machine));
}

const Ops& Mirror() {
  static const Ops& ops = *[] {
    std::string why;
    std::unique_ptr<Ops> made = MakeMirrorOps(&why);
    CHECK(made != nullptr) << why;
    return made.release();
  }();
  return ops;
}

}  // namespace lodestone
