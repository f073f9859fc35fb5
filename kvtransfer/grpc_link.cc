#include "kvtransfer/grpc_link.h"

#include <atomic>
#include <iterator>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/bounded_queue.h"
#include "base/logging.h"
#include "base/mutex.h"
#include "base/waker.h"
#include "kvtransfer/proto_convert.h"
#include "proto/grpc_limits.h"

namespace lodestone {
namespace {

using std::chrono::milliseconds;

// A loop that lets this many messages wait is dead or hung; its link breaks.
constexpr size_t kMaxQueued = 4096;
// How long the last messages of a stream (a refusal, a cancel) may take before it is cut.
constexpr milliseconds kLinger{1'000};
constexpr size_t kMaxWaitingStreams = 256;
// A channel without a dial for so long is dropped at the next dial elsewhere.
constexpr std::chrono::seconds kChannelMemory{60};

// What the loop and the two threads of a stream share. Thread-safe.
template <typename Out, typename In>
class Pipe {
 public:
  explicit Pipe(std::function<void()> wake) : wake_(std::move(wake)) { Heard(); }

  BoundedQueue<In> inbox{kMaxQueued};

  void Heard() { last_heard_ = RealClock()->Now(); }
  TimePoint last_heard() const { return last_heard_; }

  bool TrySend(Out message) {
    if (!outbox_.TryPush(std::move(message))) return false;
    writer_bell_.Wake();
    return true;
  }
  // Nothing is sent after what waits by now: the loop has ended the stream, or the stream has
  // ended.
  void EndSending() {
    outbox_.Close();
    writer_bell_.Wake();
  }
  bool sending_ended() const { return outbox_.closed(); }

  // Something else than a heartbeat was read or written: the writer looks for what comes next
  // without sleep for a while.
  void Moved() {
    last_moved_ = RealClock()->Now();
    writer_bell_.Wake();
  }

  // Writer's thread. What the loop sends next; nullopt at `deadline`, or when sending has ended.
  std::optional<Out> NextToSend(std::chrono::microseconds spin, TimePoint deadline) {
    constexpr int kPauses = 32;
    while (true) {
      const bool ended = sending_ended();
      if (std::optional<Out> message = TakeToSend()) return message;
      const TimePoint now = RealClock()->Now();
      if (ended || now >= deadline) return std::nullopt;
      if (now - last_moved_.load() >= spin) {
        writer_bell_.WaitUntil(deadline);
      } else {
        for (int i = 0; i < kPauses; ++i) __builtin_ia32_pause();
      }
    }
  }
  // Writer's thread. The same, if it is there.
  std::optional<Out> TakeToSend() {
    if (kept_) return std::exchange(kept_, std::nullopt);
    return outbox_.TryPop();
  }
  // Writer's thread. The next that it takes.
  void Keep(Out message) { kept_ = std::move(message); }

  // Keeps the first reason.
  void Break(const absl::Status& why) {
    {
      MutexLock lock(&mutex_);
      if (broken_.ok()) broken_ = why;
    }
    EndSending();
    Wake();
  }
  absl::Status broken() const {
    MutexLock lock(&mutex_);
    return broken_;
  }
  void Wake() const {
    if (wake_) wake_();
  }

 private:
  const std::function<void()> wake_;
  BoundedQueue<Out> outbox_{kMaxQueued};
  Waker writer_bell_;
  std::optional<Out> kept_;  // the writer's
  std::atomic<TimePoint> last_heard_;
  std::atomic<TimePoint> last_moved_{TimePoint{}};
  mutable Mutex mutex_;
  absl::Status broken_ GUARDED_BY(mutex_);
};

using PrefillPipe = Pipe<ToDecode, ToPrefill>;
using DecodePipe = Pipe<ToPrefill, ToDecode>;

// The loop's side of a pipe.
template <typename Out, typename In>
class PipeEnd final : public ControlEnd<Out, In> {
 public:
  PipeEnd(std::shared_ptr<Pipe<Out, In>> pipe, milliseconds dead_after)
      : pipe_(std::move(pipe)), dead_after_(dead_after) {}
  ~PipeEnd() override { pipe_->EndSending(); }

  void Send(Out message) override {
    if (pipe_->TrySend(std::move(message)) || pipe_->sending_ended()) return;
    pipe_->Break(absl::UnavailableError(
        absl::StrCat("the peer does not take messages: ", kMaxQueued, " are waiting")));
  }
  std::optional<In> Receive() override { return pipe_->inbox.TryPop(); }
  absl::Status status() const override {
    if (pipe_->inbox.size() > 0) return absl::OkStatus();
    if (absl::Status broken = pipe_->broken(); !broken.ok()) return broken;
    const auto age = RealClock()->Now() - pipe_->last_heard();
    if (age < dead_after_) return absl::OkStatus();
    return absl::UnavailableError(
        absl::StrCat("the peer is silent ", AgeAndLimit(age, dead_after_)));
  }

 private:
  const std::shared_ptr<Pipe<Out, In>> pipe_;
  const milliseconds dead_after_;
};

template <typename T>
void Append(std::vector<T>& to, std::vector<T>& from) {
  to.insert(to.end(), std::make_move_iterator(from.begin()), std::make_move_iterator(from.end()));
}

void Append(ToDecode& to, ToDecode from) {
  if (from.open) to.open = std::move(from.open);
  Append(to.offers, from.offers);
  Append(to.handoffs, from.handoffs);
  Append(to.cancels, from.cancels);
  Append(to.leases, from.leases);
}

void Append(ToPrefill& to, ToPrefill from) {
  if (from.accept) to.accept = std::move(from.accept);
  to.refuse.Update(from.refuse);
  Append(to.offers, from.offers);
  Append(to.handoffs, from.handoffs);
  Append(to.cancels, from.cancels);
  Append(to.bound, from.bound);
}

// What else the loop has sent by now comes into the same message: a message costs more than what is
// in it. Not so a hand-off, which has the tokens of a prompt: what it would hold up goes before it.
template <typename Out, typename In>
void TakeWaiting(Pipe<Out, In>& pipe, Out& message) {
  while (message.handoffs.empty()) {
    std::optional<Out> next = pipe.TakeToSend();
    if (!next) return;
    if (!next->handoffs.empty()) return pipe.Keep(*std::move(next));
    Append(message, *std::move(next));
  }
}

// Writes what the loop sends, or a heartbeat, until the pipe or the stream has ended.
template <typename Proto, typename Out, typename In, typename Stream>
void WriteMessages(Pipe<Out, In>& pipe, const LinkTimes& times, Stream& stream) {
  while (true) {
    const bool ended = pipe.sending_ended();  // before the look: what was sent until then goes out
    std::optional<Out> message = pipe.NextToSend(times.spin, RealClock()->Now() + times.heartbeat);
    if (!message && ended) return;
    if (message) TakeWaiting(pipe, *message);
    if (!stream.Write(message ? ToProto(*message) : Proto())) {
      return pipe.EndSending();  // the reader sees the end, too, and why
    }
    if (message) pipe.Moved();
  }
}

// Reads until the stream ends, then ends the writer; heartbeats are not handed on.
template <typename Proto, typename Out, typename In, typename Stream>
void ReadMessages(Pipe<Out, In>& pipe, Stream& stream) {
  Proto proto;
  while (stream.Read(&proto)) {
    pipe.Heard();
    if (proto.ByteSizeLong() == 0) continue;
    pipe.Moved();
    absl::StatusOr<In> message = FromProto(proto);
    if (!message.ok()) return pipe.Break(message.status());
    if (!pipe.inbox.TryPush(*std::move(message))) {
      return pipe.Break(absl::UnavailableError(
          absl::StrCat("this worker does not take messages: ", kMaxQueued, " are waiting")));
    }
    pipe.Wake();
  }
  pipe.EndSending();
}

// Lets the reader finish by itself for a moment, then ends the call.
class Linger {
 public:
  void ReaderEnded() {
    MutexLock lock(&mutex_);
    ended_ = true;
    changed_.NotifyAll();
  }
  // True if it has ended by then.
  bool Wait() {
    MutexLock lock(&mutex_);
    return changed_.WaitFor(&mutex_, kLinger, [this]() REQUIRES(mutex_) { return ended_; });
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  bool ended_ GUARDED_BY(mutex_) = false;
};

}  // namespace

// One call and its two threads.
class GrpcDialer::Session {
 public:
  Session(std::shared_ptr<grpc::Channel> channel, std::shared_ptr<PrefillPipe> pipe,
          const LinkTimes& times)
      : pipe_(std::move(pipe)), times_(times), stub_(v1::LinkService::NewStub(std::move(channel))) {
    thread_ = std::thread([this] { Serve(); });
  }
  ~Session() {
    context_.TryCancel();  // it may still be connecting
    thread_.join();
  }
  bool ended() const { return ended_; }

 private:
  void Serve() {
    auto stream = stub_->Link(&context_);
    std::thread reader([&] {
      ReadMessages<v1::LinkReply>(*pipe_, *stream);
      linger_.ReaderEnded();
    });
    WriteMessages<v1::LinkRequest>(*pipe_, times_, *stream);
    stream->WritesDone();
    if (!linger_.Wait()) context_.TryCancel();
    reader.join();
    // A message that the reader did not take would keep Finish from returning.
    context_.TryCancel();
    const grpc::Status status = stream->Finish();
    pipe_->Break(absl::UnavailableError(status.ok() ? "decode ended the control stream"
                                                    : status.error_message()));
    ended_ = true;
  }

  const std::shared_ptr<PrefillPipe> pipe_;
  const LinkTimes times_;
  const std::unique_ptr<v1::LinkService::Stub> stub_;
  grpc::ClientContext context_;
  Linger linger_;
  std::atomic<bool> ended_ = false;
  std::thread thread_;
};

GrpcDialer::GrpcDialer(std::shared_ptr<grpc::ChannelCredentials> credentials, LinkTimes times,
                       std::function<void()> wake)
    : credentials_(std::move(credentials)), times_(times), wake_(std::move(wake)) {}

GrpcDialer::~GrpcDialer() = default;

std::unique_ptr<PrefillControl> GrpcDialer::Dial(const std::string& address) {
  ReapEnded();
  auto pipe = std::make_shared<PrefillPipe>(wake_);
  sessions_.push_back(std::make_unique<Session>(ChannelTo(address), pipe, times_));
  return std::make_unique<PipeEnd<ToDecode, ToPrefill>>(std::move(pipe), times_.dead_after);
}

// Addresses come and go: a channel that nobody has dialled for a while is dropped, and ends with
// its last session.
std::shared_ptr<grpc::Channel> GrpcDialer::ChannelTo(const std::string& address) {
  const TimePoint now = RealClock()->Now();
  std::erase_if(channels_, [&](const auto& entry) {
    return entry.first != address && now - entry.second.last_dialled > kChannelMemory;
  });
  Channel& entry = channels_[address];
  entry.last_dialled = now;
  if (entry.channel != nullptr) return entry.channel;
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, 2'000);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 2'000);
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  // A connection that was begun while the network was broken does not hold up the next one.
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 1'000);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1'000);
  arguments.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);
  arguments.SetInt(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, kStreamWindowBytes);
  // Two dialers of one process do not share a connection: one is one worker.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetMaxReceiveMessageSize(kMaxMessageBytes);
  entry.channel = grpc::CreateCustomChannel(address, credentials_, arguments);
  return entry.channel;
}

void GrpcDialer::ReapEnded() {
  std::erase_if(sessions_, [](const auto& session) { return session->ended(); });
}

// Streams that wait for the receiver to accept them.
class GrpcLinkService::Impl {
 public:
  Impl(LinkTimes link_times, std::function<void()> wake_loop)
      : times(link_times), wake(std::move(wake_loop)) {}
  const LinkTimes times;
  const std::function<void()> wake;
  BoundedQueue<std::shared_ptr<DecodePipe>> waiting{kMaxWaitingStreams};
};

GrpcLinkService::GrpcLinkService(LinkTimes times, std::function<void()> wake)
    : impl_(std::make_unique<Impl>(times, std::move(wake))) {}
GrpcLinkService::~GrpcLinkService() = default;

grpc::Status GrpcLinkService::Link(
    grpc::ServerContext* context,
    grpc::ServerReaderWriter<v1::LinkReply, v1::LinkRequest>* stream) {
  auto pipe = std::make_shared<DecodePipe>(impl_->wake);
  if (!impl_->waiting.TryPush(pipe)) {
    return grpc::Status(grpc::StatusCode::UNAVAILABLE, "this decode worker takes no links now");
  }
  pipe->Wake();
  Linger linger;
  std::thread writer([&] {
    WriteMessages<v1::LinkReply>(*pipe, impl_->times, *stream);
    // The peer ends the call when it has read the last message; one that does not is cut.
    if (!linger.Wait()) context->TryCancel();
  });
  ReadMessages<v1::LinkRequest>(*pipe, *stream);
  linger.ReaderEnded();
  writer.join();
  pipe->Break(absl::UnavailableError("prefill ended the control stream"));
  const absl::Status why = pipe->broken();
  return grpc::Status(static_cast<grpc::StatusCode>(why.code()), std::string(why.message()));
}

std::unique_ptr<DecodeControl> GrpcLinkService::Accept() {
  std::optional<std::shared_ptr<DecodePipe>> pipe = impl_->waiting.TryPop();
  if (!pipe) return nullptr;
  return std::make_unique<PipeEnd<ToPrefill, ToDecode>>(*std::move(pipe), impl_->times.dead_after);
}

void GrpcLinkService::Shutdown() {
  impl_->waiting.Close();
  while (std::optional<std::shared_ptr<DecodePipe>> pipe = impl_->waiting.TryPop()) {
    (*pipe)->Break(absl::UnavailableError("this decode worker shuts down"));
  }
}

}  // namespace lodestone
