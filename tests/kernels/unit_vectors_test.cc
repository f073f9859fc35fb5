// Every rounding primitive against vectors recorded from an independent implementation and
// confirmed in exact arithmetic.

#include <bit>
#include <cmath>
#include <cstdint>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/numeric/fp4.h"
#include "kernels/numeric/fp8.h"
#include "kernels/numeric/hadamard.h"
#include "kernels/numeric/row_codec.h"
#include "kernels/ops.h"
#include "tests/testing/golden_reader.h"
#include "tests/testing/op_inputs.h"

namespace lodestone {
namespace {

class UnitVectorsTest : public ::testing::Test {
 protected:
  const GoldenFile golden_{GoldenPath("reference/units.safetensors")};
  const std::unique_ptr<Ops> ops_ = MakeReferenceOps();
  TestStream stream_;
};

// Equal as bits, so that -0 and +0 differ.
void ExpectSameBits(const std::vector<float>& got, const std::vector<float>& want) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) {
    ASSERT_EQ(std::bit_cast<uint32_t>(got[i]), std::bit_cast<uint32_t>(want[i]))
        << "element " << i << ": " << got[i] << " vs " << want[i];
  }
}

void ExpectFp8Groups(const GoldenFile& golden, const std::string& name, int64_t group) {
  const std::vector<float> x = golden[name + ".x"].Floats();
  std::vector<float> rounded = x;
  std::vector<uint8_t> codes(x.size());
  std::vector<uint8_t> scales;
  for (size_t i = 0; i < x.size(); i += group) {
    scales.push_back(QuantizeFp8Group(x.data() + i, group, codes.data() + i));
    RoundFp8Group(rounded.data() + i, group);
  }
  EXPECT_EQ(codes, golden[name + ".code"].Codes());
  EXPECT_EQ(scales, golden[name + ".scale"].Codes());
  for (float& value : rounded) value = RoundToBf16(value);
  ExpectSameBits(rounded, golden[name + ".y"].Floats());
}

TEST_F(UnitVectorsTest, ActivationsInGroupsOf128) { ExpectFp8Groups(golden_, "act_quant128", 128); }

TEST_F(UnitVectorsTest, LatentsInGroupsOf64) { ExpectFp8Groups(golden_, "kv_qdq64", 64); }

TEST_F(UnitVectorsTest, ActivationsOfTheQuantisedProducts) {
  for (const std::string name : {"fp8_gemm", "fp4_gemm"}) {
    const std::vector<float> x = golden_[name + ".x"].Floats();
    std::vector<uint8_t> codes(x.size());
    std::vector<uint8_t> scales;
    for (size_t i = 0; i < x.size(); i += 128) {
      scales.push_back(QuantizeFp8Group(x.data() + i, 128, codes.data() + i));
    }
    EXPECT_EQ(codes, golden_[name + ".a_code"].Codes());
    EXPECT_EQ(scales, golden_[name + ".a_scale"].Codes());
  }
}

TEST_F(UnitVectorsTest, LatentRowsInTheStoredFormat) {
  constexpr int64_t kCoded = 448, kRope = 64;
  const std::vector<float> x = golden_["kv_qdq64.x"].Floats();
  const std::vector<float> want = golden_["kv_qdq64.y"].Floats();
  for (size_t first = 0; first < x.size(); first += kCoded) {
    std::vector<float> row(x.begin() + first, x.begin() + first + kCoded);
    row.resize(kCoded + kRope, 1.5f);
    std::vector<std::byte> payload(576), scale(8);
    EncodeLatentRow(KvFormat::kFp8, row.data(), 512, kRope, payload.data(), scale.data());
    DecodeLatentRow(KvFormat::kFp8, payload.data(), scale.data(), 512, kRope, row.data());
    row.resize(kCoded);
    ExpectSameBits(row, {want.begin() + first, want.begin() + first + kCoded});
  }
}

TEST_F(UnitVectorsTest, IndexKeysInFp4) {
  const std::vector<float> x = golden_["index_qdq4.x"].Floats();
  std::vector<float> rounded = x;
  std::vector<uint8_t> codes(x.size());
  for (size_t i = 0; i < x.size(); i += kFp4Group) {
    QuantizeFp4Group(x.data() + i, kFp4Group, codes.data() + i);
    RoundFp4Group(rounded.data() + i, kFp4Group);
  }
  EXPECT_EQ(codes, golden_["index_qdq4.code"].Codes());
  for (float& value : rounded) value = RoundToBf16(value);
  ExpectSameBits(rounded, golden_["index_qdq4.y"].Floats());
}

TEST_F(UnitVectorsTest, IndexKeyRowsInTheStoredFormat) {
  const std::vector<float> x = golden_["index_qdq4.x"].Floats();
  const std::vector<float> want = golden_["index_qdq4.y"].Floats();
  const size_t num_rows = x.size() / 128;
  std::vector<std::byte> payload(num_rows * 64), scale(num_rows * 4);
  std::vector<float> decoded(x.size());
  for (size_t row = 0; row < num_rows; ++row) {
    EncodeIndexKeyRow(IndexKeyFormat::kFp4, x.data() + row * 128, 128, payload.data() + row * 64,
                      scale.data() + row * 4);
    DecodeIndexKeyRow(IndexKeyFormat::kFp4, payload.data() + row * 64, scale.data() + row * 4, 128,
                      decoded.data() + row * 128);
  }
  EXPECT_EQ(payload, golden_["index_qdq4.packed"].bytes);
  EXPECT_EQ(scale, golden_["index_qdq4.scale"].bytes);
  ExpectSameBits(decoded, want);
}

TEST_F(UnitVectorsTest, Hadamard) {
  std::vector<float> x = golden_["hadamard.x"].Floats();
  for (size_t i = 0; i < x.size(); i += 128) Hadamard(x.data() + i, 128);
  for (float& value : x) value = RoundToBf16(value);
  EXPECT_EQ(x, golden_["hadamard.y"].Floats());
}

TEST_F(UnitVectorsTest, QueryNorm) {
  HostTensor q(DType::kBf16, {6, 1, 512});
  q.SetFloats(golden_["q_norm.x"].Floats());
  const HostTensor positions(DType::kI32, {6});
  const HostTensor no_rotation(DType::kF32, {0});
  ops_->QueryNormRope({.q = q, .positions = positions, .freqs = no_rotation, .eps = 1e-6f},
                      stream_);
  ExpectSameBits(q.Floats(), golden_["q_norm.y"].Floats());
}

// The op forms mix = (fn z) * rsqrt(mean(z^2) + eps) itself. Stream m is 2 in dim m and 0
// elsewhere, so that with eps 0 the root is 1; fn is half the wanted mix in its first column.
TEST_F(UnitVectorsTest, HyperConnection) {
  constexpr int64_t kStreams = 4, kMixes = 24;
  const std::vector<float> mixes = golden_["hc.mixes"].Floats();
  const std::vector<float> pre = golden_["hc.pre"].Floats();
  const std::vector<float> post = golden_["hc.post"].Floats();
  const std::vector<float> comb = golden_["hc.comb"].Floats();
  HostTensor base(DType::kF32, {kMixes}), scale(DType::kF32, {3});
  base.SetFloats(golden_["hc.base"].Floats());
  scale.SetFloats(golden_["hc.scale"].Floats());
  HostTensor streams(DType::kF32, {1, kStreams, kStreams}), norm_weight(DType::kBf16, {kStreams});
  for (int64_t m = 0; m < kStreams; ++m) {
    streams.Set(m * kStreams + m, 2.0f);
    norm_weight.Set(m, 1.0f);
  }
  for (size_t row = 0; row * kMixes < mixes.size(); ++row) {
    HostTensor fn(DType::kF32, {kMixes, kStreams * kStreams});
    for (int64_t i = 0; i < kMixes; ++i) {
      fn.Set(i * kStreams * kStreams, mixes[row * kMixes + i] / 2);
    }
    const PackedTensor packed = Pack(*ops_, fn);
    HostTensor x(DType::kF32, {1, kStreams}), got_post(DType::kF32, {1, kStreams});
    HostTensor got_comb(DType::kF32, {1, kStreams, kStreams});
    ops_->HcPre({.streams = streams,
                 .fn = packed.weight,
                 .base = base,
                 .scale = scale,
                 .norm_weight = norm_weight,
                 .rms_eps = 0,
                 .hc_eps = 1e-6f,
                 .sinkhorn_iters = 20,
                 .scratch = {},
                 .x = x,
                 .post = got_post,
                 .comb = got_comb},
                stream_);
    double square = 0;
    for (int64_t m = 0; m < kStreams; ++m) square += std::pow(pre[row * kStreams + m], 2);
    for (int64_t m = 0; m < kStreams; ++m) {
      EXPECT_NEAR(got_post.At(m), post[row * kStreams + m], 2.4e-7);  // one bit at values near 2
      EXPECT_NEAR(x.At(m), pre[row * kStreams + m] / std::sqrt(square / kStreams), 4e-7);
    }
    for (int64_t i = 0; i < kStreams * kStreams; ++i) {
      EXPECT_NEAR(got_comb.At(i), comb[row * kStreams * kStreams + i], 1.3e-7);
    }
  }
}

// The vendor rounds probabilities to bf16 against the running maximum of blocks of 64 keys, we
// against the maximum of all, hence the tolerance. Window 1: the first key is the token's own
// latent, the others are entries.
TEST_F(UnitVectorsTest, Attention) {
  constexpr int64_t kHeads = 4, kDims = 512, kKeys = 96, kListed = 90;
  const std::vector<float> q = golden_["attn.q"].Floats();
  const std::vector<float> kv = golden_["attn.kv"].Floats();
  const std::vector<int64_t> lists = golden_["attn.idx"].Ints();
  const std::vector<float> want = golden_["attn.o"].Floats();
  HostTensor sink(DType::kF32, {kHeads});
  sink.SetFloats(golden_["attn.sink"].Floats());
  const TestBatch batch({{.first_position = kKeys * 4 - 1, .num_tokens = 1}}, 1);
  const TestRowStore ring(batch.num_slots, 1, LatentRowBytes(KvFormat::kBf16, kDims, 0));
  const TestRowStore entries(batch.num_pages, 64, LatentRowBytes(KvFormat::kBf16, kDims, 0));
  std::vector<float> stored(batch.num_pages * 64 * kDims);
  for (int64_t entry = 0; entry < kKeys; ++entry) {
    const int64_t page = batch.block_table.Ints()[entry / 64];
    std::copy_n(kv.begin() + entry * kDims, kDims,
                stored.begin() + (page * 64 + entry % 64) * kDims);
  }
  EncodeLatents(stored, kDims, 0, KvFormat::kBf16, entries);
  const HostTensor no_rotation(DType::kF32, {0});
  for (int64_t row = 0; row < 3; ++row) {
    const int64_t* list = lists.data() + row * kListed;
    HostTensor query(DType::kBf16, {1, kHeads, kDims}), latent(DType::kBf16, {1, kDims});
    query.SetFloats({q.begin() + row * kHeads * kDims, q.begin() + (row + 1) * kHeads * kDims});
    latent.SetFloats({kv.begin() + list[0] * kDims, kv.begin() + (list[0] + 1) * kDims});
    HostTensor top(DType::kI32, {1, kListed - 1}), out(DType::kBf16, {1, kHeads, kDims});
    top.SetInts({list + 1, list + kListed});
    ops_->SparseAttention({.q = query,
                           .latents = latent,
                           .batch = batch.index,
                           .window = 1,
                           .ring = ring.store,
                           .format = KvFormat::kBf16,
                           .ratio = 4,
                           .entries = entries.store,
                           .top_entries = top,
                           .sink = sink,
                           .freqs = no_rotation,
                           .scratch = {},
                           .out = out},
                          stream_);
    double difference = 0, norm = 0;
    for (int64_t i = 0; i < kHeads * kDims; ++i) {
      const double expected = want[row * kHeads * kDims + i];
      difference += std::pow(out.At(i) - expected, 2);
      norm += expected * expected;
    }
    EXPECT_LT(std::sqrt(difference / norm), 2.3e-3) << "row " << row;
  }
}

}  // namespace
}  // namespace lodestone
