#pragma once

#include <string>
#include <vector>

#include "model/model_config.h"
#include "runtime/tensor.h"

namespace lodestone {

// One tensor that a checkpoint must have (docs/model.md 3.2).
struct TensorSpec {
  enum class Kind : uint8_t {
    kMatrix,      // goes into a product: packed by the backend
    kPlain,       // kept as it is
    kTokenTable,  // i64 in the file, i32 in memory; values are expert numbers
  };
  std::string name;
  DType dtype = DType::kBf16;
  std::vector<int64_t> shape;
  Kind kind = Kind::kPlain;
  int64_t groups = 1;  // kMatrix: blocks of rows, each with inputs of its own

  std::string ShapeString() const;  // e.g. "BF16[3, 512]"
};

// Every tensor of the trunk, in the order of the forward pass. No more and no less may be in a
// checkpoint, `mtp.*` aside.
std::vector<TensorSpec> TensorInventory(const ModelConfig& config);

}  // namespace lodestone
