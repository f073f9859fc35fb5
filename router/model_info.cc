#include "router/model_info.h"

#include <filesystem>
#include <fstream>
#include <sstream>

#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>

#include "base/clock.h"
#include "base/status_macros.h"
#include "router/json_reader.h"
#include "text/vendor_texts.h"

namespace lodestone {
namespace {

constexpr uintmax_t kMaxFileBytes = 1 << 20;

absl::StatusOr<json::object> ReadJsonObject(const std::string& path) {
  std::error_code failed;  // of what is no regular file, too
  const uintmax_t size = std::filesystem::file_size(path, failed);
  std::ifstream file(failed ? "" : path);
  if (!file) return absl::NotFoundError(absl::StrCat("cannot read ", path));
  if (size > kMaxFileBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, " has ", size, " bytes, limit is ", kMaxFileBytes));
  }
  std::ostringstream text;
  text << file.rdbuf();
  ApiOr<json::value> value = ParseJson(text.str());
  if (!value.ok()) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": ", value.error().message));
  }
  if (!value.value().is_object()) {
    return absl::InvalidArgumentError(absl::StrCat(path, " is not a JSON object"));
  }
  return std::move(value).value().get_object();
}

absl::Status ReadConfig(const std::string& path, ModelInfo& info) {
  ASSIGN_OR_RETURN(const json::object config, ReadJsonObject(path));
  std::optional<ApiError> error;
  FieldReader reader(config, "", &error);
  info.vocab_size = static_cast<int32_t>(reader.Int("vocab_size", 1, 1 << 30).value_or(0));
  info.max_context_tokens = reader.Int("max_position_embeddings", 1, 1 << 30).value_or(0);
  info.eos_token_id = static_cast<int32_t>(reader.Int("eos_token_id", 0, 1 << 30).value_or(0));
  if (error.has_value()) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": ", error->message));
  }
  if (info.vocab_size == 0 || info.max_context_tokens == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, " lacks vocab_size or max_position_embeddings"));
  }
  return absl::OkStatus();
}

// Absent: OpenAI's defaults stay.
absl::Status ReadGenerationConfig(const std::string& path, ModelInfo& info) {
  std::error_code ignored;
  if (!std::filesystem::exists(std::filesystem::symlink_status(path, ignored))) {
    return absl::OkStatus();
  }
  ASSIGN_OR_RETURN(const json::object config, ReadJsonObject(path));
  std::optional<ApiError> error;
  FieldReader reader(config, "", &error);
  const bool do_sample = reader.Bool("do_sample").value_or(true);
  info.default_temperature = do_sample ? reader.Number("temperature", 0, 2).value_or(1) : 0;
  info.default_top_p = reader.Number("top_p", 0, 1).value_or(1);
  if (!error.has_value()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(path, ": ", error->message));
}

}  // namespace

absl::StatusOr<std::unique_ptr<ModelInfo>> ModelInfo::Load(const std::string& directory,
                                                           const std::string& served_name) {
  auto info = std::make_unique<ModelInfo>();
  std::error_code ignored;
  const std::filesystem::path path = std::filesystem::canonical(directory, ignored);
  if (path.empty()) {
    return absl::NotFoundError(absl::StrCat("there is no model directory ", directory));
  }
  info->directory_name = path.filename().string();
  info->names.push_back(served_name.empty() ? info->directory_name : served_name);
  ASSIGN_OR_RETURN(Tokenizer tokenizer, Tokenizer::Load((path / "tokenizer.json").string()));
  info->tokenizer = std::make_unique<const Tokenizer>(std::move(tokenizer));
  info->tokenizer_fingerprint = absl::StrFormat("%016x", info->tokenizer->fingerprint());
  ASSIGN_OR_RETURN(ChatFormat format,
                   ChatFormat::Create(info->tokenizer.get(), LoadVendorTexts(path.string())));
  info->chat_format = std::make_unique<const ChatFormat>(std::move(format));
  RETURN_IF_ERROR(ReadConfig((path / "config.json").string(), *info));
  if (info->tokenizer->vocab_size() > info->vocab_size) {
    return absl::InvalidArgumentError(
        absl::StrCat((path / "tokenizer.json").string(), " has ", info->tokenizer->vocab_size(),
                     " tokens, vocab_size of config.json is ", info->vocab_size));
  }
  RETURN_IF_ERROR(ReadGenerationConfig((path / "generation_config.json").string(), *info));
  info->created =
      std::chrono::duration_cast<std::chrono::seconds>(RealClock()->WallNow().time_since_epoch())
          .count();
  return info;
}

}  // namespace lodestone
