#include "kernels/cuda/cuda_ops.h"

#include <algorithm>
#include <cstring>

#include "base/logging.h"
#include "base/status_macros.h"
#include "kernels/cuda/cuda_check.h"
#include "kernels/cuda/launchers.h"
#include "kernels/cuda/op_launchers.h"
#include "kernels/cuda/packed_matrix.h"
#include "kernels/cuda/tiles.h"
#include "kernels/op_checks.h"

namespace lodestone {
namespace {

constexpr int64_t kIndexPageEntries = kPageTokens / 4;
constexpr int64_t kDensePageEntries = kPageTokens / 128;

// The stream as CUDA's, its device made the thread's.
cudaStream_t On(Stream& stream) {
  CUDA_CHECK(cudaSetDevice(stream.device().cuda));
  return static_cast<cudaStream_t>(stream.cuda_handle());
}

void CheckActivation(DType dtype) {
  CHECK(dtype == DType::kBf16) << "CUDA ops take BF16 activations, not " << Name(dtype);
}

cuda::DeviceRows RowsOf(const RowStore& store) {
  return {.payload = store.payload.as<uint8_t>(),
          .scale = store.scale.as<uint8_t>(),
          .payload_block_stride = store.payload.strides[0],
          .scale_block_stride = store.scale.empty() ? 0 : store.scale.strides[0],
          .num_blocks = store.payload.shape[0]};
}

// The largest number of entries that fits the block table of a batch whose tables are as wide as
// its longest sequence needs: what `num_visible` may reach.
int64_t VisibleBound(const BatchIndex& batch) {
  return batch.block_table.shape[1] * kIndexPageEntries;
}

// VisibleBound of a batch whose largest num_visible is `max_visible`, which its last page may round
// up.
int64_t RoundedVisible(int64_t max_visible) {
  return (max_visible / kIndexPageEntries + 1) * kIndexPageEntries;
}

cuda::IndexScoresArgs ScoresArgsOf(const IndexTopKParams& p) {
  return {.q = p.q.as<uint16_t>(),
          .weight = p.weight.as<float>(),
          .keys = RowsOf(p.keys),
          .format = p.format,
          .block_table = p.batch.block_table.as<int32_t>(),
          .max_pages = p.batch.block_table.shape[1],
          .token_seq = p.batch.token_seq.as<int32_t>(),
          .num_visible = p.num_visible.as<int32_t>(),
          .num_tokens = p.q.shape[0],
          .num_seqs = p.batch.num_seqs(),
          .old_keys = p.q.shape[0] == p.batch.num_seqs(),
          .num_heads = p.q.shape[1],
          .head_dim = p.q.shape[2],
          .max_visible = VisibleBound(p.batch)};
}

cuda::SparseAttentionArgs AttentionArgsOf(const SparseAttentionParams& p) {
  const int64_t k = p.ratio == 4 ? p.top_entries.shape[1] : 0;
  const int64_t dense =
      p.ratio == 128 ? p.batch.block_table.shape[1] * kDensePageEntries : int64_t{0};
  return {.q = p.q.as<uint16_t>(),
          .latents = p.latents.as<uint16_t>(),
          .positions = p.batch.positions.as<int32_t>(),
          .token_seq = p.batch.token_seq.as<int32_t>(),
          .seq_first = p.batch.seq_first.as<int32_t>(),
          .seq_slot = p.batch.seq_slot.as<int32_t>(),
          .block_table = p.batch.block_table.as<int32_t>(),
          .max_pages = p.batch.block_table.shape[1],
          .old_rows = p.q.shape[0] == p.batch.num_seqs(),
          .window = p.window,
          .ring = RowsOf(p.ring),
          .format = p.format,
          .ratio = p.ratio,
          .entries = p.ratio != 0 ? RowsOf(p.entries) : cuda::DeviceRows{},
          .top_entries = p.top_entries.as<int32_t>(),
          .k = k,
          .sink = p.sink.as<float>(),
          .freqs = p.freqs.as<float>(),
          .rope_dims = 2 * p.freqs.shape[0],
          .num_tokens = p.q.shape[0],
          .num_heads = p.q.shape[1],
          .head_dim = p.q.shape[2],
          .max_keys = p.window + k + dense};
}

// Checks, then launches the kernels of the op.
class CudaOps final : public Ops {
 public:
  std::string_view name() const override { return "cuda"; }

  int64_t PackedBytes(const MatrixSpec& spec) const override {
    return cuda::PackedScalesOffset(spec) + cuda::PackedScaleBytes(spec);
  }
  PackedWeight PackWeight(const MatrixSource& source, const TensorView& packed) const override;

  void EmbedTokens(const EmbedTokensParams& params, Stream& stream) const override {
    CheckEmbedTokens(params);
    CheckActivation(params.streams.dtype);
    cuda::LaunchEmbedTokens(params, On(stream));
  }
  int64_t HcPreScratchBytes(int64_t num_tokens, int64_t) const override {
    return cuda::HcPreScratchBytes(num_tokens);
  }
  void HcPre(const HcPreParams& params, Stream& stream) const override {
    CheckHcPre(params, cuda::HcPreScratchBytes(params.streams.shape[0]));
    CheckActivation(params.streams.dtype);
    cuda::LaunchHcPre(params, On(stream));
  }
  void HcPost(const HcPostParams& params, Stream& stream) const override {
    CheckHcPost(params);
    CheckActivation(params.streams.dtype);
    cuda::LaunchHcPost(params, On(stream));
  }
  void HcBoundary(const HcBoundaryParams& params, Stream& stream) const override {
    CheckHcPost(params.post);
    CheckHcPre(params.pre, cuda::HcPreScratchBytes(params.pre.streams.shape[0]));
    CHECK(params.post.streams.data == params.pre.streams.data)
        << "HcBoundary: the streams of HcPost and HcPre differ";
    CheckActivation(params.pre.streams.dtype);
    cuda::LaunchHcBoundary(params, On(stream));
  }
  void HcHead(const HcHeadParams& params, Stream& stream) const override {
    CheckHcHead(params);
    CheckActivation(params.streams.dtype);
    cuda::LaunchHcHead(params, On(stream));
  }
  int64_t LinearScratchBytes(int64_t num_tokens, int64_t k, bool round_fp8) const override {
    return cuda::LinearScratchBytes(num_tokens, k, round_fp8);
  }
  void Linear(const LinearParams& params, Stream& stream) const override {
    CheckLinear(params);
    CheckActivation(params.x.dtype);
    const int64_t needed =
        cuda::RoundsInputs(params)
            ? cuda::LinearScratchBytes(params.x.shape[0], params.x.shape[1], true)
            : 0;  // others are slower without
    CHECK(needed == 0 || (!params.scratch.empty() && params.scratch.num_bytes() >= needed))
        << "Linear: scratch is " << params.scratch.ShapeString() << ", want U8[" << needed << "]";
    cuda::LaunchLinear(params, On(stream));
  }
  void RmsNorm(const RmsNormParams& params, Stream& stream) const override {
    CheckRmsNorm(params);
    CheckActivation(params.x.dtype);
    cuda::LaunchRmsNorm(params, On(stream));
  }
  void QueryNormRope(const QueryNormRopeParams& params, Stream& stream) const override {
    CheckQueryNormRope(params);
    CheckActivation(params.q.dtype);
    cuda::LaunchQueryNormRope(params, On(stream));
  }
  void WindowLatent(const WindowLatentParams& params, Stream& stream) const override {
    CheckWindowLatent(params);
    CheckActivation(params.kv.dtype);
    cuda::LaunchWindowLatent(params, On(stream));
  }
  void StoreWindow(const StoreWindowParams& params, Stream& stream) const override {
    CheckStoreWindow(params);
    CheckActivation(params.latents.dtype);
    cuda::LaunchStoreWindow(params, On(stream));
  }
  void CompressKv(const CompressKvParams& params, Stream& stream) const override {
    CheckCompressKv(params);
    CheckActivation(params.act);
    cuda::LaunchCompressKv(params, On(stream));
  }
  void IndexQuery(const IndexQueryParams& params, Stream& stream) const override {
    CheckIndexQuery(params);
    CheckActivation(params.q.dtype);
    cuda::LaunchIndexQuery(params, On(stream));
  }
  void AttentionRows(const AttentionRowsParams& params, Stream& stream) const override {
    if (params.ring.latents.empty()) return Ops::AttentionRows(params, stream);
    CheckRmsNorm(params.query);
    CheckWindowLatent(params.window);
    CheckStoreWindow(params.ring);
    CHECK(params.ring.latents.data == params.window.latents.data &&
          params.ring.batch.num_tokens() == params.ring.batch.num_seqs())
        << "AttentionRows: " << params.ring.batch.num_tokens() << " tokens of "
        << params.ring.batch.num_seqs() << " sequences, want one each";
    for (const CompressKvParams* const compress : {&params.index_keys, &params.entries}) {
      if (compress->kv.empty()) continue;
      CheckCompressKv(*compress);
      CheckActivation(compress->act);
    }
    CheckActivation(params.query.x.dtype);
    CheckActivation(params.window.kv.dtype);
    cuda::LaunchAttentionRows(params, On(stream));
  }
  void QueryRows(const QueryRowsParams& params, Stream& stream) const override {
    CheckQueryNormRope(params.query);
    CheckIndexQuery(params.index);
    CheckActivation(params.query.q.dtype);
    CheckActivation(params.index.q.dtype);
    cuda::LaunchQueryRows(params, On(stream));
  }
  int64_t IndexTopKScratchBytes(int64_t num_tokens, int64_t max_visible) const override {
    return cuda::IndexTopKScratchBytes(num_tokens, RoundedVisible(max_visible));
  }
  void IndexTopK(const IndexTopKParams& params, Stream& stream) const override;
  int64_t SparseAttentionScratchBytes(int64_t max_keys, int64_t num_heads, int64_t head_dim,
                                      KvFormat format) const override;
  void SparseAttention(const SparseAttentionParams& params, Stream& stream) const override;
  void MoeRoute(const MoeRouteParams& params, Stream& stream) const override {
    CheckMoeRoute(params);
    CheckActivation(params.x.dtype);
    cuda::LaunchMoeRoute(params, On(stream));
  }
  int64_t MoeExpertsScratchBytes(int64_t num_tokens, int64_t experts_per_token, int64_t hidden,
                                 int64_t width, int64_t num_experts) const override {
    return cuda::MoeExpertsScratchBytes(num_tokens, experts_per_token, hidden, width, num_experts);
  }
  void MoeExperts(const MoeExpertsParams& params, Stream& stream) const override {
    CheckMoeExperts(params, cuda::MoeExpertsScratchBytes(
                                params.x.shape[0], params.experts.shape[1], params.x.shape[1],
                                params.routed.empty() ? 0 : params.routed[0].w1.n,
                                static_cast<int64_t>(params.routed.size())));
    CheckActivation(params.x.dtype);
    cuda::LaunchMoeExperts(params, On(stream));
  }
  void PackRows(const MoveRowsParams& params, Stream& stream) const override {
    CheckMoveRows(params);
    cuda::LaunchPackRows(params, On(stream));
  }
  void ScatterRows(const MoveRowsParams& params, Stream& stream) const override {
    CheckMoveRows(params);
    cuda::LaunchScatterRows(params, On(stream));
  }
};

PackedWeight CudaOps::PackWeight(const MatrixSource& source, const TensorView& packed) const {
  CheckMatrixSource(source, packed, PackedBytes(source.spec));
  const auto copy_rows = [](const TensorView& from, std::byte* to) {
    const int64_t bytes = from.shape[1] * BytesPerElement(from.dtype);
    for (int64_t row = 0; row < from.shape[0]; ++row, to += bytes) {
      std::memcpy(to, from.Rows(row, 1).data, static_cast<size_t>(bytes));
    }
  };
  copy_rows(source.values, packed.as<std::byte>());
  if (IsQuantised(source.spec.format)) {
    copy_rows(source.scales, packed.as<std::byte>() + cuda::PackedScalesOffset(source.spec));
  }
  return {source.spec, packed};
}

void CudaOps::IndexTopK(const IndexTopKParams& params, Stream& stream) const {
  CheckIndexTopK(params);
  CheckActivation(params.q.dtype);
  const int64_t bound = VisibleBound(params.batch);
  CHECK(params.scratch.num_bytes() >=
        cuda::IndexTopKScratchBytes(params.q.shape[0], bound))
      << "IndexTopK: scratch is " << params.scratch.ShapeString() << ", block tables allow "
      << bound << " entries";
  cuda::IndexTopKArgs args = {.index = ScoresArgsOf(params),
                              .k = static_cast<int32_t>(params.top_entries.shape[1]),
                              .top_entries = params.top_entries.as<int32_t>(),
                              .scratch = params.scratch.data};
  const cudaStream_t queue = On(stream);
  cuda::LaunchIndexTopK(args, queue);
  if (params.scores.empty()) return;
  args.index.scores = params.scores.as<float>();
  args.index.score_stride = params.scores.strides[0];
  args.index.max_visible = std::min(args.index.max_visible, params.scores.shape[1]);
  cuda::LaunchIndexScores(args.index, cuda::ChooseIndexScoresPath(args.index), queue);
}

// Splits of fixed length (determinism), of so many tokens at a time that the scratch is bounded.
constexpr int64_t kAttentionSliceTokens = 64;

int64_t CudaOps::SparseAttentionScratchBytes(int64_t max_keys, int64_t num_heads, int64_t head_dim,
                                             KvFormat) const {
  // A block table's last page may add entries that nothing sees yet.
  const cuda::SparseAttentionTile tile = {
      .path = cuda::AttentionPath::kTensorCore,
      .split = cuda::ChooseAttentionSplits(max_keys + kDensePageEntries),
      .cluster = {}};
  return cuda::SparseAttentionScratchBytes(kAttentionSliceTokens, num_heads, head_dim, tile);
}

void CudaOps::SparseAttention(const SparseAttentionParams& params, Stream& stream) const {
  CheckSparseAttention(params);
  CheckActivation(params.q.dtype);
  cuda::SparseAttentionArgs args = AttentionArgsOf(params);
  const cuda::SparseAttentionTile tile = cuda::ChooseSparseAttentionTile(args);
  args.scratch = params.scratch.data;
  const int64_t num_tokens = args.num_tokens;
  const bool whole = tile.split.splits == 1;
  const int64_t step = whole ? num_tokens : std::min(num_tokens, kAttentionSliceTokens);
  const int64_t needed =
      cuda::SparseAttentionScratchBytes(step, args.num_heads, args.head_dim, tile);
  CHECK(needed == 0 || params.scratch.num_bytes() >= needed)
      << "SparseAttention: scratch is " << params.scratch.ShapeString() << ", want U8[" << needed
      << "]";
  const cudaStream_t queue = On(stream);
  for (int64_t first = 0; first < num_tokens; first += step) {
    cuda::SparseAttentionArgs part = args;
    part.first_token = first;
    part.num_tokens = std::min(step, num_tokens - first);
    part.q = params.q.row<uint16_t>(first);
    part.latents = params.latents.row<uint16_t>(first);
    part.positions += first;
    part.token_seq += first;
    if (args.k > 0) part.top_entries = params.top_entries.row<int32_t>(first);
    part.out = params.out.row<uint16_t>(first);
    cuda::LaunchSparseAttention(part, tile, queue);
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<Ops>> MakeCudaOps(DeviceId device) {
  CHECK(!device.is_host()) << "CUDA ops of the device cpu";
  RETURN_IF_ERROR(OpenDevice(device));
  ASSIGN_OR_RETURN(const DeviceInfo info, DescribeDevice(device));
  if (!cuda::HasKernelsForCurrentDevice()) {
    return absl::UnavailableError("device " + Name(device) + ": this binary has no kernels for " +
                                  info.name + " (compute capability " +
                                  std::to_string(info.major) + "." + std::to_string(info.minor) +
                                  ")");
  }
  LOG(INFO) << Field("device", Name(device)) << info.name << ", "
            << (cuda::CurrentDevice().sm90 ? "kernels of sm_90a" : "portable kernels");
  return std::make_unique<CudaOps>();
}

}  // namespace lodestone
