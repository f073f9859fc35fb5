#include "router/http_connection.h"

#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <functional>
#include <new>
#include <optional>

#include <absl/strings/str_cat.h>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/status.hpp>

#include "router/api_error.h"

namespace lodestone {
namespace {

namespace beast = boost::beast;
namespace http = boost::beast::http;
using Error = boost::system::error_code;

constexpr auto kTuple = asio::as_tuple(asio::use_awaitable);
constexpr size_t kReadBytes = 64 << 10;
constexpr size_t kWriteBytes = 64 << 10;

std::string Text(beast::string_view view) { return std::string(view.data(), view.size()); }

}  // namespace

Task<void> HttpConnection::Serve() {
  const std::shared_ptr<HttpConnection> self = shared_from_this();
  bool go_on = true;
  while (go_on && !stopping_) {
    go_on = co_await ServeOne();
    ReleaseBody();
    in_request_ = false;
  }
  Close();
  co_await EndBackground();
}

void HttpConnection::Close() {
  Error ignored;
  stream_.socket().shutdown(Tcp::socket::shutdown_send, ignored);
  stream_.close();
}

Task<void> HttpConnection::Send(HttpResponse response) {
  const bool keep = keep_alive_ && !stopping_;
  keep_alive_ = keep;
  std::string text = Head(response);
  absl::StrAppend(&text, "Content-Length: ", response.body.size(), "\r\n\r\n");
  if (method_ != "HEAD") text += response.body;
  Queue(std::move(text));
  const absl::Status flushed = co_await Drain(0);
  if (!flushed.ok()) keep_alive_ = false;
}

void HttpConnection::StartStream(HttpResponse response) {
  keep_alive_ = keep_alive_ && !stopping_;
  chunked_ = version_ >= 11;
  if (!chunked_) keep_alive_ = false;
  std::string text = Head(response);
  text += chunked_ ? "Transfer-Encoding: chunked\r\n\r\n" : "\r\n";
  Queue(std::move(text));
}

void HttpConnection::ReleaseBody() {
  std::string().swap(request_.body);
  body_.Release();
}

void HttpConnection::Write(std::string_view bytes) {
  if (bytes.empty()) return;
  if (!chunked_) return Queue(std::string(bytes));
  std::string chunk = absl::StrCat(absl::Hex(bytes.size()), "\r\n");
  chunk += bytes;
  chunk += "\r\n";
  Queue(std::move(chunk));
}

Task<absl::Status> HttpConnection::Drain(int64_t max_bytes) {
  while (!client_->cancelled() && QueuedBytes() > max_bytes) {
    co_await drained_.WaitUntil(RealClock()->Now() + limits_.stall_timeout);
  }
  co_return client_->reason();
}

Task<void> HttpConnection::EndStream(bool close) {
  if (close) keep_alive_ = false;
  if (chunked_) Queue("0\r\n\r\n");
  const absl::Status flushed = co_await Drain(0);
  if (!flushed.ok()) keep_alive_ = false;
}

Task<bool> HttpConnection::ServeOne() {
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

Task<void> HttpConnection::EndBackground() {
  const std::function<void()> close = [this] {
    LoseClient("the connection did not end");
    Close();
  };
  co_await background_.WaitForEnd(RealClock()->Now() + limits_.stall_timeout + kLatePause, close);
}

Task<void> HttpConnection::Answer() {
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

Task<bool> HttpConnection::AwaitFirstByte() {
  if (buffer_.size() > 0) co_return true;
  stream_.expires_after(limits_.idle_timeout);
  const auto [error, bytes] = co_await stream_.async_read_some(buffer_.prepare(4096), kTuple);
  if (error) co_return false;
  buffer_.commit(bytes);
  co_return true;
}

Task<bool> HttpConnection::ReadRequest() {
  try {
    co_return co_await TryReadRequest();
  } catch (const std::bad_alloc&) {
    keep_alive_ = false;
  }
  const ApiError error = OutOfMemoryError();
  co_return co_await Refuse(error.http_status, error.message);
}

Task<bool> HttpConnection::TryReadRequest() {
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

Task<Error> HttpConnection::ReadBody(HttpRequestParser& parser) {
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

void HttpConnection::ArmRead(TimePoint deadline) {
  read_timed_out_ = false;
  read_timer_.expires_at(deadline);
  read_timer_.async_wait([self = shared_from_this(), read = ++read_](const Error& error) {
    if (error || read != self->read_) return;
    self->read_timed_out_ = true;
    Error ignored;
    self->stream_.socket().cancel(ignored);
  });
}

Error HttpConnection::DisarmRead(Error error) {
  ++read_;
  read_timer_.cancel();
  return error && read_timed_out_ ? make_error_code(beast::error::timeout) : error;
}

Task<bool> HttpConnection::RefuseError(const HttpRequestParser& parser, Error error) {
  HttpRefusal refusal = parser.RefusalOf(error);
  if (refusal.status == 0) co_return false;
  co_return co_await Refuse(refusal.status, std::move(refusal.message));
}

Task<bool> HttpConnection::RefuseBody(int64_t bytes) {
  co_return co_await Refuse(
      503, absl::StrCat("the body has ", bytes, " bytes, bodies of other requests hold ",
                        bodies_.held() - body_.bytes(), ", limit of all is ", bodies_.limit()));
}

Task<bool> HttpConnection::Refuse(int status, std::string message) {
  keep_alive_ = false;
  HttpResponse response = handler_->Refusal(status, std::move(message));
  co_await Send(std::move(response));
  co_await DiscardInput();
  co_return false;
}

Task<void> HttpConnection::DiscardInput() {
  Error ignored;
  stream_.socket().shutdown(Tcp::socket::shutdown_send, ignored);
  std::array<char, 16384> scratch;
  stream_.expires_after(std::chrono::seconds(1));
  for (int i = 0; i < 256; ++i) {
    const auto [error, bytes] = co_await stream_.async_read_some(asio::buffer(scratch), kTuple);
    if (error) break;
  }
}

Task<void> HttpConnection::WatchClient() {
  try {
    co_await Watch();
  } catch (const std::bad_alloc&) {
    LoseClient("no memory to watch the client");
  }
}

Task<void> HttpConnection::Watch() {
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

void HttpConnection::LoseClient(const char* why) {
  client_->Cancel(absl::CancelledError(why));
  drained_.Notify();
}

std::string HttpConnection::Head(const HttpResponse& response) const {
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

void HttpConnection::Queue(std::string text) {
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

Task<void> HttpConnection::Flush() {
  const std::shared_ptr<HttpConnection> self = shared_from_this();
  try {
    co_await FlushQueued();
  } catch (const std::bad_alloc&) {
    LoseClient("no memory to write to the client");
  }
  if (client_->cancelled()) queued_.clear();
  flushing_ = false;
  drained_.Notify();
}

Task<void> HttpConnection::FlushQueued() {
  while (!queued_.empty() && !client_->cancelled()) {
    std::swap(queued_, in_flight_);
    const Error error = co_await WriteInFlight();
    in_flight_.clear();
    if (error) LoseClient("writing to the client failed");
    drained_.Notify();
  }
}

Task<Error> HttpConnection::WriteInFlight() {
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

void HttpConnection::ArmWrite(TimePoint deadline) {
  write_timer_.expires_at(deadline);
  write_timer_.async_wait([self = shared_from_this(), write = ++write_](const Error& error) {
    if (error || write != self->write_) return;
    self->LoseClient("the client does not read");
    self->stream_.close();
  });
}

}  // namespace lodestone
