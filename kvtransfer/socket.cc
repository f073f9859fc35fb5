#include "kvtransfer/socket.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "kvtransfer/link.h"

namespace lodestone {
namespace {

using std::chrono::milliseconds;

// A stop request is seen at the latest after this time, also without a shutdown of the socket.
constexpr milliseconds kPollSlice{100};
// What the peer's kernel does not take or acknowledge for so long ends the connection.
constexpr unsigned kUnacknowledgedMs = 2'000;

absl::Status ErrnoStatus(std::string_view what, int error) {
  return absl::UnavailableError(absl::StrCat(std::string(what), ": ", strerror(error)));
}

// True if ready for `events`, false at `until`.
absl::StatusOr<bool> WaitFor(int fd, short events, TimePoint until, const std::atomic<bool>* stop) {
  while (true) {
    if (stop != nullptr && stop->load(std::memory_order_relaxed)) {
      return absl::CancelledError("the connection was closed here");
    }
    const auto left = std::chrono::ceil<milliseconds>(until - RealClock()->Now());
    const auto slice = std::clamp(left, milliseconds(0), kPollSlice);
    pollfd entry{.fd = fd, .events = events, .revents = 0};
    const int ready = poll(&entry, 1, static_cast<int>(slice.count()));
    if (ready > 0) return true;
    if (ready < 0 && errno != EINTR) return ErrnoStatus("poll", errno);
    if (left <= milliseconds(0)) return false;
  }
}

int64_t Milliseconds(std::chrono::nanoseconds time) {
  return std::chrono::duration_cast<milliseconds>(time).count();
}

// As WaitFor, within the limits of a transfer whose last byte moved at `last_progress`.
absl::Status WaitToMove(int fd, short events, TimePoint last_progress, const IoLimits& limits) {
  const TimePoint until = std::min(last_progress + limits.stall, limits.deadline);
  ASSIGN_OR_RETURN(const bool ready, WaitFor(fd, events, until, limits.stop));
  if (ready) return absl::OkStatus();
  const TimePoint now = RealClock()->Now();
  if (now - last_progress < limits.stall) {
    return absl::UnavailableError(absl::StrCat(
        "deadline passed ", Milliseconds(now - limits.deadline), " ms ago, the last byte moved ",
        Milliseconds(now - last_progress), " ms ago"));
  }
  return absl::UnavailableError(
      absl::StrCat("stalled: no byte moved ", AgeAndLimit(now - last_progress, limits.stall)));
}

bool WouldBlock(int error) { return error == EAGAIN || error == EWOULDBLOCK || error == EINTR; }

using AddressList = std::unique_ptr<addrinfo, void (*)(addrinfo*)>;

absl::StatusOr<AddressList> Resolve(const std::string& host, int port, int flags) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV | flags;
  addrinfo* list = nullptr;
  const int error = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &list);
  if (error != 0) {
    return absl::InvalidArgumentError(absl::StrCat("address ", host, ": ", gai_strerror(error)));
  }
  return AddressList(list, freeaddrinfo);
}

// A numeric address does not wait for a name server.
absl::StatusOr<AddressList> ResolvePeer(const std::string& host, int port) {
  absl::StatusOr<AddressList> numeric = Resolve(host, port, AI_NUMERICHOST);
  return numeric.ok() ? std::move(numeric) : Resolve(host, port, 0);
}

absl::StatusOr<Socket> ConnectOne(const addrinfo& address, const IoLimits& limits) {
  Socket socket(::socket(address.ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!socket.valid()) return ErrnoStatus("socket", errno);
  PrepareConnection(socket.fd());
  if (connect(socket.fd(), address.ai_addr, address.ai_addrlen) == 0) return socket;
  if (errno != EINPROGRESS) return ErrnoStatus("connect", errno);
  RETURN_IF_ERROR(WaitToMove(socket.fd(), POLLOUT, RealClock()->Now(), limits));
  int error = 0;
  socklen_t size = sizeof(error);
  getsockopt(socket.fd(), SOL_SOCKET, SO_ERROR, &error, &size);
  if (error != 0) return ErrnoStatus("connect", error);
  return socket;
}

}  // namespace

Socket& Socket::operator=(Socket&& other) noexcept {
  std::swap(fd_, other.fd_);
  return *this;
}

Socket::~Socket() {
  if (fd_ >= 0) close(fd_);
}

void Socket::Shutdown() const {
  if (fd_ >= 0) shutdown(fd_, SHUT_RDWR);
}

void PrepareConnection(int fd) {
  const int on = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &kUnacknowledgedMs, sizeof(kUnacknowledgedMs));
  fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
}

absl::StatusOr<Socket> ConnectTo(const std::string& host, int port, const IoLimits& limits) {
  ASSIGN_OR_RETURN(AddressList addresses, ResolvePeer(host, port));
  absl::Status last = absl::UnavailableError("no address");
  for (const addrinfo* address = addresses.get(); address != nullptr; address = address->ai_next) {
    absl::StatusOr<Socket> socket = ConnectOne(*address, limits);
    if (socket.ok()) return socket;
    last = socket.status();
  }
  return absl::Status(last.code(),
                      absl::StrCat(host, ":", port, ": ", std::string(last.message())));
}

absl::StatusOr<Listening> ListenOn(const std::string& host, int port) {
  ASSIGN_OR_RETURN(AddressList addresses, Resolve(host, port, AI_PASSIVE));
  const addrinfo& address = *addresses;
  Socket socket(::socket(address.ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!socket.valid()) return ErrnoStatus("socket", errno);
  const int on = 1;
  setsockopt(socket.fd(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  const std::string name = absl::StrCat(host, ":", port);
  if (bind(socket.fd(), address.ai_addr, address.ai_addrlen) != 0) {
    return ErrnoStatus(absl::StrCat("bind ", name), errno);
  }
  if (listen(socket.fd(), SOMAXCONN) != 0) return ErrnoStatus(absl::StrCat("listen ", name), errno);
  sockaddr_storage bound{};
  socklen_t size = sizeof(bound);
  if (getsockname(socket.fd(), reinterpret_cast<sockaddr*>(&bound), &size) != 0) {
    return ErrnoStatus("getsockname", errno);
  }
  const uint16_t bound_port = bound.ss_family == AF_INET6
                                  ? reinterpret_cast<const sockaddr_in6*>(&bound)->sin6_port
                                  : reinterpret_cast<const sockaddr_in*>(&bound)->sin_port;
  return Listening{std::move(socket), ntohs(bound_port)};
}

absl::Status WriteAll(int fd, std::span<const std::byte> header, std::span<const std::byte> payload,
                      const IoLimits& limits) {
  const size_t total = header.size() + payload.size();
  size_t written = 0;
  TimePoint last_progress = RealClock()->Now();
  while (written < total) {
    const size_t of_header = std::min(written, header.size());
    const size_t of_payload = written - of_header;
    std::array<iovec, 2> parts = {
        iovec{const_cast<std::byte*>(header.data()) + of_header, header.size() - of_header},
        iovec{const_cast<std::byte*>(payload.data()) + of_payload, payload.size() - of_payload}};
    msghdr message{};
    message.msg_iov = parts.data();
    message.msg_iovlen = parts.size();
    const ssize_t count = sendmsg(fd, &message, MSG_NOSIGNAL);
    if (count > 0) {
      written += static_cast<size_t>(count);
      last_progress = RealClock()->Now();
    } else if (WouldBlock(errno)) {
      RETURN_IF_ERROR(WaitToMove(fd, POLLOUT, last_progress, limits));
    } else {
      return ErrnoStatus("send", errno);
    }
  }
  return absl::OkStatus();
}

absl::Status ReadAll(int fd, std::span<std::byte> bytes, const IoLimits& limits) {
  size_t done = 0;
  TimePoint last_progress = RealClock()->Now();
  while (done < bytes.size()) {
    const ssize_t count = recv(fd, bytes.data() + done, bytes.size() - done, 0);
    if (count > 0) {
      done += static_cast<size_t>(count);
      last_progress = RealClock()->Now();
    } else if (count == 0) {
      return absl::UnavailableError(absl::StrCat("the peer closed the connection after ", done,
                                                 " of ", bytes.size(), " bytes"));
    } else if (WouldBlock(errno)) {
      RETURN_IF_ERROR(WaitToMove(fd, POLLIN, last_progress, limits));
    } else {
      return ErrnoStatus("receive", errno);
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<bool> WaitReadable(int fd, const IoLimits& limits) {
  return WaitFor(fd, POLLIN, limits.deadline, limits.stop);
}

}  // namespace lodestone
