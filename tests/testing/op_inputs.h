#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <vector>

#include "base/thread_pool.h"
#include "kernels/op_params.h"
#include "kernels/ops.h"
#include "runtime/cache_format.h"
#include "runtime/cache_views.h"
#include "runtime/stream.h"
#include "runtime/tensor.h"

// Inputs of op tests, the same for every backend: owned tensors, batches, caches, and values from
// harmless to hostile. Everything follows from the seed.
namespace lodestone {

// A dense host tensor that owns its memory, 64-byte aligned, zero at first, with guard bytes
// behind.
class HostTensor {
 public:
  HostTensor() = default;
  HostTensor(DType dtype, std::initializer_list<int64_t> dims);
  HostTensor(HostTensor&&) = default;
  HostTensor& operator=(HostTensor&&) = default;

  const TensorView& view() const { return view_; }
  operator const TensorView&() const { return view_; }  // NOLINT: a test passes either
  int64_t size() const { return view_.num_elements(); }
  bool guards_intact() const;

  // kF32 and kBf16 only; Set rounds.
  float At(int64_t i) const;
  void Set(int64_t i, float value);
  std::vector<float> Floats() const;
  void SetFloats(const std::vector<float>& values);
  // kI32 only.
  std::vector<int32_t> Ints() const;
  void SetInts(const std::vector<int32_t>& values);
  std::vector<std::byte> Bytes() const;
  HostTensor Clone() const;

 private:
  struct Free {
    void operator()(std::byte* pointer) const;
  };
  std::unique_ptr<std::byte, Free> data_;
  TensorView view_;
};

enum class InputKind {
  kNormal,     // N(0, 1)
  kWide,       // N(0, 1) * 2^k, k in [-12, 12] by element
  kOutlier,    // N(0, 1), one channel in 64 times 300
  kFewValues,  // multiples of 1/2 in [-2, 2]: many exact ties
  kTiny,       // N(0, 1) * 1e-7
  kZeros,      // +0 and -0
};
inline constexpr InputKind kAllInputKinds[] = {InputKind::kNormal,  InputKind::kWide,
                                               InputKind::kOutlier, InputKind::kFewValues,
                                               InputKind::kTiny,    InputKind::kZeros};
const char* Name(InputKind kind);

// Fills a kF32 or kBf16 tensor; every value times `factor`.
void Fill(HostTensor* tensor, InputKind kind, uint32_t seed, float factor = 1.0f);
HostTensor Random(DType dtype, std::initializer_list<int64_t> dims, uint32_t seed,
                  InputKind kind = InputKind::kNormal, float factor = 1.0f);

// A weight as `ops` keeps it, with the memory behind it.
struct PackedTensor {
  HostTensor packed;
  PackedWeight weight;
};
PackedTensor Pack(const Ops& ops, const HostTensor& source, int64_t groups = 1);

// A matrix [groups * n, k] in a quantised format, encoded from random numbers of the given kind.
struct QuantisedTensor {
  QuantisedTensor(const MatrixSpec& spec, uint32_t seed, InputKind kind = InputKind::kNormal,
                  float factor = 1.0f);
  MatrixSource source() const { return {spec, values, scales}; }
  // The numbers that the codes stand for, kF32 [groups * n, k].
  HostTensor Widened() const;

  MatrixSpec spec;
  HostTensor values, scales;
};
PackedTensor Pack(const Ops& ops, const MatrixSource& source);

// A part of one sequence: tokens [first_position, first_position + num_tokens).
struct BatchPart {
  int64_t first_position = 0;
  int64_t num_tokens = 1;
};

// The tables of a batch. Sequence b has slot num_slots - 1 - b, and its pages are dealt in a
// shuffled order, so that code which mixes up slots, pages and sequences fails.
struct TestBatch {
  TestBatch(const std::vector<BatchPart>& parts, uint32_t seed);
  // The same sequences, slots and pages with other parts (a later chunk, say). REQUIRES: as many
  // parts, none beyond the pages of the first batch.
  TestBatch With(const std::vector<BatchPart>& parts) const;
  // Only sequence `seq`, with its slot and pages.
  TestBatch Only(int64_t seq, BatchPart part) const;

  HostTensor positions, token_seq, seq_first, seq_tokens, seq_slot, block_table;
  BatchIndex index;
  int64_t num_slots = 0;  // one more than sequences
  int64_t num_pages = 0;  // some belong to nobody

 private:
  TestBatch() = default;
  void SetParts(const std::vector<BatchPart>& parts);
};

// (position + 1) / ratio of every token, i32 [T].
HostTensor NumVisible(const TestBatch& batch, int64_t ratio);

// Memory of one cache kind. A block holds payloads, then scales, then padding, so block strides
// differ from rows * row bytes as they do in a pool.
struct TestRowStore {
  TestRowStore(int64_t blocks, int64_t rows, RowBytes bytes);
  HostTensor memory;  // u8 [blocks, stride]
  RowStore store;
};

// Stores latents / index keys into the rows of `store`: row r of block b from values[(b * rows + r)
// * dims].
void EncodeLatents(const std::vector<float>& values, int64_t dims, int64_t rope_dims,
                   KvFormat format, const TestRowStore& store);
void EncodeIndexKeys(const std::vector<float>& values, int64_t dims, IndexKeyFormat format,
                     const TestRowStore& store);

// A stream with its pool.
struct TestStream {
  explicit TestStream(int num_threads = 1) : pool(num_threads), stream(&pool) {}
  operator Stream&() { return stream; }  // NOLINT: passed where an op wants a stream
  ThreadPool pool;
  Stream stream;
};

// Plain rotary frequencies theta^(-2i / dims), f32 [dims / 2].
HostTensor RopeFreqs(int64_t dims, double theta = 10000);

}  // namespace lodestone
