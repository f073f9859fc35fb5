#pragma once

#include <cstdint>
#include <deque>
#include <initializer_list>
#include <random>
#include <utility>

#include "base/logging.h"
#include "kernels/numeric/bf16.h"
#include "kernels/ops.h"
#include "runtime/memory.h"

// Inputs of op benchmarks.
namespace lodestone::bench {

// Owns the tensors of one benchmark.
class Arena {
 public:
  TensorView Zeros(DType dtype, std::initializer_list<int64_t> dims) {
    TensorView view(nullptr, dtype, dims);
    absl::StatusOr<Buffer> buffer = Buffer::Allocate(view.num_bytes());
    CHECK(buffer.ok()) << buffer.status().message();
    view.data = buffer->data();
    buffers_.push_back(*std::move(buffer));
    return view;
  }
  TensorView Random(DType dtype, std::initializer_list<int64_t> dims, float factor = 1.0f) {
    TensorView view = Zeros(dtype, dims);
    std::normal_distribution<float> normal(0.0f, factor);
    for (int64_t i = 0; i < view.num_elements(); ++i) {
      const float value = normal(random_);
      if (dtype == DType::kBf16)
        view.as<uint16_t>()[i] = FloatToBf16(value);
      else
        view.as<float>()[i] = value;
    }
    return view;
  }
  TensorView Ints(std::initializer_list<int64_t> dims, int32_t first, int32_t step) {
    TensorView view = Zeros(DType::kI32, dims);
    for (int64_t i = 0; i < view.num_elements(); ++i) {
      view.as<int32_t>()[i] = first + static_cast<int32_t>(i) * step;
    }
    return view;
  }
  PackedWeight Weight(const Ops& ops, DType dtype, int64_t n, int64_t k, int64_t groups = 1) {
    const TensorView source = Random(dtype, {groups * n, k}, 0.05f);
    const MatrixSpec spec{.format = dtype == DType::kF32 ? WeightFormat::kF32 : WeightFormat::kBf16,
                          .n = n,
                          .k = k,
                          .groups = groups};
    return ops.PackWeight({spec, source, {}}, Zeros(DType::kU8, {ops.PackedBytes(spec)}));
  }

 private:
  std::deque<Buffer> buffers_;
  std::mt19937 random_{1};
};

// Tokens [first, first + T) of one sequence that has `pages` pages.
inline BatchIndex OneSequence(Arena& arena, int64_t first, int64_t num_tokens) {
  BatchIndex batch;
  batch.positions = arena.Ints({num_tokens}, static_cast<int32_t>(first), 1);
  batch.token_seq = arena.Ints({num_tokens}, 0, 0);
  batch.seq_first = arena.Ints({1}, 0, 0);
  batch.seq_tokens = arena.Ints({1}, static_cast<int32_t>(num_tokens), 0);
  batch.seq_slot = arena.Ints({1}, 0, 0);
  batch.block_table = arena.Ints({1, (first + num_tokens) / kPageTokens + 1}, 0, 1);
  return batch;
}

}  // namespace lodestone::bench
