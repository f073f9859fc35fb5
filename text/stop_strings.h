#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <absl/status/statusor.h>

namespace lodestone {

// Ends a text at the first stop string. The stop that ends first in the text wins, and of those
// that end at the same byte the longest; text from its first byte on is not emitted (kExclude).
// What may still become a stop is held back, no more. Push any split of the same text: the joined
// output, and where it ends, is the same. Not thread-safe.
class StopMatcher {
 public:
  static constexpr size_t kMaxStops = 4;
  static constexpr size_t kMaxStopBytes = 256;
  enum class StopText { kExclude, kInclude };

  // INVALID_ARGUMENT: more than kMaxStops, an empty stop, one longer than kMaxStopBytes or not
  // UTF-8. No stops at all is fine: everything passes.
  static absl::StatusOr<StopMatcher> Create(std::vector<std::string> stops,
                                            StopText stop_text = StopText::kExclude);

  // The text that may be emitted after `text`. Whole characters if `text` has only whole ones.
  // Once stopped() returns true, further text gives nothing.
  std::string Push(std::string_view text);
  // What was held back; nothing if stopped.
  std::string Finish();

  bool stopped() const { return matched_.has_value(); }
  // The stop string that ended the text; REQUIRES: stopped().
  const std::string& matched() const { return stops_[*matched_]; }

 private:
  explicit StopMatcher(std::vector<std::string> stops, StopText stop_text);
  void Advance(size_t stop, char byte);

  std::vector<std::string> stops_;
  StopText stop_text_;
  std::vector<std::vector<size_t>> borders_;  // per stop: longest border of each prefix
  std::vector<size_t> progress_;              // per stop: bytes of it that end the text so far
  std::string held_;
  std::optional<size_t> matched_;
};

}  // namespace lodestone
