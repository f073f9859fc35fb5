#include "kernels/cpu/row_steps.h"

#include <cmath>
#include <cstring>

#include "kernels/numeric/fp4.h"
#include "kernels/numeric/fp8.h"
#include "kernels/numeric/row_codec.h"

namespace lodestone::cpu {
namespace {

// x[0, n) widened to a row on the stack; `change` may alter it; `narrow` writes it back.
struct WideRow {
  WideRow(const SimdTable& table, const std::byte* x, int64_t num, bool is_bf16)
      : simd(table), n(num), bf16(is_bf16) {
    CHECK(n <= kMaxRowDims) << "row has " << n << " dims, the CPU ops take " << kMaxRowDims;
    simd.widen(x, bf16, n, values);
  }
  void Narrow(std::byte* x) const { simd.narrow(values, n, bf16, x); }

  const SimdTable& simd;
  const int64_t n;
  const bool bf16;
  alignas(64) float values[kMaxRowDims];
};

}  // namespace

void RotateTail(const SimdTable& simd, const RopeRow& rope, std::byte* x, int64_t dims, bool bf16) {
  simd.rotate(x + (dims - rope.dims) * (bf16 ? 2 : 4), rope.cos, rope.sin, rope.dims, bf16);
}

void RoundFp8Groups(const SimdTable& simd, std::byte* x, int64_t n, bool bf16) {
  WideRow row(simd, x, n, bf16);
  for (int64_t i = 0; i < n; i += kFp8KvGroup) RoundFp8Group(row.values + i, kFp8KvGroup);
  row.Narrow(x);
}

void RoundFp4Groups(const SimdTable& simd, std::byte* x, int64_t n, bool bf16) {
  WideRow row(simd, x, n, bf16);
  for (int64_t i = 0; i < n; i += kFp4Group) RoundFp4Group(row.values + i, kFp4Group);
  row.Narrow(x);
}

float CodeFp8Row(const SimdTable& simd, std::byte* x, int64_t n, bool bf16) {
  WideRow row(simd, x, n, bf16);
  uint8_t codes[kMaxRowDims];
  const float scale = QuantizeFp8Row(row.values, n, codes);
  for (int64_t i = 0; i < n; ++i) row.values[i] = E4m3ToFloat(codes[i]);
  row.Narrow(x);
  return scale;
}

void TransformRow(const SimdTable& simd, std::byte* x, int64_t n, bool bf16) {
  CHECK(n <= kMaxRowDims) << "row has " << n << " dims, the CPU ops take " << kMaxRowDims;
  const float factor = static_cast<float>(1.0 / std::sqrt(static_cast<double>(n)));
  simd.hadamard(x, n, factor, bf16);
}

void StoreLatent(const SimdTable& simd, const std::byte* x, bool bf16, int64_t dims,
                 int64_t rope_dims, KvFormat format, const StoredRow& stored) {
  if (SameBytes(format, bf16)) {
    std::memcpy(stored.payload, x, static_cast<size_t>(dims * (bf16 ? 2 : 4)));
    return;
  }
  const WideRow row(simd, x, dims, bf16);
  EncodeLatentRow(format, row.values, dims, rope_dims, stored.payload, stored.scale);
}

void StoreIndexKey(const SimdTable& simd, const std::byte* x, bool bf16, int64_t dims,
                   IndexKeyFormat format, const StoredRow& stored) {
  const WideRow row(simd, x, dims, bf16);
  EncodeIndexKeyRow(format, row.values, dims, stored.payload, stored.scale);
}

}  // namespace lodestone::cpu
