#include "router/openai_fields.h"

#include <algorithm>
#include <charconv>
#include <limits>

#include <absl/strings/str_cat.h>

#include "text/stop_strings.h"

namespace lodestone {
namespace {

constexpr int64_t kInt64Max = std::numeric_limits<int64_t>::max();
constexpr int64_t kInt64Min = std::numeric_limits<int64_t>::min();

std::string Element(std::string_view path, size_t index) {
  return absl::StrCat(std::string(path), "[", index, "]");
}

void ReadModel(FieldReader& reader, const SchemaRules& rules, ApiRequest& request) {
  const std::optional<std::string> model = reader.String("model");
  if (reader.failed()) return;
  if (!model.has_value()) return reader.Fail(InvalidValue("model", "model is required"));
  request.model = *model;
  const auto& names = rules.model_names;
  if (std::find(names.begin(), names.end(), *model) == names.end()) {
    reader.Fail(ModelNotFound(*model, names));
  }
}

void ReadLogitBias(FieldReader& reader, int32_t vocab_size, SamplingParams& sampling) {
  const json::object* bias = reader.Object("logit_bias");
  if (bias == nullptr) return;
  if (bias->size() > kMaxLogitBias) {
    return reader.Fail(InvalidValue(
        "logit_bias",
        absl::StrCat("logit_bias has ", bias->size(), " entries, limit is ", kMaxLogitBias)));
  }
  for (const json::key_value_pair& entry : *bias) {
    const std::string key(entry.key().data(), entry.key().size());
    int32_t token = -1;
    const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), token);
    if (error != std::errc() || end != key.data() + key.size() || token < 0 ||
        token >= vocab_size) {
      return reader.Fail(InvalidValue(absl::StrCat("logit_bias.", key),
                                      absl::StrCat("logit_bias has the key ", key,
                                                   ", expected a token id below ", vocab_size)));
    }
    const double value = entry.value().is_number() ? entry.value().to_number<double>() : 1e9;
    if (!(value >= -100 && value <= 100)) {
      return reader.Fail(InvalidValue(absl::StrCat("logit_bias.", key),
                                      absl::StrCat("logit_bias.", key, " is ",
                                                   json::serialize(entry.value()),
                                                   ", expected a number from -100 to 100")));
    }
    sampling.logit_bias.emplace_back(token, static_cast<float>(value));
  }
}

void ReadSampling(FieldReader& reader, const SchemaRules& rules, ApiRequest& request) {
  SamplingParams& sampling = request.sampling;
  sampling.temperature = reader.Number("temperature", 0, 2).value_or(rules.default_temperature);
  sampling.top_p = reader.Number("top_p", 0, 1).value_or(rules.default_top_p);
  sampling.top_k = static_cast<int32_t>(std::max<int64_t>(
      0, reader.Int("top_k", -1, std::numeric_limits<int32_t>::max()).value_or(0)));
  if (sampling.top_p == 0) {  // only the most likely token; 0 means "off" to the workers
    sampling.top_p = 1;
    sampling.top_k = 1;
  }
  sampling.min_p = reader.Number("min_p", 0, 1).value_or(0);
  sampling.repetition_penalty = reader.Number("repetition_penalty", 0.01, 100).value_or(1);
  sampling.presence_penalty = reader.Number("presence_penalty", -2, 2).value_or(0);
  sampling.frequency_penalty = reader.Number("frequency_penalty", -2, 2).value_or(0);
  sampling.ignore_eos = reader.Bool("ignore_eos").value_or(false);
  sampling.min_new_tokens = static_cast<int32_t>(
      reader.Int("min_tokens", 0, std::numeric_limits<int32_t>::max()).value_or(0));
  request.seed = reader.Int("seed", kInt64Min, kInt64Max);
  ReadLogitBias(reader, rules.vocab_size, sampling);
  if (const json::array* ids = reader.Array("stop_token_ids")) {
    if (ids->size() > kMaxStopTokenIds) {
      return reader.Fail(InvalidValue("stop_token_ids",
                                      absl::StrCat("stop_token_ids has ", ids->size(),
                                                   " entries, limit is ", kMaxStopTokenIds)));
    }
    sampling.stop_token_ids = ReadTokenIds(reader, *ids, "stop_token_ids", rules.vocab_size);
  }
}

void CheckStop(FieldReader& reader, const std::string& path, const std::string& stop) {
  if (stop.empty()) return reader.Fail(InvalidValue(path, absl::StrCat(path, " is empty")));
  if (stop.size() > StopMatcher::kMaxStopBytes) {
    reader.Fail(InvalidValue(path, absl::StrCat(path, " has ", stop.size(), " bytes, limit is ",
                                                StopMatcher::kMaxStopBytes)));
  }
}

void ReadStop(FieldReader& reader, ApiRequest& request) {
  const json::value* stop = reader.Find("stop");
  request.include_stop_text = reader.Bool("include_stop_str_in_output").value_or(false);
  if (stop == nullptr) return;
  if (stop->is_string()) {
    request.stop.emplace_back(stop->get_string());
    return CheckStop(reader, "stop", request.stop.back());
  }
  if (!stop->is_array()) {
    return reader.Fail(InvalidType("stop", absl::StrCat("stop is ", std::string(TypeName(*stop)),
                                                        ", expected a string or an array")));
  }
  if (stop->get_array().size() > StopMatcher::kMaxStops) {
    return reader.Fail(
        InvalidValue("stop", absl::StrCat("stop has ", stop->get_array().size(),
                                          " strings, limit is ", StopMatcher::kMaxStops)));
  }
  for (const json::value& element : stop->get_array()) {
    const std::string path = Element("stop", request.stop.size());
    if (!element.is_string()) {
      return reader.Fail(InvalidType(
          path, absl::StrCat(path, " is ", std::string(TypeName(element)), ", expected a string")));
    }
    request.stop.emplace_back(element.get_string());
    CheckStop(reader, path, request.stop.back());
  }
}

void ReadStreaming(FieldReader& reader, std::optional<ApiError>& error, ApiRequest& request) {
  request.stream = reader.Bool("stream").value_or(false);
  request.timings = reader.Bool("timings").value_or(false);
  request.sse_ping_interval_seconds = reader.Number("sse_ping_interval", -1, 3600);
  const json::object* options = reader.Object("stream_options");
  if (options == nullptr) return;
  if (!request.stream) {
    return reader.Fail(InvalidValue("stream_options", "stream_options needs stream to be true"));
  }
  FieldReader nested(*options, "stream_options", &error);
  request.include_usage = nested.Bool("include_usage").value_or(false);
  request.continuous_usage = nested.Bool("continuous_usage_stats").value_or(false);
}

}  // namespace

ApiError ModelNotFound(std::string_view model, const std::vector<std::string>& served) {
  std::string names;
  for (const std::string& name : served) {
    absl::StrAppend(&names, names.empty() ? "" : ", ", "\"", name, "\"");
  }
  return ApiError{.http_status = 404,
                  .type = "not_found_error",
                  .code = "model_not_found",
                  .param = "model",
                  .message = absl::StrCat("the model \"", std::string(model.substr(0, 256)),
                                          "\" is not served here; served: ", names)};
}

std::vector<TokenId> ReadTokenIds(FieldReader& reader, const json::array& array, std::string path,
                                  int32_t vocab_size) {
  std::vector<TokenId> ids;
  ids.reserve(array.size());
  for (const json::value& element : array) {
    const std::optional<int64_t> id = AsInteger(element);
    if (!id.has_value() || *id < 0 || *id >= vocab_size) {
      const std::string place = Element(path, ids.size());
      const std::string message =
          absl::StrCat(place, " is ", json::serialize(element).substr(0, 64),
                       ", expected a token id from 0 to ", vocab_size - 1);
      reader.Fail(id.has_value() ? InvalidValue(place, message) : InvalidType(place, message));
      return {};
    }
    ids.push_back(static_cast<TokenId>(*id));
  }
  return ids;
}

void RefuseUnless(FieldReader& reader, std::string_view name,
                  std::initializer_list<std::string_view> allowed) {
  const json::value* value = reader.Find(name);
  if (value == nullptr) return;
  const std::string text = json::serialize(*value);
  if (std::find(allowed.begin(), allowed.end(), text) != allowed.end()) return;
  const std::string path = reader.PathOf(name);
  reader.Fail(Unsupported(path, absl::StrCat(path, " is not supported (got ", text.substr(0, 64),
                                             ")")));
}

void ReadCommonFields(FieldReader& reader, const SchemaRules& rules, ApiRequest& request) {
  std::optional<ApiError> nested_error;
  ReadModel(reader, rules, request);
  ReadSampling(reader, rules, request);
  ReadStop(reader, request);
  ReadStreaming(reader, nested_error, request);
  if (nested_error.has_value()) reader.Fail(*nested_error);
  request.skip_special_tokens = reader.Bool("skip_special_tokens").value_or(true);
  request.num_choices = static_cast<int32_t>(reader.Int("n", 1, kMaxChoices).value_or(1));
  reader.Ignore({"user", "safety_identifier", "metadata", "store", "service_tier",
                 "prompt_cache_key", "verbosity"});
}

}  // namespace lodestone
