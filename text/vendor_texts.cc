#include "text/vendor_texts.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <system_error>
#include <utility>

#include <absl/container/flat_hash_map.h>
#include <openssl/evp.h>

#include "text/python_strings.h"

namespace lodestone {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMaxFiles = 64;
constexpr uintmax_t kMaxFileBytes = 1 << 20;
constexpr size_t kMaxName = 64;  // bytes of a {name} and of what it stands for

// The constant that only the refreshed encoding's module has.
constexpr std::string_view kRefreshedConstant = "REASONING_EFFORT_PROMPTS";

// What the preview encoding asks with for effort max, the refreshed one for high.
constexpr TextMark kEffort = {476, 4, "", "\n\n",
                              "f7a24f3b3050d4a83781e9b755b316aae2ec1d9dc87562541d90bcb04d7350f7"};
constexpr TextMark kRefreshedEffortMax = {
    528, 4, "", "\n\n", "53fb31b8392ec5b4a926481943efc67636748f137c1a49d493a7af4d4fa55d2c"};
constexpr TextMark kToolsBefore = {
    890, 22, "## Tools\n\n", "\n\n",
    "c7c9042638154a237b5d1bd48be772374a35a4d24c5cacfd1ffbd92703da329c"};
constexpr TextMark kToolsAfter = {
    99, 3, "\n\n", "\n", "690702850fe256512cb1ee67c4e436ecb3e735c71ebee77ca45ff357a75fb5a7"};
constexpr TextMark kResponseFormat = {
    80, 3, "## Response Format:\n\n", "\n",
    "5200f58413f49f3957c43beddbc97bead023232cb5934fad0c1997c30c139112"};

std::string Sha256Hex(std::string_view text) {
  static constexpr char kHex[] = "0123456789abcdef";
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
  unsigned int size = 0;
  EVP_Digest(text.data(), text.size(), digest.data(), &size, EVP_sha256(), nullptr);
  std::string hex;
  for (unsigned int i = 0; i < size; ++i) hex += {kHex[digest[i] >> 4], kHex[digest[i] & 15]};
  return hex;
}

// `text` with each {name} replaced that `values` knows.
std::string Substitute(std::string_view text,
                       const absl::flat_hash_map<std::string, std::string>& values) {
  std::string out;
  while (!text.empty()) {
    const size_t open = std::min(text.find('{'), text.size());
    out += text.substr(0, open);
    text.remove_prefix(open);
    const size_t close = text.substr(0, kMaxName).find('}');
    const auto value = close == std::string_view::npos
                           ? values.end()
                           : values.find(std::string(text.substr(1, close - 1)));
    if (value != values.end()) {
      out += value->second;
      text.remove_prefix(close + 1);
    } else if (!text.empty()) {
      out.push_back('{');
      text.remove_prefix(1);
    }
  }
  return out;
}

std::vector<std::string> PythonViews(std::string_view source) {
  const std::vector<PythonString> strings = PythonStrings(source);
  absl::flat_hash_map<std::string, std::string> values;
  for (const PythonString& entry : strings) {
    // Only short names stand inside templates: tokens, not templates themselves.
    if (!entry.name.empty() && entry.value.size() <= kMaxName)
      values.emplace(entry.name, entry.value);
  }
  std::vector<std::string> views;
  for (const PythonString& entry : strings) views.push_back(Substitute(entry.value, values));
  return views;
}

// The last newline of a fenced block is the fence's: a text that ends in an empty line lacks it.
std::vector<std::string> FencedViews(std::string_view markdown) {
  std::vector<std::string> views;
  std::string block;
  bool inside = false;
  while (!markdown.empty()) {
    const size_t end = std::min(markdown.find('\n'), markdown.size() - 1) + 1;
    const std::string_view line = markdown.substr(0, end);
    markdown.remove_prefix(end);
    if (line.starts_with("```")) {
      if (inside) views.push_back(block + "\n");
      inside = !inside;
      block.clear();
    } else if (inside) {
      block += line;
    }
  }
  return views;
}

bool IsTextFile(const fs::path& path) {
  const std::string ending = path.extension().string();
  return ending == ".py" || ending == ".md" || ending == ".txt";
}

// In the order of their names, so that the result does not depend on the file system.
std::vector<fs::path> TextFilesBelow(const fs::path& folder) {
  std::vector<fs::path> paths;
  std::error_code error;
  fs::recursive_directory_iterator entry(folder, error);
  for (; !error && entry != fs::recursive_directory_iterator(); entry.increment(error)) {
    std::error_code ignored;
    if (IsTextFile(entry->path()) && entry->is_regular_file(ignored) &&
        entry->file_size(ignored) <= kMaxFileBytes) {
      paths.push_back(entry->path());
    }
  }
  std::sort(paths.begin(), paths.end());
  if (paths.size() > kMaxFiles) paths.resize(kMaxFiles);
  return paths;
}

std::string ReadFile(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

void FillIfEmpty(std::string& text, const std::vector<std::string>& views, const TextMark& mark) {
  if (text.empty()) text = FindMarkedText(views, mark).value_or("");
}

}  // namespace

std::optional<std::string> FindMarkedText(const std::vector<std::string>& views,
                                          const TextMark& mark) {
  for (const std::string& view : views) {
    if (view.size() < mark.bytes) continue;
    // Digests only where the window has the right newlines and the right ends.
    auto newlines =
        std::count(view.begin(), view.begin() + static_cast<ptrdiff_t>(mark.bytes), '\n');
    for (size_t begin = 0;; ++begin) {
      const std::string_view window = std::string_view(view).substr(begin, mark.bytes);
      if (newlines == mark.newlines && window.starts_with(mark.starts_with) &&
          window.ends_with(mark.ends_with) && Sha256Hex(window) == mark.sha256) {
        return std::string(window);
      }
      if (begin + mark.bytes == view.size()) break;
      newlines += (view[begin + mark.bytes] == '\n') - (view[begin] == '\n');
    }
  }
  return std::nullopt;
}

std::vector<std::string> TextViews(std::string_view name, std::string_view content) {
  std::vector<std::string> views = {std::string(content)};
  const std::vector<std::string> more = name.ends_with(".py")   ? PythonViews(content)
                                        : name.ends_with(".md") ? FencedViews(content)
                                                                : std::vector<std::string>();
  views.insert(views.end(), more.begin(), more.end());
  return views;
}

VendorTexts LoadVendorTexts(const std::string& model_directory) {
  VendorTexts texts;
  std::string effort;
  std::string refreshed_max;
  for (const fs::path& path : TextFilesBelow(fs::path(model_directory) / "encoding")) {
    const std::string content = ReadFile(path);
    const std::vector<std::string> views = TextViews(path.filename().string(), content);
    FillIfEmpty(effort, views, kEffort);
    FillIfEmpty(refreshed_max, views, kRefreshedEffortMax);
    FillIfEmpty(texts.tools_before, views, kToolsBefore);
    FillIfEmpty(texts.tools_after, views, kToolsAfter);
    FillIfEmpty(texts.response_format, views, kResponseFormat);
    if (content.find(kRefreshedConstant) != std::string::npos) {
      texts.encoding = VendorTexts::Encoding::kRefreshed;
    }
  }
  if (!refreshed_max.empty()) texts.encoding = VendorTexts::Encoding::kRefreshed;
  if (texts.encoding == VendorTexts::Encoding::kRefreshed) {
    texts.effort_high = std::move(effort);
    texts.effort_max = std::move(refreshed_max);
  } else {
    texts.effort_max = std::move(effort);
  }
  return texts;
}

}  // namespace lodestone
