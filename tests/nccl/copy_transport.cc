#include "tests/nccl/copy_transport.h"

#include <algorithm>
#include <array>
#include <deque>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/logging.h"

namespace lodestone::nccl {
namespace {

void MustBeOk(cudaError_t error) { CHECK(error == cudaSuccess) << cudaGetErrorString(error); }

}  // namespace

// One link. A copy begins when both ends have named its slot, in order of link_seq. Thread-safe.
class CopyWire {
 public:
  enum End : int { kWriter = 0, kReader = 1 };

  CopyWire(int device, double bytes_per_second, std::function<void()> wake)
      : device_(device), bytes_per_second_(bytes_per_second), wake_(std::move(wake)) {
    MustBeOk(cudaSetDevice(device_));
    int least = 0;
    int greatest = 0;
    MustBeOk(cudaDeviceGetStreamPriorityRange(&least, &greatest));
    MustBeOk(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking, greatest));
  }
  ~CopyWire() {
    for (const InFlight& copy : in_flight_) cudaEventDestroy(copy.passed);
    for (cudaEvent_t event : spare_events_) cudaEventDestroy(event);
    cudaStreamDestroy(stream_);
  }

  void Join(End end) {
    {
      MutexLock lock(&mutex_);
      joined_[end] = true;
      if (!joined_[1 - end]) return;
      for (auto& events : events_) events.push_back({.kind = SlotEvent::Kind::kConnected});
    }
    wake_();
  }

  void Post(End end, uint64_t link_seq, std::span<std::byte> slot) {
    {
      MutexLock lock(&mutex_);
      posted_[end].push_back({link_seq, slot});
      StartPosted();
    }
    wake_();
  }

  std::optional<SlotEvent> Poll(End end) {
    MutexLock lock(&mutex_);
    TakePassed();
    if (events_[end].empty()) return std::nullopt;
    SlotEvent event = std::move(events_[end].front());
    events_[end].pop_front();
    return event;
  }

  void Close() {
    {
      MutexLock lock(&mutex_);
      if (std::exchange(close_requested_, true)) return;
      for (auto& posted : posted_) posted.clear();
      Fail(absl::UnavailableError("the other end has closed"));
    }
    wake_();
  }
  bool closed() {
    MutexLock lock(&mutex_);
    if (!close_requested_) return false;
    TakePassed();
    return in_flight_.empty();
  }

 private:
  struct Posted {
    uint64_t link_seq;
    std::span<std::byte> slot;
  };
  struct InFlight {
    uint64_t link_seq;
    cudaEvent_t passed;
    TimePoint not_before;  // by the rate
  };

  void Fail(const absl::Status& why) REQUIRES(mutex_) {
    for (auto& events : events_) {
      events.push_back({.kind = SlotEvent::Kind::kFailed, .status = why});
    }
  }

  void StartPosted() REQUIRES(mutex_) {
    while (!close_requested_ && !posted_[kWriter].empty() && !posted_[kReader].empty()) {
      const Posted from = posted_[kWriter].front();
      const Posted to = posted_[kReader].front();
      posted_[kWriter].pop_front();
      posted_[kReader].pop_front();
      if (from.link_seq != to.link_seq || from.slot.size() != to.slot.size()) {
        return Fail(absl::DataLossError(absl::StrCat(
            "slot ", from.link_seq, " of ", from.slot.size(), " bytes is sent, slot ", to.link_seq,
            " of ", to.slot.size(), " bytes is expected")));
      }
      StartCopy(from, to);
    }
  }

  void StartCopy(const Posted& from, const Posted& to) REQUIRES(mutex_) {
    MustBeOk(cudaSetDevice(device_));
    MustBeOk(cudaMemcpyAsync(to.slot.data(), from.slot.data(), from.slot.size(),
                             cudaMemcpyDeviceToDevice, stream_));
    cudaEvent_t event = nullptr;
    if (spare_events_.empty()) {
      MustBeOk(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    } else {
      event = spare_events_.back();
      spare_events_.pop_back();
    }
    MustBeOk(cudaEventRecord(event, stream_));
    const TimePoint now = RealClock()->Now();
    if (bytes_per_second_ > 0) {
      const double seconds = static_cast<double>(from.slot.size()) / bytes_per_second_;
      free_at_ = std::max(free_at_, now) +
                 std::chrono::nanoseconds(static_cast<int64_t>(seconds * 1e9));
    }
    in_flight_.push_back({from.link_seq, event, bytes_per_second_ > 0 ? free_at_ : now});
  }

  void TakePassed() REQUIRES(mutex_) {
    while (!in_flight_.empty() && RealClock()->Now() >= in_flight_.front().not_before) {
      const InFlight& oldest = in_flight_.front();
      const cudaError_t passed = cudaEventQuery(oldest.passed);
      if (passed == cudaErrorNotReady) return;
      MustBeOk(passed);
      for (auto& events : events_) {
        events.push_back({.kind = SlotEvent::Kind::kDone, .link_seq = oldest.link_seq});
      }
      spare_events_.push_back(oldest.passed);
      in_flight_.pop_front();
    }
  }

  const int device_;
  const double bytes_per_second_;
  const std::function<void()> wake_;
  cudaStream_t stream_ = nullptr;
  Mutex mutex_;
  std::array<bool, 2> joined_ GUARDED_BY(mutex_) = {};
  std::array<std::deque<Posted>, 2> posted_ GUARDED_BY(mutex_);
  std::array<std::deque<SlotEvent>, 2> events_ GUARDED_BY(mutex_);
  std::deque<InFlight> in_flight_ GUARDED_BY(mutex_);
  std::deque<cudaEvent_t> spare_events_ GUARDED_BY(mutex_);
  TimePoint free_at_ GUARDED_BY(mutex_){};
  bool close_requested_ GUARDED_BY(mutex_) = false;
};

namespace {

// What a writer and a reader have in common.
template <typename Base, CopyWire::End end>
class WireEnd : public Base {
 public:
  explicit WireEnd(std::shared_ptr<CopyWire> wire) : wire_(std::move(wire)) { wire_->Join(end); }
  ~WireEnd() override {
    wire_->Close();
    while (!wire_->closed()) {
    }
  }
  std::optional<SlotEvent> Poll() override { return wire_->Poll(end); }
  void Close() override { wire_->Close(); }
  bool closed() const override { return wire_->closed(); }

 protected:
  const std::shared_ptr<CopyWire> wire_;
};

class CopyWriter final : public WireEnd<SlotWriter, CopyWire::kWriter> {
 public:
  using WireEnd::WireEnd;
  void Write(uint64_t link_seq, std::span<const std::byte> bytes) override {
    wire_->Post(CopyWire::kWriter, link_seq,
                {const_cast<std::byte*>(bytes.data()), bytes.size()});
  }
};

class CopyReader final : public WireEnd<SlotReader, CopyWire::kReader> {
 public:
  using WireEnd::WireEnd;
  void Expect(uint64_t link_seq, std::span<std::byte> slot) override {
    wire_->Post(CopyWire::kReader, link_seq, slot);
  }
};

}  // namespace

std::shared_ptr<CopyWire> CopyNetwork::WireOf(const std::string& session_key) {
  MutexLock lock(&mutex_);
  std::shared_ptr<CopyWire>& wire = wires_[session_key];
  if (wire == nullptr) wire = std::make_shared<CopyWire>(device_, bytes_per_second_, wake_);
  return wire;
}

std::unique_ptr<SlotWriter> CopyDialer::Connect(const std::string& /*host*/, int /*port*/,
                                                const std::string& session_key) {
  return std::make_unique<CopyWriter>(network_->WireOf(session_key));
}

std::unique_ptr<SlotReader> CopyListener::Open(const std::string& session_key) {
  return std::make_unique<CopyReader>(network_->WireOf(session_key));
}

}  // namespace lodestone::nccl
