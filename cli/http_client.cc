#include "cli/http_client.h"

#include <fcntl.h>
#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <boost/asio/buffer.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "base/status_macros.h"

namespace lodestone {
namespace {

namespace http = boost::beast::http;
using SteadyTime = std::chrono::steady_clock::time_point;

// A connected socket with a deadline for everything.
class Connection {
 public:
  Connection(int fd, SteadyTime deadline) : fd_(fd), deadline_(deadline) {}
  ~Connection() { close(fd_); }
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  absl::Status Wait(short events) const {
    while (true) {
      const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
          deadline_ - std::chrono::steady_clock::now());
      if (left.count() <= 0) return absl::DeadlineExceededError("no answer in time");
      pollfd entry{fd_, events, 0};
      const int ready = poll(&entry, 1, static_cast<int>(std::min<int64_t>(left.count(), 60'000)));
      if (ready > 0) return absl::OkStatus();
      if (ready < 0 && errno != EINTR) return Broken();
    }
  }
  absl::Status Write(std::string_view bytes) const {
    while (!bytes.empty()) {
      RETURN_IF_ERROR(Wait(POLLOUT));
      const ssize_t count = send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (count < 0 && errno != EAGAIN && errno != EINTR) return Broken();
      if (count > 0) bytes.remove_prefix(static_cast<size_t>(count));
    }
    return absl::OkStatus();
  }
  // 0 at the end of the stream.
  absl::StatusOr<size_t> Read(char* data, size_t size) const {
    while (true) {
      RETURN_IF_ERROR(Wait(POLLIN));
      const ssize_t count = recv(fd_, data, size, 0);
      if (count >= 0) return static_cast<size_t>(count);
      if (errno != EAGAIN && errno != EINTR) return Broken();
    }
  }

 private:
  static absl::Status Broken() {
    return absl::UnavailableError(std::string("the connection broke: ") + std::strerror(errno));
  }
  const int fd_;
  const SteadyTime deadline_;
};

absl::StatusOr<std::unique_ptr<Connection>> ConnectTo(const addrinfo& address,
                                                      SteadyTime deadline) {
  const int fd = socket(address.ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (fd < 0) return absl::UnavailableError(std::strerror(errno));
  auto connection = std::make_unique<Connection>(fd, deadline);
  if (connect(fd, address.ai_addr, address.ai_addrlen) != 0) {
    if (errno != EINPROGRESS) return absl::UnavailableError(std::strerror(errno));
    RETURN_IF_ERROR(connection->Wait(POLLOUT));
    int error = 0;
    socklen_t size = sizeof(error);
    getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size);
    if (error != 0) return absl::UnavailableError(std::strerror(error));
  }
  return connection;
}

absl::StatusOr<std::unique_ptr<Connection>> Connect(const HttpUrl& url, SteadyTime deadline) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const std::string place = url.host + ":" + url.port;
  if (const int error = getaddrinfo(url.host.c_str(), url.port.c_str(), &hints, &found)) {
    return absl::UnavailableError(place + ": " + gai_strerror(error));
  }
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> addresses(found, freeaddrinfo);
  absl::Status last = absl::UnavailableError("no address");
  for (const addrinfo* address = found; address != nullptr; address = address->ai_next) {
    absl::StatusOr<std::unique_ptr<Connection>> connection = ConnectTo(*address, deadline);
    if (connection.ok()) return connection;
    last = connection.status();
  }
  return absl::Status(last.code(), "cannot connect to " + place + ": " +
                                       std::string(last.message().data(), last.message().size()));
}

using Parser = http::response_parser<http::string_body>;

// Reads until the answer is whole; hands new bytes of the body of a success to `on_body`.
absl::Status ReadReply(const Connection& connection, Parser& parser,
                       const HttpClient::OnBody& on_body) {
  std::string buffer;  // read and not yet parsed
  size_t delivered = 0;
  std::array<char, 16384> chunk;
  while (!parser.is_done()) {
    ASSIGN_OR_RETURN(const size_t count, connection.Read(chunk.data(), chunk.size()));
    boost::beast::error_code error;
    if (count == 0) {
      parser.put_eof(error);
      if (error || !parser.is_done()) {
        return absl::UnavailableError("the server closed the connection within its answer");
      }
      break;
    }
    buffer.append(chunk.data(), count);
    const size_t used = parser.put(boost::asio::buffer(buffer), error);
    buffer.erase(0, used);
    if (error && error != http::error::need_more) {
      return absl::UnavailableError("the answer is not HTTP: " + error.message());
    }
    const std::string& body = parser.get().body();
    if (on_body && parser.is_header_done() && parser.get().result_int() == 200 &&
        body.size() > delivered) {
      const std::string_view fresh = std::string_view(body).substr(delivered);
      delivered = body.size();
      if (!on_body(fresh)) return absl::CancelledError("ended by the reader");
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<HttpUrl> ParseHttpUrl(std::string_view text) {
  constexpr std::string_view kScheme = "http://";
  const std::string whole(text);
  if (!text.starts_with(kScheme)) {
    return absl::InvalidArgumentError("\"" + whole +
                                      "\" is not a URL of the form http://host:port");
  }
  text.remove_prefix(kScheme.size());
  HttpUrl url;
  const size_t slash = text.find('/');
  if (slash != std::string_view::npos) {
    url.prefix = text.substr(slash);
    while (url.prefix.ends_with('/')) url.prefix.pop_back();
    text = text.substr(0, slash);
  }
  const size_t colon = text.rfind(':');
  const bool has_port = colon != std::string_view::npos && text.find(']', colon) == text.npos;
  url.host = text.substr(0, has_port ? colon : text.size());
  if (has_port) url.port = text.substr(colon + 1);
  if (url.host.starts_with('[') && url.host.ends_with(']')) {
    url.host = url.host.substr(1, url.host.size() - 2);
  }
  const bool digits =
      !url.port.empty() && url.port.find_first_not_of("0123456789") == std::string::npos;
  if (url.host.empty() || !digits || url.port.size() > 5) {
    return absl::InvalidArgumentError("\"" + whole +
                                      "\" is not a URL of the form http://host:port");
  }
  return url;
}

absl::StatusOr<HttpReply> HttpClient::Run(const std::string& method, const std::string& path,
                                          const std::string& json,
                                          std::chrono::milliseconds timeout,
                                          const OnBody& on_body) const {
  const SteadyTime deadline = std::chrono::steady_clock::now() + timeout;
  ASSIGN_OR_RETURN(const std::unique_ptr<Connection> connection, Connect(url_, deadline));
  std::string head = method + " " + url_.prefix + path + " HTTP/1.1\r\nHost: " + url_.host + ":" +
                     url_.port + "\r\nConnection: close\r\nUser-Agent: lodestone\r\n";
  if (!api_key_.empty()) head += "Authorization: Bearer " + api_key_ + "\r\n";
  if (method == "POST") {
    head +=
        "Content-Type: application/json\r\nContent-Length: " + std::to_string(json.size()) + "\r\n";
  }
  RETURN_IF_ERROR(connection->Write(head + "\r\n" + json));

  Parser parser;
  parser.body_limit(boost::none);
  parser.eager(true);
  RETURN_IF_ERROR(ReadReply(*connection, parser, on_body));
  HttpReply reply;
  reply.status = static_cast<int>(parser.get().result_int());
  const auto retry = parser.get().find(http::field::retry_after);
  if (retry != parser.get().end()) {
    reply.retry_after_seconds = std::strtod(std::string(retry->value()).c_str(), nullptr);
  }
  reply.body = std::move(parser.get().body());
  return reply;
}

absl::StatusOr<HttpReply> HttpClient::Get(const std::string& path,
                                          std::chrono::milliseconds timeout) const {
  return Run("GET", path, "", timeout, {});
}

absl::StatusOr<HttpReply> HttpClient::Post(const std::string& path, const std::string& json,
                                           std::chrono::milliseconds timeout,
                                           const OnBody& on_body) const {
  return Run("POST", path, json, timeout, on_body);
}

bool SseParser::Feed(std::string_view bytes,
                     const std::function<bool(std::string_view data)>& on_event) {
  for (const char c : bytes) {
    if (c != '\n') {
      line_.push_back(c);
      continue;
    }
    if (line_.ends_with('\r')) line_.pop_back();
    if (line_.empty() && has_data_) {
      has_data_ = false;
      const std::string data = std::exchange(data_, {});
      if (!on_event(data)) return false;
    } else if (line_.starts_with("data:")) {
      if (has_data_) data_ += '\n';
      has_data_ = true;
      const size_t begin = line_.starts_with("data: ") ? 6 : 5;
      data_.append(line_, begin);
    }
    line_.clear();
  }
  return true;
}

}  // namespace lodestone
