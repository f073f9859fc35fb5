// Times the DSA kernels on this card beside what the card can read and multiply in the same run.
//   dsa_bench [results.json [only]]     only: index, topk, attention, or topk-tiles (every tile)
// Pages lie in random order, values are random, and successive launches use other pages. Each row
// says at which clock the multiprocessors ran: near the card's power limit it is lower, and is so
// for a while after rows that took much power.

#include <algorithm>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "bench/gpu/ceilings.cuh"
#include "bench/gpu/device_array.h"
#include "bench/gpu/measure.h"
#include "bench/gpu/sm_clock.cuh"
#include "kernels/cuda/launchers.h"

namespace lodestone::cuda::bench {
namespace {

constexpr int kVariants = 8;  // of the inputs, used in turn
constexpr int64_t kEntriesPerPage = 64;
constexpr int64_t kIndexHeads = 64;
constexpr int64_t kIndexDims = 128;

// `count` random pages of a pool; no page twice unless the pool is smaller.
std::vector<int32_t> RandomPages(int64_t count, int64_t pool_pages, std::mt19937& random) {
  std::vector<int32_t> pages(pool_pages);
  std::iota(pages.begin(), pages.end(), 0);
  std::shuffle(pages.begin(), pages.end(), random);
  std::vector<int32_t> result(count);
  for (int64_t i = 0; i < count; ++i) result[i] = pages[i % pool_pages];
  return result;
}

struct IndexPool {
  IndexPool(IndexKeyFormat key_format, int64_t num_pages) : format(key_format), pages(num_pages) {
    const RowBytes bytes = IndexKeyRowBytes(format, kIndexDims);
    const int64_t rows = pages * kEntriesPerPage;
    if (format == IndexKeyFormat::kBf16) {
      payload = Filled<uint8_t>(rows * bytes.payload, FillKind::kBytes, 3);
      FillKernel<<<2048, 256>>>(payload->data(), rows * kIndexDims, FillKind::kBf16, 3);
    } else {
      const bool fp8 = format == IndexKeyFormat::kFp8;
      payload = Filled<uint8_t>(rows * bytes.payload, fp8 ? FillKind::kE4m3 : FillKind::kBytes, 3);
      scale = Filled<uint8_t>(rows * bytes.scale, FillKind::kE8m0, 4);
      if (fp8) FillKernel<<<2048, 256>>>(scale->data(), rows, FillKind::kKeyScale, 4);
    }
  }
  DeviceRows rows() const {
    const RowBytes bytes = IndexKeyRowBytes(format, kIndexDims);
    return {.payload = payload->data(),
            .scale = scale ? scale->data() : nullptr,
            .payload_block_stride = kEntriesPerPage * bytes.payload,
            .scale_block_stride = kEntriesPerPage * bytes.scale,
            .num_blocks = pages};
  }
  IndexKeyFormat format;
  int64_t pages;
  std::unique_ptr<DeviceArray<uint8_t>> payload, scale;
};

// `tokens_per_seq` 1 is decode; more is prefill with every entry visible.
void BenchIndex(const IndexPool& pool, int64_t entries, int64_t num_seqs, int64_t tokens_per_seq,
                bool select, Report& report) {
  std::mt19937 random(7);
  const int64_t tokens = num_seqs * tokens_per_seq;
  const int64_t pages = entries / kEntriesPerPage;
  // With fp4 keys queries are rounded to fp4, too.
  const auto q =
      Filled<uint16_t>(tokens * kIndexHeads * kIndexDims,
                       pool.format == IndexKeyFormat::kFp4 ? FillKind::kE2m1 : FillKind::kBf16, 5);
  const auto weight = Filled<float>(tokens * kIndexHeads, FillKind::kF32, 6);
  const int64_t per_variant = num_seqs * pages;
  const DeviceArray<int32_t> tables(RandomPages(per_variant * kVariants, pool.pages, random));
  std::vector<int32_t> seqs(tokens);
  for (int64_t t = 0; t < tokens; ++t) seqs[t] = static_cast<int32_t>(t / tokens_per_seq);
  const DeviceArray<int32_t> token_seq(seqs);
  const DeviceArray<int32_t> visible(std::vector<int32_t>(tokens, static_cast<int32_t>(entries)));
  const DeviceArray<float> scores(static_cast<size_t>(tokens * entries));
  const DeviceArray<int32_t> top(static_cast<size_t>(tokens * 512));
  IndexScoresArgs args = {.q = q->data(),
                          .weight = weight->data(),
                          .keys = pool.rows(),
                          .format = pool.format,
                          .max_pages = pages,
                          .token_seq = token_seq.data(),
                          .num_visible = visible.data(),
                          .num_tokens = tokens,
                          .num_seqs = num_seqs,
                          .old_keys = tokens_per_seq == 1,
                          .num_heads = kIndexHeads,
                          .head_dim = kIndexDims,
                          .max_visible = entries,
                          .scores = scores.data(),
                          .score_stride = entries};
  const TimedRow row = TimeRow(16, [&](int i, cudaStream_t stream) {
    args.block_table = tables.data() + i % kVariants * per_variant;
    LaunchIndexScores(args, ChooseIndexScoresPath(args), stream);
    if (!select) return;
    LaunchTopK({.scores = scores.data(),
                .score_stride = entries,
                .num_visible = visible.data(),
                .num_rows = tokens,
                .max_visible = entries,
                .k = 512,
                .top_entries = top.data()},
               ChooseTopKTile(tokens, entries, CurrentDevice().processors), stream);
  });
  const double key_bytes = static_cast<double>(IndexKeyRowBytes(pool.format, kIndexDims).total());
  const double keys = static_cast<double>(num_seqs * entries);
  const double scored = static_cast<double>(tokens * entries);
  // Products of integers, which fp4 keys take, run at twice the rate of bf16.
  const double product = pool.format == IndexKeyFormat::kFp4 ? 1 : 2;
  report.Add(std::string(select ? "index+topk " : "index ") + std::string(Name(pool.format)),
             std::to_string(tokens) + " tok x " + std::to_string(entries), row.microseconds,
             {.bytes = keys * key_bytes + scored * 4,
              .flops = scored * product * kIndexHeads * kIndexDims,
              .megahertz = row.megahertz});
}

void BenchIndexAll(Report& report) {
  for (IndexKeyFormat format :
       {IndexKeyFormat::kBf16, IndexKeyFormat::kFp8, IndexKeyFormat::kFp4}) {
    const IndexPool pool(format, 1 << 17);
    for (int64_t entries : {1024, 8192, 32768}) {
      for (int64_t seqs : {1, 8, 32, 128}) BenchIndex(pool, entries, seqs, 1, false, report);
    }
    BenchIndex(pool, 262144, 1, 1, false, report);
    BenchIndex(pool, 262144, 8, 1, false, report);
    BenchIndex(pool, 32768, 1, 2048, false, report);
    BenchIndex(pool, 32768, 32, 1, true, report);
    BenchIndex(pool, 32768, 1, 1, true, report);
  }
}

void BenchTopK(int64_t rows, int64_t entries, const TopKTile& tile, Report& report) {
  const auto scores = Filled<float>(kVariants * rows * entries, FillKind::kF32, 9);
  const DeviceArray<int32_t> visible(std::vector<int32_t>(rows, static_cast<int32_t>(entries)));
  const DeviceArray<int32_t> top(static_cast<size_t>(rows * 512));
  const TimedRow row = TimeRow(16, [&](int i, cudaStream_t stream) {
    LaunchTopK({.scores = scores->data() + i % kVariants * rows * entries,
                .score_stride = entries,
                .num_visible = visible.data(),
                .num_rows = rows,
                .max_visible = entries,
                .k = 512,
                .top_entries = top.data()},
               tile, stream);
  });
  const std::string blocks = std::to_string(tile.cluster) + "x" + std::to_string(tile.per_thread);
  report.Add("topk 512, " + (tile.held ? "held" : blocks),
             std::to_string(rows) + " x " + std::to_string(entries), row.microseconds,
             {.bytes = static_cast<double>(rows * entries * 4), .megahertz = row.megahertz});
}

void BenchTopKAll(Report& report) {
  const auto bench = [&](int64_t rows, int64_t entries) {
    BenchTopK(rows, entries, ChooseTopKTile(rows, entries, CurrentDevice().processors), report);
  };
  for (int64_t entries : {1024, 8192, 32768, 262144}) {
    for (int64_t rows : {1, 8, 32, 64, 128}) bench(rows, entries);
  }
  for (int64_t entries : {1024, 8192, 32768}) bench(1024, entries);
}

void BenchTopKTiles(Report& report) {
  for (int64_t entries : {8192, 32768, 262144}) {
    for (int64_t rows : {1, 32, 64}) {
      for (int cluster : {1, 2, 4, 8}) {
        for (int per_thread : {16, 32, 64}) {
          BenchTopK(rows, entries, {.cluster = cluster, .per_thread = per_thread}, report);
        }
      }
    }
  }
}

// `tokens` requests of one token each, or one request's tokens (`prefill`), with 128 + k keys.
void BenchAttention(const DeviceArray<uint8_t>& pool, int64_t tokens, int64_t heads, int64_t k,
                    bool prefill, Report& report) {
  constexpr int64_t kDims = 512;
  constexpr int64_t kContext = 131072;
  constexpr int64_t kWindow = 128;
  constexpr int64_t kPages = kContext / kPageTokens;
  std::mt19937 random(7);
  const int64_t seqs = prefill ? 1 : tokens;
  const int64_t pool_pages = static_cast<int64_t>(pool.size()) / (kEntriesPerPage * 1024);
  const auto q = Filled<uint16_t>(tokens * heads * kDims, FillKind::kBf16, 5);
  const auto latents = Filled<uint16_t>(tokens * kDims, FillKind::kBf16, 6);
  const auto sink = Filled<float>(heads, FillKind::kF32, 7);
  const auto freqs = Filled<float>(32, FillKind::kF32, 8);
  const DeviceArray<uint16_t> out(static_cast<size_t>(tokens * heads * kDims));
  const DeviceArray<int32_t> tables(RandomPages(kVariants * seqs * kPages, pool_pages, random));
  std::vector<int32_t> positions, token_seq, seq_first, seq_slot, top;
  for (int64_t t = 0; t < tokens; ++t) {
    positions.push_back(static_cast<int32_t>(prefill ? kContext - tokens + t : kContext - 1));
    token_seq.push_back(static_cast<int32_t>(prefill ? 0 : t));
    if (t < seqs) seq_first.push_back(static_cast<int32_t>(t));
    if (t < seqs) seq_slot.push_back(static_cast<int32_t>(t));
    std::vector<int32_t> chosen(k);
    for (int32_t& entry : chosen) entry = static_cast<int32_t>(random() % (kContext / 4));
    std::sort(chosen.begin(), chosen.end());
    top.insert(top.end(), chosen.begin(), chosen.end());
  }
  const DeviceArray<int32_t> d_positions(positions), d_token_seq(token_seq), d_first(seq_first),
      d_slot(seq_slot), d_top(top);
  SparseAttentionArgs args = {
      .q = q->data(),
      .latents = latents->data(),
      .positions = d_positions.data(),
      .token_seq = d_token_seq.data(),
      .seq_first = d_first.data(),
      .seq_slot = d_slot.data(),
      .max_pages = kPages,
      .old_rows = !prefill,
      .window = kWindow,
      .ring = {pool.data(), nullptr, kWindow * 1024, 0, seqs},
      .ratio = 4,
      .entries = {pool.data(), nullptr, kEntriesPerPage * 1024, 0, pool_pages},
      .top_entries = d_top.data(),
      .k = k,
      .sink = sink->data(),
      .freqs = freqs->data(),
      .rope_dims = 64,
      .num_tokens = tokens,
      .num_heads = heads,
      .head_dim = kDims,
      .max_keys = kWindow + k,
      .out = out.data()};
  const SparseAttentionTile tile = ChooseSparseAttentionTile(args);
  const DeviceArray<uint8_t> scratch(
      static_cast<size_t>(SparseAttentionScratchBytes(tokens, heads, kDims, tile)));
  args.scratch = scratch.data();
  const TimedRow row = TimeRow(prefill ? 4 : 16, [&](int i, cudaStream_t stream) {
    args.block_table = tables.data() + i % kVariants * seqs * kPages;
    LaunchSparseAttention(args, tile, stream);
  });
  const double keys = static_cast<double>(tokens * (kWindow + k));
  report.Add(prefill ? "attention prefill" : "attention decode",
             std::to_string(tokens) + " tok, " + std::to_string(heads) + " h, " +
                 std::to_string(kWindow + k) + " keys",
             row.microseconds,
             {.bytes = (prefill ? 0 : keys * 1024) + static_cast<double>(tokens * heads) * 2048,
              .flops = keys * 4 * kDims * static_cast<double>(heads),
              .megahertz = row.megahertz});
}

void BenchAttentionAll(Report& report) {
  const DeviceArray<uint8_t> pool(size_t{1} << 30);
  FillKernel<<<2048, 256>>>(pool.data(), static_cast<int64_t>(pool.size()) / 2, FillKind::kBf16, 4);
  CUDA_CHECK(cudaGetLastError());
  for (int64_t tokens : {1, 2, 4, 8, 16, 32, 64, 128, 256}) {
    BenchAttention(pool, tokens, 64, 512, false, report);
  }
  for (int64_t tokens : {1, 32, 128}) BenchAttention(pool, tokens, 128, 1024, false, report);
  BenchAttention(pool, 4096, 64, 512, true, report);
  BenchAttention(pool, 4096, 64, 1024, true, report);
}

int Main(int argc, char** argv) {
  const std::string only = argc > 2 ? argv[2] : "";
  cudaDeviceProp card{};
  CUDA_CHECK(cudaGetDeviceProperties(&card, 0));
  const Ceilings ceilings = MeasureCeilings();
  std::printf("%s, %d SMs; read %.2f TB/s, bf16 product %.0f TFLOP/s\n", card.name,
              card.multiProcessorCount, ceilings.read_bytes * 1e-12, ceilings.bf16_flops * 1e-12);
  Report report(ceilings);
  if (only.empty() || only == "index") BenchIndexAll(report);
  if (only.empty() || only == "topk") BenchTopKAll(report);
  if (only == "topk-tiles") BenchTopKTiles(report);
  if (only.empty() || only == "attention") BenchAttentionAll(report);
  CUDA_CHECK(cudaDeviceSynchronize());
  if (argc > 1) report.WriteJson(argv[1], card.name);
  return 0;
}

}  // namespace
}  // namespace lodestone::cuda::bench

int main(int argc, char** argv) { return lodestone::cuda::bench::Main(argc, argv); }
