// lodestone-bench-op: time of every CPU op at the bundled model's shapes beside the least time that
// this machine could need for it, from limits measured in the same run.
#include <thread>

#include <CLI/CLI.hpp>

#include "base/logging.h"
#include "bench/op_arena.h"
#include "bench/op_measure.h"
#include "kernels/ops.h"
#include "runtime/stream.h"

namespace lodestone::bench {
namespace {

// The bundled model (models/needle-tiny/config.json).
constexpr int64_t kHidden = 256, kStreams = 4, kHeads = 4, kHeadDim = 512, kWindow = 128;
constexpr int64_t kRopeDims = 64, kIndexHeads = 8, kIndexDim = 128, kTopK = 64;
constexpr int64_t kExperts = 8, kChosen = 2, kWidth = 128, kVocab = 1024;

class OpBench {
 public:
  // Ops whose name does not start with `only` are left out.
  OpBench(const Ops& ops, Stream& stream, const MachineLimits& limits, std::string only)
      : ops_(ops), stream_(stream), limits_(limits), only_(std::move(only)) {}

  void Run(int64_t num_tokens, int64_t first_position) {
    tokens_ = num_tokens;
    first_ = first_position;
    std::printf("\n%lld tokens from position %lld\n", static_cast<long long>(num_tokens),
                static_cast<long long>(first_position));
    Products();
    HyperConnection();
    Norms();
    Compressor(4, CompressedRow::kLatent, kHeadDim, "CompressKv ratio 4");
    Compressor(4, CompressedRow::kIndexKey, kIndexDim, "CompressKv ratio 4, index keys");
    Compressor(128, CompressedRow::kLatent, kHeadDim, "CompressKv ratio 128");
    Indexer();
    for (int64_t ratio : {0, 4, 128}) Attention(ratio);
    Experts();
    MoveRows();
  }

  // The least share over products with n, k >= 128.
  double least_product_share() const { return least_product_share_; }

 private:
  double T() const { return static_cast<double>(tokens_); }

  template <typename F>
  double Measure(const std::string& name, const Work& work, const F& call) {
    if (!name.starts_with(only_)) return 1e30;
    return Report(name, BestSeconds(call), work, limits_);
  }

  void Product(const char* name, int64_t n, int64_t k, int64_t groups, DType weight, DType out) {
    Arena arena;
    LinearParams params;
    params.x = arena.Random(DType::kBf16, {tokens_, groups * k});
    params.weight = arena.Weight(ops_, weight, n, k, groups);
    params.out = arena.Zeros(out, {tokens_, groups * n});
    const Work work{2.0 * T() * static_cast<double>(groups * n * k),
                    static_cast<double>(groups * n * k * BytesPerElement(weight))};
    const double share = Measure(std::string("Linear ") + name + " [" + std::to_string(groups * n) +
                                     ", " + std::to_string(k) + "]",
                                 work, [&] { ops_.Linear(params, stream_); });
    if (n >= 128 && k >= 128) least_product_share_ = std::min(least_product_share_, share);
  }

  void Products() {
    least_product_share_ = 1e30;
    Product("wq_a", 256, kHidden, 1, DType::kBf16, DType::kBf16);
    Product("wq_b", kHeads * kHeadDim, 256, 1, DType::kBf16, DType::kBf16);
    Product("wkv", kHeadDim, kHidden, 1, DType::kBf16, DType::kBf16);
    Product("wo_a", 128, 1024, 2, DType::kBf16, DType::kBf16);
    Product("wo_b", kHidden, 256, 1, DType::kBf16, DType::kBf16);
    Product("compressor", 2 * kHeadDim, kHidden, 1, DType::kBf16, DType::kF32);
    Product("index wq_b", kIndexHeads * kIndexDim, 256, 1, DType::kBf16, DType::kBf16);
    Product("index weights", kIndexHeads, kHidden, 1, DType::kBf16, DType::kBf16);
    Product("w1", kWidth, kHidden, 1, DType::kBf16, DType::kBf16);
    Product("w2", kHidden, kWidth, 1, DType::kBf16, DType::kBf16);
    Product("head", kVocab, kHidden, 1, DType::kBf16, DType::kF32);
  }

  void HyperConnection() {
    Arena arena;
    constexpr int64_t kMixes = kStreams * (kStreams + 2);
    HcPreParams pre;
    pre.streams = arena.Random(DType::kBf16, {tokens_, kStreams, kHidden});
    pre.fn = arena.Weight(ops_, DType::kF32, kMixes, kStreams * kHidden);
    pre.base = arena.Random(DType::kF32, {kMixes});
    pre.scale = arena.Random(DType::kF32, {3});
    pre.norm_weight = arena.Random(DType::kBf16, {kHidden});
    pre.rms_eps = pre.hc_eps = 1e-6f;
    pre.sinkhorn_iters = 20;
    pre.scratch = arena.Zeros(DType::kU8, {ops_.HcPreScratchBytes(tokens_, kStreams)});
    pre.x = arena.Zeros(DType::kBf16, {tokens_, kHidden});
    pre.post = arena.Zeros(DType::kF32, {tokens_, kStreams});
    pre.comb = arena.Zeros(DType::kF32, {tokens_, kStreams, kStreams});
    const double row = static_cast<double>(kStreams * kHidden * 2);
    Measure("HcPre", {2.0 * T() * kMixes * kStreams * kHidden, T() * row},
            [&] { ops_.HcPre(pre, stream_); });
    HcPostParams post{.x = pre.x, .post = pre.post, .comb = pre.comb, .streams = pre.streams};
    Measure("HcPost", {2.0 * T() * 20 * kHidden, 2 * T() * row},
            [&] { ops_.HcPost(post, stream_); });
  }

  void Norms() {
    Arena arena;
    const BatchIndex batch = OneSequence(arena, first_, tokens_);
    const TensorView freqs = arena.Random(DType::kF32, {kRopeDims / 2});
    const TensorView kv = arena.Random(DType::kBf16, {tokens_, kHeadDim});
    const TensorView weight = arena.Random(DType::kBf16, {kHeadDim});
    const TensorView out = arena.Zeros(DType::kBf16, {tokens_, kHeadDim});
    const double row = static_cast<double>(kHeadDim * 2);
    Measure("RmsNorm [512]", {0, 2 * T() * row},
            [&] { ops_.RmsNorm({.x = kv, .weight = weight, .eps = 1e-6f, .out = out}, stream_); });
    const TensorView q = arena.Random(DType::kBf16, {tokens_, kHeads, kHeadDim});
    Measure("QueryNormRope", {0, 2 * T() * kHeads * row}, [&] {
      ops_.QueryNormRope({.q = q, .positions = batch.positions, .freqs = freqs, .eps = 1e-6f},
                         stream_);
    });
    Measure("WindowLatent", {0, 2 * T() * row}, [&] {
      ops_.WindowLatent({.kv = kv,
                         .weight = weight,
                         .positions = batch.positions,
                         .freqs = freqs,
                         .eps = 1e-6f,
                         .latents = out},
                        stream_);
    });
    RowStore ring{arena.Zeros(DType::kU8, {1, kWindow, kHeadDim * 2}), {}};
    Measure("StoreWindow", {0, 2 * static_cast<double>(std::min(tokens_, kWindow)) * row}, [&] {
      ops_.StoreWindow({.latents = kv, .batch = batch, .rope_dims = kRopeDims, .ring = ring},
                       stream_);
    });
    const TensorView index_q = arena.Random(DType::kBf16, {tokens_, kIndexHeads, kIndexDim});
    const TensorView raw = arena.Random(DType::kBf16, {tokens_, kIndexHeads});
    const TensorView index_weight = arena.Zeros(DType::kF32, {tokens_, kIndexHeads});
    Measure("IndexQuery", {0, 2 * T() * kIndexHeads * kIndexDim * 2}, [&] {
      ops_.IndexQuery({.q = index_q,
                       .raw_weight = raw,
                       .positions = batch.positions,
                       .freqs = freqs,
                       .weight = index_weight},
                      stream_);
    });
  }

  void Compressor(int64_t ratio, CompressedRow row, int64_t channels, const char* name) {
    Arena arena;
    const int64_t width = ratio == 4 ? 2 * channels : channels;
    CompressKvParams params;
    params.kv = arena.Random(DType::kF32, {tokens_, width});
    params.score = arena.Random(DType::kF32, {tokens_, width});
    params.ape = arena.Random(DType::kF32, {ratio, width});
    params.norm_weight = arena.Random(DType::kBf16, {channels});
    params.freqs = arena.Random(DType::kF32, {kRopeDims / 2});
    params.ratio = ratio;
    params.eps = 1e-6f;
    params.batch = OneSequence(arena, first_, tokens_);
    params.row = row;
    const int64_t state_rows = ratio == 4 ? 8 : 128;
    params.state_kv = arena.Random(DType::kF32, {1, state_rows, width});
    params.state_score = arena.Random(DType::kF32, {1, state_rows, width});
    const int64_t pages = params.batch.block_table.shape[1];
    params.entries.payload = arena.Zeros(DType::kU8, {pages, kPageTokens / ratio, channels * 2});
    Measure(name, {0, 2 * T() * static_cast<double>(width) * 4},
            [&] { ops_.CompressKv(params, stream_); });
  }

  void Indexer() {
    Arena arena;
    IndexTopKParams params;
    params.batch = OneSequence(arena, first_, tokens_);
    const int64_t pages = params.batch.block_table.shape[1];
    params.q = arena.Random(DType::kBf16, {tokens_, kIndexHeads, kIndexDim});
    params.weight = arena.Random(DType::kF32, {tokens_, kIndexHeads});
    params.keys.payload = arena.Random(DType::kBf16, {pages, 64, kIndexDim});
    params.keys.payload.dtype = DType::kU8;
    params.keys.payload.shape[2] *= 2;
    params.keys.payload.strides = {64 * kIndexDim * 2, kIndexDim * 2, 1};
    params.num_visible = arena.Ints({tokens_}, 0, 0);
    double scores = 0;
    for (int64_t t = 0; t < tokens_; ++t) {
      params.num_visible.as<int32_t>()[t] = static_cast<int32_t>((first_ + t + 1) / 4);
      scores += static_cast<double>((first_ + t + 1) / 4);
    }
    params.scratch =
        arena.Zeros(DType::kU8, {ops_.IndexTopKScratchBytes(tokens_, (first_ + tokens_) / 4)});
    params.top_entries = arena.Zeros(DType::kI32, {tokens_, kTopK});
    const double key_bytes = static_cast<double>((first_ + tokens_) / 4 * kIndexDim * 2);
    Measure("IndexTopK", {2 * scores * kIndexHeads * kIndexDim, key_bytes},
            [&] { ops_.IndexTopK(params, stream_); });
  }

  void Attention(int64_t ratio) {
    Arena arena;
    SparseAttentionParams params;
    params.batch = OneSequence(arena, first_, tokens_);
    const int64_t pages = params.batch.block_table.shape[1];
    params.q = arena.Random(DType::kBf16, {tokens_, kHeads, kHeadDim});
    params.latents = arena.Random(DType::kBf16, {tokens_, kHeadDim});
    params.window = kWindow;
    params.ring.payload = arena.Zeros(DType::kU8, {1, kWindow, kHeadDim * 2});
    params.ratio = ratio;
    int64_t entries = 0;
    if (ratio != 0) {
      params.entries.payload = arena.Zeros(DType::kU8, {pages, kPageTokens / ratio, kHeadDim * 2});
      entries = ratio == 4 ? kTopK : first_ / ratio;
    }
    if (ratio == 4) {
      params.top_entries = arena.Zeros(DType::kI32, {tokens_, kTopK});
      for (int64_t t = 0; t < tokens_; ++t) {
        for (int32_t i = 0; i < kTopK; ++i) params.top_entries.row<int32_t>(t)[i] = i * 39;
      }
    }
    params.sink = arena.Zeros(DType::kF32, {kHeads});
    params.freqs = arena.Random(DType::kF32, {kRopeDims / 2});
    const int64_t most_keys = kWindow + first_ / 128 + tokens_ / 128 + kTopK + 1;
    params.scratch = arena.Zeros(
        DType::kU8, {ops_.SparseAttentionScratchBytes(most_keys, kHeads, kHeadDim, params.format)});
    params.out = arena.Zeros(DType::kBf16, {tokens_, kHeads, kHeadDim});
    const double keys = static_cast<double>(kWindow + entries);
    Measure("SparseAttention ratio " + std::to_string(ratio),
            {4 * T() * keys * kHeads * kHeadDim, T() * static_cast<double>(entries) * kHeadDim * 2},
            [&] { ops_.SparseAttention(params, stream_); });
  }

  void Experts() {
    Arena arena;
    const TensorView x = arena.Random(DType::kBf16, {tokens_, kHidden});
    MoeRouteParams route;
    route.x = x;
    route.gate = arena.Weight(ops_, DType::kBf16, kExperts, kHidden);
    route.bias = arena.Random(DType::kF32, {kExperts});
    route.ids = arena.Ints({tokens_}, 0, 0);
    route.experts = arena.Zeros(DType::kI32, {tokens_, kChosen});
    route.weights = arena.Zeros(DType::kF32, {tokens_, kChosen});
    Measure("MoeRoute", {2 * T() * kExperts * kHidden, T() * kHidden * 2},
            [&] { ops_.MoeRoute(route, stream_); });
    std::vector<ExpertWeights> experts;
    for (int64_t e = 0; e <= kExperts; ++e) {
      experts.push_back({arena.Weight(ops_, DType::kBf16, kWidth, kHidden),
                         arena.Weight(ops_, DType::kBf16, kWidth, kHidden),
                         arena.Weight(ops_, DType::kBf16, kHidden, kWidth)});
    }
    MoeExpertsParams params;
    params.x = x;
    params.experts = route.experts;
    params.weights = route.weights;
    params.routed = std::span(experts).first(kExperts);
    params.shared = &experts.back();
    params.limit = 10;
    params.scratch = arena.Zeros(
        DType::kU8, {ops_.MoeExpertsScratchBytes(tokens_, kChosen, kHidden, kWidth, kExperts)});
    params.out = arena.Zeros(DType::kBf16, {tokens_, kHidden});
    const double used = std::min<double>(kExperts, T() * kChosen) + 1;
    Measure("MoeExperts",
            {2 * T() * (kChosen + 1) * 3 * kHidden * kWidth, used * 3 * kHidden * kWidth * 2},
            [&] { ops_.MoeExperts(params, stream_); });
  }

  // The rows of these tokens of one ratio-4 layer.
  void MoveRows() {
    Arena arena;
    const int64_t rows = std::max<int64_t>(tokens_ / 4, 1);
    const TensorView cache = arena.Random(DType::kBf16, {rows, kHeadDim});
    const TensorView slot = arena.Zeros(DType::kU8, {rows * kHeadDim * 2});
    std::vector<RowRun> runs(1);
    runs[0].num_rows = rows;
    runs[0].num_parts = 1;
    runs[0].part[0] = cache.as<std::byte>();
    runs[0].part_bytes[0] = runs[0].part_stride[0] = kHeadDim * 2;
    RowDigests digests = {};
    const MoveRowsParams params{.runs = runs,
                                .slot = slot.as<std::byte>(),
                                .slot_bytes = slot.num_bytes(),
                                .digests = digests};
    const double bytes = static_cast<double>(slot.num_bytes());
    Measure("PackRows", {0, 2 * bytes}, [&] { ops_.PackRows(params, stream_); });
    Measure("ScatterRows", {0, 2 * bytes}, [&] { ops_.ScatterRows(params, stream_); });
  }

  const Ops& ops_;
  Stream& stream_;
  const MachineLimits& limits_;
  const std::string only_;
  int64_t tokens_ = 0;
  int64_t first_ = 0;
  double least_product_share_ = 0;
};

}  // namespace

int Main(int argc, char** argv) {
  int num_threads = static_cast<int>(std::thread::hardware_concurrency());
  int64_t context = 10240;
  bool force_avx2 = false;
  CLI::App app("Times the CPU ops beside this machine's limits");
  app.add_option("--threads", num_threads, "threads that share an op")->check(CLI::Range(1, 256));
  app.add_option("--context", context, "position of the first token")
      ->check(CLI::Range(512, 1 << 20));
  std::string only;
  app.add_option("--op", only, "only ops whose name starts with this");
  app.add_flag("--avx2", force_avx2, "use AVX2 even where AVX-512 exists");
  CLI11_PARSE(app, argc, argv);
  if (!CpuOpsSupported()) {
    std::fprintf(stderr, "this processor has no AVX2 and FMA\n");
    return 1;
  }
  const CpuIsa isa = !force_avx2 && CpuHas(CpuIsa::kAvx512) ? CpuIsa::kAvx512 : CpuIsa::kAvx2;
  ThreadPool pool(num_threads);
  Stream stream(&pool);
  const std::unique_ptr<Ops> ops = MakeCpuOps(num_threads, isa);
  const MachineLimits limits = MeasureLimits(SimdTableOf(isa), pool);
  std::printf("%s, %d threads: %.0f GFLOP/s, cache %.1f GB/s, memory %.1f GB/s\n",
              SimdTableOf(isa).name, num_threads, limits.flops / 1e9, limits.cache_bytes / 1e9,
              limits.memory_bytes / 1e9);
  OpBench bench(*ops, stream, limits, only);
  for (int64_t tokens : {512, 16, 1}) {
    bench.Run(tokens, context);
    if (tokens == 512 && bench.least_product_share() < 1e30) {
      std::printf("least share of the FMA peak, products with N, K >= 128 and 512 rows: %.2f\n",
                  bench.least_product_share());
    }
  }
  return 0;
}

}  // namespace lodestone::bench

int main(int argc, char** argv) { return lodestone::bench::Main(argc, argv); }
