// Sockets with deadlines, for the TCP transport only.
#pragma once

#include <sys/uio.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <span>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/clock.h"

namespace lodestone {

// Owns a file descriptor.
class Socket {
 public:
  Socket() = default;
  explicit Socket(int fd) : fd_(fd) {}
  Socket(Socket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Socket& operator=(Socket&& other) noexcept;
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;
  ~Socket();

  int fd() const { return fd_; }
  bool valid() const { return fd_ >= 0; }
  // Wakes whoever waits for the socket; it is of no use afterwards. Any thread.
  void Shutdown() const;

 private:
  int fd_ = -1;
};

// Why a wait may end early, and when it must: no byte for `stall`, or all of them not by
// `deadline`.
struct IoLimits {
  std::chrono::nanoseconds stall;
  TimePoint deadline;
  const std::atomic<bool>* stop = nullptr;  // CANCELLED once true
};

// Of the numeric address or name `host`.
absl::StatusOr<Socket> ConnectTo(const std::string& host, int port, const IoLimits& limits);
// Non-blocking and listening; `bound_port` of the result says where.
struct Listening {
  Socket socket;
  int port = 0;
};
absl::StatusOr<Listening> ListenOn(const std::string& host, int port);
// Non-blocking, TCP_NODELAY, broken if the peer's machine does not acknowledge bytes for 2 s.
void PrepareConnection(int fd);

// Exactly these bytes, or an error: UNAVAILABLE (reset, closed, stalled) or CANCELLED (stopped).
absl::Status WriteAll(int fd, std::span<const std::byte> header, std::span<const std::byte> payload,
                      const IoLimits& limits);
absl::Status ReadAll(int fd, std::span<std::byte> bytes, const IoLimits& limits);

// Waits until there is something to read: true; false at the deadline.
absl::StatusOr<bool> WaitReadable(int fd, const IoLimits& limits);

}  // namespace lodestone
