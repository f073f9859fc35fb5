#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "kernels/op_params.h"
#include "runtime/memory.h"
#include "runtime/stream.h"

namespace lodestone {

struct StepPart;

// The shape that a decode step (one token a sequence) is filled up to, so that few graphs serve
// all.
struct StepBucket {
  int64_t num_seqs = 0;
  int64_t num_columns = 0;  // of the block table
  friend auto operator<=>(const StepBucket&, const StepBucket&) = default;
};
// The smallest bucket that holds a step: sequences a power of two, pages one of four, neither more
// than the most there can be.
StepBucket BucketFor(int64_t num_seqs, int64_t num_columns, int64_t max_seqs, int64_t max_columns);

// The flat token arrays and tables of one step, in memory that is allocated once.
class Batch {
 public:
  Batch(int64_t max_tokens, int64_t max_sequences);

  // From now on Fill queues a copy of the arrays on `stream` and the views are of its device. Not
  // owned; the arrays may be filled again once the stream has passed the step. Sequences have
  // at most `max_context` tokens. Errors of Buffer::Allocate.
  absl::Status MoveTo(Stream* stream, int64_t max_context);
  // Device memory that MoveTo takes.
  static int64_t DeviceBytes(int64_t max_tokens, int64_t max_sequences, int64_t max_context);

  // Fills the arrays from the parts; every part's pages cover its tokens already.
  // REQUIRES: the parts stay within the constructor's bounds.
  void Fill(std::span<const StepPart> parts);
  // The same, filled up to the bucket that fits, which is returned. All arrays are then where those
  // of every step of this bucket are, and max_visible_indexed and max_position are its bounds. The
  // last sequences and rows of logits are copies of the shortest part that store nothing
  // (BatchIndex::seq_tokens): of the same experts and few keys, they cost little.
  // REQUIRES: MoveTo; every part has one token, the last of its sequence.
  StepBucket FillUp(std::span<const StepPart> parts);

  TensorView ids() const { return ids_; }
  const BatchIndex& index() const { return index_; }
  TensorView num_visible_indexed() const { return num_visible_; }
  int64_t max_visible_indexed() const { return max_visible_; }
  int64_t max_position() const { return max_position_; }
  // Rows whose logits are wanted, and what for.
  struct LogitRow {
    size_t part = 0;
    int64_t next = 0;  // index of the token that the logits are of
  };
  TensorView logit_rows() const { return logit_rows_; }
  std::span<const LogitRow> logits() const { return logits_; }

 private:
  void Clear(size_t num_seqs, int64_t num_columns);
  void AppendCopy(int32_t of);
  void AppendPart(size_t number, const StepPart& part);
  void MakeViews();
  TensorView Place(std::vector<int32_t>& values);

  const int64_t max_tokens_;
  const int64_t max_sequences_;
  std::vector<int32_t> id_, position_, token_seq_, visible_;  // [T]
  std::vector<int32_t> first_, count_, slot_, table_;         // [B], table [B, columns]
  std::vector<int32_t> rows_;                                 // [R]
  std::vector<LogitRow> logits_;                              // [R]
  TensorView ids_, num_visible_, logit_rows_;
  BatchIndex index_;
  int64_t num_columns_ = 1;  // of the block table
  Stream* stream_ = nullptr;  // null: the views are of the vectors
  Buffer pinned_, device_;
  int64_t placed_bytes_ = 0;
  int64_t max_context_ = 0;  // with stream_
  int64_t max_visible_ = 0;
  int64_t max_position_ = 0;
};

}  // namespace lodestone
