#include "text/stop_strings.h"

#include <algorithm>
#include <utility>

#include <absl/strings/str_cat.h>
#include "text/utf8.h"

namespace lodestone {
namespace {

// borders[n]: length of the longest proper prefix of `text` that is also a suffix of its first n
// bytes (Knuth, Morris, Pratt).
std::vector<size_t> Borders(std::string_view text) {
  std::vector<size_t> borders(text.size() + 1, 0);
  for (size_t n = 2; n <= text.size(); ++n) {
    size_t border = borders[n - 1];
    while (border > 0 && text[border] != text[n - 1]) border = borders[border];
    borders[n] = text[border] == text[n - 1] ? border + 1 : 0;
  }
  return borders;
}

}  // namespace

absl::StatusOr<StopMatcher> StopMatcher::Create(std::vector<std::string> stops,
                                                StopText stop_text) {
  if (stops.size() > kMaxStops) {
    return absl::InvalidArgumentError(
        absl::StrCat(stops.size(), " stop strings, limit is ", kMaxStops));
  }
  for (const std::string& stop : stops) {
    if (stop.empty()) return absl::InvalidArgumentError("a stop string is empty");
    if (stop.size() > kMaxStopBytes) {
      return absl::InvalidArgumentError(
          absl::StrCat("a stop string has ", stop.size(), " bytes, limit is ", kMaxStopBytes));
    }
    if (!ValidateUtf8(stop)) return absl::InvalidArgumentError("a stop string is not valid UTF-8");
  }
  return StopMatcher(std::move(stops), stop_text);
}

StopMatcher::StopMatcher(std::vector<std::string> stops, StopText stop_text)
    : stops_(std::move(stops)), stop_text_(stop_text), progress_(stops_.size(), 0) {
  for (const std::string& stop : stops_) borders_.push_back(Borders(stop));
}

void StopMatcher::Advance(size_t stop, char byte) {
  const std::string& text = stops_[stop];
  size_t progress = progress_[stop];
  while (progress > 0 && text[progress] != byte) progress = borders_[stop][progress];
  progress_[stop] = text[progress] == byte ? progress + 1 : 0;
}

std::string StopMatcher::Push(std::string_view text) {
  if (stopped()) return {};
  if (stops_.empty()) return std::string(text);
  for (const char byte : text) {
    held_.push_back(byte);
    for (size_t stop = 0; stop < stops_.size(); ++stop) {
      Advance(stop, byte);
      const size_t length = stops_[stop].size();
      if (progress_[stop] < length) continue;
      if (!matched_.has_value() || length > stops_[*matched_].size()) matched_ = stop;
    }
    if (!stopped()) continue;
    if (stop_text_ == StopText::kExclude) held_.resize(held_.size() - matched().size());
    return std::exchange(held_, {});
  }
  const size_t keep = *std::max_element(progress_.begin(), progress_.end());
  std::string out = held_.substr(0, held_.size() - keep);
  held_.erase(0, out.size());
  return out;
}

std::string StopMatcher::Finish() { return stopped() ? std::string() : std::exchange(held_, {}); }

}  // namespace lodestone
