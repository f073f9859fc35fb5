#include "text/output_parser.h"

#include <algorithm>
#include <utility>

#include "base/logging.h"

namespace lodestone {
namespace {

constexpr char kMarkup = ToolCallParser::kMarkup;

// Where the newlines begin, two at most, that stand before `end`.
size_t NewlinesBefore(std::string_view text, size_t end) {
  size_t begin = end;
  while (begin > 0 && end - begin < 2 && text[begin - 1] == '\n') --begin;
  return begin;
}

// How much of the end of `text` may open a block: "<", newlines before it, or those alone.
size_t OpenerSize(std::string_view text) {
  const size_t end = text.ends_with('<') ? text.size() - 1 : text.size();
  return text.size() - NewlinesBefore(text, end);
}

}  // namespace

void ChatReply::Add(const ChatDelta& delta) {
  reasoning += delta.reasoning;
  content += delta.content;
  for (const ToolCallDelta& call : delta.tool_calls) {
    const auto index = static_cast<size_t>(call.index);
    if (index >= tool_calls.size()) tool_calls.resize(index + 1);
    tool_calls[index].id += call.id;
    tool_calls[index].name += call.name;
    tool_calls[index].arguments += call.arguments;
  }
}

OutputParser::OutputParser(const ChatFormat* format, ChatMode mode, EndToken end_token,
                           std::optional<std::string> call_id_prefix)
    : tokenizer_(&format->tokenizer()),
      tokens_(format->tokens()),
      end_token_(end_token),
      parses_calls_(call_id_prefix.has_value()),
      calls_(std::move(call_id_prefix).value_or("")),
      in_reasoning_(mode == ChatMode::kThinking) {
  CHECK(!parses_calls_ || tokens_.markup.has_value()) << "the model has no markup token";
}

ChatDelta OutputParser::Push(int32_t token) {
  ChatDelta delta;
  Take(token, delta);
  return delta;
}

ChatDelta OutputParser::Push(std::span<const int32_t> tokens) {
  ChatDelta delta;
  for (const int32_t token : tokens) Take(token, delta);
  return delta;
}

ChatDelta OutputParser::Finish() {
  ChatDelta delta;
  if (ended_) return delta;
  AddText(stream_.Finish(), delta);
  if (!in_block_) EndPart(delta);
  return delta;
}

void OutputParser::Take(int32_t token, ChatDelta& delta) {
  if (ended_) return;
  if (token == tokens_.eos && end_token_ == EndToken::kEnds) {
    EndPart(delta);
    ended_ = true;
  } else if (token == tokens_.think_end && in_reasoning_) {
    EndPart(delta);
    in_reasoning_ = false;
  } else if (parses_calls_ && token == *tokens_.markup) {
    AddText(stream_.Finish() + kMarkup, delta);
  } else {
    const bool is_text = !tokenizer_->IsAdded(token) || (in_block_ && calls_.in_value());
    AddText(stream_.Push(is_text ? tokenizer_->TokenBytes(token) : std::string_view()), delta);
  }
}

// Piece by piece, so that at most one markup token, the last byte, is in each.
void OutputParser::AddText(std::string_view text, ChatDelta& delta) {
  while (!text.empty()) {
    const size_t markup = text.find(kMarkup);
    const std::string_view piece =
        text.substr(0, markup == std::string_view::npos ? markup : markup + 1);
    text.remove_prefix(piece.size());
    if (in_block_) {
      AddToBlock(piece, delta);
    } else {
      AddPlain(piece, delta);
    }
  }
}

void OutputParser::AddPlain(std::string_view piece, ChatDelta& delta) {
  const std::string text = std::exchange(held_, {}) + std::string(piece);
  const bool has_markup = text.ends_with(kMarkup);
  const size_t opener = has_markup      ? text.size() - 1
                        : parses_calls_ ? text.size() - OpenerSize(text)
                                        : text.size();
  if (!has_markup || opener == 0 || text[opener - 1] != '<') {
    const size_t end = has_markup ? text.size() : opener;
    Emit(std::string_view(text).substr(0, end), delta);
    held_ = text.substr(end);
    return;
  }
  const size_t begin = NewlinesBefore(text, opener - 1);
  Emit(std::string_view(text).substr(0, begin), delta);
  opener_ = text.substr(begin);
  in_block_ = true;
  calls_.Open();
}

void OutputParser::AddToBlock(std::string_view piece, ChatDelta& delta) {
  const ToolCallParser::State state = calls_.Push(piece, delta.tool_calls);
  if (calls_.sent_call()) {
    in_reasoning_ = false;
    opener_.clear();
  }
  if (state == ToolCallParser::State::kMalformed) {
    FailBlock(delta);
  } else if (state == ToolCallParser::State::kClosed) {
    in_block_ = false;
    AddText(calls_.TakePending(), delta);
  }
}

// The block is none: its opening is text, and what follows may open another one.
void OutputParser::FailBlock(ChatDelta& delta) {
  in_block_ = false;
  Emit(std::exchange(opener_, {}), delta);
  AddText(calls_.TakePending(), delta);
}

// Everything held back goes out: no later token can change it.
void OutputParser::EndPart(ChatDelta& delta) {
  AddText(stream_.Finish(), delta);
  while (in_block_ && !calls_.sent_call()) FailBlock(delta);
  // Of an unfinished call nothing can be saved: no need to look for blocks in it.
  if (std::exchange(in_block_, false)) held_ = calls_.TakePending();
  Emit(std::exchange(held_, {}), delta);
}

void OutputParser::Emit(std::string_view text, ChatDelta& delta) const {
  std::string& part = in_reasoning_ ? delta.reasoning : delta.content;
  while (!text.empty()) {
    const size_t markup = std::min(text.find(kMarkup), text.size());
    part += text.substr(0, markup);
    text.remove_prefix(markup);
    if (text.empty()) return;
    part += tokenizer_->TokenBytes(*tokens_.markup);
    text.remove_prefix(1);
  }
}

}  // namespace lodestone
