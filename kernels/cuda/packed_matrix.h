#pragma once

#include <cstdint>

#include "kernels/cuda/gemm.h"
#include "kernels/op_params.h"

// How the CUDA backend lays a matrix out (CudaOps::PackWeight): its values as the checkpoint has
// them, row-major, then, from a multiple of 16 bytes on, its scales.
namespace lodestone::cuda {

inline int64_t PackedScalesOffset(const MatrixSpec& spec) {
  const int64_t values = spec.groups * spec.n * ValueColumns(spec.format, spec.k) *
                         BytesPerElement(ValueType(spec.format));
  return (values + 15) / 16 * 16;
}

inline int64_t PackedScaleBytes(const MatrixSpec& spec) {
  if (!IsQuantised(spec.format)) return 0;
  return ScaleRows(spec.format, spec.groups * spec.n) * ScaleColumns(spec.format, spec.k);
}

inline GemmWeight GemmWeightOf(const PackedWeight& weight) {
  const auto* const values = weight.data.as<const uint8_t>();
  return {values, IsQuantised(weight.format) ? values + PackedScalesOffset(weight) : nullptr};
}

}  // namespace lodestone::cuda
