#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/numeric/hadamard.h"
#include "model/checkpoint.h"
#include "tests/testing/forwarding_ops.h"
#include "tests/testing/golden_case.h"
#include "tests/testing/golden_models.h"
#include "tests/testing/model_runner.h"

// Faults that others shipped (docs/model.md 15), each planted by a wrapper around the backend: the
// golden comparison must see every one of them. All runs are `exact`, so tensors are f32.
namespace lodestone {
namespace {

using ::testing::IsEmpty;
using ::testing::Not;

// Mixing of the residual streams with comb instead of its transpose.
class CombNotTransposed : public ForwardingOps {
 public:
  using ForwardingOps::ForwardingOps;
  void HcPost(const HcPostParams& params, Stream& stream) const override {
    const int64_t streams = params.comb.shape[1];
    for (int64_t token = 0; token < params.comb.shape[0]; ++token) {
      float* comb = params.comb.row<float>(token);
      for (int64_t j = 0; j < streams; ++j) {
        for (int64_t k = 0; k < j; ++k) std::swap(comb[j * streams + k], comb[k * streams + j]);
      }
    }
    inner_.HcPost(params, stream);
  }
};

// Hadamard rotation of the index keys only: the query is rotated back.
class IndexQueryNotRotated : public ForwardingOps {
 public:
  using ForwardingOps::ForwardingOps;
  void IndexQuery(const IndexQueryParams& params, Stream& stream) const override {
    inner_.IndexQuery(params, stream);
    const int64_t dims = params.q.shape[2];
    for (int64_t row = 0; row < params.q.shape[0] * params.q.shape[1]; ++row) {
      Hadamard(params.q.as<float>() + row * dims, dims);
    }
  }
};

// No rotary rotation of compressed entries and index keys.
class EntriesWithoutRope : public ForwardingOps {
 public:
  using ForwardingOps::ForwardingOps;
  void CompressKv(const CompressKvParams& params, Stream& stream) const override {
    HostTensor zeros(DType::kF32, {params.freqs.shape[0]});
    CompressKvParams faulty = params;
    faulty.freqs = zeros;
    inner_.CompressKv(faulty, stream);
  }
};

// Every token may select any entry that the batch completes, also later ones.
class NoCausalMask : public ForwardingOps {
 public:
  using ForwardingOps::ForwardingOps;
  void IndexTopK(const IndexTopKParams& params, Stream& stream) const override {
    HostTensor visible(DType::kI32, {params.num_visible.shape[0]});
    const auto* wanted = params.num_visible.as<int32_t>();
    const int64_t count = params.num_visible.shape[0];
    std::fill_n(visible.view().as<int32_t>(), count, *std::max_element(wanted, wanted + count));
    IndexTopKParams faulty = params;
    faulty.num_visible = visible;
    inner_.IndexTopK(faulty, stream);
  }
};

// Half-split pairs (i, i + r/2) instead of interleaved ones, for queries and window latents alike.
class HalfSplitRope : public ForwardingOps {
 public:
  using ForwardingOps::ForwardingOps;
  void QueryNormRope(const QueryNormRopeParams& params, Stream& stream) const override {
    const int64_t rope_dims = 2 * params.freqs.shape[0];
    Interleave<float>(params.q, rope_dims, true);
    inner_.QueryNormRope(params, stream);
    Interleave<float>(params.q, rope_dims, false);
  }
  void WindowLatent(const WindowLatentParams& params, Stream& stream) const override {
    const int64_t rope_dims = 2 * params.freqs.shape[0];
    Interleave<float>(params.kv, rope_dims, true);
    Interleave<uint16_t>(params.weight, rope_dims, true);
    inner_.WindowLatent(params, stream);
    Interleave<uint16_t>(params.weight, rope_dims, false);
    Interleave<float>(params.latents, rope_dims, false);
  }

 private:
  // Moves element i of the first half of the last `dims` of every row to 2i, of the second half to
  // 2i + 1 (forward), or back.
  template <typename T>
  static void Interleave(const TensorView& rows, int64_t dims, bool forward) {
    const int64_t width = rows.shape[static_cast<size_t>(rows.rank - 1)];
    std::vector<T> moved(static_cast<size_t>(dims));
    for (int64_t row = 0; row < rows.num_elements() / width; ++row) {
      T* x = rows.as<T>() + (row + 1) * width - dims;
      for (int64_t i = 0; i < dims; ++i) {
        const int64_t other = (i % 2) * (dims / 2) + i / 2;
        moved[static_cast<size_t>(forward ? i : other)] = x[forward ? other : i];
      }
      std::copy(moved.begin(), moved.end(), x);
    }
  }
};

// The tokens of a group that was in progress when a chunk ended are forgotten.
class RemainderLost : public ForwardingOps {
 public:
  using ForwardingOps::ForwardingOps;
  void CompressKv(const CompressKvParams& params, Stream& stream) const override {
    const int64_t width = params.state_kv.shape[2];
    const int64_t first_row = params.ratio == 4 ? 4 : 0;
    for (int64_t seq = 0; seq < params.batch.num_seqs(); ++seq) {
      const int32_t slot = params.batch.seq_slot.as<int32_t>()[seq];
      for (int64_t row = first_row; row < params.state_kv.shape[1]; ++row) {
        std::fill_n(params.state_kv.row<float>(slot) + row * width, width, 0.0f);
        std::fill_n(params.state_score.row<float>(slot) + row * width, width,
                    -std::numeric_limits<float>::infinity());
      }
    }
    inner_.CompressKv(params, stream);
  }
};

// Overlapping groups: the last completed group is forgotten when a chunk ends.
class PreviousGroupLost : public ForwardingOps {
 public:
  using ForwardingOps::ForwardingOps;
  void CompressKv(const CompressKvParams& params, Stream& stream) const override {
    if (params.ratio == 4) {
      const int64_t width = params.state_kv.shape[2];
      for (int64_t seq = 0; seq < params.batch.num_seqs(); ++seq) {
        const int32_t slot = params.batch.seq_slot.as<int32_t>()[seq];
        std::fill_n(params.state_score.row<float>(slot), 4 * width,
                    -std::numeric_limits<float>::infinity());
      }
    }
    inner_.CompressKv(params, stream);
  }
};

constexpr int64_t kLength = 511;
constexpr int64_t kOddChunk = 150;  // a multiple of neither 4 nor 128

std::vector<std::string> DifferencesWith(const LoadedModel& model, const Ops& ops, int64_t chunk) {
  const GoldenCase golden = ExactGolden("mini", kLength);
  ModelRunner runner(model, ops, kExactFormats,
                     {.num_seqs = 1, .max_context = kLength + 16, .max_tokens = kLength});
  return Differences(golden, RunGoldenCase(runner, golden, chunk), {});
}

template <typename FaultyOps>
std::vector<std::string> DifferencesWithFault(int64_t chunk) {
  const LoadedModel& model = TestModel("mini", "cpu");
  return DifferencesWith(model, FaultyOps(model.ops), chunk);
}

TEST(PlantedFaultTest, WrapperWithoutFaultAgrees) {
  EXPECT_THAT(DifferencesWithFault<ForwardingOps>(0), IsEmpty());
  EXPECT_THAT(DifferencesWithFault<ForwardingOps>(kOddChunk), IsEmpty());
}

TEST(PlantedFaultTest, CombNotTransposedIsSeen) {
  EXPECT_THAT(DifferencesWithFault<CombNotTransposed>(0), Not(IsEmpty()));
}

TEST(PlantedFaultTest, HadamardOnKeysOnlyIsSeen) {
  EXPECT_THAT(DifferencesWithFault<IndexQueryNotRotated>(0), Not(IsEmpty()));
}

TEST(PlantedFaultTest, RopeOnQueriesOnlyIsSeen) {
  EXPECT_THAT(DifferencesWithFault<EntriesWithoutRope>(0), Not(IsEmpty()));
}

TEST(PlantedFaultTest, MissingCausalMaskIsSeen) {
  EXPECT_THAT(DifferencesWithFault<NoCausalMask>(0), Not(IsEmpty()));
}

TEST(PlantedFaultTest, WrongRotaryPairingIsSeen) {
  EXPECT_THAT(DifferencesWithFault<HalfSplitRope>(0), Not(IsEmpty()));
}

TEST(PlantedFaultTest, RemainderLostAtAChunkBorderIsSeen) {
  EXPECT_THAT(DifferencesWithFault<RemainderLost>(kOddChunk), Not(IsEmpty()));
}

TEST(PlantedFaultTest, PreviousGroupLostAtAChunkBorderIsSeen) {
  EXPECT_THAT(DifferencesWithFault<PreviousGroupLost>(kOddChunk), Not(IsEmpty()));
}

// YaRN applied to window layers, with their own theta and with that of the compressed layers.
TEST(PlantedFaultTest, YarnOnWindowLayersIsSeen) {
  const Ops& ops = TestBackend("cpu");
  LoadedModel model(MiniDirectory(), ops);
  model.weights.window_freqs = model.weights.compressed_freqs;
  EXPECT_THAT(DifferencesWith(model, ops, 0), Not(IsEmpty()));

  ModelConfig config = model.config;
  config.compress_rope_theta = config.rope_theta;
  std::vector<float> stretched = CompressedFrequencies(config);
  model.weights.window_freqs =
      TensorView(stretched.data(), DType::kF32, {static_cast<int64_t>(stretched.size())});
  EXPECT_THAT(DifferencesWith(model, ops, 0), Not(IsEmpty()));
}

}  // namespace
}  // namespace lodestone
