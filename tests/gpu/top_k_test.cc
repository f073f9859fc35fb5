#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "bench/gpu/device_array.h"
#include "kernels/cuda/launchers.h"
#include "tests/gpu/check.h"

namespace lodestone::cuda {
namespace {

// Higher score first, then the lower entry; NaN below every number; ascending, then -1.
std::vector<int32_t> Reference(const float* scores, int64_t visible, int64_t k) {
  std::vector<int32_t> order(static_cast<size_t>(visible));
  for (int64_t i = 0; i < visible; ++i) order[i] = static_cast<int32_t>(i);
  const auto better = [&](int32_t a, int32_t b) {
    const bool a_nan = std::isnan(scores[a]);
    const bool b_nan = std::isnan(scores[b]);
    if (a_nan || b_nan) return a_nan == b_nan ? a < b : b_nan;
    return scores[a] != scores[b] ? scores[a] > scores[b] : a < b;
  };
  const int64_t taken = std::min(visible, k);
  std::partial_sort(order.begin(), order.begin() + taken, order.end(), better);
  order.resize(static_cast<size_t>(taken));
  std::sort(order.begin(), order.end());
  order.resize(static_cast<size_t>(k), -1);
  return order;
}

// Element i of n.
using Draw = std::function<float(int64_t i, int64_t n, std::mt19937& random)>;

float Normal(std::mt19937& random) { return std::normal_distribution<float>()(random); }

// What relu leaves where a share of the scores is above zero.
Draw AboveZero(float share) {
  return [share](int64_t, int64_t, std::mt19937& r) {
    const float score = std::fabs(Normal(r));
    return std::uniform_real_distribution<float>()(r) < share ? score : 0.0f;
  };
}

float FiveValues(int64_t, int64_t, std::mt19937& r) { return static_cast<float>(r() % 5) - 2; }

struct NamedDraw {
  const char* name;
  Draw draw;
};

std::vector<NamedDraw> HostileDraws() {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  return {
      {"normal", [](int64_t, int64_t, std::mt19937& r) { return Normal(r); }},
      {"positive part",
       [](int64_t, int64_t, std::mt19937& r) { return std::fmax(Normal(r), 0.0f); }},
      {"all equal", [](int64_t, int64_t, std::mt19937&) { return 1.5f; }},
      {"all -inf", [](int64_t, int64_t, std::mt19937&) { return -kInf; }},
      {"all NaN", [](int64_t, int64_t, std::mt19937&) { return kNan; }},
      {"three values",
       [](int64_t, int64_t, std::mt19937& r) { return static_cast<float>(r() % 3) - 1; }},
      {"both zeros", [](int64_t, int64_t, std::mt19937& r) { return r() % 2 ? 0.0f : -0.0f; }},
      {"ascending", [](int64_t i, int64_t, std::mt19937&) { return static_cast<float>(i); }},
      {"descending", [](int64_t i, int64_t, std::mt19937&) { return static_cast<float>(-i); }},
      {"few numbers among NaN",
       [](int64_t i, int64_t, std::mt19937& r) { return i % 100 == 7 ? Normal(r) : kNan; }},
      {"few numbers among -inf",
       [](int64_t i, int64_t, std::mt19937& r) { return i % 300 == 7 ? Normal(r) : -kInf; }},
      {"one outlier",
       [](int64_t i, int64_t n, std::mt19937& r) { return i == n / 2 ? 1e30f : Normal(r); }},
      {"infinities",
       [](int64_t, int64_t, std::mt19937& r) { return r() % 64 == 0 ? kInf : Normal(r); }},
      {"close together",
       [](int64_t, int64_t, std::mt19937& r) {
         return 1.0f + static_cast<float>(r() % 4096) * 0x1p-23f;
       }},
      {"denormals",
       [](int64_t, int64_t, std::mt19937& r) {
         return static_cast<float>(static_cast<int>(r() % 4001) - 2000) * 0x1p-149f;
       }},
      {"highest at the end",
       [](int64_t i, int64_t n, std::mt19937& r) { return Normal(r) + (i > n - 700 ? 20.0f : 0); }},
      {"highest in the first 2,048",
       [](int64_t i, int64_t, std::mt19937& r) { return Normal(r) + (i < 2048 ? 20.0f : 0); }},
      {"highest in a short run",
       [](int64_t i, int64_t n, std::mt19937& r) {
         return Normal(r) + (i >= n / 3 && i < n / 3 + 600 ? 20.0f : 0);
       }},
      {"highest in a long run",  // more than one warp has places for
       [](int64_t i, int64_t n, std::mt19937& r) {
         return Normal(r) + (i >= n / 2 && i < n / 2 + 2500 ? 20.0f : 0);
       }},
      {"highest where one may sample",  // 32 of 256
       [](int64_t i, int64_t, std::mt19937& r) { return Normal(r) + (i % 256 < 32 ? 20.0f : 0); }},
      {"much higher where one may sample",
       [](int64_t i, int64_t, std::mt19937& r) {
         return i % 256 < 32 ? 1e30f * static_cast<float>(r() % 4096) : Normal(r);
       }},
      {"rising noise",
       [](int64_t i, int64_t n, std::mt19937& r) {
         return Normal(r) + 10 * static_cast<float>(i) / static_cast<float>(n);
       }},
      {"half far below",
       [](int64_t i, int64_t n, std::mt19937& r) { return i < n / 2 ? -1e9f : Normal(r); }},
      {"wide range",
       [](int64_t, int64_t, std::mt19937& r) {
         return std::ldexp(Normal(r), static_cast<int>(r() % 200) - 100);
       }},
      {"two in five above zero", AboveZero(0.4f)},
      {"one in ten above zero", AboveZero(0.1f)},
      {"one in fifty above zero", AboveZero(0.02f)},
      {"one in 200 above zero", AboveZero(0.005f)},
      {"one in 5,000 above zero", AboveZero(0.0002f)},
      {"all zero", AboveZero(0)},
      {"zeros between few above and many below",
       [](int64_t, int64_t, std::mt19937& r) {
         const float score = Normal(r);
         return score > 2.6f || score < -0.1f ? score : 0.0f;
       }},
      {"all equal but few",
       [](int64_t i, int64_t, std::mt19937& r) { return i % 100 == 3 ? Normal(r) : -2.5f; }},
  };
}

void ExpectRows(const std::vector<float>& scores, int64_t stride,
                const std::vector<int32_t>& visible, int32_t k, const TopKTile& tile,
                const std::string& what) {
  const DeviceArray<float> device_scores(scores);
  const DeviceArray<int32_t> device_visible(visible);
  const DeviceArray<int32_t> top(visible.size() * static_cast<size_t>(k));
  const int64_t rows = static_cast<int64_t>(visible.size());
  LaunchTopK({.scores = device_scores.data(),
              .score_stride = stride,
              .num_visible = device_visible.data(),
              .num_rows = rows,
              .max_visible = *std::max_element(visible.begin(), visible.end()),
              .k = k,
              .top_entries = top.data()},
             tile, nullptr);
  CUDA_CHECK(cudaDeviceSynchronize());
  const std::vector<int32_t> got = top.Read();
  EXPECT_TRUE(top.guards_intact()) << what;
  for (int64_t row = 0; row < rows; ++row) {
    const std::vector<int32_t> want = Reference(scores.data() + row * stride, visible[row], k);
    for (int32_t i = 0; i < k; ++i) {
      ASSERT_EQ(got[row * k + i], want[i])
          << what << ", row " << row << " of " << rows << ", " << visible[row] << " entries, k "
          << k << (tile.held ? ", held" : "") << ", cluster " << tile.cluster << " x "
          << tile.per_thread << ", place " << i;
    }
  }
}

void ExpectDraw(const NamedDraw& draw, const std::vector<int32_t>& visible, int32_t k,
                const TopKTile& tile) {
  std::mt19937 random(17);
  const int64_t stride = ScoreStride(*std::max_element(visible.begin(), visible.end()));
  std::vector<float> scores(visible.size() * static_cast<size_t>(stride),
                            std::numeric_limits<float>::infinity());  // beyond the visible
  for (size_t row = 0; row < visible.size(); ++row) {
    for (int64_t i = 0; i < visible[row]; ++i) {
      scores[row * static_cast<size_t>(stride) + static_cast<size_t>(i)] =
          draw.draw(i, visible[row], random);
    }
  }
  ExpectRows(scores, stride, visible, k, tile, draw.name);
}

constexpr TopKTile kHeld = {.held = true};

// Every way that a launch can be cut but kHeld, whatever ChooseTopKTile would take.
std::vector<TopKTile> AllTiles() {
  std::vector<TopKTile> tiles;
  for (int cluster : {1, 2, 4, 8}) {
    for (int per_thread : {16, 32, 64}) {
      tiles.push_back({.cluster = cluster, .per_thread = per_thread});
    }
    tiles.push_back({.cluster = cluster, .per_thread = 64, .alone = true, .ring = true});
  }
  return tiles;
}

TEST(TopKTest, HostileRowsMatchReference) {
  for (const NamedDraw& draw : HostileDraws()) {
    for (int32_t k : {16, 512, 1024}) {
      ExpectDraw(draw, {5000, 1024, 1025, 3000, 0, 1, 513, 4096, 8191, 9000}, k, {.cluster = 1});
      ExpectDraw(draw, {32768, 30001}, k, {.cluster = 8});
      ExpectDraw(draw, {32768, 30001, 8193}, k, {.cluster = 4, .per_thread = 16});
      ExpectDraw(draw, {32768, 4097, 2050}, k, {.cluster = 2});
      ExpectDraw(draw, {32768, 30001, 4099}, k, {.cluster = 1, .per_thread = 64});
      ExpectDraw(draw, {40000}, k, {.cluster = 1});
      ExpectDraw(draw, {40000, 70001, 513}, k, {.cluster = 1, .alone = true, .ring = true});
      ExpectDraw(draw, {70001, 40000, 513}, k, {.cluster = 2, .alone = true, .ring = true});
      ExpectDraw(draw, {32768, 32767, 30001, 16385, 8193, 4097, 1030, 513, 0, 1}, k, kHeld);
    }
  }
}

TEST(TopKTest, EveryTileGivesTheSameSelection) {
  const std::vector<NamedDraw> draws = HostileDraws();
  std::vector<TopKTile> tiles = AllTiles();
  tiles.push_back(kHeld);
  for (const TopKTile& tile : tiles) {
    ExpectDraw(draws[0], {4096, 3999, 700, 100, 20000}, 512, tile);
    ExpectDraw(draws[5], {4096, 3999, 700, 100, 20000}, 64, tile);
  }
}

TEST(TopKTest, EveryWidthMatchesReference) {
  const NamedDraw draw = HostileDraws()[0];
  for (int32_t width : {1, 2, 511, 512, 513, 1023, 1025, 4095, 4097, 8192, 10001, 32767, 32769,
                        100000, 262143, 262144}) {
    for (int32_t k : {64, 512, 1024}) {
      ExpectDraw(draw, {width, (width + 1) / 2}, k, ChooseTopKTile(2, width, 132));
      if (width <= kMaxHeldTopK) ExpectDraw(draw, {width, (width + 1) / 2}, k, kHeld);
    }
  }
}

TEST(TopKTest, WideHostileRowsMatchReference) {
  for (const NamedDraw& draw : HostileDraws()) {
    ExpectDraw(draw, {262144, 200000}, 512, ChooseTopKTile(2, 262144, 132));
    ExpectDraw(draw, {262144, 200000}, 512, ChooseTopKTile(32, 262144, 132));
  }
}

// Wider than the window of entries that is put in order at one time.
TEST(TopKTest, RowsOfAnyWidthMatchReference) {
  const std::vector<NamedDraw> draws = HostileDraws();
  for (int32_t width : {262145, 524289, 1048576, 2500001}) {
    ExpectDraw(draws[0], {width, 600, 0, 40000}, 512, ChooseTopKTile(4, width, 132));
    ExpectDraw(draws[0], {width}, 1024, {.cluster = 1});
    ExpectDraw(draws[0], {width}, 16, {.cluster = 4});
  }
  for (const NamedDraw& draw : draws) {
    ExpectDraw(draw, {600000}, 512, ChooseTopKTile(1, 600000, 132));
  }
}

TEST(TopKTest, ManyRowsMatchReference) {
  std::mt19937 random(3);
  std::vector<int32_t> visible(8192);
  for (int32_t& n : visible) n = static_cast<int32_t>(random() % 1500);
  ExpectDraw(HostileDraws()[0], visible, 512, ChooseTopKTile(8192, 1500, 132));
}

// Rows of one launch may differ in length by orders of magnitude.
TEST(TopKTest, ShortRowsBesideLongOnesMatchReference) {
  for (const TopKTile& tile : AllTiles()) {
    ExpectDraw(HostileDraws()[0], {100000, 513, 2047, 8193, 16385, 130, 0, 65537}, 512, tile);
  }
}

// What the sanitizers run: candidates, many equal ones, and rows without enough numbers.
TEST(TopKTest, OneEntryIsTheLargest) {
  const std::vector<NamedDraw> draws = HostileDraws();
  for (int cluster : {1, 2}) {
    for (size_t draw : {0, 2, 4}) {
      for (bool ring : {false, true}) {
        const TopKTile tile = {.cluster = cluster, .per_thread = 32 * cluster, .ring = ring};
        ExpectDraw(draws[draw], {9000, 5, 1}, 1, tile);
      }
    }
  }
  for (size_t draw : {0, 2, 4}) ExpectDraw(draws[draw], {9001, 5, 1}, 1, kHeld);
}

// What the sanitizers run: one warp has nearly all of the highest, or the sample has all of them or
// none.
TEST(TopKTest, RowsUnlikeTheirSampleMatchReference) {
  const NamedDraw run = {"1,100 together", [](int64_t i, int64_t n, std::mt19937& r) {
                           return Normal(r) + (i >= n / 2 && i < n / 2 + 1100 ? 20.0f : 0);
                         }};
  ExpectDraw(run, {20480}, 512, kHeld);
  ExpectDraw(run, {20480}, 512, {.cluster = 1});
  ExpectDraw(run, {40960}, 512, {.cluster = 2, .per_thread = 64, .ring = true});
  const NamedDraw sampled = {"highest in the sample", [](int64_t i, int64_t, std::mt19937& r) {
                               return Normal(r) + (i % 256 < 32 ? 20.0f : 0);
                             }};
  ExpectDraw(sampled, {32768}, 512, kHeld);
  ExpectDraw({"one in fifty above zero", AboveZero(0.02f)}, {20480}, 384, kHeld);
}

// What the sanitizers run: the k-th is zero or another value that many have.
TEST(TopKTest, EqualScoresAreChosenByEntry) {
  const Draw last = [](int64_t i, int64_t n, std::mt19937&) { return i + 1 == n ? 1.0f : 0.0f; };
  for (const NamedDraw& draw :
       {NamedDraw{"few above zero", AboveZero(0.0005f)}, NamedDraw{"five values", FiveValues},
        NamedDraw{"the last above zero", last}}) {
    ExpectDraw(draw, {78, 9002, 20}, 16, {.cluster = 1});
    ExpectDraw(draw, {9001, 20}, 16, kHeld);
    ExpectDraw(draw, {1001, 20}, 16, {.cluster = 1});
    ExpectDraw(draw, {9001, 3000, 20}, 16, {.cluster = 2, .per_thread = 64});
    ExpectDraw(draw, {9001, 3000, 20}, 16, {.cluster = 2, .per_thread = 64, .ring = true});
  }
}

}  // namespace
}  // namespace lodestone::cuda
