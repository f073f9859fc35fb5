#include <algorithm>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "tests/gpu/check.h"
#include "tests/gpu/dsa_case.h"

// Index scores of so many tiles that the blocks of a launch deal them among each other, or divide
// them by more than their number.
namespace lodestone::cuda {
namespace {

// Block tables and lengths that let few pages serve as the many of long sequences.
struct RepeatedPages {
  RepeatedPages(IndexCase& input, const std::vector<int32_t>& lengths, int64_t pages_per_seq)
      : visible(lengths) {
    std::mt19937 random(3);
    std::vector<int32_t> pages(lengths.size() * static_cast<size_t>(pages_per_seq));
    for (int32_t& page : pages) {
      const size_t any = random() % input.batch.block_table.size();
      page = std::max(input.batch.block_table[any], 0);
    }
    table = std::make_unique<DeviceArray<int32_t>>(pages);
    args = input.Args();
    args.block_table = table->data();
    args.max_pages = pages_per_seq;
    args.num_visible = visible.data();
    args.max_visible = args.score_stride = *std::max_element(lengths.begin(), lengths.end());
  }
  DeviceArray<int32_t> visible;
  std::unique_ptr<DeviceArray<int32_t>> table;
  IndexScoresArgs args;
};

// Scores of all sequences, by launches on two streams at a time.
std::vector<float> ComputeOnTwoStreams(IndexScoresArgs args, int launches) {
  const int64_t size = args.num_tokens * args.score_stride;
  const DeviceArray<float> scores(static_cast<size_t>(size * launches));
  cudaStream_t streams[2] = {};
  for (cudaStream_t& stream : streams) CUDA_CHECK(cudaStreamCreate(&stream));
  CUDA_CHECK(cudaDeviceSynchronize());
  for (int i = 0; i < launches; ++i) {
    args.scores = scores.data() + i * size;
    LaunchIndexScores(args, IndexScoresPath::kTensorCore, streams[i % 2]);
  }
  for (cudaStream_t stream : streams) {
    CUDA_CHECK(cudaStreamSynchronize(stream));
    CUDA_CHECK(cudaStreamDestroy(stream));
  }
  EXPECT_TRUE(scores.guards_intact());
  return scores.Read();
}

// 40 tokens take another way to a block's share than up to 32. A sequence alone has too few tiles
// for what divides work here.
void ExpectBitsOfTokensAlone(IndexKeyFormat format) {
  constexpr int kLaunches = 6;
  const std::vector<SeqPart> parts(40, {2047, 1});
  IndexCase input(parts, {.format = format, .round_queries_to_fp4 = true}, 17);
  for (int64_t tokens : {int64_t{9}, int64_t{32}, int64_t{40}}) {
    std::vector<int32_t> lengths(parts.size(), 0);
    for (int64_t t = 0; t < tokens; ++t) {
      const int64_t length = 64 * 18000 / tokens - 1000 * t % 7001;
      lengths[t] = t == 3 ? 0 : t == 5 ? 1 : static_cast<int32_t>(length);
    }
    RepeatedPages repeated(input, lengths, 64 * 18000 / tokens / 64 + 1);
    repeated.args.num_tokens = repeated.args.num_seqs = tokens;
    const std::vector<float> alone = ComputeScoresOneByOne(repeated.args);
    const std::vector<float> all = ComputeOnTwoStreams(repeated.args, kLaunches);
    for (int i = 0; i < kLaunches; ++i) {
      const float* const launch = all.data() + i * alone.size();
      for (size_t j = 0; j < alone.size(); ++j) {
        ASSERT_EQ(std::memcmp(&launch[j], &alone[j], 4), 0)
            << tokens << " tokens, launch " << i << ", element " << j << ": " << launch[j]
            << " and " << alone[j];
      }
    }
  }
}

// So many tiles that blocks draw tickets for most of them.
TEST(IndexScoresTest, DealtTilesGiveTheSameBits) { ExpectBitsOfTokensAlone(IndexKeyFormat::kBf16); }

// So many tiles that a token's start counts as some of them.
TEST(IndexScoresTest, StartsThatCountAsTilesGiveTheSameBits) {
  ExpectBitsOfTokensAlone(IndexKeyFormat::kFp4);
}

}  // namespace
}  // namespace lodestone::cuda
