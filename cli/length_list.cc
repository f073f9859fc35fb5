#include "cli/length_list.h"

#include <charconv>
#include <optional>
#include <string>

#include "base/status_macros.h"

namespace lodestone {
namespace {

constexpr int64_t kMaxLength = int64_t{1} << 31;
constexpr size_t kMaxEntries = 1'000'000;

// The whole of `text` as a number.
template <typename T>
std::optional<T> NumberOf(std::string_view text) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

absl::Status AppendRange(std::string_view part, std::vector<int64_t>* lengths) {
  const size_t dots = part.find("..");
  const std::optional<int64_t> first = NumberOf<int64_t>(part.substr(0, dots));
  const std::optional<int64_t> last =
      dots == part.npos ? first : NumberOf<int64_t>(part.substr(dots + 2));
  if (!first || !last || *first < 1 || *last < *first || *last > kMaxLength) {
    return absl::InvalidArgumentError("\"" + std::string(part) +
                                      "\" is not a length such as 508 or a range such as 508..516");
  }
  if (lengths->size() + static_cast<size_t>(*last - *first) >= kMaxEntries) {
    return absl::InvalidArgumentError("\"" + std::string(part) + "\" makes more than " +
                                      std::to_string(kMaxEntries) + " lengths");
  }
  for (int64_t length = *first; length <= *last; ++length) lengths->push_back(length);
  return absl::OkStatus();
}

}  // namespace

std::vector<std::string_view> SplitAtCommas(std::string_view text) {
  std::vector<std::string_view> parts;
  while (true) {
    const size_t comma = text.find(',');
    parts.push_back(text.substr(0, comma));
    if (comma == text.npos) return parts;
    text.remove_prefix(comma + 1);
  }
}

absl::StatusOr<std::vector<int64_t>> ParseLengthList(std::string_view text) {
  std::vector<int64_t> lengths;
  for (const std::string_view part : SplitAtCommas(text)) {
    RETURN_IF_ERROR(AppendRange(part, &lengths));
  }
  return lengths;
}

absl::StatusOr<std::vector<int64_t>> LengthsAround(int64_t base, int64_t count) {
  if (base <= count / 2 || base > kMaxLength - count) {
    return absl::InvalidArgumentError(
        std::to_string(count) + " lengths around " + std::to_string(base) + ": possible from " +
        std::to_string(count / 2 + 1) + " to " + std::to_string(kMaxLength - count));
  }
  std::vector<int64_t> lengths;
  for (int64_t i = 0; i < count; ++i) lengths.push_back(base - count / 2 + i);
  return lengths;
}

absl::StatusOr<std::vector<double>> ParseDepthList(std::string_view text) {
  std::vector<double> depths;
  for (const std::string_view part : SplitAtCommas(text)) {
    const std::optional<double> depth = NumberOf<double>(part);
    if (!depth || !(*depth >= 0 && *depth <= 1)) {
      return absl::InvalidArgumentError("\"" + std::string(part) +
                                        "\" is not a depth between 0 and 1");
    }
    depths.push_back(*depth);
  }
  return depths;
}

}  // namespace lodestone
