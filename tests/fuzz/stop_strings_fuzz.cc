// Stop strings. First byte: bits 0-2 how many lines are stops, bit 3 whether the stop is part of
// the text, bits 4-7 how the text is cut up; then the stops, a line each, then the text.
// Properties: any split gives the same text and the same stop, and both are what a plain search for
// the stop that ends first, the longest of those, finds; what is held back is shorter than a stop.
#include "tests/fuzz/fuzz_input.h"
#include "text/stop_strings.h"
#include "text/utf8.h"

namespace lodestone {
namespace {

struct Result {
  std::string text;
  std::string stop;
  friend bool operator==(const Result&, const Result&) = default;
};

Result PlainSearch(const std::vector<std::string>& stops, std::string_view text, bool include) {
  for (size_t end = 1; end <= text.size(); ++end) {
    const std::string* found = nullptr;
    for (const std::string& stop : stops) {
      if (!text.substr(0, end).ends_with(stop)) continue;
      if (found == nullptr || stop.size() > found->size()) found = &stop;
    }
    if (found == nullptr) continue;
    return {std::string(text.substr(0, include ? end : end - found->size())), *found};
  }
  return {std::string(text), ""};
}

Result Match(const std::vector<std::string>& stops, const std::vector<std::string_view>& pieces,
             StopMatcher::StopText stop_text) {
  StopMatcher matcher = *StopMatcher::Create(stops, stop_text);
  size_t longest = 0;
  for (const std::string& stop : stops) longest = std::max(longest, stop.size());
  Result result;
  size_t pushed = 0;
  for (const std::string_view piece : pieces) {
    result.text += matcher.Push(piece);
    pushed += piece.size();
    if (!matcher.stopped() && longest > 0) CHECK_LT(pushed - result.text.size(), longest);
  }
  result.text += matcher.Finish();
  CHECK(matcher.Finish().empty());
  if (matcher.stopped()) result.stop = matcher.matched();
  return result;
}

void Run(FuzzInput input) {
  const uint8_t choice = input.Byte();
  std::vector<std::string> stops;
  for (int i = choice & 7; i > 0; --i) stops.emplace_back(input.Until('\n'));
  const bool include = (choice & 8) != 0;
  const auto stop_text =
      include ? StopMatcher::StopText::kInclude : StopMatcher::StopText::kExclude;
  const absl::StatusOr<StopMatcher> matcher = StopMatcher::Create(stops, stop_text);
  const bool good = stops.size() <= StopMatcher::kMaxStops &&
                    std::all_of(stops.begin(), stops.end(), [](const std::string& stop) {
                      return !stop.empty() && stop.size() <= StopMatcher::kMaxStopBytes &&
                             ValidateUtf8(stop);
                    });
  CHECK_EQ(matcher.ok(), good);
  if (!good) return;
  const std::string_view text = input.Rest();
  const Result expected = PlainSearch(stops, text, include);
  CHECK(Match(stops, {text}, stop_text) == expected);
  CHECK(Match(stops, RandomPieces(text, choice, 1 + (choice >> 4)), stop_text) == expected);
}

}  // namespace
}  // namespace lodestone

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  lodestone::Run(lodestone::FuzzInput(data, size));
  return 0;
}
