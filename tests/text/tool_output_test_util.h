// For the tests of tool calls in replies: replies written as text with control tokens as bytes that
// no UTF-8 has, their token ids for any split, and a parser of whole replies to compare with.
#pragma once

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tests/text/text_test_util.h"
#include "text/output_parser.h"
#include "text/python_json.h"

namespace lodestone::testing_text {

inline constexpr char kD = '\xFF';      // the markup token
inline constexpr char kThink = '\xFE';  // </think>
inline constexpr char kEnd = '\xFD';    // the end token

inline const ChatFormat& PlainFormat() {
  static const ChatFormat* const format = new ChatFormat(*ChatFormat::Create(&BundledTokenizer()));
  return *format;
}

inline std::optional<int32_t> ControlId(char c) {
  const ChatTokens& tokens = PlainFormat().tokens();
  if (c == kD) return tokens.markup;
  if (c == kThink) return tokens.think_end;
  if (c == kEnd) return tokens.eos;
  return std::nullopt;
}

// Appends the ids of `piece`, which is tokenized apart from its neighbours.
inline void AppendIds(std::string_view piece, std::vector<int32_t>& ids) {
  while (!piece.empty()) {
    if (const std::optional<int32_t> id = ControlId(piece.front())) {
      ids.push_back(*id);
      piece.remove_prefix(1);
      continue;
    }
    size_t size = 1;
    while (size < piece.size() && !ControlId(piece[size]).has_value()) ++size;
    BundledTokenizer().AppendText(piece.substr(0, size), ids);
    piece.remove_prefix(size);
  }
}

inline std::vector<int32_t> IdsOf(std::string_view text) {
  std::vector<int32_t> ids;
  AppendIds(text, ids);
  return ids;
}

struct ParsedReply {
  std::string reasoning;
  std::string content;
  std::vector<ToolCall> calls;

  std::string Text() const {
    std::string text = "reasoning [" + reasoning + "] content [" + content + "]";
    for (const ToolCall& call : calls) {
      text += " " + call.id + " " + call.name + " [" + call.arguments + "]";
    }
    return text;
  }
  bool operator==(const ParsedReply& other) const { return Text() == other.Text(); }
};

inline ParsedReply ParseIds(const std::vector<int32_t>& ids, ChatMode mode) {
  OutputParser parser(&PlainFormat(), mode, OutputParser::EndToken::kEnds, "call_");
  ChatReply reply;
  for (const int32_t id : ids) reply.Add(parser.Push(id));
  reply.Add(parser.Finish());
  return {std::move(reply.reasoning), std::move(reply.content), std::move(reply.tool_calls)};
}

inline ParsedReply Parse(std::string_view text, ChatMode mode = ChatMode::kChat) {
  return ParseIds(IdsOf(text), mode);
}

// The rules of OutputParser applied to a whole reply by plain searches. Nothing for replies with
// `</think>` after the reasoning, which it leaves to the other tests.
class WholeReplyParser {
 public:
  static std::optional<ParsedReply> Run(std::string text, ChatMode mode) {
    WholeReplyParser parser;
    const size_t end = text.find(kEnd);
    parser.ended_ = end != std::string::npos;
    text.resize(std::min(end, text.size()));
    if (mode == ChatMode::kThinking) {
      parser.reasoning_ = true;
      const size_t think = text.find(kThink);
      const bool was_ended =
          std::exchange(parser.ended_, think != std::string::npos || parser.ended_);
      parser.text_ = text.substr(0, think);
      parser.RunPart();
      text.erase(0, think == std::string::npos ? think : think + 1);
      if (!parser.reasoning_ && think != std::string::npos) return std::nullopt;
      parser.reasoning_ = false;
      parser.ended_ = was_ended;
    }
    if (text.find(kThink) != std::string::npos) return std::nullopt;
    parser.text_ = text;
    parser.RunPart();
    return parser.reply_;
  }

 private:
  enum class Result { kWhole, kBad, kCut };

  void RunPart() {
    size_t at = 0;
    while (at < text_.size()) {
      size_t opener = 0;
      for (const std::string_view text : {"\n\n<\xFF", "\n<\xFF", "<\xFF"}) {
        if (opener == 0 && text_.compare(at, text.size(), text) == 0) opener = text.size();
      }
      if (opener == 0) {
        Emit(text_.substr(at++, 1));
        continue;
      }
      at_ = at + opener;
      unsent_ = at_;
      committed_ = false;
      const Result result = ReadBlock();
      if (committed_) reasoning_ = false;
      if (result == Result::kCut && !ended_) return;
      if (result == Result::kWhole) unsent_ = at_;
      if (result != Result::kWhole && !committed_) Emit(text_.substr(at, opener));
      at = unsent_;
      if (result == Result::kCut && committed_) {
        Emit(text_.substr(at));
        return;
      }
    }
  }

  void Emit(const std::string& raw) {
    for (const char c : raw) {
      (reasoning_ ? reply_.reasoning : reply_.content) += c == kD ? "｜DSML｜" : std::string(1, c);
    }
  }

  // Takes the option that the text goes on with: its number, or why there is none.
  std::pair<Result, int> Take(std::vector<std::string> options) {
    const std::string rest = text_.substr(at_);
    for (size_t i = 0; i < options.size(); ++i) {
      if (rest.starts_with(options[i])) {
        at_ += options[i].size();
        return {Result::kWhole, static_cast<int>(i)};
      }
    }
    for (const std::string& option : options) {
      if (option.starts_with(rest)) return {Result::kCut, -1};
    }
    return {Result::kBad, -1};
  }

  Result ReadBlock() {
    if (const auto taken = Take({"tool_calls>\n<\xFFinvoke"}); taken.second < 0) return taken.first;
    while (true) {
      if (const Result result = ReadCall(); result != Result::kWhole) return result;
      unsent_ = at_;
      const auto taken = Take({"\n<\xFFinvoke", "\n</\xFFtool_calls>"});
      if (taken.second != 0) return taken.first;
    }
  }

  Result ReadCall() {
    while (at_ < text_.size() &&
           std::string_view(" \t\n\r\f\v").find(text_[at_]) != std::string::npos) {
      ++at_;
    }
    if (const auto taken = Take({"name=\""}); taken.second < 0) return taken.first;
    const size_t end = text_.find("\">\n", at_);
    const size_t markup = text_.find(kD, at_);
    if (markup < end || end == at_) return Result::kBad;
    if (end == std::string::npos) return Result::kCut;
    const std::string name = text_.substr(at_, end - at_);
    at_ = end + 3;
    const size_t body = at_;
    auto taken = Take({"<\xFFparameter name=\"", "</\xFFinvoke>", "\n</\xFFinvoke>"});
    if (taken.second < 0) return taken.first;
    committed_ = true;
    reply_.calls.push_back({"call_" + std::to_string(reply_.calls.size()), name, ""});
    unsent_ = body;
    std::vector<std::string> keys;
    while (taken.second == 0) {
      if (const Result result = ReadParameter(keys); result != Result::kWhole) return result;
      unsent_ = at_;
      taken = Take({"\n<\xFFparameter name=\"", "\n</\xFFinvoke>"});
      if (taken.second < 0) return taken.first;
    }
    std::string& arguments = reply_.calls.back().arguments;
    arguments += arguments.empty() ? "{}" : "}";
    return Result::kWhole;
  }

  Result ReadParameter(std::vector<std::string>& keys) {
    const size_t if_string = text_.find("\" string=\"true\">", at_);
    const size_t if_json = text_.find("\" string=\"false\">", at_);
    const size_t key_end = std::min(if_string, if_json);
    if (text_.find(kD, at_) < key_end) return Result::kBad;
    if (key_end == std::string::npos) return Result::kCut;
    const bool is_string = if_string < if_json;
    const std::string key = text_.substr(at_, key_end - at_);
    const bool repeated = std::find(keys.begin(), keys.end(), key) != keys.end();
    keys.push_back(key);
    at_ = key_end +
          std::string_view(is_string ? "\" string=\"true\">" : "\" string=\"false\">").size();
    const std::string close = "</\xFFparameter>";
    const size_t end = text_.find(close, at_);
    size_t value_end = std::min(end, text_.size());
    if (end == std::string::npos && !is_string) return Result::kCut;
    if (end == std::string::npos) value_end -= UnsureSize(close);
    std::string value;
    for (const char c : text_.substr(at_, value_end - at_)) {
      value += c == kD ? "｜DSML｜" : std::string(1, c);
    }
    if (!repeated) {
      std::string& arguments = reply_.calls.back().arguments;
      std::string text = is_string || !IsJson(value) ? JsonQuote(value) : value;
      if (end == std::string::npos) text.pop_back();
      arguments += (arguments.empty() ? "{" : ", ") + JsonQuote(key) + ": " + text;
    }
    unsent_ = value_end;
    at_ = value_end + close.size();
    return end == std::string::npos ? Result::kCut : Result::kWhole;
  }

  // Bytes at the end of the value that may belong to its closing tag.
  size_t UnsureSize(const std::string& close) const {
    size_t size = std::min(close.size() - 1, text_.size() - at_);
    while (text_.substr(text_.size() - size) != close.substr(0, size)) --size;
    return size;
  }

  std::string text_;
  size_t at_ = 0;
  size_t unsent_ = 0;
  bool ended_ = false;
  bool reasoning_ = false;
  bool committed_ = false;
  ParsedReply reply_;
};

}  // namespace lodestone::testing_text
