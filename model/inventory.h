#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "kernels/op_params.h"
#include "model/model_config.h"
#include "runtime/tensor.h"

namespace lodestone {

// One tensor that a checkpoint must have (docs/model.md 3.2).
struct TensorSpec {
  enum class Kind : uint8_t {
    kMatrix,      // goes into a product: packed by the backend
    kScale,       // scales of the kFp8 or kFp4 matrix before it; packed with it
    kPlain,       // kept as it is
    kTokenTable,  // i64 in the file, i32 in memory; values are expert numbers
  };
  std::string name;
  DType dtype = DType::kBf16;
  std::vector<int64_t> shape;
  Kind kind = Kind::kPlain;
  MatrixSpec matrix;  // kMatrix

  std::string ShapeString() const;  // e.g. "BF16[3, 512]"
};

// The name of the scales of "X.weight": "X.scale".
std::string ScaleName(std::string_view matrix_name);

// Every tensor of the trunk, in the order of the forward pass; the scales of a matrix follow it. No
// more and no less may be in a checkpoint, `mtp.*` aside.
std::vector<TensorSpec> TensorInventory(const ModelConfig& config);

}  // namespace lodestone
