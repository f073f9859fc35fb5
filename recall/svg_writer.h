#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace lodestone {

// Writes elements of an XML document one after another, indented. Names are trusted; values and
// texts are escaped. Not thread-safe.
class SvgWriter {
 public:
  using Attributes = std::vector<std::pair<std::string_view, std::string>>;

  void Open(std::string_view name, const Attributes& attributes);
  void Close();  // what was opened last
  // An element without children: with `text`, or empty if that is empty.
  void Leaf(std::string_view name, const Attributes& attributes, std::string_view text = "");
  // REQUIRES: everything is closed.
  std::string Take() { return std::move(out_); }

 private:
  void Start(std::string_view name, const Attributes& attributes);

  std::string out_;
  std::vector<std::string> open_;
};

// `text` as the content of an element or a quoted attribute: &, <, >, " escaped, ill-formed UTF-8
// and characters that XML 1.0 has no place for as U+FFFD.
std::string EscapeXml(std::string_view text);

}  // namespace lodestone
