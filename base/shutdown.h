// SIGTERM and SIGINT as something to wait for.
#pragma once

#include <chrono>

namespace lodestone {

// The request of the process to end, made by the first SIGTERM or SIGINT or by Request(). After it
// a SIGINT, somebody's second Ctrl-C, ends the process at once with exit code 130. A SIGTERM does
// not: supervisors send it more than once (systemd to each process of `lodestone up`, which passes
// it on; `timeout` to its child and then to the child's group), and it must not cut a drain short.
// Thread-safe. One per process.
class ShutdownSignal {
 public:
  // Installs the handlers, ignores SIGPIPE, and returns the one instance. Idempotent. Call it at
  // the start of main, before any thread exists.
  static ShutdownSignal& Install();

  bool Requested() const;
  // True once requested; false at the deadline.
  bool WaitUntil(std::chrono::steady_clock::time_point deadline) const;
  bool WaitFor(std::chrono::nanoseconds timeout) const;
  // As a first signal would; for an end that the process itself decides.
  void Request();
  // Becomes readable, and stays so, once requested: for event loops. Do not read or close it.
  int fd() const;

 private:
  ShutdownSignal() = default;
};

}  // namespace lodestone
