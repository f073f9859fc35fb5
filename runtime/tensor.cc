#include "runtime/tensor.h"

namespace lodestone {

std::string TensorView::ShapeString() const {
  std::string text(Name(dtype));
  text += '[';
  for (int i = 0; i < rank; ++i) {
    if (i > 0) text += ", ";
    text += std::to_string(shape[i]);
  }
  return text + ']';
}

}  // namespace lodestone
