#include "base/shutdown.h"

#include <cerrno>
#include <csignal>

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>

#include "base/logging.h"

namespace lodestone {
namespace {

// A signal handler can reach only globals. Both are set before the handlers are installed.
std::atomic<bool> g_requested{false};
int g_pipe[2] = {-1, -1};

// Async-signal-safe. True if this was the first request.
bool MarkRequested() {
  if (g_requested.exchange(true)) return false;
  const char byte = 1;
  // The pipe is empty, so this cannot block or be short; nothing could be done about an error.
  [[maybe_unused]] const ssize_t written = write(g_pipe[1], &byte, 1);
  return true;
}

void HandleSignal(int signal) {
  const int saved_errno = errno;
  if (!MarkRequested() && signal == SIGINT) _exit(130);
  errno = saved_errno;
}

void InstallHandlers() {
  CHECK_EQ(pipe2(g_pipe, O_CLOEXEC | O_NONBLOCK), 0) << "pipe2 failed with errno " << errno;
  struct sigaction action = {};
  action.sa_handler = HandleSignal;
  sigemptyset(&action.sa_mask);
  action.sa_flags = SA_RESTART;
  sigaction(SIGTERM, &action, nullptr);
  sigaction(SIGINT, &action, nullptr);
  std::signal(SIGPIPE, SIG_IGN);
}

}  // namespace

ShutdownSignal& ShutdownSignal::Install() {
  static ShutdownSignal* const instance = [] {
    InstallHandlers();
    return new ShutdownSignal();  // never freed: a signal may arrive during exit
  }();
  return *instance;
}

bool ShutdownSignal::Requested() const { return g_requested.load(); }

bool ShutdownSignal::WaitUntil(std::chrono::steady_clock::time_point deadline) const {
  while (!Requested()) {
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
    if (left.count() <= 0) return Requested();
    pollfd entry = {.fd = g_pipe[0], .events = POLLIN, .revents = 0};
    poll(&entry, 1, static_cast<int>(std::min<int64_t>(left.count(), 1 << 30)));
  }
  return true;
}

bool ShutdownSignal::WaitFor(std::chrono::nanoseconds timeout) const {
  return WaitUntil(std::chrono::steady_clock::now() + timeout);
}

void ShutdownSignal::Request() { MarkRequested(); }

int ShutdownSignal::fd() const { return g_pipe[0]; }

}  // namespace lodestone
