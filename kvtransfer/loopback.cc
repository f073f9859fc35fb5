#include "kvtransfer/loopback.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kvtransfer/frame.h"
#include "kvtransfer/link.h"

namespace lodestone {
namespace loopback_internal {

// One direction of a connection: items with the time at which they arrive.
template <typename T>
class Lane {
 public:
  // False: the connection breaks.
  bool Push(T item, LinkFault fault, TimePoint now, std::chrono::nanoseconds delay) {
    if (fault == LinkFault::kBreak) return false;
    if (fault == LinkFault::kDrop) return true;
    if (fault == LinkFault::kDelay) delayed_until_ = now + delay;
    if (fault == LinkFault::kSwap && !held_) {
      held_ = std::move(item);
      return true;
    }
    const TimePoint at = std::max(now, delayed_until_);
    if (fault == LinkFault::kDuplicate) items_.push_back({at, item});
    items_.push_back({at, std::move(item)});
    if (held_) items_.push_back({at, *std::exchange(held_, std::nullopt)});
    return true;
  }
  std::optional<T> Pop(TimePoint now) {
    if (items_.empty() || items_.front().first > now) return std::nullopt;
    std::optional<T> item(std::move(items_.front().second));
    items_.pop_front();
    return item;
  }
  bool empty() const { return items_.empty(); }

 private:
  std::deque<std::pair<TimePoint, T>> items_;
  std::optional<T> held_;
  TimePoint delayed_until_{};
};

// State of a connection that both ends share.
struct Connection {
  absl::Status broken;
  std::optional<TimePoint> silent_since;
};

struct Stream : Connection {
  Lane<ToDecode> to_decode;
  Lane<ToPrefill> to_prefill;
};

struct SlotFrame {
  uint64_t link_seq = 0;
  std::vector<std::byte> bytes;
};

struct Wire : Connection {
  bool connected = false;
  Lane<SlotFrame> frames;
};

}  // namespace loopback_internal

namespace {

using loopback_internal::Lane;
using loopback_internal::SlotFrame;
using loopback_internal::Stream;
using loopback_internal::Wire;

constexpr char kName[] = "loopback";

struct Context {
  Clock* clock = nullptr;
  std::chrono::nanoseconds dead_after{};
  LoopbackFaults* faults = nullptr;
  const LoopbackNetwork* network = nullptr;
};

// When an end was closed.
class Closing {
 public:
  explicit Closing(const Context& context) : context_(context) {}
  void Begin() {
    if (!began_) began_ = context_.clock->Now();
  }
  bool began() const { return began_.has_value(); }
  bool over() const {
    return began_ && context_.clock->Now() >= *began_ + context_.network->closing_takes;
  }

 private:
  const Context context_;
  std::optional<TimePoint> began_;
};

template <typename Out, typename In>
class End final : public ControlEnd<Out, In> {
 public:
  End(Context context, std::shared_ptr<Stream> stream, Lane<Out> Stream::*out,
      Lane<In> Stream::*in, std::function<LinkFault(Out&)> LoopbackFaults::*fault)
      : context_(context), stream_(std::move(stream)), out_(out), in_(in), fault_(fault) {}
  ~End() override {
    if (stream_->broken.ok())
      stream_->broken = absl::UnavailableError("the peer closed the stream");
  }

  void Send(Out message) override {
    if (!stream_->broken.ok() || stream_->silent_since) return;
    const auto& decide = context_.faults->*fault_;
    const LinkFault fault = decide ? decide(message) : LinkFault::kNone;
    Lane<Out>& lane = (*stream_).*out_;
    if (!lane.Push(std::move(message), fault, context_.clock->Now(), context_.faults->delay)) {
      stream_->broken = absl::UnavailableError("the stream was reset");
    }
  }

  std::optional<In> Receive() override {
    if (stream_->silent_since) return std::nullopt;
    return ((*stream_).*in_).Pop(context_.clock->Now());
  }

  absl::Status status() const override {
    if (!stream_->broken.ok() && ((*stream_).*in_).empty()) return stream_->broken;
    if (!stream_->silent_since) return absl::OkStatus();
    const auto age = context_.clock->Now() - *stream_->silent_since;
    if (age < context_.dead_after) return absl::OkStatus();
    return absl::UnavailableError(
        absl::StrCat("the peer is silent ", AgeAndLimit(age, context_.dead_after)));
  }

 private:
  const Context context_;
  const std::shared_ptr<Stream> stream_;
  Lane<Out> Stream::*const out_;
  Lane<In> Stream::*const in_;
  std::function<LinkFault(Out&)> LoopbackFaults::*const fault_;
};

class Writer final : public SlotWriter {
 public:
  Writer(Context context, std::shared_ptr<Wire> wire)
      : context_(context), closing_(context), wire_(std::move(wire)) {
    if (wire_ == nullptr) {
      events_.push_back({.kind = SlotEvent::Kind::kFailed,
                         .status = absl::UnavailableError("connection refused")});
      return;
    }
    wire_->connected = true;
    events_.push_back({.kind = SlotEvent::Kind::kConnected});
  }
  ~Writer() override { Close(); }

  void Write(uint64_t link_seq, std::span<const std::byte> bytes) override {
    if (closing_.began() || !wire_->broken.ok()) return;
    SlotFrame frame{link_seq, {bytes.begin(), bytes.end()}};
    const auto& decide = context_.faults->slot;
    const LinkFault fault = decide ? decide(link_seq, frame.bytes) : LinkFault::kNone;
    if (!wire_->frames.Push(std::move(frame), fault, context_.clock->Now(),
                            context_.faults->delay)) {
      wire_->broken = absl::UnavailableError("the data connection was reset");
      return;
    }
    events_.push_back({.kind = SlotEvent::Kind::kDone, .link_seq = link_seq});
  }

  std::optional<SlotEvent> Poll() override {
    if (!events_.empty()) {
      SlotEvent event = std::move(events_.front());
      events_.pop_front();
      return event;
    }
    if (closing_.began() || wire_ == nullptr || wire_->broken.ok() || failed_) return std::nullopt;
    failed_ = true;
    return SlotEvent{.kind = SlotEvent::Kind::kFailed, .status = wire_->broken};
  }

  void Close() override {
    closing_.Begin();
    if (wire_ != nullptr && wire_->broken.ok()) {
      wire_->broken = absl::UnavailableError("the peer closed the data connection");
    }
  }
  bool closed() const override { return closing_.over(); }

 private:
  const Context context_;
  Closing closing_;
  const std::shared_ptr<Wire> wire_;
  std::deque<SlotEvent> events_;
  bool failed_ = false;
};

class Reader final : public SlotReader {
 public:
  Reader(Context context, std::shared_ptr<Wire> wire)
      : context_(context), closing_(context), wire_(std::move(wire)) {}
  ~Reader() override { Close(); }

  void Expect(uint64_t link_seq, std::span<std::byte> slot) override {
    expected_.push_back({link_seq, slot});
  }

  std::optional<SlotEvent> Poll() override {
    if (closing_.began() || failed_) return std::nullopt;
    if (wire_->connected && !connected_) {
      connected_ = true;
      return SlotEvent{.kind = SlotEvent::Kind::kConnected};
    }
    const bool waits = expected_.empty() && context_.network->takes_early_bytes;
    if (!wire_->silent_since && !waits) {
      if (std::optional<SlotFrame> frame = wire_->frames.Pop(context_.clock->Now())) {
        return Take(*frame);
      }
    }
    return wire_->broken.ok() ? std::nullopt : Fail(wire_->broken);
  }

  void Close() override {
    closing_.Begin();
    if (wire_->broken.ok()) {
      wire_->broken = absl::UnavailableError("the peer closed the data connection");
    }
  }
  bool closed() const override { return closing_.over(); }

 private:
  std::optional<SlotEvent> Fail(const absl::Status& why) {
    failed_ = true;
    if (wire_->broken.ok()) wire_->broken = why;
    return SlotEvent{.kind = SlotEvent::Kind::kFailed, .status = why};
  }

  std::optional<SlotEvent> Take(const SlotFrame& frame) {
    if (expected_.empty()) {
      return Fail(absl::DataLossError(
          absl::StrCat("frame of offer ", frame.link_seq, " came without a grant")));
    }
    const auto [link_seq, slot] = expected_.front();
    expected_.pop_front();
    const FrameHeader header{
        .type = FrameType::kSlot, .number = frame.link_seq, .length = frame.bytes.size()};
    if (absl::Status bad = CheckSlotFrame(header, link_seq, slot.size()); !bad.ok()) {
      return Fail(bad);
    }
    std::memcpy(slot.data(), frame.bytes.data(), frame.bytes.size());
    return SlotEvent{.kind = SlotEvent::Kind::kDone, .link_seq = link_seq};
  }

  const Context context_;
  Closing closing_;
  const std::shared_ptr<Wire> wire_;
  std::deque<std::pair<uint64_t, std::span<std::byte>>> expected_;
  bool connected_ = false;
  bool failed_ = false;
};

}  // namespace

// One decode worker: its listeners and what is connected to it.
class LoopbackNetwork::Endpoint final : public ControlAcceptor, public DataListener {
 public:
  explicit Endpoint(Context context) : context_(context) {}

  std::unique_ptr<PrefillControl> Dial() {
    auto stream = std::make_shared<Stream>();
    streams_.push_back(stream);
    waiting_.push_back(stream);
    return std::make_unique<End<ToDecode, ToPrefill>>(context_, stream, &Stream::to_decode,
                                                      &Stream::to_prefill,
                                                      &LoopbackFaults::to_decode);
  }
  std::unique_ptr<DecodeControl> Accept() override {
    if (waiting_.empty()) return nullptr;
    std::shared_ptr<Stream> stream = std::move(waiting_.front());
    waiting_.pop_front();
    return std::make_unique<End<ToPrefill, ToDecode>>(context_, std::move(stream),
                                                      &Stream::to_prefill, &Stream::to_decode,
                                                      &LoopbackFaults::to_prefill);
  }

  std::string_view name() const override { return kName; }
  bool takes_early_bytes() const override { return context_.network->takes_early_bytes; }
  int port() const override { return 0; }
  std::unique_ptr<SlotReader> Open(const std::string& session_key) override {
    auto wire = std::make_shared<Wire>();
    wires_[session_key] = wire;
    return std::make_unique<Reader>(context_, std::move(wire));
  }
  std::shared_ptr<Wire> FindWire(const std::string& session_key) const {
    const auto it = wires_.find(session_key);
    return it == wires_.end() ? nullptr : it->second.lock();
  }

  template <typename F>
  void ForEachConnection(F visit) {
    for (const auto& stream : streams_) {
      if (const auto alive = stream.lock()) visit(*alive);
    }
    for (const auto& [key, wire] : wires_) {
      if (const auto alive = wire.lock()) visit(*alive);
    }
  }

 private:
  const Context context_;
  std::deque<std::shared_ptr<Stream>> waiting_;
  std::vector<std::weak_ptr<Stream>> streams_;
  std::map<std::string, std::weak_ptr<Wire>> wires_;
};

class LoopbackNetwork::Dialer final : public ControlDialer, public DataDialer {
 public:
  Dialer(LoopbackNetwork* network, Context context) : network_(network), context_(context) {}
  std::unique_ptr<PrefillControl> Dial(const std::string& address) override {
    return network_->endpoint(address).Dial();
  }
  std::string_view name() const override { return kName; }
  bool takes_early_bytes() const override { return context_.network->takes_early_bytes; }
  std::unique_ptr<SlotWriter> Connect(const std::string& /*host*/, int /*port*/,
                                      const std::string& session_key) override {
    std::shared_ptr<Wire> wire;
    for (const auto& [address, endpoint] : network_->endpoints_) {
      if (wire == nullptr) wire = endpoint->FindWire(session_key);
    }
    return std::make_unique<Writer>(context_, std::move(wire));
  }

 private:
  LoopbackNetwork* const network_;
  const Context context_;
};

LoopbackNetwork::LoopbackNetwork(Clock* clock, std::chrono::nanoseconds dead_after)
    : clock_(clock),
      dead_after_(dead_after),
      dialer_(std::make_unique<Dialer>(this, Context{clock, dead_after, &faults, this})) {}
LoopbackNetwork::~LoopbackNetwork() = default;

ControlDialer* LoopbackNetwork::dialer() { return dialer_.get(); }
DataDialer* LoopbackNetwork::data_dialer() { return dialer_.get(); }
ControlAcceptor* LoopbackNetwork::acceptor(const std::string& address) {
  return &endpoint(address);
}
DataListener* LoopbackNetwork::listener(const std::string& address) { return &endpoint(address); }

LoopbackNetwork::Endpoint& LoopbackNetwork::endpoint(const std::string& address) {
  std::unique_ptr<Endpoint>& endpoint = endpoints_[address];
  if (endpoint == nullptr) {
    endpoint = std::make_unique<Endpoint>(Context{clock_, dead_after_, &faults, this});
  }
  return *endpoint;
}

void LoopbackNetwork::Break(const std::string& address) {
  endpoint(address).ForEachConnection([](loopback_internal::Connection& connection) {
    if (connection.broken.ok()) connection.broken = absl::UnavailableError("connection reset");
  });
}

void LoopbackNetwork::Silence(const std::string& address) {
  endpoint(address).ForEachConnection([this](loopback_internal::Connection& connection) {
    if (!connection.silent_since) connection.silent_since = clock_->Now();
  });
}

}  // namespace lodestone
