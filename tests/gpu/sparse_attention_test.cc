#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "kernels/numeric/bf16.h"
#include "tests/gpu/check.h"
#include "tests/gpu/dsa_case.h"

namespace lodestone::cuda {
namespace {

std::vector<uint16_t> Compute(AttentionCase& input, const SparseAttentionTile& tile) {
  SparseAttentionArgs args = input.Args();
  const DeviceArray<uint8_t> scratch(static_cast<size_t>(
      SparseAttentionScratchBytes(args.num_tokens, args.num_heads, args.head_dim, tile)));
  const DeviceArray<uint16_t> out(input.q.size());
  args.scratch = scratch.data();
  args.out = out.data();
  LaunchSparseAttention(args, tile, nullptr);
  CUDA_CHECK(cudaDeviceSynchronize());
  EXPECT_TRUE(out.guards_intact() && scratch.guards_intact());
  return out.Read();
}

SparseAttentionTile TensorCore(int splits, int steps_per_split) {
  return {.path = AttentionPath::kTensorCore,
          .split = {.splits = splits, .steps_per_split = steps_per_split},
          .cluster = {}};
}
SparseAttentionTile Cluster(int heads, int blocks) {
  return {.path = AttentionPath::kCluster, .split = {}, .cluster = {heads, blocks}};
}

// Probabilities are rounded to bf16 relative to the largest score so far, the reference's relative
// to the largest of all, and the result is rounded twice: two units of bf16 of the row's largest
// value, and 1e-2 of the whole in the mean square.
void ExpectClose(const std::vector<uint16_t>& got, const std::vector<uint16_t>& want, int64_t dims,
                 const std::string& what) {
  double error = 0;
  double total = 0;
  for (size_t first = 0; first < want.size(); first += static_cast<size_t>(dims)) {
    float largest = 0;
    for (int64_t i = 0; i < dims; ++i) {
      largest = std::fmax(largest, std::fabs(Bf16ToFloat(want[first + i])));
    }
    for (int64_t i = 0; i < dims; ++i) {
      const float a = Bf16ToFloat(got[first + i]);
      const float b = Bf16ToFloat(want[first + i]);
      ASSERT_LE(std::fabs(a - b), largest / 64)
          << what << " element " << first + i << " got " << a << " want " << b;
      error += static_cast<double>(a - b) * static_cast<double>(a - b);
      total += static_cast<double>(b) * static_cast<double>(b);
    }
  }
  EXPECT_LE(std::sqrt(error / total), 1e-2) << what;
}

void ExpectMatchesReference(const std::vector<SeqPart>& parts, const AttentionShape& shape,
                            const std::vector<SparseAttentionTile>& tiles) {
  AttentionCase input(parts, shape, 31);
  const std::vector<uint16_t> want = input.ReferenceOut();
  for (const SparseAttentionTile& tile : tiles) {
    const std::string what = "heads " + std::to_string(shape.num_heads) + " ratio " +
                             std::to_string(shape.ratio) + " path " +
                             std::to_string(static_cast<int>(tile.path)) + " splits " +
                             std::to_string(tile.split.splits);
    ExpectClose(Compute(input, tile), want, shape.head_dim, what);
  }
}

const std::vector<SeqPart> kDecode = {{0, 1},   {1, 1},   {63, 1},   {126, 1},  {127, 1},
                                      {128, 1}, {255, 1}, {1023, 1}, {2047, 1}, {3000, 1}};
const std::vector<SeqPart> kPrefill = {{0, 5}, {120, 12}, {500, 3}, {2100, 4}};
const SparseAttentionTile kPortable = {};
const SparseAttentionTile kPrefillTile = {
    .path = AttentionPath::kPrefill, .split = {}, .cluster = {}};
constexpr ClusterShape kClusters[] = {{16, 16}, {32, 16}, {64, 16}, {16, 8},
                                      {32, 8},  {64, 8},  {64, 4},  {64, 2}};

TEST(SparseAttentionTest, DecodeMatchesReference) {
  for (int64_t ratio : {0, 4, 128}) {
    ExpectMatchesReference(
        kDecode, {.ratio = ratio},
        {kPortable, kPrefillTile, TensorCore(1, 64), TensorCore(3, 4), TensorCore(10, 1),
         Cluster(16, 16), Cluster(32, 16), Cluster(64, 16), Cluster(16, 8), Cluster(32, 8),
         Cluster(64, 8), Cluster(64, 4), Cluster(64, 2)});
  }
}

TEST(SparseAttentionTest, PrefillMatchesReference) {
  for (int64_t ratio : {0, 4, 128}) {
    ExpectMatchesReference(kPrefill, {.num_heads = 16, .ratio = ratio},
                           {kPortable, kPrefillTile, TensorCore(1, 64), TensorCore(2, 5),
                            Cluster(16, 16), Cluster(16, 8), Cluster(64, 4), Cluster(64, 2)});
  }
}

TEST(SparseAttentionTest, AnyNumberOfHeadsMatchesReference) {
  for (int64_t heads : {4, 20, 96, 128}) {
    ExpectMatchesReference(
        {{2100, 2}, {50, 1}}, {.num_heads = heads, .k = 1024},
        {kPortable, kPrefillTile, TensorCore(1, 64), TensorCore(4, 3), Cluster(32, 16)});
  }
}

// Large scores: the probabilities of one key, and sums that are rescaled at every step.
TEST(SparseAttentionTest, SharpScoresMatchReference) {
  ExpectMatchesReference({{2100, 2}, {50, 1}}, {.query_factor = 30},
                         {kPortable, kPrefillTile, TensorCore(1, 64), TensorCore(4, 3),
                          Cluster(16, 16), Cluster(16, 8), Cluster(64, 4), Cluster(64, 2)});
}

TEST(SparseAttentionTest, LongDenseLayerMatchesReference) {
  ExpectMatchesReference({{131071, 1}}, {.num_heads = 4, .ratio = 128},
                         {TensorCore(1, 64), TensorCore(5, 4)});
}

TEST(SparseAttentionTest, Fp8LatentsAndOtherDimsTakeThePortablePath) {
  const AttentionShape fp8 = {.num_heads = 4, .format = KvFormat::kFp8};
  AttentionCase input({{700, 3}}, fp8, 3);
  EXPECT_EQ(static_cast<int>(ChooseSparseAttentionTile(input.Args()).path),
            static_cast<int>(AttentionPath::kPortable));
  ExpectMatchesReference({{700, 3}, {5, 1}}, fp8, {kPortable});
  ExpectMatchesReference({{700, 3}, {5, 1}},
                         {.num_heads = 6, .head_dim = 96, .rope_dims = 32, .window = 16, .k = 16},
                         {kPortable});
}

// With fixed steps a split, a token's bits do not depend on its neighbours or the splits' number.
TEST(SparseAttentionTest, BatchDoesNotChangeBits) {
  AttentionCase input({{2100, 6}}, {}, 7);
  const std::vector<uint16_t> together = Compute(input, TensorCore(1, 16));
  const std::vector<uint16_t> more_splits = Compute(input, TensorCore(3, 16));
  EXPECT_EQ(together == more_splits, true);
  EXPECT_EQ(together == Compute(input, kPrefillTile), true);
}

// Prefill keeps the references of its probabilities where the other kernel raises them, and many
// tokens share a thread block.
TEST(SparseAttentionTest, PrefillGivesTheBitsOfTheOtherKernel) {
  for (const AttentionShape& shape :
       std::vector<AttentionShape>{{},
                                   {.num_heads = 128, .k = 1024},
                                   {.num_heads = 20, .query_factor = 30},
                                   {.num_heads = 64, .query_factor = 300},
                                   {.window = 100},
                                   {.ratio = 0},
                                   {.ratio = 128}}) {
    AttentionCase input({{0, 200}, {62, 3}, {700, 130}, {5000, 100}}, shape, 11);
    const std::vector<uint16_t> want = Compute(input, TensorCore(1, 64));
    const std::vector<uint16_t> got = Compute(input, kPrefillTile);
    int different = 0;
    for (size_t i = 0; i < want.size(); ++i) different += got[i] != want[i];
    EXPECT_EQ(different, 0) << "heads " << shape.num_heads << ", window " << shape.window
                            << ", ratio " << shape.ratio << ", factor " << shape.query_factor;
  }
}

// Tokens behind the blocks' equal shares fall to the blocks that are first, anew in every launch;
// on the stream of each thread, which has no word to count them, to the first blocks.
TEST(SparseAttentionTest, PrefillOnManyStreamsGivesTheSameBits) {
  constexpr int kLaunches = 9;
  AttentionCase input({{700, 300}}, {}, 19);
  const std::vector<uint16_t> want = Compute(input, TensorCore(1, 64));
  cudaStream_t streams[3] = {nullptr, nullptr, cudaStreamPerThread};
  for (int i = 0; i < 2; ++i) {
    CUDA_CHECK(cudaStreamCreateWithFlags(&streams[i], cudaStreamNonBlocking));
  }
  const DeviceArray<uint16_t> out(kLaunches * input.q.size());
  SparseAttentionArgs args = input.Args();
  for (int i = 0; i < kLaunches; ++i) {
    args.out = out.data() + i * input.q.size();
    LaunchSparseAttention(args, kPrefillTile, streams[i % 3]);
  }
  CUDA_CHECK(cudaDeviceSynchronize());
  for (int i = 0; i < 2; ++i) CUDA_CHECK(cudaStreamDestroy(streams[i]));
  const std::vector<uint16_t> got = out.Read();
  for (int i = 0; i < kLaunches; ++i) {
    EXPECT_TRUE(std::equal(want.begin(), want.end(), got.begin() + i * want.size()))
        << "launch " << i;
  }
}

TEST(SparseAttentionTest, ManyTokensTakeThePrefillPath) {
  AttentionCase input({{5000, 257}}, {.num_heads = 4}, 3);
  EXPECT_EQ(static_cast<int>(ChooseSparseAttentionTile(input.Args()).path),
            static_cast<int>(AttentionPath::kPrefill));
}

// Few tokens take another kernel than many, and which heads share a cluster depends on the batch.
TEST(SparseAttentionTest, ClustersGiveTheBitsOfTheOtherKernel) {
  const std::vector<AttentionShape> shapes = {{},
                                              {.num_heads = 128, .k = 1024},
                                              {.num_heads = 20, .query_factor = 30},
                                              {.num_heads = 64, .query_factor = 300},
                                              {.ratio = 0},
                                              {.ratio = 128}};
  for (const AttentionShape& shape : shapes) {
    AttentionCase input({{0, 2}, {62, 3}, {700, 1}, {5000, 4}}, shape, 11);
    const std::vector<uint16_t> want = Compute(input, TensorCore(1, 64));
    for (const ClusterShape& cluster : kClusters) {
      if (input.max_keys() > int64_t{kAttentionKeys} * MaxClusterSteps(cluster)) continue;
      const std::vector<uint16_t> got = Compute(input, Cluster(cluster.heads, cluster.blocks));
      int different = 0;
      for (size_t i = 0; i < want.size(); ++i) different += got[i] != want[i];
      EXPECT_EQ(different, 0) << "heads " << shape.num_heads << ", clusters of " << cluster.blocks
                              << " blocks for " << cluster.heads << ", ratio " << shape.ratio
                              << ", factor " << shape.query_factor;
    }
  }
}

// Scores too far from 0 for probabilities relative to 0, as clusters of 16 blocks for 16 heads have
// them else.
TEST(SparseAttentionTest, FarScoresInAClusterGiveTheBitsOfTheOtherKernel) {
  for (const float factor : {30.0f, 300.0f}) {
    AttentionCase input({{700, 1}}, {.query_factor = factor}, 17);
    EXPECT_EQ(Compute(input, TensorCore(1, 64)) == Compute(input, Cluster(16, 16)), true)
        << "factor " << factor;
  }
}

// Queries and latents that the kernel ahead writes; older rows are read before it ends.
TEST(SparseAttentionTest, WaitsForTheKernelAhead) {
  AttentionCase input(kDecode, {}, 13);
  const SparseAttentionArgs ahead = input.Args();
  for (const SparseAttentionTile& tile : {TensorCore(1, 64), kPrefillTile, Cluster(16, 16),
                                          Cluster(32, 8), Cluster(64, 4), Cluster(64, 2)}) {
    std::vector<std::vector<uint16_t>> results;
    for (const bool wait : {true, false}) {
      const DeviceArray<uint16_t> between(input.q.size());
      const DeviceArray<uint16_t> out(input.q.size());
      SparseAttentionArgs args = ahead;
      args.out = between.data();
      LaunchSparseAttention(args, TensorCore(1, 64), nullptr);
      if (wait) CUDA_CHECK(cudaDeviceSynchronize());
      args.q = between.data();
      args.latents = between.data();
      args.out = out.data();
      LaunchSparseAttention(args, tile, nullptr);
      CUDA_CHECK(cudaDeviceSynchronize());
      results.push_back(out.Read());
    }
    EXPECT_EQ(results[0] == results[1], true) << "clusters of " << tile.cluster.blocks;
  }
}

void ExpectDominantSinkGivesZeros(const std::vector<SparseAttentionTile>& tiles) {
  AttentionCase input({{700, 1}}, {}, 7);
  for (float& sink : input.sink) sink = 1e4f;
  for (const SparseAttentionTile& tile : tiles) {
    for (uint16_t bits : Compute(input, tile)) ASSERT_EQ(bits & 0x7fff, 0);
  }
}

TEST(SparseAttentionTest, DominantSinkGivesZeros) {
  ExpectDominantSinkGivesZeros({kPortable, kPrefillTile, TensorCore(1, 64), TensorCore(3, 2)});
}

TEST(SparseAttentionTest, DominantSinkInAClusterGivesZeros) {
  ExpectDominantSinkGivesZeros({Cluster(16, 16), Cluster(32, 8)});
}

TEST(SparseAttentionTest, DominantSinkInARelayGivesZeros) {
  ExpectDominantSinkGivesZeros({Cluster(64, 2), Cluster(64, 4)});
}

}  // namespace
}  // namespace lodestone::cuda
