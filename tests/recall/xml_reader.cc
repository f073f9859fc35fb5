#include "tests/recall/xml_reader.h"

#include <absl/strings/str_cat.h>

#include "base/status_macros.h"
#include "text/utf8.h"

namespace lodestone {
namespace {

bool IsNameChar(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
         c == '_' || c == ':';
}
bool IsSpace(char c) { return c == ' ' || c == '\n' || c == '\t' || c == '\r'; }

class Reader {
 public:
  explicit Reader(std::string_view document) : text_(document) {}

  absl::StatusOr<XmlElement> Document() {
    RETURN_IF_ERROR(CheckCharacters());
    SkipSpace();
    ASSIGN_OR_RETURN(XmlElement root, Element());
    SkipSpace();
    if (pos_ != text_.size()) return Fault("text after the root");
    return root;
  }

 private:
  absl::Status Fault(const std::string& what) const {
    return absl::InvalidArgumentError(absl::StrCat(what, " at byte ", pos_));
  }
  absl::Status CheckCharacters() const {
    if (!ValidateUtf8(text_)) return Fault("ill-formed UTF-8");
    for (const char c : text_) {
      if (static_cast<unsigned char>(c) < 0x20 && !IsSpace(c)) return Fault("a control character");
    }
    for (const char* forbidden : {"\xEF\xBF\xBE", "\xEF\xBF\xBF"}) {
      if (text_.find(forbidden) != text_.npos) return Fault("a forbidden character");
    }
    return absl::OkStatus();
  }
  void SkipSpace() {
    while (pos_ < text_.size() && IsSpace(text_[pos_])) ++pos_;
  }
  bool Take(std::string_view wanted) {
    if (!text_.substr(pos_).starts_with(wanted)) return false;
    pos_ += wanted.size();
    return true;
  }
  std::string Name() {
    const size_t start = pos_;
    while (pos_ < text_.size() && IsNameChar(text_[pos_])) ++pos_;
    return std::string(text_.substr(start, pos_ - start));
  }
  // Up to, not including, `end`.
  absl::StatusOr<std::string> Characters(char end) {
    std::string characters;
    for (; pos_ < text_.size() && text_[pos_] != end; ++pos_) {
      if (text_[pos_] == '<') return Fault("a bare <");
      if (text_[pos_] != '&') {
        characters += text_[pos_];
        continue;
      }
      const size_t semicolon = text_.find(';', pos_);
      const std::string_view entity = text_.substr(pos_, semicolon - pos_);
      if (entity == "&amp") {
        characters += '&';
      } else if (entity == "&lt") {
        characters += '<';
      } else if (entity == "&gt") {
        characters += '>';
      } else if (entity == "&quot") {
        characters += '"';
      } else {
        return Fault("an unknown entity");
      }
      pos_ = semicolon;
    }
    return characters;
  }
  absl::Status Attribute(XmlElement* element) {
    const std::string name = Name();
    if (name.empty() || !Take("=\"")) return Fault("no attribute");
    ASSIGN_OR_RETURN(const std::string value, Characters('"'));
    if (!Take("\"")) return Fault("an open quote");
    if (!element->attributes.emplace(name, value).second) return Fault("a second " + name);
    return absl::OkStatus();
  }
  absl::StatusOr<XmlElement> Element() {
    XmlElement element;
    if (!Take("<") || (element.name = Name()).empty()) return Fault("no element");
    for (;;) {
      const size_t before = pos_;
      SkipSpace();
      if (Take("/>")) return element;
      if (Take(">")) break;
      if (pos_ == before) return Fault("no space before an attribute");
      RETURN_IF_ERROR(Attribute(&element));
    }
    while (!Take("</")) {
      if (pos_ == text_.size()) return Fault("no end of " + element.name);
      if (text_[pos_] == '<') {
        ASSIGN_OR_RETURN(XmlElement child, Element());
        element.children.push_back(std::move(child));
      } else {
        ASSIGN_OR_RETURN(const std::string characters, Characters('<'));
        element.text += characters;
      }
    }
    if (Name() != element.name || !Take(">")) return Fault("an end that is not of " + element.name);
    return element;
  }

  const std::string_view text_;
  size_t pos_ = 0;
};

}  // namespace

std::vector<const XmlElement*> XmlElement::Find(std::string_view wanted,
                                                std::string_view css_class) const {
  std::vector<const XmlElement*> found;
  for (const XmlElement& child : children) {
    const auto its_class = child.attributes.find("class");
    const bool fits = css_class.empty() ||
                      (its_class != child.attributes.end() && its_class->second == css_class);
    if (child.name == wanted && fits) found.push_back(&child);
    const std::vector<const XmlElement*> below = child.Find(wanted, css_class);
    found.insert(found.end(), below.begin(), below.end());
  }
  return found;
}

absl::StatusOr<XmlElement> ReadXml(std::string_view document) {
  return Reader(document).Document();
}

}  // namespace lodestone
