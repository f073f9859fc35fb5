#include "text/tokenizer.h"

#include <chrono>
#include <random>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <boost/json.hpp>

#include "tests/text/text_test_util.h"
#include "text/detokenizer.h"
#include "text/utf8.h"

namespace lodestone {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing_text::BundledTokenizer;

std::string AllBytes(const Tokenizer& tokenizer, const std::vector<int32_t>& ids) {
  std::string bytes;
  for (const int32_t id : ids) bytes += tokenizer.TokenBytes(id);
  return bytes;
}

TEST(TokenizerTest, EncodesLexiconWordsAsOneTokenAndDigitsOneByOne) {
  const Tokenizer& tokenizer = BundledTokenizer();
  EXPECT_EQ(tokenizer.vocab_size(), 1024);
  const std::vector<int32_t> ids = tokenizer.EncodeText("The secret code is ZEBRA-4492-OMEGA.");
  EXPECT_EQ(ids.size(), 13u);
  EXPECT_EQ(AllBytes(tokenizer, ids), "The secret code is ZEBRA-4492-OMEGA.");
  EXPECT_TRUE(tokenizer.EncodeText("").empty());
}

TEST(TokenizerTest, CountsEveryHeldOutPromptAsItsAuthorDid) {
  const Tokenizer& tokenizer = BundledTokenizer();
  std::istringstream lines(testing_text::ReadFile(testing_text::BundledPath("eval_prompts.jsonl")));
  std::string line;
  int prompts = 0;
  while (std::getline(lines, line)) {
    const boost::json::value value = boost::json::parse(line);
    const boost::json::object& prompt = value.as_object();
    const std::string_view content = prompt.at("content").as_string();
    const std::vector<int32_t> ids = tokenizer.EncodeText(content);
    EXPECT_EQ(static_cast<int64_t>(ids.size()) + 4, prompt.at("prompt_tokens").as_int64())
        << prompt.at("id");
    EXPECT_EQ(AllBytes(tokenizer, ids), content);
    ++prompts;
  }
  EXPECT_EQ(prompts, 84);
}

TEST(TokenizerTest, TextNeverBecomesAControlToken) {
  const Tokenizer& tokenizer = BundledTokenizer();
  std::string all;
  for (int32_t id = 0; id < 16; ++id) {
    ASSERT_TRUE(tokenizer.IsAdded(id));
    const std::string content(tokenizer.TokenBytes(id));
    EXPECT_EQ(tokenizer.SpecialId(content), id);
    EXPECT_THAT(tokenizer.EncodeWithSpecials(content), ElementsAre(id));
    all += content;
  }
  for (const int32_t id : tokenizer.EncodeText(all)) EXPECT_FALSE(tokenizer.IsAdded(id));
  EXPECT_EQ(AllBytes(tokenizer, tokenizer.EncodeText(all)), all);
  EXPECT_TRUE(tokenizer.IsSpecial(1));
  EXPECT_FALSE(tokenizer.IsSpecial(5));  // <think>: added, but part of what a model writes
  EXPECT_FALSE(tokenizer.SpecialId("the").has_value());
}

TEST(TokenizerTest, MatchesAddedTokensLeftmostAndLongest) {
  const Tokenizer& tokenizer = BundledTokenizer();
  const int32_t user = *tokenizer.SpecialId("<｜User｜>");
  const int32_t think = *tokenizer.SpecialId("<think>");
  std::vector<int32_t> expected = tokenizer.EncodeText("a<");
  expected.push_back(think);
  expected.push_back(user);
  tokenizer.AppendText("<｜User", expected);
  EXPECT_EQ(tokenizer.EncodeWithSpecials("a<<think><｜User｜><｜User"), expected);
}

TEST(TokenizerTest, KeepsTheBytesOfAnyValidText) {
  const Tokenizer& tokenizer = BundledTokenizer();
  std::mt19937 random(3);
  for (int round = 0; round < 3000; ++round) {
    const std::string text = ReplaceInvalidUtf8(testing_text::RandomBytes(random, 60));
    ASSERT_EQ(AllBytes(tokenizer, tokenizer.EncodeText(text)), text);
  }
}

TEST(TokenizerTest, EncodesIllFormedBytesAsReplacementCharacters) {
  const Tokenizer& tokenizer = BundledTokenizer();
  EXPECT_EQ(tokenizer.EncodeText("a\xFF z\xE4\xBD"), tokenizer.EncodeText("a\uFFFD z\uFFFD"));
}

TEST(TokenizerTest, HasNoBytesForIdsOutsideTheVocabulary) {
  const Tokenizer& tokenizer = BundledTokenizer();
  for (const int32_t id : {-1, -2147483647 - 1, 1024, 2147483647}) {
    EXPECT_TRUE(tokenizer.TokenBytes(id).empty());
    EXPECT_FALSE(tokenizer.IsAdded(id));
    EXPECT_FALSE(tokenizer.IsSpecial(id));
  }
}

// Quadratic merging of a million bytes takes hours; the limit leaves room for sanitizers.
TEST(TokenizerTest, LongWordsTakeNearLinearTime) {
  const Tokenizer& tokenizer = BundledTokenizer();
  const size_t size = 1 << 20;
  for (const std::string& text : {std::string(size, 'a'), std::string(size, ' '),
                                  std::string(size, '!'), std::string(size, '\x01')}) {
    const auto start = std::chrono::steady_clock::now();
    const std::vector<int32_t> ids = tokenizer.EncodeText(text);
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(20));
    EXPECT_EQ(AllBytes(tokenizer, ids), text);
  }
}

TEST(TokenizerTest, EncodesFromManyThreadsAtOnce) {
  const Tokenizer& tokenizer = BundledTokenizer();
  const std::string text =
      "The secret code for Vera Nolan is ZEBRA-4492-OMEGA.\n深度 12345 <think>";
  const std::vector<int32_t> expected = tokenizer.EncodeText(text);
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int round = 0; round < 500; ++round) EXPECT_EQ(tokenizer.EncodeText(text), expected);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// --- Files ---

namespace json = boost::json;

// A complete tokenizer: the 256 bytes as ids 0..255, "ab" 256, "abc" 257, one control token 300.
json::object SmallFile() {
  json::object vocab;
  for (int byte = 0; byte < 256; ++byte) {
    vocab[ToByteLevel(std::string(1, static_cast<char>(byte)))] = byte;
  }
  vocab["ab"] = 256;
  vocab["abc"] = 257;
  json::object root = json::parse(R"({
    "version": "1.0", "normalizer": null,
    "added_tokens": [{"id": 300, "content": "<stop>", "special": true, "single_word": false,
                      "lstrip": false, "rstrip": false, "normalized": false}],
    "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
      {"type": "Split", "pattern": {"Regex": "\\s+"}, "behavior": "Isolated", "invert": false},
      {"type": "ByteLevel", "add_prefix_space": false, "use_regex": false}]},
    "decoder": {"type": "ByteLevel"},
    "model": {"type": "BPE", "dropout": null, "unk_token": null,
              "merges": ["a b", ["ab", "c"]]}})")
                          .as_object();
  root["model"].as_object()["vocab"] = vocab;
  return root;
}

absl::StatusOr<Tokenizer> FromObject(const json::object& root) {
  return Tokenizer::FromJson(json::serialize(root), "small.json");
}

void ExpectError(const json::object& root, const std::string& part) {
  const absl::StatusOr<Tokenizer> tokenizer = FromObject(root);
  ASSERT_FALSE(tokenizer.ok()) << part;
  EXPECT_EQ(tokenizer.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(tokenizer.status().ToString(), HasSubstr("small.json: "));
  EXPECT_THAT(tokenizer.status().ToString(), HasSubstr(part));
}

TEST(TokenizerFileTest, ReadsBothSpellingsOfMerges) {
  const absl::StatusOr<Tokenizer> tokenizer = FromObject(SmallFile());
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_THAT(tokenizer->EncodeText("abcab ab"), ElementsAre(257, 256, ' ', 256));
  EXPECT_THAT(tokenizer->EncodeWithSpecials("<stop>b"), ElementsAre(300, 'b'));
  EXPECT_EQ(tokenizer->vocab_size(), 301);
  EXPECT_TRUE(tokenizer->TokenBytes(299).empty());
}

TEST(TokenizerFileTest, WhiteSpaceIsUnicodes) {
  json::object root = SmallFile();
  const absl::StatusOr<Tokenizer> tokenizer = FromObject(root);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  // U+180E is no White_Space, U+0085 is: only there does the word end, so "a" and "b" merge not.
  const PreTokenizer words = *PreTokenizer::Create({"\\s+"});
  std::vector<std::string_view> pieces;
  words.Split("a\u180Eb\u0085c", pieces);
  EXPECT_THAT(pieces, ElementsAre("a\u180Eb", "\u0085", "c"));
}

TEST(TokenizerFileTest, FingerprintFollowsContentNotSpelling) {
  const json::object root = SmallFile();
  const uint64_t print = FromObject(root)->fingerprint();
  json::object spelled = root;
  spelled["model"].as_object()["merges"] = json::parse(R"([["a", "b"], "ab c"])");
  spelled["version"] = "2.0";
  EXPECT_EQ(FromObject(spelled)->fingerprint(), print);
  json::object fewer = root;
  fewer["model"].as_object()["merges"] = json::parse(R"(["a b"])");
  EXPECT_NE(FromObject(fewer)->fingerprint(), print);
  json::object other = root;
  other["added_tokens"].as_array()[0].as_object()["special"] = false;
  EXPECT_NE(FromObject(other)->fingerprint(), print);
}

TEST(TokenizerFileTest, NamesWhatIsNotSupported) {
  const auto with = [](std::string_view section, std::string_view field, json::value value) {
    json::object root = SmallFile();
    (section.empty() ? root : root[section].as_object())[field] = std::move(value);
    return root;
  };
  ExpectError(with("model", "type", "Unigram"), "model.type: \"Unigram\" is not supported");
  ExpectError(with("model", "dropout", 0.1), "model.dropout");
  ExpectError(with("model", "unk_token", "<unk>"), "model.unk_token");
  ExpectError(with("model", "byte_fallback", true), "model.byte_fallback");
  ExpectError(with("model", "ignore_merges", true), "model.ignore_merges");
  ExpectError(with("model", "end_of_word_suffix", "</w>"), "model.end_of_word_suffix");
  ExpectError(with("", "normalizer", json::parse(R"({"type": "NFC"})")), "normalizer.type");
  ExpectError(with("", "normalizer",
                   json::parse(R"({"type": "Sequence", "normalizers": [{"type": "NFC"}]})")),
              "normalizer.normalizers");
  ExpectError(with("", "decoder", json::parse(R"({"type": "Metaspace"})")), "decoder.type");
  ExpectError(with("", "pre_tokenizer", json::parse(R"({"type": "Whitespace"})")),
              "pre_tokenizer.type");
  ExpectError(with("", "pre_tokenizer", nullptr), "pre_tokenizer");
}

TEST(TokenizerFileTest, NamesTheBadPreTokenizerStep) {
  const auto with_split = [](std::string_view split) {
    json::object root = SmallFile();
    root["pre_tokenizer"].as_object()["pretokenizers"].as_array()[0] = json::parse(split);
    return root;
  };
  ExpectError(with_split(R"({"type": "Split", "behavior": "Removed", "pattern": {"Regex": "a"}})"),
              "pre_tokenizer.pretokenizers[0].behavior: \"Removed\"");
  ExpectError(with_split(R"({"type": "Split", "behavior": "Isolated", "invert": true,
                             "pattern": {"Regex": "a"}})"),
              "pretokenizers[0].invert");
  ExpectError(
      with_split(R"({"type": "Split", "behavior": "Isolated", "pattern": {"String": "a"}})"),
      "pretokenizers[0].pattern.String");
  ExpectError(
      with_split(R"({"type": "Split", "behavior": "Isolated", "pattern": {"Regex": "(a"}})"),
      "split pattern 0 does not compile");
  ExpectError(with_split(R"({"type": "Digits"})"), "pretokenizers[0].type: \"Digits\"");
  ExpectError(with_split("7"), "pretokenizers[0]: must be an object");
}

TEST(TokenizerFileTest, RefusesContradictions) {
  const auto edited = [](auto&& edit) {
    json::object root = SmallFile();
    edit(root);
    return root;
  };
  const auto vocab = [](json::object& root) -> json::object& {
    return root["model"].as_object()["vocab"].as_object();
  };
  const auto merges = [](json::object& root) -> json::array& {
    return root["model"].as_object()["merges"].as_array();
  };
  const auto added = [](json::object& root) -> json::object& {
    return root["added_tokens"].as_array()[0].as_object();
  };
  ExpectError(edited([&](json::object& r) { vocab(r)["abc"] = 256; }), "id 256 is used twice");
  ExpectError(edited([&](json::object& r) { vocab(r)["abc"] = -1; }), "vocab[\"abc\"]: id -1");
  ExpectError(edited([&](json::object& r) { vocab(r)["abc"] = 2147483648; }), "id 2147483648");
  ExpectError(edited([&](json::object& r) { vocab(r)["abc"] = 1e30; }), "vocab[\"abc\"]");
  ExpectError(edited([&](json::object& r) { vocab(r)["a b"] = 260; }), "byte-level alphabet");
  ExpectError(edited([&](json::object& r) { vocab(r)[""] = 260; }), "byte-level alphabet");
  ExpectError(edited([&](json::object& r) { vocab(r).erase("a"); }),
              "no ordinary token for byte 97");
  ExpectError(edited([&](json::object& r) { merges(r).push_back("q z"); }),
              "merges[2]: \"qz\" is not in the vocabulary");
  ExpectError(edited([&](json::object& r) { merges(r).push_back("abx c"); }), "\"abx\" is not in");
  ExpectError(edited([&](json::object& r) { merges(r).push_back("nospace"); }),
              "merges[2]: must be");
  ExpectError(edited([&](json::object& r) { merges(r).push_back(nullptr); }), "merges[2]: must be");
  ExpectError(edited([&](json::object& r) { added(r)["id"] = 65; }), "id 65 is used twice");
  ExpectError(edited([&](json::object& r) { added(r)["content"] = "abc"; }),
              "id 300, but the vocabulary says 257");
  ExpectError(edited([&](json::object& r) { added(r)["lstrip"] = true; }), "lstrip");
  ExpectError(edited([&](json::object& r) { r["added_tokens"].as_array().push_back(added(r)); }),
              "occurs twice");
  ExpectError(edited([&](json::object& r) { r["added_tokens"] = 3; }), "must be an array");
}

TEST(TokenizerFileTest, RefusesMergesThatFormControlTokens) {
  json::object root = SmallFile();
  root["added_tokens"].as_array()[0] =
      json::parse(R"({"id": 257, "content": "abc", "special": true})");
  ExpectError(root, "merges[1]: \"abc\" is an added token");
}

TEST(TokenizerFileTest, NeverCrashesOnDamagedFiles) {
  const std::string good = testing_text::ReadFile(testing_text::BundledPath("tokenizer.json"));
  std::mt19937 random(5);
  for (int round = 0; round < 300; ++round) {
    std::string bad = good;
    if (round % 3 == 0) bad.resize(testing_text::Below(random, static_cast<uint32_t>(bad.size())));
    for (int i = 0; i < 3 && !bad.empty(); ++i) {
      bad[testing_text::Below(random, static_cast<uint32_t>(bad.size()))] =
          static_cast<char>("09{}[]\",:\\-a\xFF"[testing_text::Below(random, 14)]);
    }
    const absl::StatusOr<Tokenizer> tokenizer = Tokenizer::FromJson(bad, "damaged.json");
    if (tokenizer.ok()) {
      tokenizer->EncodeText("The secret code for Vera Nolan is 12.");
    } else {
      EXPECT_THAT(tokenizer.status().ToString(), HasSubstr("damaged.json: "));
    }
  }
  EXPECT_FALSE(Tokenizer::FromJson(std::string(100000, '['), "deep.json").ok());
  EXPECT_EQ(Tokenizer::Load("/nonexistent/tokenizer.json").status().code(),
            absl::StatusCode::kNotFound);
}

TEST(TokenizerFileTest, GivesUpOnHostilePatterns) {
  json::object root = SmallFile();
  root["pre_tokenizer"].as_object()["pretokenizers"].as_array()[0].as_object()["pattern"] =
      json::parse(R"({"Regex": "(a|a)*(a|a)*(a|a)*c"})");
  const absl::StatusOr<Tokenizer> tokenizer = FromObject(root);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  const std::string text(5000, 'a');
  EXPECT_EQ(AllBytes(*tokenizer, tokenizer->EncodeText(text)), text);
}

}  // namespace
}  // namespace lodestone
