#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/bounded_queue.h"
#include "base/clock.h"
#include "base/waker.h"
#include "decode/scheduler.h"
#include "monitoring/metrics.h"
#include "worker/drain_signal.h"
#include "worker/status_board.h"

namespace lodestone {

// Pointers are not owned and must outlive the worker.
struct DecodeWorkerOptions {
  Engine* engine = nullptr;
  Receiver* receiver = nullptr;
  const Clock* clock = nullptr;
  StatusBoard* board = nullptr;
  Metrics* metrics = nullptr;
  std::chrono::milliseconds drain_timeout{120'000};
  const DrainSignal* drain = nullptr;  // an operator's; may be null
  // Links ring it when they have news. What still rings it may outlive the worker.
  std::shared_ptr<Waker> waker = std::make_shared<Waker>();
};

using ReserveDone = std::function<void(absl::StatusOr<ReserveReply>)>;
using CancelDone = std::function<void(int64_t released_bytes)>;

// The loop of a decode worker: take in reservations and hand-offs, step every running sequence,
// stream the tokens. One thread runs Loop and owns engine, caches and receiver; any thread may call
// the rest. A `done` is called exactly once, on the loop thread or at once.
class DecodeWorker {
 public:
  explicit DecodeWorker(const DecodeWorkerOptions& options);

  // UNAVAILABLE while draining.
  void Reserve(ReserveRequest request, ReserveDone done);
  void Cancel(LeaseId lease, CancelDone done);

  // A stream is known by its id from OpenStream to CloseStream. False if the worker is going away
  // and does not listen any more: the call must end.
  StreamId NewStreamId() { return ++last_stream_; }
  bool OpenStream(StreamId id, std::shared_ptr<TokenStream> stream);
  bool NameOnStream(StreamId id, std::vector<LeaseId> named, std::vector<LeaseId> subscribe);
  void CloseStream(StreamId id);

  // Until `end_requested`, or the operator's drain signal, and the running requests have ended or
  // the drain time is over; what is left then is told so, and every stream ends. INTERNAL if the
  // engine failed: the process must end then.
  absl::Status Loop(const std::function<bool()>& end_requested);

 private:
  struct ReserveCommand {
    ReserveRequest request;
    ReserveDone done;
  };
  struct CancelCommand {
    LeaseId lease;
    CancelDone done;
  };
  struct OpenCommand {
    StreamId id;
    std::shared_ptr<TokenStream> stream;
  };
  struct NameCommand {
    StreamId id;
    std::vector<LeaseId> named, subscribe;
  };
  struct CloseCommand {
    StreamId id;
  };
  using Command =
      std::variant<ReserveCommand, CancelCommand, OpenCommand, NameCommand, CloseCommand>;

  // False, with the command untouched, if the queue stays full or is closed.
  bool Push(Command& command);
  void AwaitNews();
  void TakeCommands();
  bool HandleIfAny(std::optional<Command> command);
  void Handle(ReserveCommand command);
  void Handle(CancelCommand command);
  void Handle(OpenCommand command);
  void Handle(NameCommand command);
  void Handle(CloseCommand command);
  absl::Status Turn();
  void CountRefusal(const absl::Status& status);
  void Publish(LoopState state, std::string reason);
  void End(const absl::Status& status);

  Engine& engine_;
  Receiver& receiver_;
  const Clock& clock_;
  StatusBoard& board_;
  const std::chrono::milliseconds drain_timeout_;
  const DrainSignal* const drain_;
  const std::shared_ptr<Waker> waker_;
  const HistogramMetric step_seconds_, step_tokens_;
  const CounterMetric generation_tokens_, refused_capacity_, refused_context_;

  std::atomic<StreamId> last_stream_{0};
  std::atomic<bool> draining_{false};
  BoundedQueue<Command> commands_{4096};
  DecodeScheduler scheduler_;  // loop thread only, as the rest
  int64_t num_steps_ = 0;
};

}  // namespace lodestone
