// One client connection of the HTTP server: reads a request, lets the handler answer, and again.
// Loop only.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/tcp_stream.hpp>

#include "router/async.h"
#include "router/body_budget.h"
#include "router/http_request.h"
#include "router/http_request_parser.h"
#include "router/http_server.h"

namespace lodestone {

class HttpConnection final : public HttpExchange,
                             public std::enable_shared_from_this<HttpConnection> {
 public:
  using Tcp = boost::asio::ip::tcp;

  // Nothing is owned; all must outlive the connection. `stopping`: no further request is read.
  HttpConnection(asio::io_context& loop, Tcp::socket socket, const HttpLimits& limits,
                 BodyBudget* bodies, HttpHandler* handler, const bool& stopping)
      : stream_(std::move(socket)),
        limits_(limits),
        bodies_(*bodies),
        body_(bodies),
        handler_(handler),
        stopping_(stopping),
        read_timer_(loop),
        write_timer_(loop),
        drained_(loop),
        background_(loop) {}

  // Until the client has gone, its connection is closed or `stopping` holds. Called once.
  Task<void> Serve();
  void Close();
  bool in_request() const { return in_request_; }

  Task<void> Send(HttpResponse response) override;
  void StartStream(HttpResponse response) override;
  void ReleaseBody() override;
  void Write(std::string_view bytes) override;
  Task<absl::Status> Drain(int64_t max_bytes) override;
  Task<void> EndStream(bool close) override;
  CancelSource& client() override { return *client_; }

 private:
  using Error = boost::system::error_code;

  // False when the connection is to be closed.
  Task<bool> ServeOne();
  // The watcher ends at once, the flusher when the client has taken everything or is lost.
  Task<void> EndBackground();
  // Memory may not suffice for an answer: a 503, or an early end of what has begun.
  Task<void> Answer();
  Task<bool> AwaitFirstByte();
  Task<bool> ReadRequest();
  // Refuses and returns false if what comes is not a request within the limits.
  Task<bool> TryReadRequest();
  // no_buffer_space: the bodies of all requests have become too large.
  Task<Error> ReadBody(HttpRequestParser& parser);
  // The read that follows ends at `deadline`; the socket stays open, so that a refusal can leave.
  void ArmRead(TimePoint deadline);
  // What its `error` really was.
  Error DisarmRead(Error error);
  Task<bool> RefuseError(const HttpRequestParser& parser, Error error);
  // For lack of room now, not because of its own size.
  Task<bool> RefuseBody(int64_t bytes);
  Task<bool> Refuse(int status, std::string message);
  // Reads on for a moment, so that closing does not reset the connection before the client has
  // read the refusal.
  Task<void> DiscardInput();
  // While the handler works: sees the end of the connection, keeps what the client sends ahead.
  Task<void> WatchClient();
  Task<void> Watch();
  void LoseClient(const char* why);
  std::string Head(const HttpResponse& response) const;
  int64_t QueuedBytes() const { return static_cast<int64_t>(queued_.size() + in_flight_.size()); }

  void Queue(std::string text);
  Task<void> Flush();
  Task<void> FlushQueued();
  // Piece by piece: each has the stall timeout, however much waits.
  Task<Error> WriteInFlight();
  void ArmWrite(TimePoint deadline);

  boost::beast::tcp_stream stream_;
  const HttpLimits& limits_;
  BodyBudget& bodies_;
  BodyBudget::Share body_;  // of request_
  HttpHandler* const handler_;
  const bool& stopping_;
  boost::beast::flat_buffer buffer_;
  HttpRequest request_;
  int64_t received_ = 0;  // bytes of its body
  asio::steady_timer read_timer_;
  asio::steady_timer write_timer_;
  uint64_t read_ = 0;   // counts them, so that a timer that is late ends none of the next
  uint64_t write_ = 0;
  bool read_timed_out_ = false;
  Event drained_;
  TaskGroup background_;  // the watcher and the flusher
  std::unique_ptr<CancelSource> client_ = std::make_unique<CancelSource>();
  std::string queued_;
  std::string in_flight_;
  std::string method_;
  unsigned version_ = 11;
  bool flushing_ = false;
  bool has_answer_ = false;  // to the request at hand, in part or whole
  bool watching_ = false;
  bool chunked_ = false;
  bool keep_alive_ = false;
  bool in_request_ = false;
};

}  // namespace lodestone
