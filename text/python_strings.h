#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace lodestone {

// A string constant of a Python source.
struct PythonString {
  std::string name;  // what a statement `name = "..."` or `name: type = "..."` assigns it to, or ""
  std::string value;  // escapes resolved; neighbouring constants are one
};

// All string constants of a Python source in order. It reads tokens, not the grammar: comments,
// single, double and triple quotes, prefixes, raw strings. Never fails: what is not Python gives
// strings that mean nothing.
std::vector<PythonString> PythonStrings(std::string_view source);

}  // namespace lodestone
