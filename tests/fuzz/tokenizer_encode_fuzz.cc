// Any bytes to tokens and back. Properties: text never gives a control token; the tokens' bytes are
// the text, its ill-formed parts as U+FFFD; decoding token by token gives what decoding at once
// gives, whole characters each time; any ids can be decoded.
#include "tests/fuzz/fuzz_input.h"
#include "tests/fuzz/fuzz_tokenizer.h"
#include "text/detokenizer.h"
#include "text/utf8.h"

namespace lodestone {
namespace {

void CheckDecoding(const std::vector<int32_t>& ids, AddedTokenText added) {
  Detokenizer detokenizer(&BundledTokenizer(), added);
  std::string text;
  for (const int32_t id : ids) {
    const std::string piece = detokenizer.Push(id);
    CHECK(ValidateUtf8(piece)) << piece;
    text += piece;
  }
  text += detokenizer.Finish();
  CHECK(text == Decode(BundledTokenizer(), ids, added));
}

void Run(std::string_view text) {
  const std::string as_utf8 = ReplaceInvalidUtf8(text);
  CHECK(ValidateUtf8(as_utf8));
  CHECK_EQ(ValidateUtf8(text), as_utf8 == text);
  CheckEncoding(BundledTokenizer(), text, as_utf8);
  const std::vector<int32_t> ids = BundledTokenizer().EncodeText(text);
  CHECK(Decode(BundledTokenizer(), ids) == as_utf8);
  // The same bytes as ids, some of which no token has.
  std::vector<int32_t> any_ids;
  for (size_t i = 0; i + 1 < text.size(); i += 2) {
    any_ids.push_back((static_cast<unsigned char>(text[i]) << 8 |
                       static_cast<unsigned char>(text[i + 1])) %
                          (BundledTokenizer().vocab_size() + 8) -
                      4);
  }
  for (const AddedTokenText added :
       {AddedTokenText::kSkipSpecial, AddedTokenText::kSkipAll, AddedTokenText::kKeep}) {
    CheckDecoding(ids, added);
    CheckDecoding(any_ids, added);
  }
}

}  // namespace
}  // namespace lodestone

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  lodestone::Run({reinterpret_cast<const char*>(data), size});
  return 0;
}
