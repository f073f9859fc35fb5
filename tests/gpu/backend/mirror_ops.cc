#include "tests/gpu/backend/mirror_ops.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/logging.h"
#include "kernels/cuda/cuda_ops.h"
#include "runtime/memory.h"
#include "runtime/stream.h"

namespace lodestone {
namespace {

constexpr int64_t kArenaBytes = int64_t{4} << 30;
constexpr int64_t kAlignment = 256;
constexpr int64_t kGuardBytes = 256;
constexpr int kPoison = 0xff;

int64_t RoundUp(int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

// Bytes from a view's first element to behind its last.
int64_t ExtentOf(const TensorView& view) {
  int64_t last = 0;
  for (int axis = 0; axis < view.rank; ++axis) {
    if (view.shape[axis] == 0) return 0;
    last += (view.shape[axis] - 1) * view.strides[axis];
  }
  return (last + 1) * BytesPerElement(view.dtype);
}

bool IsF32(const TensorView& view) { return view.dtype == DType::kF32; }
// Residual streams [T, M, D].
bool OnlyOnHost(const TensorView& streams) {
  return IsF32(streams) || streams.shape[1] != 4 || streams.shape[2] % 8 != 0;
}

struct Machine {
  ThreadPool pool{1};
  Stream stream;
  Buffer arena;
  std::unique_ptr<Ops> ops;
};

// With LODESTONE_EXACT_BUFFERS set every range has an allocation of its size alone, so that
// compute-sanitizer sees a step beyond it; else all lie in one arena, poison between them.
bool ExactBuffers() {
  static const bool exact = std::getenv("LODESTONE_EXACT_BUFFERS") != nullptr;
  return exact;
}

// The memory that one op works on: ranges of host memory, merged where they overlap (planar caches),
// each with a copy on the device.
class Copies {
 public:
  explicit Copies(Machine& machine) : machine_(machine) {}

  void Read(TensorView& view) { AddView(view, false); }
  void Write(TensorView& view) { AddView(view, true); }
  void Read(PackedWeight& weight) { AddView(weight.data, false); }
  void Write(RowStore& store) {
    AddView(store.payload, true);
    AddView(store.scale, true);
  }
  void Read(BatchIndex& batch) {
    for (TensorView* view : {&batch.positions, &batch.token_seq, &batch.seq_first,
                             &batch.seq_tokens, &batch.seq_slot, &batch.block_table}) {
      Read(*view);
    }
  }
  void Take(RmsNormParams& p) {
    Read(p.x);
    Read(p.weight);
    Write(p.out);
  }
  void Take(QueryNormRopeParams& p) {
    Read(p.positions);
    Read(p.freqs);
    Write(p.q);
  }
  void Take(WindowLatentParams& p) {
    for (TensorView* view : {&p.kv, &p.weight, &p.positions, &p.freqs}) Read(*view);
    Write(p.latents);
  }
  void Take(StoreWindowParams& p) {
    Read(p.latents);
    Read(p.batch);
    Write(p.ring);
  }
  void Take(CompressKvParams& p) {
    for (TensorView* view : {&p.kv, &p.score, &p.ape, &p.norm_weight, &p.freqs}) Read(*view);
    Read(p.batch);
    Write(p.state_kv);
    Write(p.state_score);
    Write(p.entries);
  }
  void Take(IndexQueryParams& p) {
    for (TensorView* view : {&p.raw_weight, &p.positions, &p.freqs}) Read(*view);
    Write(p.q);
    Write(p.weight);
  }
  // `*pointer` comes to point to the copy of these bytes.
  void Add(std::byte** pointer, int64_t num_bytes, bool written) {
    if (num_bytes == 0) return;
    ranges_.push_back({*pointer, *pointer + num_bytes, written});
    pointers_.push_back(pointer);
  }

  // After the last Read and Write. Host memory keeps its distance within a range.
  void Upload() {
    std::sort(ranges_.begin(), ranges_.end(),
              [](const Range& a, const Range& b) { return a.begin < b.begin; });
    for (const Range& range : ranges_) {
      if (!merged_.empty() && range.begin < merged_.back().end) {
        merged_.back().end = std::max(merged_.back().end, range.end);
        merged_.back().written |= range.written;
      } else {
        merged_.push_back(range);
      }
    }
    PlaceRanges();
    for (const Range& range : merged_) CopyNow(range.device, range.begin, range.end - range.begin);
    for (std::byte** pointer : pointers_) *pointer = DeviceAddress(*pointer);
    for (TensorView* view : views_) view->data = DeviceAddress(view->as<std::byte>());
  }

  // After the op: what it wrote, and whether it wrote outside.
  void Finish() {
    Synchronize();
    for (const Range& range : merged_) {
      const int64_t size = range.end - range.begin;
      if (range.written) CopyNow(range.begin, range.device, size);
      if (ExactBuffers()) continue;
      const int64_t behind = RoundUp(size) - size + kGuardBytes;
      std::vector<std::byte> guard(static_cast<size_t>(behind));
      CopyNow(guard.data(), range.device + size, behind);
      const bool intact = std::all_of(guard.begin(), guard.end(),
                                      [](std::byte value) { return value == std::byte{kPoison}; });
      EXPECT_TRUE(intact) << "an op wrote behind a tensor of " << size << " bytes";
    }
  }

 private:
  struct Range {
    std::byte* begin = nullptr;
    std::byte* end = nullptr;
    bool written = false;
    std::byte* device = nullptr;
  };

  void PlaceRanges() {
    int64_t at = 0;
    for (Range& range : merged_) {
      const int64_t size = range.end - range.begin;
      if (ExactBuffers()) {
        exact_.push_back(Buffer::Allocate(size, WorkMemory(machine_.stream.device())).value());
        range.device = exact_.back().data();
      } else {
        range.device = machine_.arena.data() + at;
        at += RoundUp(size) + kGuardBytes;
      }
    }
    CHECK_LE(at, machine_.arena.size()) << "the arena of the mirror is too small";
    machine_.stream.FillBytes(machine_.arena.data(), kPoison, at);
    Synchronize();
  }
  void AddView(TensorView& view, bool written) {
    if (view.empty() || view.device == Device::kCuda || ExtentOf(view) == 0) return;
    ranges_.push_back({view.as<std::byte>(), view.as<std::byte>() + ExtentOf(view), written});
    views_.push_back(&view);
  }
  std::byte* DeviceAddress(const std::byte* host) const {
    for (const Range& range : merged_) {
      if (host >= range.begin && host < range.end) return range.device + (host - range.begin);
    }
    LOG(FATAL) << "an address of no range";
    return nullptr;
  }
  // Through the stream; memory of tests is not pinned, which such a copy waits for.
  void CopyNow(void* to, const void* from, int64_t num_bytes) {
    machine_.stream.Copy(to, from, num_bytes);
    Synchronize();
  }
  void Synchronize() {
    const absl::Status status = machine_.stream.Synchronize();
    CHECK(status.ok()) << status.ToString();
  }

  Machine& machine_;
  std::vector<Range> ranges_, merged_;
  std::vector<Buffer> exact_;
  std::vector<std::byte**> pointers_;
  std::vector<TensorView*> views_;
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
    EmbedTokensParams p = params;
    Copies copies(*machine_);
    copies.Read(p.ids);
    copies.Read(p.table);
    copies.Write(p.streams);
    Run(copies, [&](Stream& stream) { inner_.EmbedTokens(p, stream); });
  }
  int64_t HcPreScratchBytes(int64_t num_tokens, int64_t num_streams) const override {
    return inner_.HcPreScratchBytes(num_tokens, num_streams);
  }
  void HcPre(const HcPreParams& params, Stream& host) const override {
    if (OnlyOnHost(params.streams)) return host_->HcPre(params, host);
    HcPreParams p = params;
    Copies copies(*machine_);
    for (TensorView* view : {&p.streams, &p.base, &p.scale, &p.norm_weight}) copies.Read(*view);
    copies.Read(p.fn);
    for (TensorView* view : {&p.scratch, &p.x, &p.post, &p.comb}) copies.Write(*view);
    Run(copies, [&](Stream& stream) { inner_.HcPre(p, stream); });
  }
  void HcPost(const HcPostParams& params, Stream& host) const override {
    if (OnlyOnHost(params.streams)) return host_->HcPost(params, host);
    HcPostParams p = params;
    Copies copies(*machine_);
    for (TensorView* view : {&p.x, &p.post, &p.comb}) copies.Read(*view);
    copies.Write(p.streams);
    Run(copies, [&](Stream& stream) { inner_.HcPost(p, stream); });
  }
  void HcBoundary(const HcBoundaryParams& params, Stream& host) const override {
    if (OnlyOnHost(params.pre.streams)) return host_->HcBoundary(params, host);
    HcBoundaryParams p = params;
    Copies copies(*machine_);
    for (TensorView* view : {&p.post.x, &p.post.post, &p.post.comb, &p.pre.base, &p.pre.scale,
                             &p.pre.norm_weight}) {
      copies.Read(*view);
    }
    copies.Read(p.pre.fn);
    for (TensorView* view : {&p.post.streams, &p.pre.streams, &p.pre.scratch, &p.pre.x,
                             &p.pre.post, &p.pre.comb}) {
      copies.Write(*view);
    }
    Run(copies, [&](Stream& stream) { inner_.HcBoundary(p, stream); });
  }
  void HcHead(const HcHeadParams& params, Stream& host) const override {
    if (OnlyOnHost(params.streams)) return host_->HcHead(params, host);
    HcHeadParams p = params;
    Copies copies(*machine_);
    for (TensorView* view : {&p.streams, &p.rows, &p.base, &p.scale, &p.norm_weight}) {
      copies.Read(*view);
    }
    copies.Read(p.fn);
    copies.Write(p.x);
    Run(copies, [&](Stream& stream) { inner_.HcHead(p, stream); });
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
    Copies copies(*machine_);
    copies.Read(p.x);
    copies.Read(p.weight);
    copies.Write(p.scratch);
    copies.Write(p.out);
    Run(copies, [&](Stream& stream) { inner_.Linear(p, stream); });
  }
  void RmsNorm(const RmsNormParams& params, Stream& host) const override {
    if (IsF32(params.x)) return host_->RmsNorm(params, host);
    RmsNormParams p = params;
    Copies copies(*machine_);
    copies.Take(p);
    Run(copies, [&](Stream& stream) { inner_.RmsNorm(p, stream); });
  }
  void QueryNormRope(const QueryNormRopeParams& params, Stream& host) const override {
    if (IsF32(params.q)) return host_->QueryNormRope(params, host);
    QueryNormRopeParams p = params;
    Copies copies(*machine_);
    copies.Take(p);
    Run(copies, [&](Stream& stream) { inner_.QueryNormRope(p, stream); });
  }
  void WindowLatent(const WindowLatentParams& params, Stream& host) const override {
    if (IsF32(params.kv)) return host_->WindowLatent(params, host);
    WindowLatentParams p = params;
    Copies copies(*machine_);
    copies.Take(p);
    Run(copies, [&](Stream& stream) { inner_.WindowLatent(p, stream); });
  }
  void StoreWindow(const StoreWindowParams& params, Stream& host) const override {
    if (IsF32(params.latents) || params.format == KvFormat::kF32) return host_->StoreWindow(params, host);
    StoreWindowParams p = params;
    Copies copies(*machine_);
    copies.Take(p);
    Run(copies, [&](Stream& stream) { inner_.StoreWindow(p, stream); });
  }
  void CompressKv(const CompressKvParams& params, Stream& host) const override {
    if (params.act == DType::kF32) return host_->CompressKv(params, host);
    CompressKvParams p = params;
    Copies copies(*machine_);
    copies.Take(p);
    Run(copies, [&](Stream& stream) { inner_.CompressKv(p, stream); });
  }
  void IndexQuery(const IndexQueryParams& params, Stream& host) const override {
    if (IsF32(params.q)) return host_->IndexQuery(params, host);
    IndexQueryParams p = params;
    Copies copies(*machine_);
    copies.Take(p);
    Run(copies, [&](Stream& stream) { inner_.IndexQuery(p, stream); });
  }
  void AttentionRows(const AttentionRowsParams& params, Stream& host) const override {
    if (IsF32(params.query.x) || params.ring.format == KvFormat::kF32) {
      return host_->AttentionRows(params, host);
    }
    AttentionRowsParams p = params;
    Copies copies(*machine_);
    copies.Take(p.query);
    copies.Take(p.window);
    if (!p.index_keys.kv.empty()) copies.Take(p.index_keys);
    if (!p.entries.kv.empty()) copies.Take(p.entries);
    if (!p.ring.latents.empty()) copies.Take(p.ring);
    Run(copies, [&](Stream& stream) { inner_.AttentionRows(p, stream); });
  }
  void QueryRows(const QueryRowsParams& params, Stream& host) const override {
    if (IsF32(params.query.q)) return host_->QueryRows(params, host);
    QueryRowsParams p = params;
    Copies copies(*machine_);
    copies.Take(p.query);
    copies.Take(p.index);
    Run(copies, [&](Stream& stream) { inner_.QueryRows(p, stream); });
  }
  int64_t IndexTopKScratchBytes(int64_t num_tokens, int64_t max_visible) const override {
    return inner_.IndexTopKScratchBytes(num_tokens, max_visible);
  }
  void IndexTopK(const IndexTopKParams& params, Stream& host) const override {
    if (IsF32(params.q)) return host_->IndexTopK(params, host);
    IndexTopKParams p = params;
    // Test batches may have wider block tables than their tokens need.
    HostScratch scratch(
        cuda_scratch(p.q.shape[0], p.batch.block_table.shape[1] * (kPageTokens / 4)));
    p.scratch = scratch.view;
    Copies copies(*machine_);
    for (TensorView* view : {&p.q, &p.weight, &p.num_visible}) copies.Read(*view);
    copies.Read(p.batch);
    copies.Write(p.keys);
    for (TensorView* view : {&p.scratch, &p.top_entries, &p.scores}) copies.Write(*view);
    Run(copies, [&](Stream& stream) { inner_.IndexTopK(p, stream); });
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
    Copies copies(*machine_);
    for (TensorView* view : {&p.q, &p.latents, &p.sink, &p.freqs, &p.top_entries}) {
      copies.Read(*view);
    }
    copies.Read(p.batch);
    copies.Write(p.ring);
    if (p.ratio != 0) copies.Write(p.entries);
    copies.Write(p.scratch);
    copies.Write(p.out);
    Run(copies, [&](Stream& stream) { inner_.SparseAttention(p, stream); });
  }
  void MoeRoute(const MoeRouteParams& params, Stream& host) const override {
    if (IsF32(params.x)) return host_->MoeRoute(params, host);
    MoeRouteParams p = params;
    Copies copies(*machine_);
    for (TensorView* view : {&p.x, &p.bias, &p.tid2eid, &p.ids}) copies.Read(*view);
    copies.Read(p.gate);
    copies.Write(p.experts);
    copies.Write(p.weights);
    Run(copies, [&](Stream& stream) { inner_.MoeRoute(p, stream); });
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

  int64_t cuda_scratch(int64_t num_tokens, int64_t max_visible) const {
    return inner_.IndexTopKScratchBytes(num_tokens, max_visible);
  }
  template <typename Op>
  void Run(Copies& copies, const Op& op) const {
    copies.Upload();
    op(machine_->stream);
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
      memory.resize(static_cast<size_t>(RoundUp(std::ssize(memory))));
    }
  }
  std::byte* next = memory.data();
  Copies copies(*machine_);
  for (ExpertWeights& expert : on_device ? std::span<ExpertWeights>() : std::span(routed)) {
    for (PackedWeight* matrix : matrices(expert)) {
      const int64_t bytes = RoundUp(inner_.PackedBytes(*matrix));
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
  Run(copies, [&](Stream& stream) { inner_.MoeExperts(p, stream); });
}

void MirrorOps::MoveRows(const MoveRowsParams& params, bool pack) const {
  MoveRowsParams p = params;
  std::vector<RowRun> runs(p.runs.begin(), p.runs.end());
  Copies copies(*machine_);
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
  auto machine = std::unique_ptr<Machine>(
      new Machine{.stream = *std::move(stream), .arena = *std::move(arena), .ops = *std::move(ops)});
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
