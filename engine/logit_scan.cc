#include "engine/logit_scan.h"

#include <algorithm>

namespace lodestone {
namespace {

// Independent lanes, so that the compiler makes vector instructions of the inner loops.
constexpr size_t kLanes = 16;
constexpr size_t kBlock = 64 * kLanes;

float LargestOf(std::span<const float> logits) {
  float lanes[kLanes];
  std::fill_n(lanes, kLanes, logits[0]);
  const size_t whole = logits.size() / kLanes * kLanes;
  for (size_t i = 0; i < whole; i += kLanes) {
    for (size_t j = 0; j < kLanes; ++j) lanes[j] = std::max(lanes[j], logits[i + j]);
  }
  float largest = *std::max_element(lanes, lanes + kLanes);
  for (size_t i = whole; i < logits.size(); ++i) largest = std::max(largest, logits[i]);
  return largest;
}

}  // namespace

// Zero times a number is zero, and NaN for all others; NaN stays.
bool AllFinite(std::span<const float> logits) {
  float lanes[kLanes] = {};
  const size_t whole = logits.size() / kLanes * kLanes;
  for (size_t i = 0; i < whole; i += kLanes) {
    for (size_t j = 0; j < kLanes; ++j) lanes[j] += 0.0f * logits[i + j];
  }
  for (size_t i = whole; i < logits.size(); ++i) lanes[0] += 0.0f * logits[i];
  return std::all_of(lanes, lanes + kLanes, [](float lane) { return lane == 0; });
}

size_t IndexOfLargest(std::span<const float> logits) {
  size_t block = 0;
  float largest = logits[0];
  for (size_t first = 0; first < logits.size(); first += kBlock) {
    const float value = LargestOf(logits.subspan(first, std::min(kBlock, logits.size() - first)));
    if (value > largest) {
      largest = value;
      block = first;
    }
  }
  const auto begin = logits.begin() + static_cast<std::ptrdiff_t>(block);
  return static_cast<size_t>(std::find(begin, logits.end(), largest) - logits.begin());
}

}  // namespace lodestone
