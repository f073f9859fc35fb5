#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/numeric/bf16.h"
#include "kernels/numeric/fp4.h"
#include "kernels/numeric/fp8.h"
#include "runtime/cache_format.h"

// One stored cache row to and from floats, for every format. `payload` and `scale` view
// LatentRowBytes / IndexKeyRowBytes bytes, at any alignment; `scale` is unused where the format has
// none. Values go in as floats already rounded to the activation type.
namespace lodestone {

static inline void EncodeBf16Row(const float* x, int64_t n, std::byte* out) {
  for (int64_t i = 0; i < n; ++i) {
    const uint16_t bits = FloatToBf16(x[i]);
    std::memcpy(out + 2 * i, &bits, 2);
  }
}

static inline void DecodeBf16Row(const std::byte* in, int64_t n, float* x) {
  for (int64_t i = 0; i < n; ++i) {
    uint16_t bits;
    std::memcpy(&bits, in + 2 * i, 2);
    x[i] = Bf16ToFloat(bits);
  }
}

// kFp8: payload = (dims - rope_dims) e4m3 codes, then rope_dims bf16; scale = one E8M0 byte per
// group of 64, then zero padding to 8 bytes.
static inline void EncodeLatentRow(KvFormat format, const float* x, int64_t dims, int64_t rope_dims,
                                   std::byte* payload, std::byte* scale) {
  switch (format) {
    case KvFormat::kBf16:
      EncodeBf16Row(x, dims, payload);
      return;
    case KvFormat::kF32:
      std::memcpy(payload, x, static_cast<size_t>(dims) * 4);
      return;
    case KvFormat::kFp8:
      break;
  }
  const int64_t coded = dims - rope_dims;
  uint8_t* codes = reinterpret_cast<uint8_t*>(payload);
  std::memset(scale, 0, static_cast<size_t>(LatentRowBytes(format, dims, rope_dims).scale));
  for (int64_t first = 0; first < coded; first += kFp8KvGroup) {
    const uint8_t code = QuantizeFp8Group(x + first, kFp8KvGroup, codes + first);
    scale[first / kFp8KvGroup] = static_cast<std::byte>(code);
  }
  EncodeBf16Row(x + coded, rope_dims, payload + coded);
}

static inline void DecodeLatentRow(KvFormat format, const std::byte* payload,
                                   const std::byte* scale, int64_t dims, int64_t rope_dims,
                                   float* x) {
  switch (format) {
    case KvFormat::kBf16:
      DecodeBf16Row(payload, dims, x);
      return;
    case KvFormat::kF32:
      std::memcpy(x, payload, static_cast<size_t>(dims) * 4);
      return;
    case KvFormat::kFp8:
      break;
  }
  const int64_t coded = dims - rope_dims;
  for (int64_t i = 0; i < coded; ++i) {
    const float factor = E8m0ToFloat(static_cast<uint8_t>(scale[i / kFp8KvGroup]));
    x[i] = E4m3ToFloat(static_cast<uint8_t>(payload[i])) * factor;
  }
  DecodeBf16Row(payload + coded, rope_dims, x + coded);
}

// kFp4: byte j holds element 2j in its low nibble and 2j + 1 in its high one; scale = one E8M0 byte
// per group of 32. kFp8: one fp32 scale, amax / 448. The kFp4 and kFp8 encoders do the rounding.
static inline void EncodeIndexKeyRow(IndexKeyFormat format, const float* x, int64_t dims,
                                     std::byte* payload, std::byte* scale) {
  switch (format) {
    case IndexKeyFormat::kBf16:
      EncodeBf16Row(x, dims, payload);
      return;
    case IndexKeyFormat::kF32:
      std::memcpy(payload, x, static_cast<size_t>(dims) * 4);
      return;
    case IndexKeyFormat::kFp8: {
      const float row_scale = QuantizeFp8Row(x, dims, reinterpret_cast<uint8_t*>(payload));
      std::memcpy(scale, &row_scale, 4);
      return;
    }
    case IndexKeyFormat::kFp4:
      break;
  }
  for (int64_t first = 0; first < dims; first += kFp4Group) {
    uint8_t codes[kFp4Group];
    scale[first / kFp4Group] =
        static_cast<std::byte>(QuantizeFp4Group(x + first, kFp4Group, codes));
    for (int i = 0; i < kFp4Group; i += 2) {
      payload[(first + i) / 2] = static_cast<std::byte>(codes[i] | (codes[i + 1] << 4));
    }
  }
}

// The key is x[] times the returned factor, which is 1 except for kFp8: there x[] are the widened
// codes, and the factor multiplies a finished dot product (IndexTopKParams).
static inline float DecodeIndexKeyRow(IndexKeyFormat format, const std::byte* payload,
                                      const std::byte* scale, int64_t dims, float* x) {
  switch (format) {
    case IndexKeyFormat::kBf16:
      DecodeBf16Row(payload, dims, x);
      return 1.0f;
    case IndexKeyFormat::kF32:
      std::memcpy(x, payload, static_cast<size_t>(dims) * 4);
      return 1.0f;
    case IndexKeyFormat::kFp8: {
      for (int64_t i = 0; i < dims; ++i) x[i] = E4m3ToFloat(static_cast<uint8_t>(payload[i]));
      float row_scale;
      std::memcpy(&row_scale, scale, 4);
      return row_scale;
    }
    case IndexKeyFormat::kFp4:
      break;
  }
  for (int64_t i = 0; i < dims; ++i) {
    const uint8_t pair = static_cast<uint8_t>(payload[i / 2]);
    const uint8_t code = static_cast<uint8_t>(i % 2 == 0 ? pair & 15u : pair >> 4);
    x[i] = E2m1ToFloat(code) * E8m0ToFloat(static_cast<uint8_t>(scale[i / kFp4Group]));
  }
  return 1.0f;
}

}  // namespace lodestone
