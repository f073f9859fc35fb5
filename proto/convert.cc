#include "proto/convert.h"

#include <algorithm>
#include <string>
#include <string_view>

namespace lodestone {
namespace {

// Bytes of the character that `text` begins with; 0 if it begins with none (RFC 3629).
size_t CharacterBytes(std::string_view text) {
  const auto byte = [text](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned lead = byte(0);
  if (lead < 0x80) return 1;
  const size_t length = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : lead >= 0xc0 ? 2 : 0;
  if (length == 0 || lead >= 0xf8 || length > text.size()) return 0;
  uint32_t code = lead & (0x7fu >> length);
  for (size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return 0;
    code = code << 6 | (byte(i) & 0x3f);
  }
  constexpr uint32_t kSmallest[] = {0, 0, 0x80, 0x800, 0x10000};  // else it is over-long
  const bool surrogate = code >= 0xd800 && code < 0xe000;
  return code >= kSmallest[length] && code < 0x110000 && !surrogate ? length : 0;
}

// A message that quotes a client may end in the middle of a character, and a peer refuses a proto
// string that is not UTF-8: bytes that do not form a character become '?'.
std::string ToUtf8(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    const size_t length = CharacterBytes(text);
    out += length > 0 ? text.substr(0, length) : "?";
    text.remove_prefix(std::max<size_t>(length, 1));
  }
  return out;
}

}  // namespace

SamplingParams FromProto(const v1::SamplingParams& proto) {
  SamplingParams params{
      .temperature = proto.temperature(),
      .top_p = proto.top_p() == 0 ? 1 : proto.top_p(),
      .top_k = proto.top_k(),
      .min_p = proto.min_p(),
      .seed = proto.seed(),
      .stop_token_ids = {proto.stop_token_ids().begin(), proto.stop_token_ids().end()},
      .ignore_eos = proto.ignore_eos(),
      .max_new_tokens = proto.max_new_tokens(),
      .min_new_tokens = proto.min_new_tokens(),
      .logprobs = proto.logprobs(),
      .top_logprobs = proto.top_logprobs(),
      .repetition_penalty = proto.repetition_penalty() == 0 ? 1 : proto.repetition_penalty(),
      .presence_penalty = proto.presence_penalty(),
      .frequency_penalty = proto.frequency_penalty(),
      .logit_bias = {}};
  for (const auto& [token, bias] : proto.logit_bias()) params.logit_bias.emplace_back(token, bias);
  // A map has no order; sampling must not depend on that.
  std::sort(params.logit_bias.begin(), params.logit_bias.end());
  return params;
}

v1::SamplingParams ToProto(const SamplingParams& params) {
  v1::SamplingParams proto;
  proto.set_temperature(params.temperature);
  proto.set_top_p(params.top_p);
  proto.set_top_k(params.top_k);
  proto.set_min_p(params.min_p);
  proto.set_seed(params.seed);
  proto.mutable_stop_token_ids()->Add(params.stop_token_ids.begin(), params.stop_token_ids.end());
  proto.set_ignore_eos(params.ignore_eos);
  proto.set_max_new_tokens(params.max_new_tokens);
  proto.set_min_new_tokens(params.min_new_tokens);
  proto.set_logprobs(params.logprobs);
  proto.set_top_logprobs(params.top_logprobs);
  proto.set_repetition_penalty(params.repetition_penalty);
  proto.set_presence_penalty(params.presence_penalty);
  proto.set_frequency_penalty(params.frequency_penalty);
  for (const auto& [token, bias] : params.logit_bias) (*proto.mutable_logit_bias())[token] = bias;
  return proto;
}

GeneratedToken FromProto(const v1::Token& proto) {
  GeneratedToken token{.id = proto.id(), .index = proto.index(), .logprob = proto.logprob()};
  for (const v1::TokenLogprob& top : proto.top_logprobs()) {
    token.top_logprobs.push_back({top.token(), top.logprob()});
  }
  return token;
}

v1::Token ToProto(const GeneratedToken& token) {
  v1::Token proto;
  proto.set_id(token.id);
  proto.set_index(token.index);
  proto.set_logprob(token.logprob);
  for (const TokenLogprob& top : token.top_logprobs) {
    v1::TokenLogprob* out = proto.add_top_logprobs();
    out->set_token(top.token);
    out->set_logprob(top.logprob);
  }
  return proto;
}

absl::StatusOr<PromptLogprobs> FromProto(const v1::PromptLogprobs& proto) {
  const int count = proto.logprobs_size();
  const int tops = proto.top_tokens_size();
  if (tops != proto.top_logprobs_size() || (count == 0 ? tops > 0 : tops % count != 0)) {
    return absl::InvalidArgumentError(
        std::to_string(count) + " log-probabilities come with " + std::to_string(tops) +
        " tokens and " + std::to_string(proto.top_logprobs_size()) + " values of alternatives");
  }
  PromptLogprobs logprobs{.logprobs = {proto.logprobs().begin(), proto.logprobs().end()}};
  logprobs.top.reserve(static_cast<size_t>(tops));
  for (int i = 0; i < tops; ++i) {
    logprobs.top.push_back({proto.top_tokens(i), proto.top_logprobs(i)});
  }
  return logprobs;
}

v1::PromptLogprobs ToProto(const PromptLogprobs& logprobs) {
  v1::PromptLogprobs proto;
  proto.mutable_logprobs()->Add(logprobs.logprobs.begin(), logprobs.logprobs.end());
  for (const TokenLogprob& top : logprobs.top) {
    proto.add_top_tokens(top.token);
    proto.add_top_logprobs(top.logprob);
  }
  return proto;
}

FinishReason FromProto(v1::FinishReason proto) {
  switch (proto) {
    case v1::FINISH_REASON_UNSPECIFIED:
      return FinishReason::kNone;
    case v1::FINISH_REASON_STOP:
      return FinishReason::kStop;
    case v1::FINISH_REASON_LENGTH:
      return FinishReason::kLength;
    case v1::FINISH_REASON_CANCELLED:
      return FinishReason::kCancelled;
    default:
      return FinishReason::kError;
  }
}

v1::FinishReason ToProto(FinishReason reason) {
  switch (reason) {
    case FinishReason::kNone:
      return v1::FINISH_REASON_UNSPECIFIED;
    case FinishReason::kStop:
      return v1::FINISH_REASON_STOP;
    case FinishReason::kLength:
      return v1::FINISH_REASON_LENGTH;
    case FinishReason::kCancelled:
      return v1::FINISH_REASON_CANCELLED;
    case FinishReason::kError:
      return v1::FINISH_REASON_ERROR;
  }
  return v1::FINISH_REASON_ERROR;
}

absl::Status FromProto(const v1::Status& proto) {
  return absl::Status(static_cast<absl::StatusCode>(proto.code()), proto.message());
}

v1::Status ToProto(const absl::Status& status) {
  v1::Status proto;
  proto.set_code(static_cast<int>(status.code()));
  proto.set_message(ToUtf8({status.message().data(), status.message().size()}));
  return proto;
}

}  // namespace lodestone
