// The configuration file. Properties: keys are known characters, none twice, in ascending lines;
// the entries written out as basic strings read back the same.
#include <set>

#include "base/config_file.h"
#include "tests/fuzz/fuzz_input.h"

namespace lodestone {
namespace {

std::string Quoted(const std::string& text) {
  std::string quoted = "\"";
  for (const char c : text) {
    switch (c) {
      case '"': quoted += "\\\""; break;
      case '\\': quoted += "\\\\"; break;
      case '\n': quoted += "\\n"; break;
      default: quoted += c;
    }
  }
  return quoted + "\"";
}

std::string Write(const std::vector<ConfigFileEntry>& entries) {
  std::string text;
  for (const ConfigFileEntry& entry : entries) {
    text += entry.key + " = [";
    for (const std::string& value : entry.values) text += Quoted(value) + ", ";
    text += "]\n";
  }
  return text;
}

void Run(std::string_view text) {
  const absl::StatusOr<std::vector<ConfigFileEntry>> entries = ParseConfigFile(text);
  if (!entries.ok()) {
    CHECK(entries.status().code() == absl::StatusCode::kInvalidArgument) << entries.status();
    CHECK(std::string(entries.status().message()).starts_with("line ")) << entries.status();
    return;
  }
  const auto num_lines = 1 + std::count(text.begin(), text.end(), '\n');
  std::set<std::string> keys;
  int line = 0;
  for (const ConfigFileEntry& entry : *entries) {
    CHECK(!entry.key.empty() && keys.insert(entry.key).second) << entry.key;
    CHECK_LT(line, entry.line);
    line = entry.line;
  }
  CHECK_LE(line, num_lines);
  const absl::StatusOr<std::vector<ConfigFileEntry>> again = ParseConfigFile(Write(*entries));
  CHECK(again.ok()) << again.status();
  CHECK_EQ(again->size(), entries->size());
  for (size_t i = 0; i < entries->size(); ++i) {
    CHECK_EQ((*again)[i].key, (*entries)[i].key);
    CHECK((*again)[i].values == (*entries)[i].values);
  }
}

}  // namespace
}  // namespace lodestone

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  lodestone::Run({reinterpret_cast<const char*>(data), size});
  return 0;
}
