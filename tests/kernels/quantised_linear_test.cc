// Products with FP8 and FP4 weights, one by one: against vectors recorded from an independent
// implementation, and the fast ops against the reference.

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>

#include "kernels/numeric/weight_codec.h"
#include "tests/kernels/cpu_test_support.h"
#include "tests/testing/golden_reader.h"

namespace lodestone {
namespace {

constexpr WeightFormat kQuantised[] = {WeightFormat::kFp8, WeightFormat::kFp4};

OpRun QuantisedRun(const HostTensor& x, const MatrixSource& source, bool round_fp8,
                   DType out_dtype) {
  return [&x, source, round_fp8, out_dtype](const Ops& ops, Stream& stream) {
    const PackedTensor packed = Pack(ops, source);
    HostTensor out(out_dtype, {x.view().shape[0], source.spec.groups * source.spec.n});
    ops.Linear({.x = x, .weight = packed.weight, .round_fp8 = round_fp8, .out = out}, stream);
    EXPECT_TRUE(packed.packed.guards_intact());
    OpResult result;
    result.Add(out);
    return result;
  };
}

HostTensor Bytes(DType dtype, const GoldenTensor& golden) {
  HostTensor tensor(dtype, {golden.shape[0], golden.shape[1]});
  std::memcpy(tensor.view().data, golden.bytes.data(), golden.bytes.size());
  return tensor;
}

// acc is the sum in fp32, with slices summed in double: the reference has the same bits. Another
// order of the sums of a slice moves acc by rounding errors and may flip a bf16.
TEST(QuantisedLinearTest, GoldenProducts) {
  const GoldenFile golden(GoldenPath("reference/units.safetensors"));
  for (const WeightFormat format : kQuantised) {
    const std::string name = std::string(Name(format)) + "_gemm.";
    const GoldenTensor& golden_x = golden[name + "x"];
    HostTensor x(DType::kBf16, {golden_x.shape[0], golden_x.shape[1]});
    x.SetFloats(golden_x.Floats());
    const HostTensor values = Bytes(ValueType(format), golden[name + "w"]);
    const HostTensor scales = Bytes(DType::kF8E8M0, golden[name + "w_scale"]);
    const MatrixSource source{
        {.format = format, .n = values.view().shape[0], .k = golden_x.shape[1]}, values, scales};
    const std::vector<float> acc = golden[name + "acc"].Floats();
    const std::vector<float> y = golden[name + "y"].Floats();
    EXPECT_EQ(RunReference(QuantisedRun(x, source, true, DType::kF32)).floats, acc) << name;
    EXPECT_EQ(RunReference(QuantisedRun(x, source, true, DType::kBf16)).floats, y) << name;

    const std::vector<float> fast =
        RunOnAllBackends(QuantisedRun(x, source, true, DType::kF32)).floats;
    double difference = 0, norm = 0;
    for (size_t i = 0; i < acc.size(); ++i) {
      difference += std::pow(static_cast<double>(fast[i]) - acc[i], 2);
      norm += std::pow(static_cast<double>(acc[i]), 2);
    }
    EXPECT_LE(std::sqrt(difference / norm), 1e-6) << name;
    const std::vector<float> rounded =
        RunOnAllBackends(QuantisedRun(x, source, true, DType::kBf16)).floats;
    size_t same = 0;
    for (size_t i = 0; i < y.size(); ++i) same += rounded[i] == y[i] ? 1 : 0;
    EXPECT_GE(static_cast<double>(same), 0.99 * static_cast<double>(y.size())) << name;
  }
}

struct Shape {
  int64_t rows, n, k, groups;
};
// Rows on both sides of one register tile; partial tiles, panels and slices; groups whose rows
// start inside a 128-row tile.
constexpr Shape kShapes[] = {{1, 1, 32, 1},     {1, 300, 512, 1}, {2, 33, 96, 1},
                             {3, 130, 160, 1},  {5, 40, 288, 3},  {7, 24, 128, 4},
                             {12, 128, 256, 1}, {13, 96, 544, 1}, {97, 64, 384, 2}};

HostTensor Absolute(const HostTensor& source) {
  HostTensor result = source.Clone();
  for (int64_t i = 0; i < result.size(); ++i) result.Set(i, std::fabs(source.At(i)));
  return result;
}

// |x| |w|^T, which bounds the rounding error of a sum (linear_cpu_test.cc).
std::vector<float> SizesOfSums(const HostTensor& x, const QuantisedTensor& w) {
  const HostTensor abs_x = Absolute(x), abs_w = Absolute(w.Widened());
  return RunReference([&](const Ops& ops, Stream& stream) {
           const PackedTensor packed = Pack(ops, abs_w, w.spec.groups);
           HostTensor out(DType::kF32, {x.view().shape[0], w.spec.groups * w.spec.n});
           ops.Linear({.x = abs_x, .weight = packed.weight, .out = out}, stream);
           OpResult result;
           result.Add(out);
           return result;
         })
      .floats;
}

TEST(QuantisedLinearTest, IsWithinTheRoundingErrorOfItsSums) {
  for (const WeightFormat format : kQuantised) {
    for (const Shape& shape : kShapes) {
      for (const InputKind kind : kAllInputKinds) {
        for (const bool round : {true, false}) {
          const HostTensor x = Random(DType::kBf16, {shape.rows, shape.groups * shape.k}, 1, kind);
          const QuantisedTensor w(
              {.format = format, .n = shape.n, .k = shape.k, .groups = shape.groups}, 2, kind,
              0.05f);
          const auto got = RunOnAllBackends(QuantisedRun(x, w.source(), round, DType::kF32)).floats;
          const auto want = RunReference(QuantisedRun(x, w.source(), round, DType::kF32)).floats;
          const auto sizes = SizesOfSums(x, w);
          for (size_t i = 0; i < got.size(); ++i) {
            const double error = std::ldexp(static_cast<double>(shape.k) * sizes[i], -23);
            ASSERT_NEAR(got[i], want[i], error) << i << " " << Name(format) << " " << Name(kind)
                                                << " rows " << shape.rows << " n " << shape.n;
          }
        }
      }
    }
  }
}

// Without rounding of the inputs a quantised product is that of the widened matrix.
TEST(QuantisedLinearTest, UnroundedProductIsThatOfTheWidenedMatrix) {
  for (const WeightFormat format : kQuantised) {
    const HostTensor x = Random(DType::kF32, {4, 256}, 5);
    const QuantisedTensor w({.format = format, .n = 72, .k = 256}, 6);
    const HostTensor widened = w.Widened();
    const auto got = RunOnAllBackends(QuantisedRun(x, w.source(), false, DType::kF32)).floats;
    const auto want = RunReference([&](const Ops& ops, Stream& stream) {
                        const PackedTensor packed = Pack(ops, widened);
                        HostTensor out(DType::kF32, {4, 72});
                        ops.Linear({.x = x, .weight = packed.weight, .out = out}, stream);
                        OpResult result;
                        result.Add(out);
                        return result;
                      }).floats;
    ExpectNear(got, want, 1e-6, 1e-3);
  }
}

// wo_a (docs/model.md 8.8).
TEST(QuantisedLinearTest, MatrixThatDoesNotRoundItsInputsNeverDoes) {
  const HostTensor x = Random(DType::kBf16, {3, 2 * 128}, 7);
  const QuantisedTensor w({.format = WeightFormat::kFp8, .n = 64, .k = 128, .groups = 2}, 8);
  MatrixSource wo_a = w.source();
  wo_a.spec.rounds_inputs = false;
  for (const auto& run : {RunOnAllBackends, RunReference}) {
    const OpResult asked = run(QuantisedRun(x, wo_a, true, DType::kF32));
    const OpResult unasked = run(QuantisedRun(x, w.source(), false, DType::kF32));
    const OpResult rounded = run(QuantisedRun(x, w.source(), true, DType::kF32));
    EXPECT_TRUE(asked.bytes == unasked.bytes);
    EXPECT_FALSE(asked.bytes == rounded.bytes);
  }
}

// The rounding of a row is exactly Q8: a row that is a fixed point of it changes nothing.
TEST(QuantisedLinearTest, RoundedInputsAreFixedPoints) {
  for (const InputKind kind : kAllInputKinds) {
    const HostTensor x = Random(DType::kBf16, {2, 320}, 9, kind);
    HostTensor rounded = x.Clone();
    std::vector<float> row(320);
    for (int64_t r = 0; r < 2; ++r) {
      for (int64_t j = 0; j < 320; ++j) row[j] = x.At(r * 320 + j);
      for (int64_t j = 0; j < 320; j += 128) {
        RoundFp8Group(row.data() + j, std::min<int64_t>(128, 320 - j));
      }
      for (int64_t j = 0; j < 320; ++j) rounded.Set(r * 320 + j, row[j]);
    }
    const QuantisedTensor w({.format = WeightFormat::kFp4, .n = 40, .k = 320}, 10);
    const OpResult by_op = RunOnAllBackends(QuantisedRun(x, w.source(), true, DType::kF32));
    EXPECT_TRUE(by_op.bytes ==
                RunOnAllBackends(QuantisedRun(rounded, w.source(), true, DType::kF32)).bytes);
    EXPECT_TRUE(by_op.bytes ==
                RunOnAllBackends(QuantisedRun(rounded, w.source(), false, DType::kF32)).bytes);
  }
}

TEST(QuantisedLinearTest, RowsDoNotDependOnTheRowsBesideThem) {
  constexpr int64_t kRows = 131;
  const HostTensor x = Random(DType::kBf16, {kRows, 320}, 3, InputKind::kWide);
  for (const WeightFormat format : kQuantised) {
    const QuantisedTensor w({.format = format, .n = 200, .k = 320}, 4);
    RunOnAllBackends([&](const Ops& ops, Stream& stream) {
      const PackedTensor packed = Pack(ops, w.source());
      OpResult result;
      for (const int64_t chunk : {int64_t{1}, int64_t{3}, int64_t{7}, int64_t{50}, kRows}) {
        HostTensor out(DType::kF32, {kRows, 200});
        for (const BatchPart& part : Chunks(kRows, chunk)) {
          ops.Linear({.x = x.view().Rows(part.first_position, part.num_tokens),
                      .weight = packed.weight,
                      .round_fp8 = true,
                      .out = out.view().Rows(part.first_position, part.num_tokens)},
                     stream);
        }
        if (result.bytes.empty()) result.Add(out);
        EXPECT_EQ(out.Bytes(), result.bytes) << "chunks of " << chunk;
      }
      return result;
    });
  }
}

// Every code and every scale byte but NaN, as the only weight of an output.
TEST(QuantisedLinearTest, EveryCodeAndScaleIsWidenedExactly) {
  for (const WeightFormat format : kQuantised) {
    const int num_codes = format == WeightFormat::kFp8 ? 256 : 16;
    HostTensor values(ValueType(format), {num_codes, ValueColumns(format, 32)});
    HostTensor scales(DType::kF8E8M0, {ScaleRows(format, num_codes), 1});
    std::memset(scales.view().data, 120, static_cast<size_t>(scales.size()));
    for (int code = 0; code < num_codes; ++code) {
      const bool nan = format == WeightFormat::kFp8 && (code & 0x7f) == 0x7f;
      values.view().row<uint8_t>(code)[0] = static_cast<uint8_t>(nan ? 0 : code);
    }
    const MatrixSource source{{.format = format, .n = num_codes, .k = 32}, values, scales};
    HostTensor x(DType::kF32, {1, 32});
    x.Set(0, 3.0f);
    for (const int scale : {0, 1, 60, 127, 180}) {
      std::memset(scales.view().data, scale, static_cast<size_t>(scales.size()));
      std::vector<float> row(32), want;
      for (int code = 0; code < num_codes; ++code) {
        WidenWeightRow(source, code, row.data());
        want.push_back(3.0f * row[0]);
      }
      EXPECT_EQ(RunOnAllBackends(QuantisedRun(x, source, false, DType::kF32)).floats, want)
          << Name(format) << " scale " << scale;
    }
  }
}

TEST(QuantisedLinearTest, PackedBytesAreThoseOfTheFormat) {
  for (const CpuBackend& backend : CpuBackends()) {
    const int64_t n = 1024, k = 4096;
    const auto bytes = [&](WeightFormat format) {
      return static_cast<double>(backend.ops->PackedBytes({.format = format, .n = n, .k = k})) /
             static_cast<double>(n * k);
    };
    EXPECT_EQ(bytes(WeightFormat::kBf16), 2.0);
    EXPECT_NEAR(bytes(WeightFormat::kFp8), 1.0, 0.01);
    EXPECT_EQ(bytes(WeightFormat::kFp4), 0.5 + 1.0 / 32);
  }
}

}  // namespace
}  // namespace lodestone
