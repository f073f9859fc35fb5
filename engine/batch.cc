#include "engine/batch.h"

#include <algorithm>
#include <cstring>

#include "base/logging.h"
#include "base/status_macros.h"
#include "engine/engine.h"
#include "kvcache/cache_shape.h"

namespace lodestone {
namespace {

constexpr int64_t kAlignment = 256;  // of an array on a device

constexpr int64_t AlignedBytes(int64_t num_ints) {
  return (num_ints * int64_t{sizeof(int32_t)} + kAlignment - 1) / kAlignment * kAlignment;
}

// As many as the longest sequence of the step needs.
int64_t ColumnsOf(std::span<const StepPart> parts) {
  int64_t columns = 1;
  for (const StepPart& part : parts) {
    columns = std::max(columns, std::ssize(part.sequence->cache().pages()));
  }
  return columns;
}

}  // namespace

StepBucket BucketFor(int64_t num_seqs, int64_t num_columns, int64_t max_seqs,
                     int64_t max_columns) {
  StepBucket bucket = {1, 1};
  while (bucket.num_seqs < num_seqs) bucket.num_seqs *= 2;
  while (bucket.num_columns < num_columns) bucket.num_columns *= 4;
  return {std::min(bucket.num_seqs, max_seqs), std::min(bucket.num_columns, max_columns)};
}

Batch::Batch(int64_t max_tokens, int64_t max_sequences)
    : max_tokens_(max_tokens), max_sequences_(max_sequences) {
  for (auto* array : {&id_, &position_, &token_seq_, &visible_}) {
    array->reserve(static_cast<size_t>(max_tokens));
  }
  for (auto* array : {&first_, &count_, &slot_, &rows_}) {
    array->reserve(static_cast<size_t>(max_sequences));
  }
  logits_.reserve(static_cast<size_t>(max_sequences));
}

int64_t Batch::DeviceBytes(int64_t max_tokens, int64_t max_sequences, int64_t max_context) {
  return 4 * AlignedBytes(max_tokens) + 4 * AlignedBytes(max_sequences) +
         AlignedBytes(max_sequences * PagesFor(max_context));
}

absl::Status Batch::MoveTo(Stream* stream, int64_t max_context) {
  const int64_t bytes = DeviceBytes(max_tokens_, max_sequences_, max_context);
  ASSIGN_OR_RETURN(pinned_, Buffer::Allocate(bytes, SharedMemory(stream->device())));
  ASSIGN_OR_RETURN(device_, Buffer::Allocate(bytes, WorkMemory(stream->device())));
  stream_ = stream;
  max_context_ = max_context;
  return absl::OkStatus();
}

void Batch::Clear(size_t num_seqs, int64_t num_columns) {
  for (auto* array : {&id_, &position_, &token_seq_, &visible_, &first_, &count_, &slot_, &rows_}) {
    array->clear();
  }
  logits_.clear();
  max_visible_ = 0;
  max_position_ = 0;
  num_columns_ = num_columns;
  table_.assign(num_seqs * static_cast<size_t>(num_columns), -1);
}

void Batch::Fill(std::span<const StepPart> parts) {
  Clear(parts.size(), ColumnsOf(parts));
  for (size_t number = 0; number < parts.size(); ++number) AppendPart(number, parts[number]);
  MakeViews();
}

StepBucket Batch::FillUp(std::span<const StepPart> parts) {
  const StepBucket bucket =
      BucketFor(std::ssize(parts), ColumnsOf(parts), max_sequences_, PagesFor(max_context_));
  Clear(static_cast<size_t>(bucket.num_seqs), bucket.num_columns);
  for (size_t number = 0; number < parts.size(); ++number) AppendPart(number, parts[number]);
  const auto shortest = std::ranges::min_element(position_) - position_.begin();
  while (std::ssize(id_) < bucket.num_seqs) AppendCopy(static_cast<int32_t>(shortest));
  max_position_ = std::min(bucket.num_columns * kPageTokens, max_context_) - 1;
  max_visible_ = (max_position_ + 1) / kIndexedRatio;
  MakeViews();
  return bucket;
}

// Another sequence with the token, slot and pages of sequence `of`.
void Batch::AppendCopy(int32_t of) {
  const auto from = static_cast<size_t>(of);
  const auto number = static_cast<int32_t>(first_.size());
  std::copy_n(table_.begin() + of * num_columns_, num_columns_,
              table_.begin() + number * num_columns_);
  for (auto* array : {&id_, &position_, &visible_, &slot_}) array->push_back(array->at(from));
  for (auto* array : {&token_seq_, &first_, &rows_}) array->push_back(number);
  count_.push_back(0);
}

void Batch::AppendPart(size_t number, const StepPart& part) {
  const Sequence& sequence = *part.sequence;
  const int64_t start = sequence.cache().length();
  first_.push_back(static_cast<int32_t>(id_.size()));
  count_.push_back(part.num_tokens);
  slot_.push_back(sequence.cache().slot());
  std::ranges::transform(sequence.cache().pages(),
                         table_.begin() + static_cast<std::ptrdiff_t>(number) * num_columns_,
                         &PageId::value);
  for (int64_t position = start; position < start + part.num_tokens; ++position) {
    id_.push_back(sequence.tokens()[static_cast<size_t>(position)]);
    position_.push_back(static_cast<int32_t>(position));
    token_seq_.push_back(static_cast<int32_t>(number));
    visible_.push_back(static_cast<int32_t>((position + 1) / kIndexedRatio));
  }
  max_position_ = std::max(max_position_, start + part.num_tokens - 1);
  max_visible_ = std::max(max_visible_, static_cast<int64_t>(visible_.back()));
  const int64_t end = start + part.num_tokens;
  const int64_t first_row = sequence.wants_prompt_logprobs() ? start : end - 1;
  for (int64_t position = first_row; position < end; ++position) {
    if (!sequence.wants_prompt_logprobs() && position + 1 < sequence.num_tokens()) continue;
    rows_.push_back(first_.back() + static_cast<int32_t>(position - start));
    logits_.push_back({.part = number, .next = position + 1});
  }
}

TensorView Batch::Place(std::vector<int32_t>& values) {
  const int64_t count = std::ssize(values);
  if (stream_ == nullptr) return TensorView(values.data(), DType::kI32, {count});
  CHECK_LE(placed_bytes_ + AlignedBytes(count), device_.size()) << "a batch beyond its bounds";
  std::memcpy(pinned_.data() + placed_bytes_, values.data(), values.size() * sizeof(int32_t));
  const TensorView view(device_.data() + placed_bytes_, DType::kI32, {count}, Device::kCuda);
  placed_bytes_ += AlignedBytes(count);
  return view;
}

void Batch::MakeViews() {
  const int64_t num_seqs = std::ssize(first_);
  placed_bytes_ = 0;
  ids_ = Place(id_);
  num_visible_ = Place(visible_);
  logit_rows_ = Place(rows_);
  index_ = {.positions = Place(position_),
            .token_seq = Place(token_seq_),
            .seq_first = Place(first_),
            .seq_tokens = Place(count_),
            .seq_slot = Place(slot_),
            .block_table = TensorView(Place(table_).data, DType::kI32, {num_seqs, num_columns_})};
  if (stream_ != nullptr) stream_->Copy(device_.data(), pinned_.data(), placed_bytes_);
}

}  // namespace lodestone
