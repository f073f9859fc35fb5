#include "recall/svg_writer.h"

#include "text/utf8.h"

namespace lodestone {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";  // U+FFFD

// Bytes of a character at the front of valid UTF-8 `text` that XML 1.0 forbids (section 2.2), else
// 0.
size_t ForbiddenBytes(std::string_view text) {
  const auto byte = static_cast<unsigned char>(text.front());
  if (byte < 0x20) return byte == '\t' || byte == '\n' || byte == '\r' ? 0 : 1;
  return text.starts_with("\xEF\xBF\xBE") || text.starts_with("\xEF\xBF\xBF") ? 3 : 0;
}

}  // namespace

std::string EscapeXml(std::string_view text) {
  const std::string valid = ReplaceInvalidUtf8(text);
  std::string escaped;
  for (size_t i = 0; i < valid.size(); ++i) {
    if (const size_t bytes = ForbiddenBytes(std::string_view(valid).substr(i)); bytes > 0) {
      escaped += kReplacement;
      i += bytes - 1;
      continue;
    }
    switch (valid[i]) {
      case '&':
        escaped += "&amp;";
        break;
      case '<':
        escaped += "&lt;";
        break;
      case '>':
        escaped += "&gt;";
        break;
      case '"':
        escaped += "&quot;";
        break;
      default:
        escaped += valid[i];
    }
  }
  return escaped;
}

void SvgWriter::Start(std::string_view name, const Attributes& attributes) {
  out_.append(2 * open_.size(), ' ');
  out_.append("<").append(name);
  for (const auto& [attribute, value] : attributes) {
    out_.append(" ").append(attribute).append("=\"").append(EscapeXml(value)).append("\"");
  }
}

void SvgWriter::Open(std::string_view name, const Attributes& attributes) {
  Start(name, attributes);
  out_ += ">\n";
  open_.emplace_back(name);
}

void SvgWriter::Close() {
  const std::string name = std::move(open_.back());
  open_.pop_back();
  out_.append(2 * open_.size(), ' ');
  out_.append("</").append(name).append(">\n");
}

void SvgWriter::Leaf(std::string_view name, const Attributes& attributes, std::string_view text) {
  Start(name, attributes);
  if (text.empty()) {
    out_ += "/>\n";
  } else {
    out_.append(">").append(EscapeXml(text)).append("</").append(name).append(">\n");
  }
}

}  // namespace lodestone
