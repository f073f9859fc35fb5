#include "tests/testing/output_twins.h"

#include <algorithm>
#include <cstring>

#include "tests/testing/tensor_extent.h"

namespace lodestone {
namespace {

// Rows of a cache are bytes, here of bf16 values.
TensorView AsNumbers(TensorView view) {
  if (view.dtype != DType::kU8) return view;
  view.dtype = DType::kBf16;
  view.shape[view.rank - 1] /= 2;
  for (int axis = 0; axis + 1 < view.rank; ++axis) view.strides[axis] /= 2;
  return view;
}

}  // namespace

void OutputTwins::Compare(OpDifference& difference) const {
  for (const Twin& twin : twins_) {
    if (twin.compared) CompareRows(AsNumbers(twin.copy), AsNumbers(twin.original), difference);
  }
}

void OutputTwins::CopyBack() const {
  for (const Twin& twin : twins_) std::memcpy(twin.begin, twin.bytes.data(), twin.bytes.size());
}

void OutputTwins::AddRange(TensorView* first, TensorView* second, bool compared) {
  if (first->empty()) return;
  Twin& twin = twins_.emplace_back();
  twin.original = *first;
  twin.begin = first->as<std::byte>();
  std::byte* end = twin.begin + ExtentOf(*first);
  if (second != nullptr) {
    twin.begin = std::min(twin.begin, second->as<std::byte>());
    end = std::max(end, second->as<std::byte>() + ExtentOf(*second));
  }
  twin.bytes.assign(twin.begin, end);
  for (TensorView* view : {first, second}) {
    if (view != nullptr) {
      view->data = twin.bytes.data() + (view->as<std::byte>() - twin.begin);
    }
  }
  twin.copy = *first;
  twin.compared = compared;
}

}  // namespace lodestone
