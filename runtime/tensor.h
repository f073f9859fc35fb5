#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>

namespace lodestone {

enum class DType : uint8_t { kF32, kBf16, kF8E4M3, kF8E8M0, kI8, kU8, kI32, kI64 };
enum class Device : uint8_t { kHost, kCuda };

constexpr int64_t BytesPerElement(DType dtype) {
  switch (dtype) {
    case DType::kF32: case DType::kI32: return 4;
    case DType::kBf16: return 2;
    case DType::kI64: return 8;
    default: return 1;
  }
}
constexpr std::string_view Name(DType dtype) {
  constexpr std::string_view kNames[] = {"F32", "BF16", "F8_E4M3", "F8_E8M0",
                                         "I8",  "U8",   "I32",     "I64"};
  return kNames[static_cast<int>(dtype)];
}

// A typed, strided view of memory that somebody else owns. Copy it freely. Strides count elements;
// the last dimension is always contiguous.
struct TensorView {
  static constexpr int kMaxRank = 4;

  void* data = nullptr;
  DType dtype = DType::kF32;
  Device device = Device::kHost;
  int rank = 0;
  std::array<int64_t, kMaxRank> shape{};
  std::array<int64_t, kMaxRank> strides{};

  TensorView() = default;
  // A dense view; `pointer` may be null only if the tensor has no elements.
  TensorView(void* pointer, DType type, std::initializer_list<int64_t> dims,
             Device where = Device::kHost)
      : data(pointer), dtype(type), device(where), rank(static_cast<int>(dims.size())) {
    int axis = 0;
    for (int64_t dim : dims) shape[axis++] = dim;
    int64_t stride = 1;
    for (int i = rank - 1; i >= 0; --i) {
      strides[i] = stride;
      stride *= shape[i];
    }
  }

  bool empty() const { return data == nullptr; }
  int64_t num_elements() const {
    int64_t count = 1;
    for (int i = 0; i < rank; ++i) count *= shape[i];
    return count;
  }
  // REQUIRES: dense.
  int64_t num_bytes() const { return num_elements() * BytesPerElement(dtype); }

  template <typename T>
  T* as() const {
    return static_cast<T*>(data);
  }
  // The address of row `i` of the first axis.
  template <typename T>
  T* row(int64_t i) const {
    return static_cast<T*>(data) + i * strides[0];
  }
  // Rows [first, first + count) of the first axis.
  TensorView Rows(int64_t first, int64_t count) const {
    TensorView view = *this;
    view.data = static_cast<std::byte*>(data) + first * strides[0] * BytesPerElement(dtype);
    view.shape[0] = count;
    return view;
  }
  std::string ShapeString() const;  // e.g. "BF16[3, 512]"
};

}  // namespace lodestone
