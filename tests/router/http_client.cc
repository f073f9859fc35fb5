#include "tests/router/http_client.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

namespace lodestone {
namespace {

constexpr int kTimeoutSeconds = 20;

std::string Lower(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [](unsigned char c) { return std::tolower(c); });
  return text;
}

}  // namespace

HttpClient::HttpClient(int port, const ClientPace& pace)
    : pace_(pace), fd_(::socket(AF_INET, SOCK_STREAM, 0)) {
  if (const int bytes = pace_.receive_buffer_bytes; bytes > 0) {
    ::setsockopt(fd_, SOL_SOCKET, SO_RCVBUF, &bytes, sizeof(bytes));
  }
  timeval timeout{.tv_sec = kTimeoutSeconds, .tv_usec = 0};
  ::setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof(timeout));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (::connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0) Close();
}

HttpClient::~HttpClient() { Close(); }

void HttpClient::Close() {
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
}

void HttpClient::SendRaw(const std::string& bytes) {
  size_t sent = 0;
  while (sent < bytes.size()) {
    const ssize_t n = ::send(fd_, bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL);
    if (n <= 0) return;
    sent += static_cast<size_t>(n);
  }
}

void HttpClient::Send(const std::string& method, const std::string& path, const std::string& body,
                      const std::string& extra_headers) {
  std::string text = method + " " + path + " HTTP/1.1\r\nHost: test\r\n" + extra_headers;
  if (method == "POST") {
    text +=
        "Content-Type: application/json\r\nContent-Length: " + std::to_string(body.size()) + "\r\n";
  }
  SendRaw(text + "\r\n" + body);
}

bool HttpClient::Fill() {
  std::string bytes(pace_.receive_bytes, '\0');
  const ssize_t n = fd_ < 0 ? -1 : ::recv(fd_, bytes.data(), bytes.size(), 0);
  if (n <= 0) return false;
  buffer_.append(bytes, 0, static_cast<size_t>(n));
  return true;
}

bool HttpClient::SkipSome() {
  buffer_.clear();
  return Fill();
}

std::string HttpClient::TakeLine() {
  size_t end;
  while ((end = buffer_.find("\r\n")) == std::string::npos) {
    if (!Fill()) return "";
  }
  std::string line = buffer_.substr(0, end);
  buffer_.erase(0, end + 2);
  return line;
}

ClientResponse HttpClient::ReceiveHead() {
  ClientResponse response;
  body_.clear();
  body_ended_ = false;
  const std::string status_line = TakeLine();
  if (status_line.size() < 12) return response;
  response.status = std::stoi(status_line.substr(9, 3));
  for (std::string line = TakeLine(); !line.empty(); line = TakeLine()) {
    const size_t colon = line.find(": ");
    response.headers[Lower(line.substr(0, colon))] = line.substr(colon + 2);
  }
  if (response.status == 100) return ReceiveHead();
  return response;
}

ClientResponse HttpClient::Receive() {
  ClientResponse response = ReceiveHead();
  if (response.headers.contains("content-length")) {
    const size_t size = std::stoul(response.headers["content-length"]);
    while (buffer_.size() < size && Fill()) continue;
    response.body = buffer_.substr(0, size);
    buffer_.erase(0, size);
  } else if (response.headers.contains("transfer-encoding")) {
    while (FillBody()) continue;
    response.body = std::exchange(body_, {});
  }
  return response;
}

bool HttpClient::FillBody() {
  if (body_ended_) return false;
  const std::string size_line = TakeLine();
  const size_t size = size_line.empty() ? 0 : std::stoul(size_line, nullptr, 16);
  if (size == 0) {
    TakeLine();
    body_ended_ = true;
    return false;
  }
  while (buffer_.size() < size + 2) {
    if (!Fill()) return false;
  }
  body_ += buffer_.substr(0, size);
  buffer_.erase(0, size + 2);
  return true;
}

std::optional<std::string> HttpClient::ReadBodyLine() {
  size_t end;
  while ((end = body_.find('\n')) == std::string::npos) {
    if (!FillBody()) return std::nullopt;
  }
  std::string line = body_.substr(0, end);
  body_.erase(0, end + 1);
  return line;
}

std::optional<std::string> HttpClient::ReadEvent() {
  while (std::optional<std::string> line = ReadBodyLine()) {
    if (line->starts_with("data: ")) return line->substr(6);
  }
  return std::nullopt;
}

ClientResponse Fetch(int port, const std::string& method, const std::string& path,
                     const std::string& body, const std::string& extra_headers) {
  HttpClient client(port);
  client.Send(method, path, body, extra_headers);
  return client.Receive();
}

}  // namespace lodestone
