#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lodestone {

// The fixed texts of the DeepSeek-V4 prompt format. They are instructions to the model and belong
// to its vendor: they are read from the model's own files and are not part of this program, which
// knows them by length and SHA-256 only. Empty: not found.
struct VendorTexts {
  // The refreshed encoding asks with its own words for effort high; in the preview encoding high
  // is the default and adds nothing.
  enum class Encoding { kPreview, kRefreshed };
  Encoding encoding = Encoding::kPreview;
  std::string effort_high{};
  std::string effort_max{};
  std::string tools_before{};  // the list of tool schemas goes between these two
  std::string tools_after{};
  std::string response_format{};  // the JSON of the response format follows
};

// Looks for the texts in the folder `encoding` of a model's directory: in Python modules (as
// string constants), Markdown (also in fenced blocks) and text files, 64 files of at most 1 MiB
// each. What is not there, or is not byte-equal, stays empty; no error, since models without these
// files can chat.
VendorTexts LoadVendorTexts(const std::string& model_directory);

// A text known by its digest.
struct TextMark {
  size_t bytes;
  int newlines;
  std::string_view starts_with;  // what is known of it, for speed: may be ""
  std::string_view ends_with;    // the same
  std::string_view sha256;       // lower-case hexadecimal
};
// The part of one of `views` that has the mark.
std::optional<std::string> FindMarkedText(const std::vector<std::string>& views,
                                          const TextMark& mark);

// The texts that a file may hold, by the ending of `name`: its content; of a Python module each
// string constant, neighbours joined, with {name} replaced where the module assigns a string to
// `name`; of Markdown each fenced block, with one more newline.
std::vector<std::string> TextViews(std::string_view name, std::string_view content);

}  // namespace lodestone
