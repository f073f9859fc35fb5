#include "worker/registration.h"

#include <algorithm>
#include <utility>

#include "base/logging.h"
#include "base/mutex.h"
#include "proto/convert.h"
#include "worker/grpc_server.h"

namespace lodestone {
namespace {

using std::chrono::milliseconds;
using SteadyClock = std::chrono::steady_clock;

constexpr milliseconds kSlice{20};  // how soon a broken stream or a requested end is noticed

}  // namespace

// One stream to the router, from its start to its end. Its thread starts writes outside of gRPC's
// reactions, so the call holds the stream open until the last read: nothing starts afterwards.
class Registration::Session final
    : public grpc::ClientBidiReactor<v1::WorkerReport, v1::RegistryReply> {
 public:
  explicit Session(v1::WorkerRegistry::Stub* stub) {
    stub->async()->Register(&context_, this);
    AddHold();
    StartRead(&reply_);
    StartCall();
  }
  // Ends the call and waits for it, which a cancelled call does at once.
  ~Session() override {
    context_.TryCancel();
    MutexLock lock(&mutex_);
    while (!done_) changed_.WaitUntil(&mutex_, SteadyClock::now() + kSlice);
  }

  // False if the report before is still on its way at the deadline, or the stream has ended.
  bool Send(v1::WorkerReport report, SteadyClock::time_point deadline) {
    MutexLock lock(&mutex_);
    const auto free = [this]() REQUIRES(mutex_) { return !writing_ || closed_; };
    if (!changed_.WaitUntil(&mutex_, deadline, free) || closed_) return false;
    report_ = std::move(report);
    writing_ = true;
    StartWrite(&report_);
    return true;
  }
  // Says that nothing follows, after the report before has left; then waits for the router to end
  // the stream, until `deadline`.
  void SayGoodbye(SteadyClock::time_point deadline) {
    MutexLock lock(&mutex_);
    const auto idle = [this]() REQUIRES(mutex_) { return !writing_ || closed_; };
    if (!changed_.WaitUntil(&mutex_, deadline, idle) || closed_) return;
    StartWritesDone();
    changed_.WaitUntil(&mutex_, deadline, [this]() REQUIRES(mutex_) { return done_; });
  }

  bool ended() const {
    MutexLock lock(&mutex_);
    return done_;
  }
  bool accepted() const {
    MutexLock lock(&mutex_);
    return accepted_;
  }
  std::string router_id() const {
    MutexLock lock(&mutex_);
    return router_id_;
  }
  // Why the router refused; OK if it did not.
  absl::Status refusal() const {
    MutexLock lock(&mutex_);
    return refusal_;
  }
  // REQUIRES: ended().
  std::string end_message() const {
    MutexLock lock(&mutex_);
    return status_.error_message();
  }

  void OnReadDone(bool ok) override {
    if (!ok) {
      Close();
      return RemoveHold();
    }
    {
      MutexLock lock(&mutex_);
      accepted_ = reply_.accepted();
      router_id_ = reply_.router_id();
      if (!accepted_) refusal_ = FromProto(reply_.error());
      if (!accepted_ && refusal_.ok()) refusal_ = absl::UnknownError("no reason given");
    }
    StartRead(&reply_);
  }
  void OnWriteDone(bool) override {
    MutexLock lock(&mutex_);
    writing_ = false;
    changed_.NotifyAll();
  }
  void OnDone(const grpc::Status& status) override {
    MutexLock lock(&mutex_);
    status_ = status;
    done_ = true;
    changed_.NotifyAll();
  }

 private:
  void Close() {
    MutexLock lock(&mutex_);
    closed_ = true;
    changed_.NotifyAll();
  }

  grpc::ClientContext context_;
  v1::RegistryReply reply_;
  v1::WorkerReport report_;  // valid while writing_
  mutable Mutex mutex_;
  CondVar changed_;
  bool writing_ GUARDED_BY(mutex_) = false;
  bool closed_ GUARDED_BY(mutex_) = false;  // the router has ended the stream, or it broke
  bool done_ GUARDED_BY(mutex_) = false;    // and nothing of it is under way
  bool accepted_ GUARDED_BY(mutex_) = false;
  absl::Status refusal_ GUARDED_BY(mutex_);
  std::string router_id_ GUARDED_BY(mutex_);
  grpc::Status status_ GUARDED_BY(mutex_);
};

Registration::Registration(std::string router, v1::WorkerHello hello, LoadSource load,
                           const StatusBoard* board, const RegistrationTimes& times)
    : router_(std::move(router)),
      load_(std::move(load)),
      board_(*board),
      times_(times),
      stub_(v1::WorkerRegistry::NewStub(grpc::CreateCustomChannel(
          router_, grpc::InsecureChannelCredentials(), PeerChannelArguments()))),
      hello_(std::move(hello)),
      backoff_(times.backoff_first),
      thread_([this] { Run(); }) {}

Registration::~Registration() {
  stopping_ = true;
  thread_.join();
}

void Registration::SetHello(v1::WorkerHello hello) {
  MutexLock lock(&mutex_);
  hello_ = std::move(hello);
  ++hello_version_;
}

void Registration::Run() {
  do {
    RunSession();
  } while (WaitUnlessStopped(backoff_));
}

void Registration::RunSession() {
  Session session(stub_.get());
  said_version_ = 0;
  Report(session, SteadyClock::now());
  auto next_report = SteadyClock::now() + times_.report;
  while (!session.ended() && !stopping_) {
    board_.WaitForOtherState(reported_state_, std::min(next_report, SteadyClock::now() + kSlice));
    if (session.accepted() && !registered_.exchange(true)) {
      LogOnce(LogSeverity::kInfo,
              "registered with router " + router_ + " (" + session.router_id() + ")");
      backoff_ = times_.backoff_first;
    }
    if (!HasNews() && SteadyClock::now() < next_report) continue;
    if (Report(session, SteadyClock::now() + kSlice)) {
      next_report = SteadyClock::now() + times_.report;
    }
  }
  registered_ = false;
  if (stopping_) {
    const auto deadline = SteadyClock::now() + times_.goodbye;
    Report(session, deadline);
    session.SayGoodbye(deadline);
  } else if (const absl::Status refusal = session.refusal(); !refusal.ok()) {
    backoff_ = times_.refused;
    LogOnce(LogSeverity::kWarning,
            "router " + router_ + " refuses this worker: " + refusal.ToString());
  } else {
    LogOnce(LogSeverity::kWarning,
            "no stream to router " + router_ + ": " + session.end_message() + "; trying again");
    backoff_ = std::min(2 * backoff_, times_.backoff_most);
  }
}

bool Registration::HasNews() const {
  return board_.Get().state != reported_state_ || hello_version_ != said_version_;
}

bool Registration::Report(Session& session, SteadyClock::time_point deadline) {
  const LoopState state = board_.Get().state;
  v1::WorkerReport report;
  *report.mutable_load() = load_();  // before the hello: READY is never said without its address
  int version = said_version_;
  {
    MutexLock lock(&mutex_);
    if (hello_version_ != said_version_) *report.mutable_hello() = hello_;
    version = hello_version_;
  }
  if (!session.Send(std::move(report), deadline)) return false;
  reported_state_ = state;
  said_version_ = version;
  return true;
}

bool Registration::WaitUnlessStopped(milliseconds time) const {
  const auto deadline = SteadyClock::now() + time;
  while (!stopping_ && SteadyClock::now() < deadline) std::this_thread::sleep_for(kSlice);
  return !stopping_;
}

// A router that stays away is one line, not one per attempt.
void Registration::LogOnce(LogSeverity severity, const std::string& text) {
  if (text == last_logged_) return;
  last_logged_ = text;
  if (severity == LogSeverity::kInfo) {
    LOG(INFO) << text;
  } else {
    LOG(WARNING) << text;
  }
}

}  // namespace lodestone
