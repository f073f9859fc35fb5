#include "router/openai_reply.h"

#include <cmath>

#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>

#include "base/build_info.h"
#include "router/json_text.h"
#include "text/output_parser.h"
#include "text/utf8.h"

namespace lodestone {
namespace {

// OpenAI's number for "impossible".
float Reported(float logprob) { return std::isfinite(logprob) ? logprob : -9999.0F; }

void WriteUsage(JsonText& json, const Usage& usage) {
  json.Open("{").Key("prompt_tokens").Int(usage.prompt_tokens);
  json.Key("completion_tokens").Int(usage.completion_tokens);
  json.Key("total_tokens").Int(usage.prompt_tokens + usage.completion_tokens);
  json.Key("prompt_tokens_details")
      .Open("{")
      .Key("cached_tokens")
      .Int(usage.cached_tokens)
      .Close("}");
  json.Key("completion_tokens_details").Open("{");
  json.Key("reasoning_tokens").Int(usage.reasoning_tokens).Close("}");
  json.Key("prompt_cache_hit_tokens").Int(usage.cached_tokens);
  json.Key("prompt_cache_miss_tokens").Int(usage.prompt_tokens - usage.cached_tokens);
  json.Close("}");
}

}  // namespace

// Writes the parts of one answer or chunk.
class OpenAiReply::Writer {
 public:
  Writer(const ReplyHead& head, const Tokenizer& tokenizer) : head_(head), tokenizer_(tokenizer) {}

  JsonText& json() { return json_; }

  void Begin(std::string_view object) {
    json_.Open("{").Key("id").String(head_.id).Key("object").String(object);
    json_.Key("created").Int(head_.created).Key("model").String(head_.model);
    json_.Key("system_fingerprint").String(absl::StrCat("lodestone-", std::string(BuildVersion())));
  }

  void Delta(const ReplyPiece& piece) {
    json_.Key("delta").Open("{");
    if (piece.with_role) json_.Key("role").String("assistant");
    if (!piece.reasoning.empty()) json_.Key("reasoning_content").String(piece.reasoning);
    const bool silent = piece.reasoning.empty() && piece.tool_calls.empty() &&
                        !piece.finish_reason.has_value();
    if (!piece.content.empty() || silent) json_.Key("content").String(piece.content);
    if (!piece.tool_calls.empty()) {
      json_.Key("tool_calls").Open("[");
      for (const ToolCallDelta& call : piece.tool_calls) CallDelta(call);
      json_.Close("]");
    }
    json_.Close("}");
  }

  void Message(const ReplyPiece& piece) {
    json_.Key("message").Open("{").Key("role").String("assistant").Key("content");
    if (piece.content.empty() && !piece.tool_calls.empty()) {
      json_.Null();
    } else {
      json_.String(piece.content);
    }
    json_.Key("refusal").Null();
    if (!piece.reasoning.empty()) json_.Key("reasoning_content").String(piece.reasoning);
    if (!piece.tool_calls.empty()) ToolCalls(piece);
    json_.Close("}");
  }

  void Logprobs(const ReplyPiece& piece) {
    json_.Key("logprobs");
    if (!piece.logprobs) {
      json_.Null();
    } else if (head_.api == ApiKind::kChat) {
      ChatLogprobs(piece);
    } else {
      CompletionLogprobs(piece);
    }
  }

  void FinishReason(const ReplyPiece& piece) {
    json_.Key("finish_reason");
    if (piece.finish_reason.has_value()) {
      json_.String(*piece.finish_reason);
    } else {
      json_.Null();
    }
  }

 private:
  // The id and the name are told once, the arguments in pieces.
  void CallDelta(const ToolCallDelta& call) {
    json_.Open("{").Key("index").Int(call.index);
    if (!call.id.empty()) json_.Key("id").String(call.id).Key("type").String("function");
    json_.Key("function").Open("{");
    if (!call.name.empty()) json_.Key("name").String(call.name);
    json_.Key("arguments").String(call.arguments).Close("}").Close("}");
  }

  void ToolCalls(const ReplyPiece& piece) {
    ChatReply joined;
    joined.Add({.tool_calls = piece.tool_calls});
    json_.Key("tool_calls").Open("[");
    for (const ToolCall& call : joined.tool_calls) {
      json_.Open("{").Key("id").String(call.id).Key("type").String("function");
      json_.Key("function").Open("{").Key("name").String(call.name);
      json_.Key("arguments").String(call.arguments).Close("}").Close("}");
    }
    json_.Close("]");
  }

  void ChatLogprobs(const ReplyPiece& piece) {
    json_.Open("{").Key("content").Open("[");
    for (const GeneratedToken& token : piece.tokens) {
      json_.Open("{");
      ChatToken(token.id, token.logprob);
      json_.Key("top_logprobs").Open("[");
      for (const TokenLogprob& top : token.top_logprobs) {
        json_.Open("{");
        ChatToken(top.token, top.logprob);
        json_.Close("}");
      }
      json_.Close("]").Close("}");
    }
    json_.Close("]").Key("refusal").Null().Close("}");
  }

  void ChatToken(TokenId token, float logprob) {
    json_.Key("token")
        .String(tokenizer_.TokenBytes(token))
        .Key("logprob")
        .Number(Reported(logprob));
    json_.Key("bytes").Open("[");
    for (const char byte : tokenizer_.TokenBytes(token))
      json_.Int(static_cast<unsigned char>(byte));
    json_.Close("]");
  }

  void CompletionLogprobs(const ReplyPiece& piece) {
    json_.Open("{").Key("tokens").Open("[");
    for (const GeneratedToken& token : piece.tokens) json_.String(TokenLabel(tokenizer_, token.id));
    json_.Close("]").Key("token_logprobs").Open("[");
    const auto is_scored = [&piece](const GeneratedToken& token) {
      return &token - piece.tokens.data() >= piece.num_unscored;
    };
    for (const GeneratedToken& token : piece.tokens) {
      if (is_scored(token)) {
        json_.Number(Reported(token.logprob));
      } else {
        json_.Null();
      }
    }
    json_.Close("]").Key("top_logprobs").Open("[");
    for (const GeneratedToken& token : piece.tokens) {
      if (!is_scored(token)) {
        json_.Null();
        continue;
      }
      json_.Open("{");
      for (const TokenLogprob& top : token.top_logprobs) {
        json_.Key(TokenLabel(tokenizer_, top.token)).Number(Reported(top.logprob));
      }
      json_.Close("}");
    }
    json_.Close("]").Key("text_offset").Open("[");
    int64_t offset = piece.text_offset;
    for (const GeneratedToken& token : piece.tokens) {
      json_.Int(offset);
      offset += CountCharacters(tokenizer_.TokenBytes(token.id));
    }
    json_.Close("]").Close("}");
  }

  const ReplyHead& head_;
  const Tokenizer& tokenizer_;
  JsonText json_;
};

std::string OpenAiReply::Chunk(const ReplyPiece& piece, const std::optional<Usage>& usage) const {
  Writer writer(head_, *tokenizer_);
  JsonText& json = writer.json();
  const bool is_chat = head_.api == ApiKind::kChat;
  writer.Begin(is_chat ? "chat.completion.chunk" : "text_completion");
  json.Key("choices").Open("[").Open("{").Key("index").Int(piece.choice);
  if (is_chat) {
    writer.Delta(piece);
  } else {
    json.Key("text").String(piece.content);
  }
  writer.Logprobs(piece);
  writer.FinishReason(piece);
  json.Close("}").Close("]");
  if (usage.has_value()) {
    json.Key("usage");
    WriteUsage(json, *usage);
  } else if (head_.usage_null) {
    json.Key("usage").Null();
  }
  json.Close("}");
  return json.Take();
}

std::string OpenAiReply::UsageChunk(const Usage& usage) const {
  Writer writer(head_, *tokenizer_);
  writer.Begin(head_.api == ApiKind::kChat ? "chat.completion.chunk" : "text_completion");
  writer.json().Key("choices").Open("[").Close("]").Key("usage");
  WriteUsage(writer.json(), usage);
  return writer.json().Close("}").Take();
}

std::string OpenAiReply::Body(const std::vector<ReplyPiece>& choices, const Usage& usage,
                              std::string_view extra) const {
  Writer writer(head_, *tokenizer_);
  JsonText& json = writer.json();
  const bool is_chat = head_.api == ApiKind::kChat;
  writer.Begin(is_chat ? "chat.completion" : "text_completion");
  json.Key("choices").Open("[");
  for (const ReplyPiece& piece : choices) {
    json.Open("{").Key("index").Int(piece.choice);
    if (is_chat) {
      writer.Message(piece);
    } else {
      json.Key("text").String(piece.content);
    }
    writer.Logprobs(piece);
    writer.FinishReason(piece);
    json.Close("}");
  }
  json.Close("]").Key("usage");
  WriteUsage(json, usage);
  if (!extra.empty()) json.Raw(extra);
  return json.Close("}").Take();
}

std::string DebugMembers(const Outcome& outcome) {
  const RequestTimings& timings = outcome.timings;
  const int64_t new_tokens = outcome.usage.completion_tokens;
  const int64_t prompt_tokens = outcome.usage.prompt_tokens;
  const auto rate = [](int64_t tokens, double seconds) {
    return seconds > 0 ? static_cast<double>(tokens) / seconds : 0.0;
  };
  JsonText json;
  json.Key("timings").Open("{").Key("queue_ms").Number(timings.queue_seconds * 1e3);
  json.Key("prompt_n").Int(prompt_tokens).Key("prompt_ms").Number(timings.prefill_seconds * 1e3);
  json.Key("prompt_per_second").Number(rate(prompt_tokens, timings.prefill_seconds));
  json.Key("cache_n").Int(outcome.usage.cached_tokens);
  json.Key("handoff_ms").Number(timings.handoff_seconds * 1e3);
  json.Key("handoff_bytes").Int(timings.handoff_bytes);
  json.Key("predicted_n").Int(new_tokens).Key("predicted_ms").Number(timings.decode_seconds * 1e3);
  json.Key("predicted_per_second").Number(rate(new_tokens, timings.decode_seconds)).Close("}");
  json.Key("lodestone").Open("{").Key("prefill_worker").String(outcome.prefill_worker);
  json.Key("decode_worker").String(outcome.decode_worker);
  json.Key("attempt").Int(outcome.attempts).Close("}");
  return json.Take();
}

int64_t CountCharacters(std::string_view utf8) {
  int64_t count = 0;
  for (const char byte : utf8) count += (static_cast<unsigned char>(byte) & 0xC0) != 0x80 ? 1 : 0;
  return count;
}

std::string TokenLabel(const Tokenizer& tokenizer, TokenId token) {
  const std::string_view bytes = tokenizer.TokenBytes(token);
  if (ValidateUtf8(bytes)) return std::string(bytes);
  std::string label = "bytes:";
  for (const char byte : bytes)
    absl::StrAppendFormat(&label, "\\x%02x", static_cast<unsigned char>(byte));
  return label;
}

}  // namespace lodestone
