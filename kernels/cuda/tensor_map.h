#pragma once

#include <cuda.h>

#include <cstdint>

namespace lodestone::cuda {

// A strided array in device memory as the copy engine sees it, and the box that one copy moves.
// Outside the array it reads zeros.
struct TensorMapShape {
  const void* data = nullptr;  // 16-byte aligned
  CUtensorMapDataType type = CU_TENSOR_MAP_DATA_TYPE_UINT8;
  int rank = 0;             // 2 to 4
  uint64_t size[4] = {};    // elements, innermost first
  uint64_t stride[3] = {};  // bytes from one index of dimension 1 .. 3 to the next, in 16s
  uint32_t box[4] = {};     // elements
  CUtensorMapSwizzle swizzle = CU_TENSOR_MAP_SWIZZLE_NONE;
};
// Host only; takes well under a microsecond. Ends the process if the driver refuses the shape.
CUtensorMap MakeTensorMap(const TensorMapShape& shape);

}  // namespace lodestone::cuda
