// Times the ops around the DSA kernels at the Flash shape, each beside its bound in the same run.
//   ops_bench [results.json]
// Values are random; successive launches use other weights, so that the L2 cache holds none.

#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "bench/gpu/ceilings.cuh"
#include "bench/gpu/library_product.h"
#include "bench/gpu/sm_clock.cuh"
#include "kernels/cuda/op_launchers.h"
#include "kernels/cuda/packed_matrix.h"

namespace lodestone::cuda::bench {
namespace {

constexpr int64_t kHidden = 4096;
constexpr int64_t kStreams = 4;
constexpr int64_t kMixes = kStreams * (kStreams + 2);

template <typename T>
TensorView View(const DeviceArray<T>& array, DType dtype, std::initializer_list<int64_t> dims) {
  return TensorView(array.data(), dtype, dims, Device::kCuda);
}

// HcPost of one sub-layer and HcPre of the next, fused or as two ops. Every launch has its own fn,
// as in a model, so that it comes from memory; the streams are the same, as there.
void BenchBoundary(int64_t tokens, int64_t hidden, bool fused, Report& report) {
  const int launches = tokens > 256 ? 4 : 48;
  const int64_t mixes = kMixes * kStreams * hidden;
  const auto streams = Filled<uint16_t>(tokens * kStreams * hidden, FillKind::kBf16, 1);
  const auto y = Filled<uint16_t>(tokens * hidden, FillKind::kBf16, 2);
  const DeviceArray<uint16_t> x(static_cast<size_t>(tokens * hidden));
  const auto fn = Filled<float>(launches * mixes, FillKind::kMixF32, 3);
  const auto small = Filled<float>(64 + tokens * 32, FillKind::kF32, 4);
  const auto norm = Filled<uint16_t>(hidden, FillKind::kBf16, 5);
  const DeviceArray<uint8_t> scratch(static_cast<size_t>(HcPreScratchBytes(tokens)));
  const TensorView post(small->data() + 64, DType::kF32, {tokens, kStreams});
  const TensorView comb(small->data() + 64 + tokens * 8, DType::kF32, {tokens, kStreams, kStreams});
  const TensorView all = View(*streams, DType::kBf16, {tokens, kStreams, hidden});
  PackedWeight weight;
  weight.n = kMixes;
  weight.k = kStreams * hidden;
  const TimedRow row = TimeRow(launches, [&](int i, cudaStream_t stream) {
    weight.data = TensorView(fn->data() + i * mixes, DType::kF32, {kMixes, weight.k});
    const HcBoundaryParams params{
        .post = {.x = View(*y, DType::kBf16, {tokens, hidden}),
                 .post = post,
                 .comb = comb,
                 .streams = all},
        .pre = {.streams = all,
                .fn = weight,
                .base = TensorView(small->data(), DType::kF32, {kMixes}),
                .scale = TensorView(small->data() + 32, DType::kF32, {3}),
                .norm_weight = View(*norm, DType::kBf16, {hidden}),
                .rms_eps = 1e-6f,
                .hc_eps = 1e-6f,
                .sinkhorn_iters = 20,
                .scratch = View(scratch, DType::kU8, {static_cast<int64_t>(scratch.size())}),
                .x = View(x, DType::kBf16, {tokens, hidden}),
                .post = post,
                .comb = comb}};
    if (fused) return LaunchHcBoundary(params, stream);
    LaunchHcPost(params.post, stream);
    LaunchHcPre(params.pre, stream);
  });
  report.Add(fused ? "hc boundary" : "hc post, hc pre",
             std::to_string(tokens) + " tok, " + std::to_string(hidden), row.microseconds,
             {.bytes = static_cast<double>(tokens * hidden) * (2 * 2 * kStreams + 4) +
                       4.0 * static_cast<double>(mixes),
              .megahertz = row.megahertz});
}

std::string Shape(int64_t tokens, int64_t n, int64_t k, WeightFormat format) {
  return std::to_string(tokens) + " tok, " + std::to_string(n) + " x " + std::to_string(k) + " " +
         std::string(Name(format));
}

// FP8 and FP4 with rounded inputs, as their checkpoints ask for; beside bf16 what cuBLASLt takes.
void BenchLinear(int64_t tokens, int64_t n, int64_t k, WeightFormat format, Report& report) {
  const int64_t bytes = StoredWeightBytes(format, n, k);
  const int64_t variants = bytes < 80'000'000 ? 4 : 1;
  const auto x = Filled<uint16_t>(tokens * k, FillKind::kBf16, 1);
  const auto weights = Filled<uint16_t>(variants * bytes / 2 + 1, FillKind::kBf16, 2);
  const DeviceArray<uint16_t> out(static_cast<size_t>(tokens * n));
  const DeviceArray<uint16_t> scratch(static_cast<size_t>(tokens * k));
  const auto weight_of = [&](int i) {
    return weights->data() + i % variants * (bytes / 16 * 16) / 2;
  };
  const Work work = {.bytes = static_cast<double>(bytes + 2 * tokens * (n + k)),
                     .flops = 2.0 * static_cast<double>(tokens * n * k)};
  PackedWeight weight;
  weight.format = format;
  weight.n = n;
  weight.k = k;
  const double us = GraphMicroseconds(8, [&](int i, cudaStream_t stream) {
    weight.data = TensorView(weight_of(i), DType::kU8, {bytes}, Device::kCuda);
    LaunchLinear({.x = View(*x, DType::kBf16, {tokens, k}),
                  .weight = weight,
                  .round_fp8 = IsQuantised(format),
                  .scratch = View(scratch, DType::kU8, {2 * tokens * k}),
                  .out = View(out, DType::kBf16, {tokens, n})},
                 stream);
  });
  report.Add("linear", Shape(tokens, n, k, format), us, work);
  if (format != WeightFormat::kBf16) return;
  const LibraryProduct library(tokens, n, k);
  report.Add("the same, cuBLASLt", Shape(tokens, n, k, format),
             library.Microseconds(8, x->data(), weight_of, out.data()), work);
}

constexpr int64_t kExperts = 256;
constexpr int64_t kChosen = 6;
constexpr int64_t kWidth = 2048;

void BenchMoe(int64_t tokens, WeightFormat routed_format, WeightFormat shared_format,
              const DeviceArray<uint16_t>& weights, Report& report) {
  const auto x = Filled<uint16_t>(tokens * kHidden, FillKind::kBf16, 1);
  const auto gate = Filled<uint16_t>(kExperts * kHidden, FillKind::kBf16, 2);
  const auto bias = Filled<float>(kExperts, FillKind::kF32, 3);
  const DeviceArray<int32_t> experts(static_cast<size_t>(tokens * kChosen));
  const DeviceArray<float> shares(static_cast<size_t>(tokens * kChosen));
  const DeviceArray<uint16_t> out(static_cast<size_t>(tokens * kHidden));
  const int64_t scratch_bytes = MoeExpertsScratchBytes(tokens, kChosen, kHidden, kWidth, kExperts);
  const DeviceArray<uint8_t> scratch(static_cast<size_t>(scratch_bytes));
  PackedWeight gate_weight;
  gate_weight.n = kExperts;
  gate_weight.k = kHidden;
  gate_weight.data = View(*gate, DType::kBf16, {kExperts, kHidden});
  const TensorView input = View(*x, DType::kBf16, {tokens, kHidden});
  const TensorView chosen = View(experts, DType::kI32, {tokens, kChosen});
  const TensorView share = View(shares, DType::kF32, {tokens, kChosen});
  const double route_us = GraphMicroseconds(8, [&](int, cudaStream_t stream) {
    LaunchMoeRoute({.x = input,
                    .gate = gate_weight,
                    .bias = View(*bias, DType::kF32, {kExperts}),
                    .tid2eid = {},
                    .ids = {},
                    .scale = 1.5f,
                    .experts = chosen,
                    .weights = share},
                   stream);
  });
  report.Add("moe route", std::to_string(tokens) + " tok", route_us,
             {.bytes = 2.0 * static_cast<double>((kExperts + tokens) * kHidden),
              .flops = 2.0 * static_cast<double>(tokens * kExperts * kHidden)});
  std::vector<ExpertWeights> routed(kExperts + 1);
  int64_t at = 0;
  for (ExpertWeights& expert : routed) {
    for (PackedWeight* matrix : {&expert.w1, &expert.w3, &expert.w2}) {
      matrix->format = &expert == &routed.back() ? shared_format : routed_format;
      matrix->n = matrix == &expert.w2 ? kHidden : kWidth;
      matrix->k = matrix == &expert.w2 ? kWidth : kHidden;
      const int64_t bytes = PackedScalesOffset(*matrix) + PackedScaleBytes(*matrix);
      matrix->data = TensorView(weights.data() + at, DType::kU8, {bytes});
      at += bytes / 2;
    }
  }
  const double us = GraphMicroseconds(4, [&](int, cudaStream_t stream) {
    LaunchMoeExperts({.x = input,
                      .experts = chosen,
                      .weights = share,
                      .routed = std::span(routed).first(kExperts),
                      .shared = &routed.back(),
                      .limit = 10,
                      .round_fp8 = IsQuantised(routed_format),
                      .scratch = View(scratch, DType::kU8, {scratch_bytes}),
                      .out = View(out, DType::kBf16, {tokens, kHidden})},
                     stream);
  });
  std::vector<bool> touched(kExperts);
  for (const int32_t expert : experts.Read()) touched[static_cast<size_t>(expert)] = true;
  const double used = 1 + static_cast<double>(std::count(touched.begin(), touched.end(), true));
  report.Add(
      "moe experts",
      std::to_string(tokens) + " tok, " + std::to_string(static_cast<int>(used)) + " used " +
          std::string(Name(routed_format)),
      us,
      {.bytes = used * 3 * static_cast<double>(StoredWeightBytes(routed_format, kWidth, kHidden)),
       .flops = static_cast<double>(tokens * (kChosen + 1)) * 6 * kWidth * kHidden});
}

void BenchRows(int64_t tokens, Report& report) {
  constexpr int64_t kHeads = 64;
  constexpr int64_t kDims = 512;
  const auto q = Filled<uint16_t>(tokens * kHeads * kDims, FillKind::kBf16, 1);
  const auto freqs = Filled<float>(32, FillKind::kF32, 2);
  const auto weight = Filled<float>(tokens * kHeads, FillKind::kF32, 3);
  std::vector<int32_t> ascending(static_cast<size_t>(tokens));
  for (size_t i = 0; i < ascending.size(); ++i) ascending[i] = static_cast<int32_t>(i) + 1000;
  const DeviceArray<int32_t> positions(ascending);
  const TensorView places = View(positions, DType::kI32, {tokens});
  const TensorView angles = View(*freqs, DType::kF32, {32});
  const double norm_us = GraphMicroseconds(8, [&](int, cudaStream_t stream) {
    LaunchQueryNormRope({.q = View(*q, DType::kBf16, {tokens, kHeads, kDims}),
                         .positions = places,
                         .freqs = angles,
                         .eps = 1e-6f},
                        stream);
  });
  const double row_bytes = 4.0 * static_cast<double>(tokens * kHeads);
  report.Add("query norm rope", std::to_string(tokens) + " tok", norm_us,
             {.bytes = row_bytes * kDims});
  const double index_us = GraphMicroseconds(8, [&](int, cudaStream_t stream) {
    LaunchIndexQuery({.q = View(*q, DType::kBf16, {tokens, kHeads, 128}),
                      .raw_weight = View(*q, DType::kBf16, {tokens, kHeads}),
                      .positions = places,
                      .freqs = angles,
                      .rounding = IndexRounding::kFp4,
                      .weight = View(*weight, DType::kF32, {tokens, kHeads})},
                     stream);
  });
  report.Add("index query", std::to_string(tokens) + " tok", index_us, {.bytes = row_bytes * 128});
}

// The rows between an indexed layer's products in a decode step, and all that they read and write.
class AttentionRowsCase {
 public:
  static constexpr int64_t kDims = 512;
  static constexpr int64_t kIndexDims = 128;
  static constexpr int64_t kLowRank = 1024;

  explicit AttentionRowsCase(int64_t tokens)
      : tokens_(tokens),
        bf16_(Filled<uint16_t>(tokens * (kLowRank + 2 * kDims) + 4096, FillKind::kBf16, 1)),
        f32_(Filled<float>((tokens * 60 + 40) * kDims, FillKind::kF32, 2)),
        cache_(static_cast<size_t>(tokens * (128 + 64 + 64) * kDims * 2)),
        ints_(Numbers(tokens)) {
    batch_ = {.positions = Ints(0),
              .token_seq = Ints(1),
              .seq_first = Ints(2),
              .seq_tokens = Ints(4),
              .seq_slot = Ints(3),
              .block_table = TensorView(ints_.data() + 5 * tokens, DType::kI32, {tokens, 1024},
                                        Device::kCuda)};
    freqs_ = F32({32});
    const TensorView latents = Bf16(tokens, kDims);
    params_.query = {.x = Bf16(tokens, kLowRank), .eps = 1e-6f};
    params_.window = {.kv = Bf16(tokens, kDims),
                      .positions = batch_.positions,
                      .freqs = freqs_,
                      .eps = 1e-6f,
                      .latents = latents};
    params_.index_keys = Compress(CompressedRow::kIndexKey, kIndexDims);
    params_.entries = Compress(CompressedRow::kLatent, kDims);
    params_.ring = {.latents = latents,
                    .batch = batch_,
                    .rope_dims = 64,
                    .ring = Store(tokens, 128, kDims * 2)};
    params_.query.weight = params_.window.weight = Bf16(1, kLowRank);
    params_.query.out = params_.query.x;
    for (CompressKvParams* const part : {&params_.index_keys, &params_.entries}) {
      part->norm_weight = TensorView(part->norm_weight.data, DType::kBf16, {part->kv.shape[1] / 2});
    }
  }
  const AttentionRowsParams& params() const { return params_; }

 private:
  // Positions, token_seq, seq_first, seq_slot; seq_tokens; a block table, all in page 0.
  static std::vector<int32_t> Numbers(int64_t tokens) {
    std::vector<int32_t> numbers;
    for (int64_t i = 0; i < tokens; ++i) numbers.push_back(1003 + 4 * static_cast<int32_t>(i));
    for (int copy = 0; copy < 3; ++copy) {
      for (int64_t i = 0; i < tokens; ++i) numbers.push_back(static_cast<int32_t>(i));
    }
    numbers.insert(numbers.end(), static_cast<size_t>(tokens), 1);
    numbers.insert(numbers.end(), static_cast<size_t>(tokens * 1024), 0);
    return numbers;
  }
  TensorView Ints(int64_t i) const {
    return TensorView(ints_.data() + i * tokens_, DType::kI32, {tokens_}, Device::kCuda);
  }
  // The next of the buffer's values.
  TensorView Bf16(int64_t rows, int64_t columns) {
    bf16_at_ += rows * columns;
    return TensorView(bf16_->data() + bf16_at_ - rows * columns, DType::kBf16, {rows, columns});
  }
  TensorView F32(std::initializer_list<int64_t> dims) {
    const TensorView view(f32_->data() + f32_at_, DType::kF32, dims);
    f32_at_ += view.num_elements();
    return view;
  }
  RowStore Store(int64_t blocks, int64_t rows, int64_t row_bytes) {
    const TensorView view(cache_.data() + cache_at_, DType::kU8, {blocks, rows, row_bytes});
    cache_at_ += view.num_bytes();
    return {.payload = view};
  }
  CompressKvParams Compress(CompressedRow row, int64_t dims) {
    return {.kv = F32({tokens_, 2 * dims}),
            .score = F32({tokens_, 2 * dims}),
            .ape = F32({4, 2 * dims}),
            .norm_weight = Bf16(1, dims),
            .freqs = freqs_,
            .ratio = 4,
            .eps = 1e-6f,
            .batch = batch_,
            .row = row,
            .state_kv = F32({tokens_, 8, 2 * dims}),
            .state_score = F32({tokens_, 8, 2 * dims}),
            .entries = Store(1, 64, dims * 2)};
  }

  const int64_t tokens_;
  const decltype(Filled<uint16_t>(0, FillKind::kBf16, 1)) bf16_;
  const decltype(Filled<float>(0, FillKind::kF32, 1)) f32_;
  const DeviceArray<uint8_t> cache_;
  const DeviceArray<int32_t> ints_;
  int64_t bf16_at_ = 0, f32_at_ = 0, cache_at_ = 0;
  BatchIndex batch_;
  TensorView freqs_;
  AttentionRowsParams params_;
};

// One launch, or one an op.
void BenchAttentionRows(int64_t tokens, bool fused, Report& report) {
  using Case = AttentionRowsCase;
  const Case rows(tokens);
  const AttentionRowsParams& params = rows.params();
  const double us = GraphMicroseconds(16, [&](int, cudaStream_t stream) {
    if (fused) return LaunchAttentionRows(params, stream);
    LaunchRmsNorm(params.query, stream);
    LaunchWindowLatent(params.window, stream);
    LaunchCompressKv(params.index_keys, stream);
    LaunchCompressKv(params.entries, stream);
    LaunchStoreWindow(params.ring, stream);
  });
  report.Add(fused ? "attention rows" : "the same, apart", std::to_string(tokens) + " tok", us,
             {.bytes = static_cast<double>(tokens) * (2.0 * (2 * Case::kLowRank + 3 * Case::kDims) +
                                                      16.0 * (Case::kDims + Case::kIndexDims))});
}

int Main(int argc, char** argv) {
  cudaDeviceProp card{};
  CUDA_CHECK(cudaGetDeviceProperties(&card, 0));
  Report report(MeasureCeilings());
  AwaitFullClock();
  for (int64_t tokens : {1, 8, 16, 32, 64, 128, 4096}) {
    BenchBoundary(tokens, kHidden, true, report);
  }
  for (int64_t tokens : {1, 32}) {
    BenchBoundary(tokens, kHidden, false, report);
    BenchBoundary(tokens, 7168, true, report);
  }
  constexpr WeightFormat kFormats[] = {WeightFormat::kBf16, WeightFormat::kFp8, WeightFormat::kFp4};
  for (const WeightFormat format : kFormats) {
    for (int64_t tokens : {1, 16, 64}) {
      BenchLinear(tokens, 4096, 4096, format, report);
      BenchLinear(tokens, 1024, 4096, format, report);
      BenchLinear(tokens, 32768, 1024, format, report);
    }
    for (int64_t tokens : {128, 256, 512}) {
      BenchLinear(tokens, 4096, 4096, format, report);
      BenchLinear(tokens, 32768, 1024, format, report);
    }
    BenchLinear(4096, 4096, 4096, format, report);
    BenchLinear(4096, 32768, 1024, format, report);
  }
  BenchLinear(1, 129280, 4096, WeightFormat::kBf16, report);
  for (int64_t tokens : {1, 32, 4096}) BenchRows(tokens, report);
  for (int64_t tokens : {1, 32}) {
    for (const bool fused : {true, false}) BenchAttentionRows(tokens, fused, report);
  }
  const auto experts = Filled<uint16_t>((kExperts + 1) * 3 * kWidth * kHidden, FillKind::kBf16, 9);
  for (int64_t tokens : {1, 32, 512, 2048, 4096}) {
    BenchMoe(tokens, WeightFormat::kBf16, WeightFormat::kBf16, *experts, report);
    BenchMoe(tokens, WeightFormat::kFp4, WeightFormat::kFp8, *experts, report);
  }
  CUDA_CHECK(cudaDeviceSynchronize());
  if (argc > 1) report.WriteJson(argv[1], card.name);
  return 0;
}

}  // namespace
}  // namespace lodestone::cuda::bench

int main(int argc, char** argv) { return lodestone::cuda::bench::Main(argc, argv); }
