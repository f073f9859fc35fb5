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

}  // namespace

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
  return absl::OkStatus();
}

void Batch::Fill(std::span<const StepPart> parts) {
  for (auto* array : {&id_, &position_, &token_seq_, &visible_, &first_, &count_, &slot_, &rows_}) {
    array->clear();
  }
  logits_.clear();
  max_visible_ = 0;
  max_position_ = 0;
  // Only as many columns as the longest sequence of the step needs.
  num_columns_ = 1;
  for (const StepPart& part : parts) {
    num_columns_ = std::max(num_columns_, std::ssize(part.sequence->cache().pages()));
  }
  table_.assign(parts.size() * static_cast<size_t>(num_columns_), -1);
  for (size_t number = 0; number < parts.size(); ++number) AppendPart(number, parts[number]);
  MakeViews();
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
