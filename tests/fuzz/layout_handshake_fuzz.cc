// The layout that two workers compare at link-up. Input: lines "name=value" put over our own layout
// ("name" alone removes the field, "+name=value" adds one, "!" starts an empty layout).
// Properties: no difference and the same fingerprint, which is when workers pair, means the same
// fields in the same order; both sides see as many differences; messages name the field.
#include "kvcache/layout.h"
#include "tests/fuzz/fuzz_input.h"

namespace lodestone {
namespace {

const LayoutDescriptor& Ours() {
  static const auto* const layout =
      new LayoutDescriptor{{"wire_version", "1"},   {"model_id", "ab12"},
                           {"tokenizer", "77"},     {"numerics", "plain"},
                           {"index_k", "bf16"},     {"head_dim", "64"},
                           {"window", "128"},       {"compress_ratios", "0,4,128"},
                           {"rope_scaling", "none"}};
  return *layout;
}

LayoutDescriptor Theirs(FuzzInput input) {
  LayoutDescriptor layout = Ours();
  while (!input.empty()) {
    std::string_view line = input.Until('\n');
    if (line == "!") layout.clear();
    const bool adds = line.starts_with('+');
    if (adds) line.remove_prefix(1);
    const size_t equals = line.find('=');
    const std::string name(line.substr(0, equals));
    const auto field = std::find_if(layout.begin(), layout.end(),
                                    [&](const LayoutField& f) { return f.name == name; });
    if (equals == std::string_view::npos) {
      if (field != layout.end()) layout.erase(field);
    } else if (adds || field == layout.end()) {
      layout.push_back({name, std::string(line.substr(equals + 1))});
    } else {
      field->value = std::string(line.substr(equals + 1));
    }
  }
  return layout;
}

bool Same(const LayoutDescriptor& a, const LayoutDescriptor& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const LayoutField& x, const LayoutField& y) {
                      return x.name == y.name && x.value == y.value;
                    });
}

void Run(const FuzzInput& input) {
  const LayoutDescriptor theirs = Theirs(input);
  const std::vector<std::string> differences = DifferingFields(Ours(), theirs);
  CHECK_EQ(differences.size(), DifferingFields(theirs, Ours()).size());
  CHECK(DifferingFields(theirs, theirs).empty());
  const bool pairs =
      differences.empty() && LayoutFingerprint(Ours()) == LayoutFingerprint(theirs);
  CHECK_EQ(pairs, Same(Ours(), theirs));
  for (const std::string& difference : differences) {
    CHECK(difference.find(": ") != std::string::npos && difference.ends_with(" there"))
        << difference;
  }
}

}  // namespace
}  // namespace lodestone

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  lodestone::Run(lodestone::FuzzInput(data, size));
  return 0;
}
