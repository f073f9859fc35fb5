// Replies to reasoning, content and tool calls. First byte: bit 0 thinking, bit 1 parses calls, bit
// 2 ignores the end token, bit 3 builds well-formed calls from the rest, bits 4-7 a seed. In the
// reply the bytes 0xFF, 0xFE, 0xFD and 0xFC stand for the markup, </think>, end and user tokens.
// Properties: any split of the text into tokens, and of the tokens into pushes, gives the same
// reply, in pieces of whole characters; a call's id and name come first and once, numbered in
// order; well-formed calls come back with the names and values that were written.
#include <boost/json/object.hpp>
#include <boost/json/parse.hpp>

#include <array>

#include "tests/fuzz/fuzz_input.h"
#include "tests/fuzz/fuzz_tokenizer.h"
#include "text/output_parser.h"
#include "text/utf8.h"

namespace lodestone {
namespace {

const ChatFormat& Format() {
  static const ChatFormat* const format = [] {
    absl::StatusOr<ChatFormat> created = ChatFormat::Create(
        &BundledTokenizer(), {.tools_before = "before", .tools_after = "after"});
    CHECK(created.ok()) << created.status();
    return new ChatFormat(*std::move(created));
  }();
  return *format;
}

int32_t ControlOf(unsigned char byte) {
  const ChatTokens& tokens = Format().tokens();
  switch (byte) {
    case 0xFF: return tokens.markup.value();
    case 0xFE: return tokens.think_end;
    case 0xFD: return tokens.eos;
    case 0xFC: return tokens.user;
    default: return -1;
  }
}

// The token of each single byte.
const std::array<int32_t, 256>& ByteTokens() {
  static const auto* const tokens = [] {
    auto* ids = new std::array<int32_t, 256>();
    for (int32_t id = 0; id < BundledTokenizer().vocab_size(); ++id) {
      const std::string_view bytes = BundledTokenizer().TokenBytes(id);
      if (bytes.size() == 1 && !BundledTokenizer().IsAdded(id)) {
        (*ids)[static_cast<unsigned char>(bytes[0])] = id;
      }
    }
    return ids;
  }();
  return *tokens;
}

std::vector<int32_t> ByteByByte(std::string_view text) {
  std::vector<int32_t> ids;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    ids.push_back(ControlOf(byte) >= 0 ? ControlOf(byte) : ByteTokens()[byte]);
  }
  return ids;
}

// Longer tokens where the tokenizer has them; pieces that are not UTF-8 stay single bytes.
std::vector<int32_t> InTokens(std::string_view text, uint64_t seed) {
  std::vector<int32_t> ids;
  for (std::string_view piece : RandomPieces(text, seed, 12)) {
    const bool has_control = std::any_of(piece.begin(), piece.end(), [](char c) {
      return ControlOf(static_cast<unsigned char>(c)) >= 0;
    });
    const std::vector<int32_t> tokens = has_control || !ValidateUtf8(piece)
                                            ? ByteByByte(piece)
                                            : BundledTokenizer().EncodeText(piece);
    ids.insert(ids.end(), tokens.begin(), tokens.end());
  }
  return ids;
}

struct Options {
  ChatMode mode;
  bool parses_calls;
  OutputParser::EndToken end_token;
};

// Adds up what a client gets, checking each piece.
class Client {
 public:
  void Take(const ChatDelta& delta) {
    CHECK(ValidateUtf8(delta.reasoning) && ValidateUtf8(delta.content));
    for (const ToolCallDelta& call : delta.tool_calls) {
      CHECK(ValidateUtf8(call.name) && ValidateUtf8(call.arguments));
      if (!call.id.empty()) {
        CHECK_EQ(static_cast<size_t>(call.index), reply_.tool_calls.size());
        CHECK_EQ(call.id, "call_" + std::to_string(call.index));
      } else {
        CHECK(call.name.empty()) << "a name without its id";
        CHECK_EQ(static_cast<size_t>(call.index) + 1, reply_.tool_calls.size());
      }
      reply_.Add({.tool_calls = {call}});
    }
    reply_.Add({.reasoning = delta.reasoning, .content = delta.content});
  }
  const ChatReply& reply() const { return reply_; }

 private:
  ChatReply reply_;
};

OutputParser NewParser(const Options& options) {
  return OutputParser(&Format(), options.mode, options.end_token,
                      options.parses_calls ? std::optional<std::string>("call_") : std::nullopt);
}

ChatReply Parse(const std::vector<int32_t>& ids, const Options& options, size_t per_push) {
  OutputParser parser = NewParser(options);
  Client client;
  for (size_t at = 0; at < ids.size(); at += per_push) {
    client.Take(parser.Push(std::span(ids).subspan(at, std::min(per_push, ids.size() - at))));
  }
  client.Take(parser.Finish());
  return client.reply();
}

void CheckSame(const ChatReply& a, const ChatReply& b) {
  CHECK(a.reasoning == b.reasoning) << "reasoning [" << a.reasoning << "] [" << b.reasoning << "]";
  CHECK(a.content == b.content) << "content [" << a.content << "] [" << b.content << "]";
  CHECK_EQ(a.tool_calls.size(), b.tool_calls.size());
  for (size_t i = 0; i < a.tool_calls.size(); ++i) {
    CHECK_EQ(a.tool_calls[i].id, b.tool_calls[i].id);
    CHECK_EQ(a.tool_calls[i].name, b.tool_calls[i].name);
    CHECK_EQ(a.tool_calls[i].arguments, b.tool_calls[i].arguments);
  }
}

ChatReply CheckEverySplit(std::string_view text, const Options& options, uint64_t seed) {
  const std::vector<int32_t> bytes = ByteByByte(text);
  ChatReply reply = Parse(bytes, options, 1);
  CheckSame(reply, Parse(bytes, options, bytes.size() + 1));
  const std::vector<int32_t> tokens = InTokens(text, seed);
  CheckSame(reply, Parse(tokens, options, 1));
  CheckSame(reply, Parse(tokens, options, 2 + seed % 5));
  return reply;
}

// Words for names and keys: what a tag ends at cannot be in them.
std::string Word(std::string_view text) {
  std::string word;
  for (const char c : text) {
    if (std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_') word.push_back(c);
  }
  return word.empty() ? "w" : word.substr(0, 64);
}

// A call a line, "name key=value key=value"; values may hold anything but a line's end, a space
// and control tokens.
void CheckWellFormed(FuzzInput input, const Options& options, uint64_t seed) {
  std::string text = "before<\xFFtool_calls>";
  std::vector<ToolCall> calls;
  std::vector<boost::json::object> arguments;
  while (!input.empty() && calls.size() < 8) {
    std::string_view line = input.Until('\n');
    const auto next = [&line] {
      const size_t end = std::min(line.find(' '), line.size());
      const std::string_view part = line.substr(0, end);
      line.remove_prefix(std::min(end + 1, line.size()));
      return part;
    };
    calls.push_back({.name = Word(next())});
    arguments.emplace_back();
    text += "\n<\xFFinvoke name=\"" + calls.back().name + "\">\n";
    while (!line.empty()) {
      const std::string_view part = next();
      const size_t equals = std::min(part.find('='), part.size());
      const std::string key = Word(part.substr(0, equals));
      const std::string value =
          ReplaceInvalidUtf8(part.substr(std::min(equals + 1, part.size())));
      if (arguments.back().contains(key)) continue;
      arguments.back()[key] = value;
      text += "<\xFFparameter name=\"" + key + "\" string=\"true\">" + value + "</\xFFparameter>\n";
    }
    text += "</\xFFinvoke>";
  }
  if (calls.empty()) return;
  text += "\n</\xFFtool_calls>\xFD";
  const ChatReply reply = CheckEverySplit(text, options, seed);
  CHECK_EQ(reply.tool_calls.size(), calls.size());
  for (size_t i = 0; i < calls.size(); ++i) {
    CHECK_EQ(reply.tool_calls[i].name, calls[i].name);
    boost::system::error_code error;
    const boost::json::value parsed = boost::json::parse(reply.tool_calls[i].arguments, error);
    CHECK(!error && parsed.is_object()) << reply.tool_calls[i].arguments;
    CHECK(parsed.get_object() == arguments[i]) << reply.tool_calls[i].arguments;
  }
  const std::string& before =
      options.mode == ChatMode::kThinking ? reply.reasoning : reply.content;
  CHECK_EQ(before, "before");
}

void Run(FuzzInput input) {
  const uint8_t choice = input.Byte();
  Options options{
      .mode = (choice & 1) != 0 ? ChatMode::kThinking : ChatMode::kChat,
      .parses_calls = (choice & 2) != 0,
      .end_token =
          (choice & 4) != 0 ? OutputParser::EndToken::kIgnored : OutputParser::EndToken::kEnds};
  if ((choice & 8) != 0) {
    options.parses_calls = true;
    options.end_token = OutputParser::EndToken::kEnds;
    return CheckWellFormed(input, options, choice);
  }
  const ChatReply reply = CheckEverySplit(input.Rest(), options, choice);
  if (!options.parses_calls) CHECK(reply.tool_calls.empty());
  if (options.mode == ChatMode::kChat) CHECK(reply.reasoning.empty());
}

}  // namespace
}  // namespace lodestone

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  lodestone::Run(lodestone::FuzzInput(data, size));
  return 0;
}
