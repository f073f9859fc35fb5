#include "engine/batch.h"

#include <algorithm>

#include "engine/engine.h"
#include "kvcache/cache_shape.h"

namespace lodestone {
namespace {

TensorView View(std::vector<int32_t>& values) {
  return TensorView(values.data(), DType::kI32, {static_cast<int64_t>(values.size())});
}

}  // namespace

Batch::Batch(int64_t max_tokens, int64_t max_sequences) {
  for (auto* array : {&id_, &position_, &token_seq_, &visible_}) {
    array->reserve(static_cast<size_t>(max_tokens));
  }
  for (auto* array : {&first_, &count_, &slot_, &rows_}) {
    array->reserve(static_cast<size_t>(max_sequences));
  }
  logit_parts_.reserve(static_cast<size_t>(max_sequences));
}

void Batch::Fill(std::span<const StepPart> parts) {
  for (auto* array : {&id_, &position_, &token_seq_, &visible_, &first_, &count_, &slot_, &rows_}) {
    array->clear();
  }
  logit_parts_.clear();
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
  if (start + part.num_tokens == sequence.num_tokens()) {
    rows_.push_back(static_cast<int32_t>(id_.size()) - 1);
    logit_parts_.push_back(number);
  }
}

void Batch::MakeViews() {
  const int64_t num_seqs = std::ssize(first_);
  ids_ = View(id_);
  num_visible_ = View(visible_);
  logit_rows_ = View(rows_);
  index_ = {.positions = View(position_),
            .token_seq = View(token_seq_),
            .seq_first = View(first_),
            .seq_tokens = View(count_),
            .seq_slot = View(slot_),
            .block_table = TensorView(table_.data(), DType::kI32, {num_seqs, num_columns_})};
}

}  // namespace lodestone
