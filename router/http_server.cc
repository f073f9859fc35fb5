#include "router/http_server.h"

#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <new>
#include <optional>
#include <set>

#include <absl/strings/str_cat.h>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/status.hpp>

#include "base/logging.h"
#include "router/api_error.h"
#include "router/body_budget.h"
#include "router/http_request_parser.h"

namespace lodestone {
namespace {

namespace beast = boost::beast;
namespace http = boost::beast::http;
using Tcp = asio::ip::tcp;
using Error = boost::system::error_code;

constexpr auto kTuple = asio::as_tuple(asio::use_awaitable);
constexpr size_t kReadBytes = 64 << 10;
constexpr size_t kWriteBytes = 64 << 10;
// The kernel's share of what waits for a client that does not read; without a limit it takes megabytes.
constexpr int kSocketSendBytes = 256 << 10;

std::string Text(beast::string_view view) { return std::string(view.data(), view.size()); }

// One client connection: reads a request, lets the handler answer, and again.
class Connection final : public HttpExchange, public std::enable_shared_from_this<Connection> {
 public:
  Connection(asio::io_context& loop, Tcp::socket socket, const HttpLimits& limits,
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

  Task<void> Serve() {
    const std::shared_ptr<Connection> self = shared_from_this();
    bool go_on = true;
    while (go_on && !stopping_) {
      go_on = co_await ServeOne();
      ReleaseBody();
      in_request_ = false;
    }
    Close();
    co_await EndBackground();
  }

  void Close() {
    Error ignored;
    stream_.socket().shutdown(Tcp::socket::shutdown_send, ignored);
    stream_.close();
  }
  bool in_request() const { return in_request_; }

  Task<void> Send(HttpResponse response) override {
    const bool keep = keep_alive_ && !stopping_;
    keep_alive_ = keep;
    std::string text = Head(response);
    absl::StrAppend(&text, "Content-Length: ", response.body.size(), "\r\n\r\n");
    if (method_ != "HEAD") text += response.body;
    Queue(std::move(text));
    const absl::Status flushed = co_await Drain(0);
    if (!flushed.ok()) keep_alive_ = false;
  }

  void StartStream(HttpResponse response) override {
    keep_alive_ = keep_alive_ && !stopping_;
    chunked_ = version_ >= 11;
    if (!chunked_) keep_alive_ = false;
    std::string text = Head(response);
    text += chunked_ ? "Transfer-Encoding: chunked\r\n\r\n" : "\r\n";
    Queue(std::move(text));
  }

  void ReleaseBody() override {
    std::string().swap(request_.body);
    body_.Release();
  }

  void Write(std::string_view bytes) override {
    if (bytes.empty()) return;
    if (!chunked_) return Queue(std::string(bytes));
    std::string chunk = absl::StrCat(absl::Hex(bytes.size()), "\r\n");
    chunk += bytes;
    chunk += "\r\n";
    Queue(std::move(chunk));
  }

  Task<absl::Status> Drain(int64_t max_bytes) override {
    while (!client_->cancelled() && QueuedBytes() > max_bytes) {
      co_await drained_.WaitUntil(RealClock()->Now() + limits_.stall_timeout);
    }
    co_return client_->reason();
  }

  Task<void> EndStream(bool close) override {
    if (close) keep_alive_ = false;
    if (chunked_) Queue("0\r\n\r\n");
    const absl::Status flushed = co_await Drain(0);
    if (!flushed.ok()) keep_alive_ = false;
  }

  CancelSource& client() override { return *client_; }

 private:
  // False when the connection is to be closed.
  Task<bool> ServeOne() {
    client_ = std::make_unique<CancelSource>();
    keep_alive_ = false;
    method_.clear();
    version_ = 11;
    const bool arrived = co_await AwaitFirstByte();
    if (!arrived) co_return false;
    in_request_ = true;
    const bool valid = co_await ReadRequest();
    if (!valid) co_return false;
    background_.Spawn(WatchClient());
    co_await Answer();
    watching_ = false;
    Error ignored;
    stream_.socket().cancel(ignored);
    co_await EndBackground();
    co_return keep_alive_ && !client_->cancelled();
  }

  // The watcher ends at once, the flusher when the client has taken everything or is lost.
  Task<void> EndBackground() {
    const std::function<void()> close = [this] {
      LoseClient("the connection did not end");
      Close();
    };
    co_await background_.WaitForEnd(RealClock()->Now() + limits_.stall_timeout + kLatePause, close);
  }

  // Memory may not suffice for an answer: a 503, or an early end of what has begun.
  Task<void> Answer() {
    has_answer_ = false;
    try {
      co_await handler_->Handle(request_, *this);
      co_return;
    } catch (const std::bad_alloc&) {
      keep_alive_ = false;
    }
    if (has_answer_) co_return LoseClient("no memory for the rest of the answer");
    HttpResponse refusal = handler_->Refusal(503, OutOfMemoryError().message);
    co_await Send(std::move(refusal));
  }

  Task<bool> AwaitFirstByte() {
    if (buffer_.size() > 0) co_return true;
    stream_.expires_after(limits_.idle_timeout);
    const auto [error, bytes] = co_await stream_.async_read_some(buffer_.prepare(4096), kTuple);
    if (error) co_return false;
    buffer_.commit(bytes);
    co_return true;
  }

  Task<bool> ReadRequest() {
    try {
      co_return co_await TryReadRequest();
    } catch (const std::bad_alloc&) {
      keep_alive_ = false;
    }
    const ApiError error = OutOfMemoryError();
    co_return co_await Refuse(error.http_status, error.message);
  }

  // Refuses and returns false if what comes is not a request within the limits.
  Task<bool> TryReadRequest() {
    HttpRequestParser parser(limits_);
    stream_.expires_never();
    ArmRead(RealClock()->Now() + limits_.header_timeout);
    const auto [head_error, bytes] =
        co_await http::async_read_header(stream_, buffer_, parser.parser(), kTuple);
    const Error error = DisarmRead(head_error);
    if (error) co_return co_await RefuseError(parser, error);
    method_ = parser.method();
    version_ = parser.version();
    const std::optional<HttpRefusal> bad_head = parser.CheckHead();
    if (bad_head) co_return co_await Refuse(bad_head->status, bad_head->message);
    // A body counts as it arrives: to announce one costs a client nothing.
    if (!body_.Fits(parser.announced_body_bytes().value_or(0))) {
      co_return co_await RefuseBody(*parser.announced_body_bytes());
    }
    const Error body_error = co_await ReadBody(parser);
    if (body_error == asio::error::no_buffer_space) co_return co_await RefuseBody(received_);
    if (body_error) co_return co_await RefuseError(parser, body_error);
    const std::optional<HttpRefusal> bad_trailers = parser.CheckHead();
    if (bad_trailers) co_return co_await Refuse(bad_trailers->status, bad_trailers->message);
    keep_alive_ = parser.parser().get().keep_alive();
    request_ = parser.Take();
    request_.received_at = RealClock()->Now();
    co_return true;
  }

  // no_buffer_space: the bodies of all requests have become too large.
  Task<Error> ReadBody(HttpRequestParser& parser) {
    const TimePoint start = RealClock()->Now();
    if (parser.expects_continue()) Queue("HTTP/1.1 100 Continue\r\n\r\n");
    received_ = 0;
    while (!parser.parser().is_done()) {
      Error error;
      const size_t used = parser.PutBody(buffer_.data(), error);
      buffer_.consume(used);
      received_ += static_cast<int64_t>(used);
      if (!body_.GrowTo(received_)) co_return asio::error::no_buffer_space;
      if (error == http::error::need_more) {
        ArmRead(start + limits_.body_timeout +
                std::chrono::seconds(received_ / limits_.min_body_bytes_per_second));
        const auto [result, bytes] =
            co_await stream_.async_read_some(buffer_.prepare(kReadBytes), kTuple);
        const Error read_error = DisarmRead(result);
        if (read_error) co_return read_error;
        buffer_.commit(bytes);
      } else if (error) {
        co_return error;
      }
    }
    co_return Error();
  }

  // The read that follows ends at `deadline`; the socket stays open, so that a refusal can leave.
  void ArmRead(TimePoint deadline) {
    read_timed_out_ = false;
    read_timer_.expires_at(deadline);
    read_timer_.async_wait([self = shared_from_this(), read = ++read_](const Error& error) {
      if (error || read != self->read_) return;
      self->read_timed_out_ = true;
      Error ignored;
      self->stream_.socket().cancel(ignored);
    });
  }
  // What its `error` really was.
  Error DisarmRead(Error error) {
    ++read_;
    read_timer_.cancel();
    return error && read_timed_out_ ? make_error_code(beast::error::timeout) : error;
  }

  Task<bool> RefuseError(const HttpRequestParser& parser, Error error) {
    HttpRefusal refusal = parser.RefusalOf(error);
    if (refusal.status == 0) co_return false;
    co_return co_await Refuse(refusal.status, std::move(refusal.message));
  }

  // For lack of room now, not because of its own size.
  Task<bool> RefuseBody(int64_t bytes) {
    co_return co_await Refuse(
        503, absl::StrCat("the body has ", bytes, " bytes, bodies of other requests hold ",
                          bodies_.held() - body_.bytes(), ", limit of all is ", bodies_.limit()));
  }

  Task<bool> Refuse(int status, std::string message) {
    keep_alive_ = false;
    HttpResponse response = handler_->Refusal(status, std::move(message));
    co_await Send(std::move(response));
    co_await DiscardInput();
    co_return false;
  }

  // Reads on for a moment, so that closing does not reset the connection before the client has
  // read the refusal.
  Task<void> DiscardInput() {
    Error ignored;
    stream_.socket().shutdown(Tcp::socket::shutdown_send, ignored);
    std::array<char, 16384> scratch;
    stream_.expires_after(std::chrono::seconds(1));
    for (int i = 0; i < 256; ++i) {
      const auto [error, bytes] = co_await stream_.async_read_some(asio::buffer(scratch), kTuple);
      if (error) break;
    }
  }

  // While the handler works: sees the end of the connection, keeps what the client sends ahead.
  Task<void> WatchClient() {
    try {
      co_await Watch();
    } catch (const std::bad_alloc&) {
      LoseClient("no memory to watch the client");
    }
  }

  Task<void> Watch() {
    watching_ = true;
    while (watching_ && static_cast<int64_t>(buffer_.size()) < limits_.max_header_bytes) {
      const auto [error] =
          co_await stream_.socket().async_wait(Tcp::socket::wait_read, kTuple);
      if (!watching_) break;
      if (error) {
        LoseClient("the connection failed");
        break;
      }
      const ssize_t bytes = ::recv(stream_.socket().native_handle(), buffer_.prepare(4096).data(),
                                   4096, MSG_DONTWAIT);
      if (bytes > 0) {
        buffer_.commit(static_cast<size_t>(bytes));
      } else if (bytes == 0 || (errno != EAGAIN && errno != EINTR)) {
        LoseClient("the client closed the connection");
        break;
      }
    }
  }

  void LoseClient(const char* why) {
    client_->Cancel(absl::CancelledError(why));
    drained_.Notify();
  }

  std::string Head(const HttpResponse& response) const {
    std::string text = absl::StrCat("HTTP/1.", version_ >= 11 ? 1 : 0, " ", response.status, " ",
                                    Text(http::obsolete_reason(http::int_to_status(
                                        static_cast<unsigned>(response.status)))),
                                    "\r\nContent-Type: ", response.content_type, "\r\n");
    for (const auto& [name, value] : response.headers) {
      absl::StrAppend(&text, name, ": ", value, "\r\n");
    }
    absl::StrAppend(&text, "Connection: ", keep_alive_ ? "keep-alive" : "close", "\r\n");
    return text;
  }

  int64_t QueuedBytes() const { return static_cast<int64_t>(queued_.size() + in_flight_.size()); }

  void Queue(std::string text) {
    if (client_->cancelled()) return;
    queued_ += text;
    has_answer_ = true;
    if (flushing_) return;
    flushing_ = true;
    try {
      background_.Spawn(Flush());
    } catch (const std::bad_alloc&) {
      flushing_ = false;
      throw;
    }
  }

  Task<void> Flush() {
    const std::shared_ptr<Connection> self = shared_from_this();
    try {
      co_await FlushQueued();
    } catch (const std::bad_alloc&) {
      LoseClient("no memory to write to the client");
    }
    if (client_->cancelled()) queued_.clear();
    flushing_ = false;
    drained_.Notify();
  }

  Task<void> FlushQueued() {
    while (!queued_.empty() && !client_->cancelled()) {
      std::swap(queued_, in_flight_);
      const Error error = co_await WriteInFlight();
      in_flight_.clear();
      if (error) LoseClient("writing to the client failed");
      drained_.Notify();
    }
  }

  // Piece by piece: each has the stall timeout, however much waits.
  Task<Error> WriteInFlight() {
    for (size_t at = 0; at < in_flight_.size(); at += kWriteBytes) {
      const size_t size = std::min(kWriteBytes, in_flight_.size() - at);
      ArmWrite(RealClock()->Now() + limits_.stall_timeout);
      const auto [error, bytes] =
          co_await asio::async_write(stream_, asio::buffer(in_flight_.data() + at, size), kTuple);
      ++write_;
      write_timer_.cancel();
      if (error) co_return error;
    }
    co_return Error();
  }

  void ArmWrite(TimePoint deadline) {
    write_timer_.expires_at(deadline);
    write_timer_.async_wait([self = shared_from_this(), write = ++write_](const Error& error) {
      if (error || write != self->write_) return;
      self->LoseClient("the client does not read");
      self->stream_.close();
    });
  }

  beast::tcp_stream stream_;
  const HttpLimits& limits_;
  BodyBudget& bodies_;
  BodyBudget::Share body_;  // of request_
  HttpHandler* const handler_;
  const bool& stopping_;
  beast::flat_buffer buffer_;
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

class BeastServer final : public HttpServer {
 public:
  BeastServer(asio::io_context& loop, Tcp::acceptor acceptor, const HttpLimits& limits,
              HttpHandler* handler)
      : loop_(loop),
        acceptor_(std::move(acceptor)),
        limits_(limits),
        bodies_(limits.max_held_body_bytes),
        handler_(handler),
        tasks_(loop) {}

  void Open() { tasks_.Spawn(Accept()); }
  int port() const override { return port_; }
  void set_port(int port) { port_ = port; }
  int64_t num_connections() const override { return static_cast<int64_t>(connections_.size()); }
  int64_t held_body_bytes() const override { return bodies_.held(); }

  Task<void> Stop(TimePoint deadline) override {
    stopping_ = true;
    Error ignored;
    acceptor_.close(ignored);
    CloseConnections([](const Connection& connection) { return !connection.in_request(); });
    const bool ended = co_await tasks_.WaitUntil(deadline);
    if (ended) co_return;
    CloseConnections([](const Connection&) { return true; });
    co_await tasks_.WaitUntil(RealClock()->Now() + std::chrono::seconds(5));
  }

 private:
  template <typename Choose>
  void CloseConnections(Choose choose) {
    const std::set<std::shared_ptr<Connection>> connections = connections_;
    for (const auto& connection : connections) {
      if (choose(*connection)) connection->Close();
    }
  }

  Task<void> Accept() {
    while (!stopping_) {
      auto [error, socket] = co_await acceptor_.async_accept(kTuple);
      if (stopping_ || error == asio::error::operation_aborted) break;
      if (error) {
        LOG_EVERY_SECONDS(WARNING, 5) << "cannot accept a connection: " << error.message();
        co_await SleepUntil(loop_, RealClock()->Now() + std::chrono::milliseconds(50));
        continue;
      }
      if (num_connections() >= limits_.max_connections) {
        RefuseConnection(socket);
        continue;
      }
      socket.set_option(Tcp::no_delay(true), error);
      socket.set_option(Tcp::socket::send_buffer_size(kSocketSendBytes), error);
      tasks_.Spawn(Serve(std::make_shared<Connection>(loop_, std::move(socket), limits_, &bodies_,
                                                      handler_, stopping_)));
    }
  }

  // The answer fits into the empty buffer of a new socket: nothing has to wait for it.
  void RefuseConnection(Tcp::socket& socket) {
    const std::string why =
        absl::StrCat(num_connections(), " connections are open, limit is ", limits_.max_connections);
    LOG_EVERY_SECONDS(WARNING, 5) << "refusing a connection: " << why;
    const HttpResponse refusal = handler_->Refusal(503, why);
    std::string text = "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\n";
    for (const auto& [name, value] : refusal.headers) absl::StrAppend(&text, name, ": ", value, "\r\n");
    absl::StrAppend(&text, "Connection: close\r\nContent-Length: ", refusal.body.size(), "\r\n\r\n",
                    refusal.body);
    Error ignored;
    socket.non_blocking(true, ignored);
    socket.write_some(asio::buffer(text), ignored);
    socket.shutdown(Tcp::socket::shutdown_send, ignored);
  }

  Task<void> Serve(std::shared_ptr<Connection> connection) {
    connections_.insert(connection);
    co_await connection->Serve();
    connections_.erase(connection);
  }

  asio::io_context& loop_;
  Tcp::acceptor acceptor_;
  const HttpLimits limits_;
  BodyBudget bodies_;
  HttpHandler* const handler_;
  std::set<std::shared_ptr<Connection>> connections_;
  TaskGroup tasks_;
  int port_ = 0;
  bool stopping_ = false;
};

}  // namespace

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Start(asio::io_context& loop,
                                                              const std::string& host, int port,
                                                              const HttpLimits& limits,
                                                              HttpHandler* handler) {
  Error error;
  const asio::ip::address address = asio::ip::make_address(host, error);
  if (error) {
    return absl::InvalidArgumentError(absl::StrCat("not an IP address to listen on: ", host));
  }
  Tcp::acceptor acceptor(loop);
  const Tcp::endpoint endpoint(address, static_cast<uint16_t>(port));
  acceptor.open(endpoint.protocol(), error);
  if (!error) acceptor.set_option(Tcp::acceptor::reuse_address(true), error);
  if (!error) acceptor.bind(endpoint, error);
  if (!error) acceptor.listen(1024, error);
  if (error) {
    return absl::UnavailableError(
        absl::StrCat("cannot listen on ", host, ":", port, ": ", error.message()));
  }
  const int bound = acceptor.local_endpoint(error).port();
  auto server = std::make_unique<BeastServer>(loop, std::move(acceptor), limits, handler);
  server->set_port(bound);
  server->Open();
  return server;
}

}  // namespace lodestone
