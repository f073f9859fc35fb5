#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "base/logging.h"
#include "base/mutex.h"
#include "proto/lodestone/v1/worker.grpc.pb.h"
#include "worker/status_board.h"

namespace lodestone {

struct RegistrationTimes {
  std::chrono::milliseconds report{500};         // at least this often; state changes go at once
  std::chrono::milliseconds backoff_first{200};  // after a stream broke; doubles
  std::chrono::milliseconds backoff_most{500};  // a new router knows its workers within 3 s
  std::chrono::milliseconds refused{5'000};  // after the router said no
  std::chrono::milliseconds goodbye{500};    // for the last report to leave
};

// Keeps this worker registered with one router for as long as it lives: a stream with a hello and
// then the load, opened again whenever it breaks. Has a thread of its own.
class Registration {
 public:
  using LoadSource = std::function<v1::WorkerLoad()>;  // called on the own thread

  // `router` is host:port; `board` is not owned and wakes the thread when the state changes.
  Registration(std::string router, v1::WorkerHello hello, LoadSource load, const StatusBoard* board,
               const RegistrationTimes& times = {});
  // Reports the last state, which should not be ready any more, and ends the stream.
  ~Registration();

  // Says this hello from now on, at once and whenever the stream is opened again. Any thread.
  void SetHello(v1::WorkerHello hello);

  bool registered() const { return registered_; }

 private:
  class Session;
  void Run();
  void RunSession();
  // With the hello unless this stream has said it. False if it could not leave before the deadline.
  bool Report(Session& session, std::chrono::steady_clock::time_point deadline);
  bool HasNews() const;
  // False if the end was requested meanwhile.
  bool WaitUnlessStopped(std::chrono::milliseconds time) const;
  void LogOnce(LogSeverity severity, const std::string& text);

  const std::string router_;
  const LoadSource load_;
  const StatusBoard& board_;
  const RegistrationTimes times_;
  const std::unique_ptr<v1::WorkerRegistry::Stub> stub_;
  std::atomic<bool> stopping_{false};
  std::atomic<bool> registered_{false};
  Mutex mutex_;
  v1::WorkerHello hello_ GUARDED_BY(mutex_);
  std::atomic<int> hello_version_{1};  // of hello_

  // Own thread only.
  LoopState reported_state_ = LoopState::kLoading;
  int said_version_ = 0;  // of the hello, on the present stream; 0: none
  std::chrono::milliseconds backoff_;
  std::string last_logged_;
  std::thread thread_;  // last: uses all of the above
};

}  // namespace lodestone
