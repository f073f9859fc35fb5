#include "tests/cli/test_server.h"

#include <arpa/inet.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <utility>

namespace lodestone {
namespace {

// Whether `request` has its header and the body that Content-Length announces.
bool IsWhole(const std::string& request) {
  const size_t end = request.find("\r\n\r\n");
  if (end == std::string::npos) return false;
  const size_t length = request.find("Content-Length: ");
  if (length == std::string::npos || length > end) return true;
  const size_t bytes = std::strtoul(request.c_str() + length + 16, nullptr, 10);
  return request.size() >= end + 4 + bytes;
}

}  // namespace

TestServer::TestServer(Handler handler) : handler_(std::move(handler)) {
  listener_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  if (bind(listener_, reinterpret_cast<sockaddr*>(&address), size) != 0 ||
      listen(listener_, 64) != 0 ||
      getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size) != 0) {
    std::abort();
  }
  port_ = ntohs(address.sin_port);
  thread_ = std::thread([this] { Serve(); });
}

TestServer::~TestServer() {
  end_ = true;
  thread_.join();
  close(listener_);
}

void TestServer::Serve() {
  std::vector<std::thread> answers;
  while (!end_) {
    pollfd entry{listener_, POLLIN, 0};
    if (poll(&entry, 1, 20) <= 0) continue;
    const int client = accept(listener_, nullptr, nullptr);
    if (client >= 0) answers.emplace_back([this, client] { Answer(client); });
  }
  for (std::thread& answer : answers) answer.join();
}

void TestServer::Answer(int client) {
  std::string request;
  char buffer[65536];
  while (!IsWhole(request)) {
    const ssize_t count = recv(client, buffer, sizeof(buffer), 0);
    if (count <= 0) break;
    request.append(buffer, static_cast<size_t>(count));
  }
  for (const std::string& piece : handler_(request)) {
    if (send(client, piece.data(), piece.size(), MSG_NOSIGNAL) < 0) break;
  }
  close(client);
}

std::string OkReply(std::string_view body, std::string_view type) {
  return Reply("200 OK", "Content-Type: " + std::string(type) + "\r\n", body);
}

std::string Reply(std::string_view status, std::string_view headers, std::string_view body) {
  return "HTTP/1.1 " + std::string(status) + "\r\n" + std::string(headers) +
         "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n" + std::string(body);
}

}  // namespace lodestone
