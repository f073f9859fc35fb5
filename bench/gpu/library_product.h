#pragma once

#include <cublasLt.h>

#include <algorithm>
#include <cstdint>
#include <limits>

#include "bench/gpu/device_array.h"
#include "bench/gpu/measure.h"

// What cuBLASLt takes for a product of bf16, for comparison: it adds in an order that follows from
// the number of tokens, so the library proper does not use it (docs/numerics.md).
namespace lodestone::cuda::bench {

// out [rows, n] = x [rows, k] weight [n, k]^T, all bf16 and row-major, sums in fp32.
class LibraryProduct {
 public:
  LibraryProduct(int64_t rows, int64_t n, int64_t k) {
    const auto unsigned_of = [](int64_t value) { return static_cast<uint64_t>(value); };
    cublasLtCreate(&handle_);
    cublasLtMatmulDescCreate(&product_, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    const cublasOperation_t transposed = CUBLAS_OP_T;
    cublasLtMatmulDescSetAttribute(product_, CUBLASLT_MATMUL_DESC_TRANSA, &transposed,
                                   sizeof(transposed));
    cublasLtMatrixLayoutCreate(&weight_, CUDA_R_16BF, unsigned_of(k), unsigned_of(n), k);
    cublasLtMatrixLayoutCreate(&x_, CUDA_R_16BF, unsigned_of(k), unsigned_of(rows), k);
    cublasLtMatrixLayoutCreate(&out_, CUDA_R_16BF, unsigned_of(n), unsigned_of(rows), n);
    cublasLtMatmulPreference_t preference = nullptr;
    cublasLtMatmulPreferenceCreate(&preference);
    const size_t bytes = workspace_.bytes();
    cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                         &bytes, sizeof(bytes));
    cublasLtMatmulAlgoGetHeuristic(handle_, product_, weight_, x_, out_, out_, preference, kTried,
                                   tried_, &num_tried_);
    cublasLtMatmulPreferenceDestroy(preference);
  }
  LibraryProduct(const LibraryProduct&) = delete;
  LibraryProduct& operator=(const LibraryProduct&) = delete;
  ~LibraryProduct() {
    cublasLtMatrixLayoutDestroy(out_);
    cublasLtMatrixLayoutDestroy(x_);
    cublasLtMatrixLayoutDestroy(weight_);
    cublasLtMatmulDescDestroy(product_);
    cublasLtDestroy(handle_);
  }

  // Of the first kTried algorithms of the heuristic the fastest; `weight_of(i)` is launch i's.
  template <typename WeightOf>
  double Microseconds(int launches, const uint16_t* x, const WeightOf& weight_of,
                      uint16_t* out) const {
    const float one = 1;
    const float zero = 0;
    double best = std::numeric_limits<double>::infinity();
    for (int algorithm = 0; algorithm < num_tried_; ++algorithm) {
      best = std::min(best, GraphMicroseconds(launches, [&](int i, cudaStream_t stream) {
                        cublasLtMatmul(handle_, product_, &one, weight_of(i), weight_, x, x_, &zero,
                                       out, out_, out, out_, &tried_[algorithm].algo,
                                       workspace_.data(), workspace_.bytes(), stream);
                      }));
    }
    return best;
  }

 private:
  static constexpr int kTried = 4;
  cublasLtHandle_t handle_ = nullptr;
  cublasLtMatmulDesc_t product_ = nullptr;
  cublasLtMatrixLayout_t weight_ = nullptr;
  cublasLtMatrixLayout_t x_ = nullptr;
  cublasLtMatrixLayout_t out_ = nullptr;
  cublasLtMatmulHeuristicResult_t tried_[kTried] = {};
  int num_tried_ = 0;
  const DeviceArray<uint8_t> workspace_{size_t{64} << 20};
};

}  // namespace lodestone::cuda::bench
