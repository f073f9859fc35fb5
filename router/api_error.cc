#include "router/api_error.h"

#include <absl/strings/str_cat.h>

#include "router/json_text.h"
#include "router/limits.h"

namespace lodestone {
namespace {

ApiError BadRequest(std::string code, std::string_view param, std::string message) {
  return ApiError{.http_status = 400,
                  .type = "invalid_request_error",
                  .code = std::move(code),
                  .param = std::string(param),
                  .message = std::move(message)};
}

absl::StatusCode CanonicalCode(int http_status) {
  switch (http_status) {
    case 400:
      return absl::StatusCode::kInvalidArgument;
    case 404:
      return absl::StatusCode::kNotFound;
    case 405:
    case 501:
      return absl::StatusCode::kUnimplemented;
    case 413:
    case 429:
      return absl::StatusCode::kResourceExhausted;
    case 499:
      return absl::StatusCode::kCancelled;
    case 502:
    case 503:
      return absl::StatusCode::kUnavailable;
    case 504:
      return absl::StatusCode::kDeadlineExceeded;
    default:
      return absl::StatusCode::kInternal;
  }
}

}  // namespace

std::string ApiError::Body(std::string_view request_id) const {
  JsonText json;
  json.Open("{").Key("error").Open("{");
  json.Key("message").String(message).Key("type").String(type);
  json.Key("param");
  if (param.empty()) {
    json.Null();
  } else {
    json.String(param);
  }
  json.Key("code").String(code);
  // An error may be the last event of a stream.
  if (!details.empty() && std::ssize(details) <= kMaxEventBytes / 2)
    json.Key("details").Raw(details);
  if (!request_id.empty()) json.Key("request_id").String(request_id);
  json.Close("}").Close("}");
  return json.Take();
}

absl::Status ApiError::ToStatus() const {
  const std::string text = param.empty() ? message : absl::StrCat(param, ": ", message);
  return absl::Status(CanonicalCode(http_status), absl::StrCat(text, " (", code, ")"));
}

ApiError InvalidType(std::string_view param, std::string message) {
  return BadRequest("invalid_type", param, std::move(message));
}

ApiError InvalidValue(std::string_view param, std::string message) {
  return BadRequest("invalid_value", param, std::move(message));
}

ApiError Unsupported(std::string_view param, std::string message) {
  return BadRequest("unsupported_parameter", param, std::move(message));
}

ApiError ContextLengthExceeded(std::string_view param, std::string message) {
  return BadRequest("context_length_exceeded", param, std::move(message));
}

ApiError FromStatus(const absl::Status& status, std::string_view phase) {
  ApiError error;
  error.message = std::string(status.message());
  error.details = JsonText().Open("{").Key("phase").String(phase).Close("}").Take();
  switch (status.code()) {
    case absl::StatusCode::kInvalidArgument:
      error.http_status = 400;
      error.type = "invalid_request_error";
      error.code = "invalid_value";
      break;
    case absl::StatusCode::kCancelled:
      error.http_status = 499;
      error.type = "invalid_request_error";
      error.code = "client_closed_request";
      break;
    case absl::StatusCode::kResourceExhausted:
      error.http_status = 429;
      error.type = "rate_limit_error";
      error.code = "workers_busy";
      error.retry_after = std::chrono::seconds(1);
      break;
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kDataLoss:
    case absl::StatusCode::kNotFound:
    case absl::StatusCode::kAborted:
    case absl::StatusCode::kFailedPrecondition:
      error.http_status = 502;
      error.code = "upstream_failed";
      error.should_retry = true;
      break;
    case absl::StatusCode::kDeadlineExceeded:
      error.http_status = 504;
      error.type = "timeout_error";
      error.code = "deadline_exceeded";
      error.should_retry = false;
      break;
    default:
      break;
  }
  return error;
}

ApiError OutOfMemoryError() noexcept {
  ApiError error;  // all of its texts fit into the strings themselves
  error.http_status = 503;
  error.code = "out_of_memory";
  error.message = "out of memory";
  error.retry_after = std::chrono::seconds(1);
  return error;
}

}  // namespace lodestone
