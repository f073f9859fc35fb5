#pragma once

#include <cublas_v2.h>

#include <algorithm>
#include <cstdint>
#include <memory>

#include "bench/gpu/device_array.h"
#include "bench/gpu/measure.h"

// Random device memory, and what the card reads and multiplies at most.
namespace lodestone::cuda::bench {

// kE2m1: bf16 that hold e2m1 codes times 1/2 or 1/4, the same of every 32. kE8m0: scales of groups
// of one row after its rotation, which differ little. kMixF32: weights of hyper-connection mixes,
// whose sums over four streams come out near 1, as a model's do.
enum class FillKind { kBf16, kF32, kE4m3, kBytes, kE8m0, kKeyScale, kE2m1, kMixF32 };

__device__ inline uint32_t Hash(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return static_cast<uint32_t>((x ^ (x >> 31)) >> 16);
}

// Roughly normal: the sum of four uniform numbers.
__device__ inline float NormalOf(uint64_t x) {
  float sum = -2;
  for (int i = 0; i < 4; ++i) sum += static_cast<float>(Hash(4 * x + i)) * 0x1p-32f;
  return sum * 1.7f;
}

static __global__ void FillKernel(void* data, int64_t n, FillKind kind, uint64_t seed) {
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < n;
       i += int64_t{gridDim.x} * blockDim.x) {
    const uint64_t x = seed * 0x9e3779b97f4a7c15ull + static_cast<uint64_t>(i);
    switch (kind) {
      case FillKind::kBf16:
        static_cast<uint16_t*>(data)[i] = static_cast<uint16_t>(__float_as_uint(NormalOf(x)) >> 16);
        break;
      case FillKind::kF32:
        static_cast<float*>(data)[i] = NormalOf(x);
        break;
      case FillKind::kMixF32:
        static_cast<float*>(data)[i] = 0.02f * NormalOf(x);
        break;
      case FillKind::kE4m3:
        static_cast<uint8_t*>(data)[i] = Hash(x) & 0xf7u;
        break;
      case FillKind::kBytes:
        static_cast<uint8_t*>(data)[i] = Hash(x) & 0xffu;
        break;
      case FillKind::kE8m0:
        static_cast<uint8_t*>(data)[i] = 120 + Hash(x) % 3;
        break;
      case FillKind::kKeyScale:
        static_cast<float*>(data)[i] = 0.01f;
        break;
      case FillKind::kE2m1: {
        const uint32_t code = Hash(x) & 15u;
        const uint32_t exponent = (code >> 1 & 3u) == 0 ? 0 : 126 + (code >> 1 & 3u);
        float value = (code & 7u) == 1 ? 0.5f : __uint_as_float(exponent << 23 | (code & 1u) << 22);
        if (code & 8u) value = -value;
        value = ldexpf(value, -1 - static_cast<int>(Hash(seed + i / 32) & 1u));
        static_cast<uint16_t*>(data)[i] = static_cast<uint16_t>(__float_as_uint(value) >> 16);
        break;
      }
    }
  }
}

template <typename T>
std::unique_ptr<DeviceArray<T>> Filled(int64_t n, FillKind kind, uint64_t seed) {
  auto array = std::make_unique<DeviceArray<T>>(static_cast<size_t>(n));
  FillKernel<<<2048, 256>>>(array->data(), n, kind, seed);
  CUDA_CHECK(cudaGetLastError());
  return array;
}

static __global__ void ReadKernel(const uint4* data, int64_t n, uint32_t* out) {
  uint32_t sum = 0;
#pragma unroll 8
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < n;
       i += int64_t{gridDim.x} * blockDim.x) {
    const uint4 four = __ldcs(data + i);
    sum ^= four.x ^ four.y ^ four.z ^ four.w;
  }
  if (sum == 0x12345678u) *out = sum;
}

inline double MeasureRead() {
  constexpr int64_t kBytes = int64_t{4} << 30;
  const auto data = Filled<uint8_t>(kBytes, FillKind::kBytes, 1);
  const DeviceArray<uint32_t> out(size_t{1});
  double best = 0;
  for (int blocks : {2, 4, 8}) {
    const double us = GraphMicroseconds(4, [&](int, cudaStream_t stream) {
      ReadKernel<<<132 * blocks, 512, 0, stream>>>(reinterpret_cast<const uint4*>(data->data()),
                                                   kBytes / 16, out.data());
    });
    best = std::max(best, static_cast<double>(kBytes) / us * 1e6);
  }
  return best;
}

inline double MeasureProduct() {
  constexpr int kSize = 8192;
  const auto a = Filled<uint16_t>(kSize * kSize, FillKind::kBf16, 1);
  const auto b = Filled<uint16_t>(kSize * kSize, FillKind::kBf16, 2);
  const DeviceArray<uint16_t> c(static_cast<size_t>(kSize) * kSize);
  const DeviceArray<uint8_t> workspace(size_t{64} << 20);
  cublasHandle_t handle = nullptr;
  if (cublasCreate(&handle) != CUBLAS_STATUS_SUCCESS) return 1;
  cublasSetWorkspace(handle, workspace.data(), workspace.bytes());
  const float one = 1;
  const float zero = 0;
  const double us = GraphMicroseconds(4, [&](int, cudaStream_t stream) {
    cublasSetStream(handle, stream);
    cublasSetWorkspace(handle, workspace.data(), workspace.bytes());
    cublasGemmEx(handle, CUBLAS_OP_T, CUBLAS_OP_N, kSize, kSize, kSize, &one, a->data(),
                 CUDA_R_16BF, kSize, b->data(), CUDA_R_16BF, kSize, &zero, c.data(), CUDA_R_16BF,
                 kSize, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT);
  });
  cublasDestroy(handle);
  return 2.0 * kSize * kSize * kSize / us * 1e6;
}

inline Ceilings MeasureCeilings() {
  return {.read_bytes = MeasureRead(), .bf16_flops = MeasureProduct()};
}

}  // namespace lodestone::cuda::bench
