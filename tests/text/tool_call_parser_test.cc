#include "text/tool_call_parser.h"

#include <random>
#include <string>
#include <unordered_map>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/testing/long_tests.h"
#include "tests/text/tool_output_test_util.h"

namespace lodestone {
namespace {

using namespace testing_text;  // NOLINT: the vocabulary of these tests
using ::testing::ElementsAre;
using ::testing::IsEmpty;

// Adjacent literals: "\xFF" must not swallow letters behind it.
const std::string kOpen =
    "\n\n<\xFF"
    "tool_calls>";
const std::string kClose =
    "\n</\xFF"
    "tool_calls>";
const std::string kInvokeEnd =
    "\n</\xFF"
    "invoke>";

std::string Invoke(const std::string& name, const std::string& parameters) {
  return "\n<\xFF"
         "invoke name=\"" +
         name + "\">" + parameters + kInvokeEnd;
}
std::string Parameter(const std::string& key, bool is_string, const std::string& value) {
  return "\n<\xFF"
         "parameter name=\"" +
         key + "\" string=\"" + (is_string ? "true" : "false") + "\">" + value +
         "</\xFF"
         "parameter>";
}
std::string Block(const std::string& invokes) { return kOpen + invokes + kClose; }

std::string Raw(std::string text) {
  for (size_t at; (at = text.find(kD)) != std::string::npos;) text.replace(at, 1, "｜DSML｜");
  return text;
}

// The arguments of the only call, in which `parameters` stand.
std::string Arguments(const std::string& parameters) {
  const ParsedReply reply = Parse(Block(Invoke("f", parameters)) + kEnd);
  EXPECT_EQ(reply.content, "");
  return reply.calls.size() == 1 ? reply.calls[0].arguments : "no call: " + reply.Text();
}

TEST(ToolCallParserTest, ReadsCallsAfterContent) {
  const std::string block =
      Block(Invoke("get_weather",
                   Parameter("location", true, "Köln \"Süd\"") + Parameter("days", false, "3")) +
            Invoke("now", ""));
  const ParsedReply expected = {
      "",
      "Let me see.",
      {{"call_0", "get_weather", R"({"location": "Köln \"Süd\"", "days": 3})"},
       {"call_1", "now", "{}"}}};
  EXPECT_EQ(Parse("Let me see." + block + kEnd), expected);
  EXPECT_EQ(Parse("Let me see." + block), expected) << "without the end token";
}

TEST(ToolCallParserTest, ReadsCallsAfterReasoning) {
  const std::string call = Block(Invoke("f", Parameter("a", false, "[1, {\"b\": null}]")));
  EXPECT_EQ(Parse("why" + std::string(1, kThink) + call + kEnd, ChatMode::kThinking),
            (ParsedReply{"why", "", {{"call_0", "f", R"({"a": [1, {"b": null}]})"}}}));
}

TEST(ToolCallParserTest, ACallEndsTheReasoning) {
  const std::string call = Block(Invoke("f", Parameter("a", true, "x")));
  EXPECT_EQ(Parse("why" + call + "after" + kEnd, ChatMode::kThinking),
            (ParsedReply{"why", "after", {{"call_0", "f", R"({"a": "x"})"}}}));
}

TEST(ToolCallParserTest, AMentionOfTheMarkupDoesNotEndTheReasoning) {
  const std::string mention =
      "I write <\xFF"
      "tool_calls> now";
  EXPECT_EQ(Parse(mention + kThink + "ok" + kEnd, ChatMode::kThinking),
            (ParsedReply{Raw(mention), "ok", {}}));
  const std::string opened = kOpen +
                             "\n<\xFF"
                             "invoke na";
  EXPECT_EQ(Parse(opened + kThink + "ok" + kEnd, ChatMode::kThinking),
            (ParsedReply{Raw(opened), "ok", {}}));
}

TEST(ToolCallParserTest, OrdinaryTextThatLooksLikeABlockIsText) {
  const std::string text = Raw(Block(Invoke("f", Parameter("a", true, "x"))));
  EXPECT_EQ(Parse(text + kEnd), (ParsedReply{"", text, {}}));
}

TEST(ToolCallParserTest, ValuesThatEndLikeMarkupSurvive) {
  for (const std::string value :
       {"<", "</", "a </", "</ parameter>", "<</", "</｜DSML｜parameter>", "</｜DSML｜parameter",
        "x\n</｜DSML｜invoke>", "\\", "\"", "\n", "\x01", "", "</think", "\n\n<", "é</"}) {
    EXPECT_EQ(Arguments(Parameter("a", true, value)), "{\"a\": " + JsonQuote(value) + "}") << value;
  }
  // Markup tokens and control tokens inside a value are its text.
  for (const std::string value : {"<\xFF", "</\xFF",
                                  "</\xFF"
                                  "param",
                                  "</\xFF"
                                  "invoke>",
                                  "<\xFF"
                                  "parameter name=\"b\" string=\"true\">",
                                  "/\xFF"
                                  "parameter>"}) {
    EXPECT_EQ(Arguments(Parameter("a", true, value)), "{\"a\": " + JsonQuote(Raw(value)) + "}");
  }
  EXPECT_EQ(Arguments(Parameter("a", true, std::string("x") + kThink + "<")),
            R"({"a": "x</think><"})");
}

TEST(ToolCallParserTest, JsonValuesStayAsTheyAreAndOthersBecomeStrings) {
  for (const std::string json : {"1", " -0.5e3 ", "true", "null", "{\"a\":[1,2]}", "\"s\"", "[]"}) {
    EXPECT_EQ(Arguments(Parameter("k", false, json)), "{\"k\": " + json + "}");
  }
  for (const std::string text : {"", "yes", "{\"a\": 1", "NaN", "01", "1 2", "</", "\"a\n\""}) {
    EXPECT_EQ(Arguments(Parameter("k", false, text)), "{\"k\": " + JsonQuote(text) + "}");
  }
  EXPECT_EQ(Arguments(Parameter("k", false, std::string(100000, '['))).substr(0, 10),
            "{\"k\": \"[[[");
}

TEST(ToolCallParserTest, OfEqualKeysTheFirstCounts) {
  EXPECT_EQ(Arguments(Parameter("a", true, "1") + Parameter("a", true, "2") +
                      Parameter("b", false, "3") + Parameter("a", false, "4")),
            R"({"a": "1", "b": 3})");
}

TEST(ToolCallParserTest, KeysMayHoldQuotesAndNewlines) {
  EXPECT_EQ(Arguments(Parameter("a\"b\" string=\"x\n", true, "v")),
            "{" + JsonQuote("a\"b\" string=\"x\n") + ": \"v\"}");
}

TEST(ToolCallParserTest, NewlinesBeforeABlockBelongToItUpToTwo) {
  const std::string block = Block(Invoke("f", "")).substr(2);
  for (const auto& [before, content] : std::vector<std::pair<std::string, std::string>>{
           {"", ""}, {"a", "a"}, {"a\n", "a"}, {"a\n\n", "a"}, {"a\n\n\n", "a\n"}}) {
    EXPECT_EQ(Parse(before + block), (ParsedReply{"", content, {{"call_0", "f", "{}"}}}));
  }
}

TEST(ToolCallParserTest, MalformedBlocksAreContent) {
  const std::string good = Parameter("a", true, "x");
  for (const std::string& block : std::vector<std::string>{
           kOpen +
               "\n\n<\xFF"
               "invoke name=\"f\">" +
               good + kInvokeEnd + kClose,
           kOpen + Invoke("", good) + kClose,
           kOpen + " " + Invoke("f", good) + kClose,
           kOpen + kClose,
           std::string("\n\n<\xFF"
                       "function_calls>") +
               Invoke("f", good),
           kOpen +
               "\n<\xFF"
               "invoke id=\"f\">" +
               good + kInvokeEnd + kClose,
           kOpen +
               "\n<\xFF"
               "invoke name=\"f\">" +
               "text" + kInvokeEnd + kClose,
           kOpen + "\n<\xFF"
                   "invoke name=\"f\">\n<\xFF"
                   "parameter=\"f\">",
           std::string("\xFF"),
           std::string("a\xFF"
                       "b"),
           std::string("<\xFF"),
           kOpen + "\n<\xFF"
                   "invoke name=\"f",
       }) {
    EXPECT_EQ(Parse("before" + block + "after" + kEnd),
              (ParsedReply{"", "before" + Raw(block) + "after", {}}));
  }
}

TEST(ToolCallParserTest, AMalformedPartLeavesItsCallUnclosed) {
  const std::string head = kOpen +
                           "\n<\xFF"
                           "invoke name=\"f\">" +
                           Parameter("a", true, "x");
  const std::string bad =
      "\n<\xFF"
      "parameter key=\"b\">y";
  EXPECT_EQ(Parse(head + bad + kEnd),
            (ParsedReply{"", Raw(bad), {{"call_0", "f", R"({"a": "x")"}}}));
  const std::string whole = Invoke("g", Parameter("a", true, "x"));
  EXPECT_EQ(Parse(kOpen + whole + bad + kEnd),
            (ParsedReply{"", Raw(bad), {{"call_0", "g", R"({"a": "x"})"}}}));
}

TEST(ToolCallParserTest, ABlockAfterAFailedOneIsRead) {
  const std::string bad = kOpen + "oops";
  EXPECT_EQ(Parse(bad + Block(Invoke("f", "")) + kEnd),
            (ParsedReply{"", Raw(bad), {{"call_0", "f", "{}"}}}));
  EXPECT_EQ(Parse(Block(Invoke("f", "")) + "and" + Block(Invoke("g", "")) + kEnd),
            (ParsedReply{"", "and", {{"call_0", "f", "{}"}, {"call_1", "g", "{}"}}}));
}

TEST(ToolCallParserTest, ACutReplyShowsNoMarkup) {
  const std::string reply =
      "text" + Block(Invoke("f", Parameter("a", true, "xy") + Parameter("b", false, "12")));
  for (size_t size = 4; size < reply.size(); ++size) {
    const ParsedReply parsed = Parse(reply.substr(0, size));
    // Newlines and "<" alone are text.
    ASSERT_EQ(parsed.content, size < 8 ? reply.substr(0, size) : "text") << size;
    for (const ToolCall& call : parsed.calls) {
      ASSERT_EQ(call.name, "f");
      ASSERT_TRUE(std::string(R"({"a": "xy", "b": 12})").starts_with(call.arguments)) << size;
    }
  }
}

TEST(ToolCallParserTest, SendsNameOnceAndArgumentsAsTheyCome) {
  OutputParser parser(&PlainFormat(), ChatMode::kChat, OutputParser::EndToken::kEnds, "call_x");
  std::vector<ToolCallDelta> deltas;
  for (const int32_t id : IdsOf(Block(Invoke(
           "f", Parameter("a", true, "1 2 3 4 5 6 7 8") + Parameter("b", false, "[1, 2]"))))) {
    for (ToolCallDelta& delta : parser.Push(id).tool_calls) deltas.push_back(std::move(delta));
  }
  EXPECT_THAT(parser.Finish().tool_calls, IsEmpty());
  ASSERT_GE(deltas.size(), 6u);
  EXPECT_EQ(deltas[0].id, "call_x0");
  EXPECT_EQ(deltas[0].name, "f");
  EXPECT_EQ(deltas[0].arguments, "");
  for (size_t i = 1; i < deltas.size(); ++i) {
    EXPECT_EQ(deltas[i].id + deltas[i].name, "");
    EXPECT_EQ(deltas[i].index, 0);
    EXPECT_NE(deltas[i].arguments, "");
  }
}

TEST(ToolCallParserTest, EveryParameterHasADeltaOfItsOwnEvenInOneStep) {
  OutputParser parser(&PlainFormat(), ChatMode::kChat, OutputParser::EndToken::kEnds, "c");
  const std::vector<int32_t> ids =
      IdsOf(Block(Invoke("f", Parameter("a", true, "x") + Parameter("b", false, "1"))));
  std::vector<std::string> pieces;
  for (const ToolCallDelta& delta : parser.Push(ids).tool_calls) pieces.push_back(delta.arguments);
  EXPECT_THAT(pieces, ElementsAre("", R"({"a": "x")", R"(, "b": 1})"));
}

TEST(ToolCallParserTest, WithoutParsingTheMarkupTokenGivesNoText) {
  OutputParser parser(&PlainFormat(), ChatMode::kChat);
  const ChatDelta delta =
      parser.Push(IdsOf("a\n\n<\xFF"
                        "b>"));
  EXPECT_EQ(delta.content, "a\n\n<b>");
  EXPECT_THAT(delta.tool_calls, IsEmpty());
}

// ---- Random replies ----

using Pieces = std::vector<std::string>;

class ReplyMaker {
 public:
  explicit ReplyMaker(uint32_t seed) : random_(seed) {}

  Pieces Make() {
    Pieces pieces = Pick(4) == 0 ? Fragments() : Wellformed();
    for (uint32_t n = Pick(3) == 0 ? 1 + Pick(3) : 0; n > 0; --n) Mutate(pieces);
    return pieces;
  }
  uint32_t Pick(uint32_t limit) { return Below(random_, limit); }

 private:
  const std::string& AnyFragment() {
    return kFragments[Pick(static_cast<uint32_t>(kFragments.size()))];
  }

  Pieces Fragments() {
    Pieces pieces;
    for (uint32_t n = 1 + Pick(14); n > 0; --n) pieces.push_back(AnyFragment());
    return pieces;
  }

  Pieces Wellformed() {
    Pieces pieces;
    const auto add = [&](std::initializer_list<std::string> more) {
      pieces.insert(pieces.end(), more);
    };
    for (uint32_t n = Pick(3); n > 0; --n) pieces.push_back(kTexts[Pick(kTexts.size())]);
    if (Pick(2) == 0) add({std::string(1, kThink)});
    if (Pick(3) == 0) pieces.push_back(kTexts[Pick(kTexts.size())]);
    add({"\n\n<", "\xFF", "tool_calls>"});
    for (uint32_t calls = 1 + Pick(2); calls > 0; --calls) {
      add({"\n<", "\xFF", "invoke name=\"", kTexts[Pick(3)], "\">"});
      for (uint32_t n = Pick(3); n > 0; --n) {
        const bool is_string = Pick(2) == 0;
        add({"\n<", "\xFF", "parameter name=\"", kTexts[Pick(3)], "\" string=\"",
             is_string ? "true" : "false", "\">"});
        for (uint32_t m = Pick(3); m > 0; --m)
          add({is_string ? AnyFragment() : kJson[Pick(kJson.size())]});
        add({"</", "\xFF", "parameter>"});
      }
      add({"\n</", "\xFF", "invoke>"});
    }
    add({"\n</", "\xFF", "tool_calls>"});
    if (Pick(2) == 0) add({std::string(1, kEnd)});
    return pieces;
  }

  void Mutate(Pieces& pieces) {
    if (pieces.empty()) return;
    const size_t at = Pick(static_cast<uint32_t>(pieces.size()));
    const auto place = pieces.begin() + static_cast<ptrdiff_t>(at);
    switch (Pick(5)) {
      case 0:
        pieces.erase(place);
        break;
      case 1:
        pieces.insert(place, AnyFragment());
        break;
      case 2:
        *place = AnyFragment();
        break;
      case 3:
        pieces.resize(at + 1);
        break;
      default:
        pieces.insert(place, std::string(pieces[at]));
        break;
    }
  }

  static inline const Pieces kTexts = {"f", "get_é", "a\"b", "<", "深 x", "\n", "\n\n", "</", "☃<"};
  static inline const Pieces kJson = {"1", "[1, ", "{\"a\": 2}", "\"", "]", "x"};
  static inline const Pieces kFragments = {"\xFF",
                                           "\xFF",
                                           "\xFF",
                                           "<",
                                           "</",
                                           "\n<",
                                           "\n\n<",
                                           "\n</",
                                           "\n",
                                           "tool_calls>",
                                           "invoke name=\"",
                                           "invoke>",
                                           "parameter name=\"",
                                           "parameter>",
                                           "\" string=\"",
                                           "true",
                                           "false",
                                           "\">",
                                           "\">\n",
                                           "f",
                                           "深",
                                           "\"",
                                           "12",
                                           "｜DSML｜",
                                           "\\",
                                           "</\xFF"
                                           "parameter>",
                                           "</\xFF"
                                           "parameter",
                                           " ",
                                           std::string(1, kThink),
                                           std::string(1, kEnd),
                                           "<\xFF"
                                           "tool_calls>\n<\xFF"
                                           "invoke name=\"g\">\n"};
  std::mt19937 random_;
};

// Ids of pieces, each tokenized apart; the same pieces come again and again.
class IdCache {
 public:
  void Append(const std::string& piece, std::vector<int32_t>& ids) {
    auto [entry, is_new] = ids_.try_emplace(piece);
    if (is_new) AppendIds(piece, entry->second);
    ids.insert(ids.end(), entry->second.begin(), entry->second.end());
  }

 private:
  std::unordered_map<std::string, std::vector<int32_t>> ids_;
};

std::string Joined(const Pieces& pieces) {
  std::string text;
  for (const std::string& piece : pieces) text += piece;
  return text;
}

bool IsContinuation(char c) { return (static_cast<unsigned char>(c) & 0xC0) == 0x80; }

// The ids of `pieces` cut at random places between characters.
std::vector<int32_t> SplitAtRandom(const Pieces& pieces, ReplyMaker& maker, IdCache& cache) {
  std::vector<int32_t> ids;
  for (const std::string& piece : pieces) {
    for (size_t begin = 0, end; begin < piece.size(); begin = end) {
      end = begin + 1 + maker.Pick(4);
      while (end < piece.size() && IsContinuation(piece[end])) ++end;
      cache.Append(piece.substr(begin, end - begin), ids);
    }
  }
  return ids;
}

// Each reply is cut once at every place, and at many places 20 times.
TEST(ToolCallParserTest, EverySplitGivesTheSameReply) {
  constexpr int kRandomSplits = 20;
  ReplyMaker maker(1);
  IdCache cache;
  const int replies = LongTests() ? 100000 : 4000;
  for (int round = 0; round < replies; ++round) {
    const Pieces pieces = maker.Make();
    const ChatMode mode = maker.Pick(2) == 0 ? ChatMode::kChat : ChatMode::kThinking;
    const ParsedReply expected = Parse(Joined(pieces), mode);
    for (size_t cut = 0; cut < pieces.size(); ++cut) {
      for (size_t byte = 1; byte <= pieces[cut].size(); ++byte) {
        if (byte < pieces[cut].size() && IsContinuation(pieces[cut][byte])) continue;
        std::vector<int32_t> ids;
        for (size_t i = 0; i < pieces.size(); ++i) {
          cache.Append(i == cut ? pieces[i].substr(0, byte) : pieces[i], ids);
          if (i == cut) cache.Append(pieces[i].substr(byte), ids);
        }
        ASSERT_EQ(ParseIds(ids, mode).Text(), expected.Text()) << Raw(Joined(pieces));
      }
    }
    for (int split = 0; split < kRandomSplits; ++split) {
      ASSERT_EQ(ParseIds(SplitAtRandom(pieces, maker, cache), mode).Text(), expected.Text())
          << Raw(Joined(pieces));
    }
  }
}

TEST(ToolCallParserTest, RandomSplitsAndTheWholeReplyGiveTheSame) {
  ReplyMaker maker(2);
  IdCache cache;
  const int replies = LongTests() ? 1000000 : 100000;
  int compared = 0;
  int with_calls = 0;
  for (int round = 0; round < replies; ++round) {
    const Pieces pieces = maker.Make();
    const std::string text = Joined(pieces);
    const ChatMode mode = maker.Pick(2) == 0 ? ChatMode::kChat : ChatMode::kThinking;
    const ParsedReply parsed = ParseIds(SplitAtRandom(pieces, maker, cache), mode);
    const std::optional<ParsedReply> expected = WholeReplyParser::Run(text, mode);
    if (!expected.has_value()) {
      ASSERT_EQ(parsed.Text(), Parse(text, mode).Text()) << Raw(text);
      continue;
    }
    ++compared;
    with_calls += !parsed.calls.empty();
    ASSERT_EQ(parsed.Text(), expected->Text()) << Raw(text);
  }
  EXPECT_GT(compared, replies / 2);
  EXPECT_GT(with_calls, replies / 4);
}

}  // namespace
}  // namespace lodestone
