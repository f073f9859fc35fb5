#pragma once

#include <atomic>
#include <functional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

namespace lodestone {

// A server on loopback that answers each connection with what `handler` makes of the request: bytes
// as they go over the wire. Pieces are written one by one.
class TestServer {
 public:
  using Handler = std::function<std::vector<std::string>(std::string_view request)>;
  explicit TestServer(Handler handler);
  ~TestServer();

  std::string url() const { return "http://127.0.0.1:" + std::to_string(port_); }

 private:
  void Serve();
  void Answer(int client);

  const Handler handler_;
  int listener_ = -1;
  int port_ = 0;
  std::atomic<bool> end_{false};
  std::thread thread_;
};

// A 200 answer with a length.
std::string OkReply(std::string_view body, std::string_view type = "application/json");
// An answer with this status line, e.g. "429 Too Many Requests", and these header lines.
std::string Reply(std::string_view status, std::string_view headers, std::string_view body);

}  // namespace lodestone
