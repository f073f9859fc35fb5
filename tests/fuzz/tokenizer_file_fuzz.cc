// tokenizer.json. An input that starts with "{" is the file. Any other is put into a file with the
// 256 byte tokens: five lines of JSON, for the ends of the vocabulary, of the merges and of the
// added tokens, for the split patterns ("," between them) and for other members of the root.
// Properties: a tokenizer that loads keeps its promises for a text with all that the file names,
// and the same file gives the same fingerprint.
#include "tests/fuzz/fuzz_input.h"
#include "tests/fuzz/fuzz_tokenizer.h"
#include "text/byte_level.h"
#include "text/utf8.h"

namespace lodestone {
namespace {

// `"\u0100":0,"!":1, ...`: in JSON as they are, but for the quote and the backslash.
const std::string& ByteVocabulary() {
  static const std::string* const vocabulary = [] {
    auto* text = new std::string();
    for (int byte = 0; byte < 256; ++byte) {
      const std::string token = ToByteLevel(std::string(1, static_cast<char>(byte)));
      const bool escape = token == "\"" || token == "\\";
      *text += (byte == 0 ? "\"" : ",\"") + std::string(escape ? "\\" : "") + token +
               "\":" + std::to_string(byte);
    }
    return text;
  }();
  return *vocabulary;
}

std::string After(std::string_view list) {
  return list.empty() ? std::string() : "," + std::string(list);
}

std::string FileText(FuzzInput input) {
  if (input.Rest().starts_with('{')) return std::string(input.Rest());
  const std::string vocabulary = After(input.Until('\n'));
  const std::string merges(input.Until('\n'));
  const std::string added(input.Until('\n'));
  std::string steps;
  std::string_view patterns = input.Until('\n');
  while (!patterns.empty()) {
    const size_t end = std::min(patterns.find(','), patterns.size());
    steps += R"({"type":"Split","pattern":{"Regex":)" + std::string(patterns.substr(0, end)) +
             R"(},"behavior":"Isolated","invert":false},)";
    patterns.remove_prefix(std::min(end + 1, patterns.size()));
  }
  return R"({"model":{"type":"BPE","vocab":{)" + ByteVocabulary() + vocabulary + R"(},"merges":[)" +
         merges + R"(]},"added_tokens":[)" + added +
         R"(],"pre_tokenizer":{"type":"Sequence","pretokenizers":[)" + steps +
         R"({"type":"ByteLevel","add_prefix_space":false,"trim_offsets":true,"use_regex":false}]})" +
         After(input.Until('\n')) + "}";
}

void Run(const FuzzInput& input) {
  const std::string file = FileText(input);
  const absl::StatusOr<Tokenizer> tokenizer = Tokenizer::FromJson(file, "tokenizer.json");
  if (!tokenizer.ok()) {
    CHECK(tokenizer.status().code() == absl::StatusCode::kInvalidArgument) << tokenizer.status();
    CHECK(std::string(tokenizer.status().message()).starts_with("tokenizer.json: "))
        << tokenizer.status();
    return;
  }
  const std::string text = ReplaceInvalidUtf8(input.Rest());
  CheckEncoding(*tokenizer, text, text);
  for (int32_t id = -1; id <= tokenizer->vocab_size() && id < 4096; ++id) {
    if (tokenizer->IsSpecial(id)) CHECK(tokenizer->IsAdded(id));
    if (!tokenizer->IsAdded(id)) continue;
    CHECK(tokenizer->SpecialId(tokenizer->TokenBytes(id)) == id) << id;
  }
  CHECK_EQ(Tokenizer::FromJson(file, "again")->fingerprint(), tokenizer->fingerprint());
}

}  // namespace
}  // namespace lodestone

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  lodestone::Run(lodestone::FuzzInput(data, size));
  return 0;
}
