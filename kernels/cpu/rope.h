#pragma once

#include <cstdint>

#include "base/logging.h"
#include "kernels/numeric/rope.h"
#include "runtime/tensor.h"

namespace lodestone::cpu {

// The rotation of one position as SimdTable::rotate takes it.
struct RopeRow {
  static constexpr int64_t kMaxDims = 512;
  int64_t dims = 0;  // r_d
  alignas(64) float cos[kMaxDims];
  alignas(64) float sin[kMaxDims];

  RopeRow(int32_t position, const TensorView& freqs, bool inverse) : dims(2 * freqs.shape[0]) {
    CHECK(dims <= kMaxDims) << "model has " << dims << " rotary dims, the CPU ops take "
                            << kMaxDims;
    for (int64_t i = 0; i < freqs.shape[0]; ++i) {
      const CosSin angle = RopeAngle(position, freqs.as<float>()[i]);
      cos[2 * i] = angle.cos;
      cos[2 * i + 1] = angle.cos;
      sin[2 * i] = inverse ? angle.sin : -angle.sin;
      sin[2 * i + 1] = inverse ? -angle.sin : angle.sin;
    }
  }
};

}  // namespace lodestone::cpu
