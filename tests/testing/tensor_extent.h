#pragma once

#include <cstdint>

#include "runtime/tensor.h"

namespace lodestone {

// Bytes from a view's first element to behind its last; 0 if it has none.
inline int64_t ExtentOf(const TensorView& view) {
  int64_t last = 0;
  for (int axis = 0; axis < view.rank; ++axis) {
    if (view.shape[axis] == 0) return 0;
    last += (view.shape[axis] - 1) * view.strides[axis];
  }
  return (last + 1) * BytesPerElement(view.dtype);
}

}  // namespace lodestone
