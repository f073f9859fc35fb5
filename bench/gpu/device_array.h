#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include "kernels/cuda/cuda_check.h"

namespace lodestone::cuda {

// Device memory that owns itself, with guard bytes behind.
template <typename T>
class DeviceArray {
 public:
  explicit DeviceArray(const std::vector<T>& values) : DeviceArray(values.size()) {
    CUDA_CHECK(cudaMemcpy(data_, values.data(), bytes(), cudaMemcpyHostToDevice));
  }
  // Filled with 0xff: a NaN in every float format here, -1 in integers.
  explicit DeviceArray(size_t size) : size_(size) {
    CUDA_CHECK(cudaMalloc(reinterpret_cast<void**>(&data_), bytes() + kGuardBytes));
    CUDA_CHECK(cudaMemset(data_, 0xff, bytes() + kGuardBytes));
  }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;
  ~DeviceArray() { cudaFree(data_); }

  T* data() const { return data_; }
  size_t size() const { return size_; }
  size_t bytes() const { return size_ * sizeof(T); }
  std::vector<T> Read() const {
    std::vector<T> values(size_);
    CUDA_CHECK(cudaMemcpy(values.data(), data_, bytes(), cudaMemcpyDeviceToHost));
    return values;
  }
  bool guards_intact() const {
    uint8_t guards[kGuardBytes];
    CUDA_CHECK(cudaMemcpy(guards, reinterpret_cast<const uint8_t*>(data_) + bytes(), kGuardBytes,
                          cudaMemcpyDeviceToHost));
    for (uint8_t guard : guards) {
      if (guard != 0xff) return false;
    }
    return true;
  }

 private:
  static constexpr size_t kGuardBytes = 256;
  T* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace lodestone::cuda
