#include "tests/tools/fault_proxy.h"

#include <sys/socket.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/status_macros.h"
#include "kvtransfer/frame.h"

namespace lodestone {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kSlice{20};      // how soon weather is noticed
constexpr size_t kTrickleBytes = 4096;  // 1 MB/s
constexpr milliseconds kTricklePause{4};
constexpr size_t kNumberOffset = 8, kLengthOffset = 16, kCrcOffset = 40;

uint64_t Read64(const std::vector<std::byte>& frame, size_t offset) {
  uint64_t value = 0;
  std::memcpy(&value, frame.data() + offset, sizeof(value));
  return value;
}

void Reset(int fd) {
  const linger now{.l_onoff = 1, .l_linger = 0};
  setsockopt(fd, SOL_SOCKET, SO_LINGER, &now, sizeof(now));
  shutdown(fd, SHUT_RDWR);
}

}  // namespace

std::string_view Name(FrameFault fault) {
  constexpr std::string_view kNames[kNumFrameFaults] = {"none",
                                                        "flipped payload bit",
                                                        "flipped header bit",
                                                        "forged header",
                                                        "swapped rows",
                                                        "dropped bytes",
                                                        "shortened",
                                                        "duplicated",
                                                        "reordered",
                                                        "old frame repeated",
                                                        "stale epoch",
                                                        "delayed",
                                                        "stalled",
                                                        "reset"};
  return kNames[static_cast<size_t>(fault)];
}

// One connection and its two directions.
class FaultProxy::Connection {
 public:
  Connection(FaultProxy* proxy, Socket client, Socket target)
      : proxy_(*proxy), client_(std::move(client)), target_(std::move(target)) {
    ++proxy_.num_open_;
    forward_ = std::thread([this] {
      (proxy_.options_.frames ? CopyFrames() : CopyBytes(client_.fd(), target_.fd(), true))
          .IgnoreError();
      End();
      --proxy_.num_open_;
    });
    backward_ = std::thread([this] {
      CopyBytes(target_.fd(), client_.fd(), false).IgnoreError();
      End();
    });
  }
  ~Connection() { Join(); }

  // Ends it. The last frame it had.
  Frame Join() {
    End();
    for (std::thread* thread : {&forward_, &backward_}) {
      if (thread->joinable()) thread->join();
    }
    return std::move(last_);
  }
  bool ended() const { return stop_; }
  void Break() {
    Reset(client_.fd());
    Reset(target_.fd());
    End();
  }

 private:
  IoLimits Limits(milliseconds limit = std::chrono::hours(1)) const {
    return {.stall = limit, .deadline = RealClock()->Now() + limit, .stop = &stop_};
  }
  void End() {
    stop_ = true;
    client_.Shutdown();
    target_.Shutdown();
  }
  bool Blocked(bool forward) const {
    const Weather weather = proxy_.weather_;
    return weather == Weather::kBlackHole ||
           weather == (forward ? Weather::kNoForward : Weather::kNoBackward);
  }

  absl::Status Send(int to, std::span<const std::byte> bytes, bool forward) {
    while (!bytes.empty()) {
      while (Blocked(forward) && !stop_) std::this_thread::sleep_for(kSlice);
      if (proxy_.weather_ == Weather::kCut) {
        Break();
        return absl::CancelledError("cut");
      }
      const bool slow = proxy_.weather_ == Weather::kTrickle;
      const size_t count = slow ? std::min(bytes.size(), kTrickleBytes) : bytes.size();
      RETURN_IF_ERROR(WriteAll(to, bytes.first(count), {}, Limits()));
      bytes = bytes.subspan(count);
      if (slow) std::this_thread::sleep_for(kTricklePause);
    }
    return absl::OkStatus();
  }

  absl::Status CopyBytes(int from, int to, bool forward) {
    std::vector<std::byte> buffer(size_t{64} << 10);
    while (!stop_) {
      if (Blocked(forward)) {
        std::this_thread::sleep_for(kSlice);
        continue;
      }
      ASSIGN_OR_RETURN(const bool readable, WaitReadable(from, Limits(kSlice)));
      if (!readable || Blocked(forward)) continue;
      const ssize_t count = recv(from, buffer.data(), buffer.size(), 0);
      if (count <= 0) return absl::UnavailableError("ended");
      RETURN_IF_ERROR(Send(to, std::span(buffer).first(static_cast<size_t>(count)), forward));
    }
    return absl::OkStatus();
  }

  absl::Status CopyFrames() {
    while (!stop_) {
      ASSIGN_OR_RETURN(Frame frame, ReadFrame());
      RETURN_IF_ERROR(Deliver(std::move(frame)));
    }
    return absl::OkStatus();
  }

  absl::StatusOr<Frame> ReadFrame() {
    Frame frame(kFrameHeaderBytes);
    RETURN_IF_ERROR(ReadAll(client_.fd(), frame, Limits()));
    frame.resize(kFrameHeaderBytes + Read64(frame, kLengthOffset));
    RETURN_IF_ERROR(ReadAll(client_.fd(), std::span(frame).subspan(kFrameHeaderBytes), Limits()));
    return frame;
  }

  absl::Status Deliver(Frame frame) {
    if (frame.size() == kFrameHeaderBytes) return Forward(frame);  // the hello
    const absl::Status sent = Send(proxy_.Decide(frame), frame);
    last_ = std::move(frame);
    return sent;
  }

  absl::Status Forward(std::span<const std::byte> bytes) {
    return Send(target_.fd(), bytes, true);
  }

  // Sends the frame as the fault has it.
  absl::Status Send(FrameFault fault, const Frame& frame) {
    switch (fault) {
      case FrameFault::kNone:
        return Forward(frame);
      case FrameFault::kDuplicate:
        return SendBoth(fault, frame, frame);
      case FrameFault::kReorder:
        return SendAfterNext(frame);
      case FrameFault::kRepeatOld:
        return SendBoth(fault, last_, frame);
      case FrameFault::kStaleEpoch:
        return SendBoth(fault, EarlierFrame(), frame);
      case FrameFault::kDelay:
        Done(fault);
        std::this_thread::sleep_for(
            milliseconds(proxy_.Below(static_cast<size_t>(proxy_.delay_ms_.load()) + 1)));
        return Forward(frame);
      case FrameFault::kStall:
      case FrameFault::kShorten:
      case FrameFault::kReset:
        return SendPart(fault, frame);
      default: {
        Frame altered = frame;
        if (Alter(fault, altered)) Done(fault);
        return Forward(altered);
      }
    }
  }

  void Done(FrameFault fault) { ++proxy_.done_[static_cast<size_t>(fault)]; }

  // Ends the connection after less than the whole frame.
  absl::Status SendPart(FrameFault fault, const Frame& frame) {
    Done(fault);
    RETURN_IF_ERROR(Forward(std::span(frame).first(proxy_.Below(frame.size()))));
    while (fault == FrameFault::kStall && !stop_) std::this_thread::sleep_for(kSlice);
    if (fault == FrameFault::kReset) Break();
    return absl::CancelledError("the connection ends in a frame");
  }

  bool Alter(FrameFault fault, Frame& frame) {
    const size_t payload = frame.size() - kFrameHeaderBytes;
    switch (fault) {
      case FrameFault::kFlipPayloadBit:
        frame[kFrameHeaderBytes + proxy_.Below(payload)] ^=
            static_cast<std::byte>(1u << proxy_.Below(8));
        return true;
      case FrameFault::kFlipHeaderBit:
        frame[proxy_.Below(kFrameHeaderBytes)] ^= static_cast<std::byte>(1u << proxy_.Below(8));
        return true;
      case FrameFault::kForgeHeader: {
        const size_t field = proxy_.Below(2) == 0 ? kNumberOffset : kLengthOffset;
        frame[field] ^= static_cast<std::byte>(1 + proxy_.Below(255));
        const uint32_t crc = Crc32c(std::span(frame).first(kCrcOffset));
        std::memcpy(&frame[kCrcOffset], &crc, sizeof(crc));
        return true;
      }
      case FrameFault::kSwapRows: {
        const size_t size = std::min<size_t>(64, payload / 2);
        const auto first = frame.begin() + kFrameHeaderBytes;
        const auto second = frame.end() - static_cast<long>(size);
        if (std::equal(first, first + static_cast<long>(size), second)) return false;
        std::swap_ranges(first, first + static_cast<long>(size), second);
        return true;
      }
      case FrameFault::kDropBytes: {
        const size_t count = 1 + proxy_.Below(std::min<size_t>(payload, 64));
        const size_t at = kFrameHeaderBytes + proxy_.Below(payload - count + 1);
        frame.erase(frame.begin() + static_cast<long>(at),
                    frame.begin() + static_cast<long>(at + count));
        return true;
      }
      default:
        return false;
    }
  }

  // `first` is not a fault if it is empty.
  absl::Status SendBoth(FrameFault fault, const Frame& first, const Frame& second) {
    if (!first.empty()) Done(fault);
    RETURN_IF_ERROR(Forward(first));
    return Forward(second);
  }

  absl::Status SendAfterNext(const Frame& frame) {
    ASSIGN_OR_RETURN(const bool overtaken,
                     WaitReadable(client_.fd(), Limits(proxy_.options_.next_frame)));
    if (!overtaken) return Forward(frame);
    ASSIGN_OR_RETURN(const Frame next, ReadFrame());
    ++proxy_.num_frames_;
    return SendBoth(FrameFault::kReorder, next, frame);
  }

  Frame EarlierFrame() {
    MutexLock lock(&proxy_.mutex_);
    return proxy_.last_of_earlier_;
  }

  FaultProxy& proxy_;
  const Socket client_, target_;
  std::atomic<bool> stop_{false};
  Frame last_;
  std::thread forward_, backward_;
};

absl::StatusOr<std::unique_ptr<FaultProxy>> FaultProxy::Start(const Options& options) {
  ASSIGN_OR_RETURN(Listening listening, ListenOn(options.listen_host, options.listen_port));
  return std::unique_ptr<FaultProxy>(new FaultProxy(options, std::move(listening)));
}

FaultProxy::FaultProxy(Options options, Listening listening)
    : options_(std::move(options)),
      socket_(std::move(listening.socket)),
      port_(listening.port),
      random_(options_.seed),
      thread_([this] { Serve(); }) {}

FaultProxy::~FaultProxy() {
  stop_ = true;
  thread_.join();
}

void FaultProxy::SetRule(Rule rule, milliseconds delay) {
  delay_ms_ = delay.count();
  MutexLock lock(&mutex_);
  rule_ = std::move(rule);
}

void FaultProxy::Serve() {
  while (!stop_) {
    if (weather_ == Weather::kCut) {
      for (const auto& connection : connections_) connection->Break();
    }
    ReapEnded();
    const IoLimits limits{.stall = kSlice, .deadline = RealClock()->Now() + kSlice};
    const absl::StatusOr<bool> ready = WaitReadable(socket_.fd(), limits);
    if (ready.ok() && *ready) AcceptOne();
  }
  connections_.clear();
}

void FaultProxy::ReapEnded() {
  std::erase_if(connections_, [this](const std::unique_ptr<Connection>& connection) {
    if (!connection->ended()) return false;
    Frame last = connection->Join();
    MutexLock lock(&mutex_);
    if (!last.empty()) last_of_earlier_ = std::move(last);
    return true;
  });
}

void FaultProxy::AcceptOne() {
  Socket client(accept4(socket_.fd(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
  if (!client.valid()) return;
  PrepareConnection(client.fd());
  if (weather_ == Weather::kCut) return Reset(client.fd());
  constexpr std::chrono::seconds kPatience(2);
  const IoLimits limits{.stall = kPatience, .deadline = RealClock()->Now() + kPatience};
  absl::StatusOr<Socket> target = ConnectTo(options_.target_host, options_.target_port, limits);
  if (!target.ok()) return;
  ++num_connections_;
  connections_.push_back(
      std::make_unique<Connection>(this, std::move(client), *std::move(target)));
}

FrameFault FaultProxy::Decide(const Frame& frame) {
  ++num_frames_;
  Rule rule;
  {
    MutexLock lock(&mutex_);
    rule = rule_;
  }
  return rule ? rule(Read64(frame, kNumberOffset)) : FrameFault::kNone;
}

size_t FaultProxy::Below(size_t limit) {
  MutexLock lock(&mutex_);
  return limit == 0 ? 0 : random_() % limit;
}

}  // namespace lodestone
