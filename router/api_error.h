#pragma once

#include <chrono>
#include <new>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>

#include <absl/status/status.h>

namespace lodestone {

// An error as the client sees it: one shape for HTTP bodies, SSE error chunks and gRPC statuses.
struct ApiError {
  int http_status = 500;
  std::string type = "server_error";
  std::string code = "internal";
  std::string param{};    // path into the request, "messages[2].content"; empty: null
  std::string message{};  // what was wrong, the limit, the actual value
  std::string details{};  // a JSON value; empty: none
  std::optional<std::chrono::milliseconds> retry_after{};
  std::optional<bool> should_retry{};  // the x-should-retry header
  std::string allow{};                 // the Allow header of a 405

  // {"error":{"message","type","param","code",...}}
  std::string Body(std::string_view request_id) const;
  // The canonical code of the case, with message.
  absl::Status ToStatus() const;
};

// 400 invalid_request_error.
ApiError InvalidType(std::string_view param, std::string message);
ApiError InvalidValue(std::string_view param, std::string message);
ApiError Unsupported(std::string_view param, std::string message);
ApiError ContextLengthExceeded(std::string_view param, std::string message);
// A status of a worker or of the flow: INVALID_ARGUMENT is 400, RESOURCE_EXHAUSTED 429, CANCELLED
// 499, DEADLINE_EXCEEDED 504; UNAVAILABLE, DATA_LOSS, NOT_FOUND, ABORTED and FAILED_PRECONDITION
// are 502, all others 500. `phase` is where the request was.
ApiError FromStatus(const absl::Status& status, std::string_view phase);

// A value, or why there is none.
template <typename T>
class ApiOr {
 public:
  ApiOr(T value) : state_(std::move(value)) {}           // NOLINT(google-explicit-constructor)
  ApiOr(ApiError error) : state_(std::move(error)) {}    // NOLINT(google-explicit-constructor)
  bool ok() const { return std::holds_alternative<T>(state_); }
  const T& value() const& { return std::get<T>(state_); }
  T& value() & { return std::get<T>(state_); }
  T&& value() && { return std::get<T>(std::move(state_)); }
  const ApiError& error() const { return std::get<ApiError>(state_); }

 private:
  std::variant<T, ApiError> state_;
};

// 503 `out_of_memory`. Needs no memory itself.
ApiError OutOfMemoryError() noexcept;

// What `body`, which returns an ApiOr, returns; OutOfMemoryError() if an allocation in it fails.
template <typename Body>
std::invoke_result_t<Body> OrOutOfMemory(Body&& body) {
  try {
    return std::forward<Body>(body)();
  } catch (const std::bad_alloc&) {
    return OutOfMemoryError();
  }
}

}  // namespace lodestone
