#include "router/http_server.h"

#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <optional>
#include <set>

#include <absl/strings/ascii.h>
#include <absl/strings/str_cat.h>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/status.hpp>
#include <boost/beast/http/string_body.hpp>

#include "base/logging.h"

namespace lodestone {
namespace {

namespace beast = boost::beast;
namespace http = boost::beast::http;
using Tcp = asio::ip::tcp;
using Error = boost::system::error_code;
using Parser = http::request_parser<http::string_body>;

constexpr auto kTuple = asio::as_tuple(asio::use_awaitable);
constexpr int64_t kMinBodyBytesPerSecond = 64 << 10;

std::string Text(beast::string_view view) { return std::string(view.data(), view.size()); }

// What the parser's error means to the client; 0: just close the connection.
int StatusOf(const Error& error) {
  if (error == http::error::header_limit) return 431;
  if (error == http::error::body_limit || error == http::error::buffer_overflow) return 413;
  if (error == beast::error::timeout) return 408;
  if (error == http::error::end_of_stream || error == http::error::partial_message) return 0;
  if (error.category() == make_error_code(http::error::bad_method).category()) return 400;
  return 0;
}

std::string Explain(int status, const Error& error, const HttpLimits& limits) {
  switch (status) {
    case 408:
      return "the request took too long to arrive";
    case 413:
      return absl::StrCat("the body is larger than the limit of ", limits.max_body_bytes, " bytes");
    case 431:
      return absl::StrCat("the headers are larger than the limit of ", limits.max_header_bytes,
                          " bytes");
    default:
      return absl::StrCat("not a valid HTTP request: ", error.message());
  }
}

// One client connection: reads a request, lets the handler answer, and again.
class Connection final : public HttpExchange, public std::enable_shared_from_this<Connection> {
 public:
  Connection(asio::io_context& loop, Tcp::socket socket, const HttpLimits& limits,
             HttpHandler* handler, const bool& stopping)
      : loop_(loop),
        stream_(std::move(socket)),
        limits_(limits),
        handler_(handler),
        stopping_(stopping),
        drained_(loop),
        background_(loop) {}

  Task<void> Serve() {
    const std::shared_ptr<Connection> self = shared_from_this();
    bool go_on = true;
    while (go_on && !stopping_) {
      go_on = co_await ServeOne();
      in_request_ = false;
    }
    Close();
    co_await background_.WaitUntil(TimePoint::max());
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
    HttpRequest request;
    const bool valid = co_await ReadRequest(request);
    if (!valid) co_return false;
    background_.Spawn(WatchClient());
    co_await handler_->Handle(request, *this);
    watching_ = false;
    Error ignored;
    stream_.socket().cancel(ignored);
    co_await background_.WaitUntil(TimePoint::max());
    co_return keep_alive_ && !client_->cancelled();
  }

  Task<bool> AwaitFirstByte() {
    if (buffer_.size() > 0) co_return true;
    stream_.expires_after(limits_.idle_timeout);
    const auto [error, bytes] = co_await stream_.async_read_some(buffer_.prepare(4096), kTuple);
    if (error) co_return false;
    buffer_.commit(bytes);
    co_return true;
  }

  // Refuses and returns false if what comes is not a request within the limits.
  Task<bool> ReadRequest(HttpRequest& request) {
    Parser parser;
    parser.header_limit(static_cast<uint32_t>(limits_.max_header_bytes));
    parser.body_limit(static_cast<uint64_t>(limits_.max_body_bytes));
    int64_t num_chunks = 0;
    auto count_chunk = [&](uint64_t, beast::string_view extension, Error& error) {
      if (++num_chunks > limits_.max_chunks ||
          static_cast<int64_t>(extension.size()) > limits_.max_chunk_extension_bytes) {
        error = http::error::bad_chunk_extension;
      }
    };
    parser.on_chunk_header(count_chunk);
    stream_.expires_after(limits_.header_timeout);
    auto [error, bytes] = co_await http::async_read_header(stream_, buffer_, parser, kTuple);
    if (error) co_return co_await RefuseError(error);
    const http::request<http::string_body>& head = parser.get();
    method_ = Text(head.method_string());
    version_ = head.version();
    const std::string complaint = CheckHead(head);
    if (!complaint.empty()) co_return co_await Refuse(431, complaint);
    const Error body_error = co_await ReadBody(parser);
    if (body_error) co_return co_await RefuseError(body_error);
    keep_alive_ = parser.get().keep_alive();
    TakeRequest(parser, request);
    co_return true;
  }

  std::string CheckHead(const http::request<http::string_body>& head) const {
    if (static_cast<int64_t>(head.target().size()) > limits_.max_target_bytes) {
      return absl::StrCat("the request target has ", head.target().size(), " bytes, limit is ",
                          limits_.max_target_bytes);
    }
    const int64_t num_headers = std::distance(head.begin(), head.end());
    if (num_headers > limits_.max_headers) {
      return absl::StrCat("the request has ", num_headers, " headers, limit is ",
                          limits_.max_headers);
    }
    return "";
  }

  Task<Error> ReadBody(Parser& parser) {
    const TimePoint start = RealClock()->Now();
    if (absl::AsciiStrToLower(Text(parser.get()[http::field::expect])) == "100-continue") {
      Queue("HTTP/1.1 100 Continue\r\n\r\n");
    }
    int64_t received = 0;
    while (!parser.is_done()) {
      stream_.expires_at(start + limits_.body_timeout +
                         std::chrono::seconds(received / kMinBodyBytesPerSecond));
      const auto [error, bytes] = co_await http::async_read_some(stream_, buffer_, parser, kTuple);
      if (error) co_return error;
      received += static_cast<int64_t>(bytes);
    }
    co_return Error();
  }

  static void TakeRequest(Parser& parser, HttpRequest& request) {
    http::request<http::string_body> message = parser.release();
    request.received_at = RealClock()->Now();
    request.method = Text(message.method_string());
    const std::string target = Text(message.target());
    const size_t question = target.find('?');
    request.path = target.substr(0, question);
    if (question != std::string::npos) request.query = target.substr(question + 1);
    for (const auto& field : message) {
      request.headers.emplace_back(absl::AsciiStrToLower(Text(field.name_string())),
                                   Text(field.value()));
    }
    request.body = std::move(message.body());
  }

  Task<bool> RefuseError(Error error) {
    const int status = StatusOf(error);
    if (status == 0) co_return false;
    co_return co_await Refuse(status, Explain(status, error, limits_));
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
    if (flushing_) return;
    flushing_ = true;
    background_.Spawn(Flush());
  }

  Task<void> Flush() {
    const std::shared_ptr<Connection> self = shared_from_this();
    while (!queued_.empty() && !client_->cancelled()) {
      std::swap(queued_, in_flight_);
      stream_.expires_after(limits_.stall_timeout);
      const auto [error, bytes] =
          co_await asio::async_write(stream_, asio::buffer(in_flight_), kTuple);
      in_flight_.clear();
      if (error) LoseClient("writing to the client failed");
      drained_.Notify();
    }
    if (client_->cancelled()) queued_.clear();
    flushing_ = false;
    drained_.Notify();
  }

  asio::io_context& loop_;
  beast::tcp_stream stream_;
  const HttpLimits& limits_;
  HttpHandler* const handler_;
  const bool& stopping_;
  beast::flat_buffer buffer_;
  Event drained_;
  TaskGroup background_;  // the watcher and the flusher
  std::unique_ptr<CancelSource> client_ = std::make_unique<CancelSource>();
  std::string queued_;
  std::string in_flight_;
  std::string method_;
  unsigned version_ = 11;
  bool flushing_ = false;
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
        handler_(handler),
        tasks_(loop) {}

  void Open() { tasks_.Spawn(Accept()); }
  int port() const override { return port_; }
  void set_port(int port) { port_ = port; }
  int64_t num_connections() const override { return static_cast<int64_t>(connections_.size()); }

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
        LOG_EVERY_SECONDS(WARNING, 5)
            << "refusing a connection: " << limits_.max_connections << " are open";
        continue;
      }
      socket.set_option(Tcp::no_delay(true), error);
      tasks_.Spawn(Serve(std::make_shared<Connection>(loop_, std::move(socket), limits_, handler_,
                                                      stopping_)));
    }
  }

  Task<void> Serve(std::shared_ptr<Connection> connection) {
    connections_.insert(connection);
    co_await connection->Serve();
    connections_.erase(connection);
  }

  asio::io_context& loop_;
  Tcp::acceptor acceptor_;
  const HttpLimits limits_;
  HttpHandler* const handler_;
  std::set<std::shared_ptr<Connection>> connections_;
  TaskGroup tasks_;
  int port_ = 0;
  bool stopping_ = false;
};

}  // namespace

std::string_view HttpRequest::Header(std::string_view name) const {
  for (const auto& [key, value] : headers) {
    if (key == name) return value;
  }
  return {};
}

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
