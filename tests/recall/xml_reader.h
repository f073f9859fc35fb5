#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include <absl/status/statusor.h>

namespace lodestone {

struct XmlElement {
  std::string name;
  std::map<std::string, std::string> attributes;  // unescaped
  std::string text;                               // of this element alone, unescaped
  std::vector<XmlElement> children;

  // All elements of that name and class below this one, in document order.
  std::vector<const XmlElement*> Find(std::string_view name, std::string_view css_class = "") const;
};

// A document of elements, attributes and text, as strict as XML 1.0 is about them: one root, tags
// that match, attributes quoted and unique, no bare & or <, no forbidden character.
// INVALID_ARGUMENT with the place of the first fault.
absl::StatusOr<XmlElement> ReadXml(std::string_view document);

}  // namespace lodestone
