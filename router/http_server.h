// HTTP/1.1 over TCP: reads whole requests under limits, sends whole or streamed responses. Knows no
// routes. Beast stays in http_server.cc, http_connection and http_request_parser.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include "router/async.h"
#include "router/http_request.h"

namespace lodestone {

struct HttpResponse {
  int status = 200;
  std::string content_type = "application/json";
  std::vector<std::pair<std::string, std::string>> headers{};
  std::string body{};
};

// The response side of one request. Loop only. Exactly one of Send or StartStream is called.
class HttpExchange {
 public:
  virtual ~HttpExchange() = default;
  virtual Task<void> Send(HttpResponse response) = 0;
  // Queues the head; the body follows by Write. `response.body` is not used.
  virtual void StartStream(HttpResponse response) = 0;
  // The body of the request is not needed any more: it is emptied, and others may send theirs.
  virtual void ReleaseBody() = 0;
  // Queues bytes; they leave as soon as the socket takes them.
  virtual void Write(std::string_view bytes) = 0;
  // Waits until at most `max_bytes` are queued. CANCELLED once the client has gone.
  virtual Task<absl::Status> Drain(int64_t max_bytes) = 0;
  // Ends the body; the connection is closed after it if `close`.
  virtual Task<void> EndStream(bool close) = 0;
  // Cancelled when the client disconnects or does not read for the stall limit.
  virtual CancelSource& client() = 0;
};

class HttpHandler {
 public:
  virtual ~HttpHandler() = default;
  // Sends one response. `request` lives until the task ends.
  virtual Task<void> Handle(const HttpRequest& request, HttpExchange& exchange) = 0;
  // The response to what is not a valid request (status and text for people).
  virtual HttpResponse Refusal(int status, std::string message) = 0;
};

class HttpServer {
 public:
  // Listens from here on. UNAVAILABLE if the address cannot be bound. `handler` is not owned.
  static absl::StatusOr<std::unique_ptr<HttpServer>> Start(asio::io_context& loop,
                                                           const std::string& host, int port,
                                                           const HttpLimits& limits,
                                                           HttpHandler* handler);
  virtual ~HttpServer() = default;
  virtual int port() const = 0;
  virtual int64_t num_connections() const = 0;
  // Bodies of requests that are not released yet, of all connections.
  virtual int64_t held_body_bytes() const = 0;
  // Takes no new connection or request from here on; returns when the running ones have ended, or,
  // at the deadline, after closing their connections.
  virtual Task<void> Stop(TimePoint deadline) = 0;
};

}  // namespace lodestone
