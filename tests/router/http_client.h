// A blocking HTTP/1.1 client over a plain socket, so that tests see the very bytes.
#pragma once

#include <chrono>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace lodestone {

struct ClientResponse {
  int status = 0;  // 0: the connection ended without a response
  std::map<std::string, std::string> headers;  // names in lower case
  std::string body;                            // chunks joined
};

// How a client takes what comes.
struct ClientPace {
  size_t receive_bytes = 16384;    // at most, in one call
  int receive_buffer_bytes = 0;    // of the kernel; 0: its default
};

class HttpClient {
 public:
  explicit HttpClient(int port, const ClientPace& pace = {});
  ~HttpClient();
  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;

  void SendRaw(const std::string& bytes);
  void Send(const std::string& method, const std::string& path, const std::string& body = "",
            const std::string& extra_headers = "");
  // The response to one request, whole.
  ClientResponse Receive();
  // Status line and headers only; ReadLine goes on in the body.
  ClientResponse ReceiveHead();
  // The next line of a chunked body, without its end; nullopt at the end of the body.
  std::optional<std::string> ReadBodyLine();
  // The data of the next server-sent event; nullopt at the end of the body.
  std::optional<std::string> ReadEvent();
  // The next line as it comes, without its end; empty at the end of the connection.
  std::string ReceiveLine() { return TakeLine(); }
  // Drops what has come, up to 16 KiB; false at the end of the connection.
  bool SkipSome();
  void Close();

 private:
  bool Fill();
  std::string TakeLine();
  bool FillBody();

  const ClientPace pace_;
  int fd_ = -1;
  std::string buffer_;
  std::string body_;  // decoded, not yet taken
  bool body_ended_ = false;
};

// One request on a connection of its own.
ClientResponse Fetch(int port, const std::string& method, const std::string& path,
                     const std::string& body = "", const std::string& extra_headers = "");

}  // namespace lodestone
