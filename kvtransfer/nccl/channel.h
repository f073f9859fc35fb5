#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "base/bounded_queue.h"
#include "base/clock.h"
#include "kvtransfer/link.h"
#include "kvtransfer/nccl/nccl_api.h"
#include "kvtransfer/transport.h"

namespace lodestone::nccl {

enum class Side : int { kPrefill = 0, kDecode = 1 };  // the rank in the communicator of the pair

// One end of the communicator of one (prefill, decode) pair: an ordered queue of slots that leave
// or arrive on a CUDA stream of its own. Shared by the worker loop, which posts slots and polls
// events, and the endpoint's thread, which alone makes NCCL calls through Step.
//
//   initializing -> warming up -> up -> failed          closing -> closed (from every state)
//
// A slot's kDone means that the stream passed it; after an abort NCCL lets a stream pass operations
// that never happened, so nothing is reported once the channel is closing, and what arrived is
// believed only after its digests (docs/handoff_protocol.md).
class Channel {
 public:
  struct Options {
    const Api* api = nullptr;
    int device = 0;
    Side side = Side::kPrefill;
    UniqueId id = {};
    // SMs that a transfer takes on this GPU, a power of two; the same on both sides.
    int ctas = 8;
    // Slots handed to NCCL together: a call costs it a thread, and the GPU a kernel, 15 us beside
    // 90 for the bytes of 32 MiB; but a group is over as one. The two ends need not group alike.
    size_t max_group = 2;
    LinkTimes times = {};
    std::function<void()> wake = {};  // called when Poll has something new
  };
  // Sent once in the direction of the slots when a channel comes up: NCCL connects on first use.
  static constexpr size_t kWarmUpBytes = size_t{1} << 20;
  static constexpr std::byte kWarmUpByte{0xa5};
  // Memory of the endpoint for it, kWarmUpBytes each, used by this channel only until closed().
  struct WarmUp {
    std::span<std::byte> device = {};
    std::span<std::byte> host = {};  // pinned
  };
  // NCCL gives a slot half of the channels of a communicator of two, one SM each (from 32 MiB per
  // channel on it would give all), and rounds the number of channels up to a power of two.
  static constexpr int kChannelsPerCta = 2;
  // Slots on the stream at a time.
  static constexpr size_t kMaxInFlight = 16;
  // While so many are, those that wait do so until they are a whole group: the stream does not run
  // empty meanwhile.
  static constexpr size_t kEnoughInFlight = 3;

  explicit Channel(Options options);
  ~Channel();  // REQUIRES: closed(), or Open has not been called
  // One that has failed already and is closed; holds nothing.
  static std::shared_ptr<Channel> Refused(absl::Status why);

  // Worker loop. The slot is device memory of options.device.
  void Post(uint64_t link_seq, std::span<std::byte> slot);
  std::optional<SlotEvent> Poll() { return events_.TryPop(); }
  void RequestClose() { close_requested_ = true; }
  bool close_requested() const { return close_requested_; }
  bool closed() const { return closed_; }

  // Endpoint thread. Open starts the communicator; Step moves everything forward that can move and
  // returns whether it is worth coming back at once: something is on its way. Neither blocks.
  void Open(TimePoint now, WarmUp warm_up);
  bool Step(TimePoint now);
  TimePoint moved_at() const { return moved_at_; }  // when Step last saw a slot begin or end

  // Closing thread, once Step is not called any more: ncclCommAbort (about half a second), then
  // waits until the stream lets go of the slots. DEADLINE_EXCEEDED if it does not until `deadline`:
  // the slots may not be used again and the process should end.
  absl::Status Shutdown(TimePoint deadline);

 private:
  enum class State : uint8_t { kNew, kInitializing, kWarmingUp, kUp, kFailed };
  struct Job {
    uint64_t link_seq = 0;
    std::span<std::byte> slot = {};
  };
  struct InFlight {
    std::vector<Job> jobs;  // of one group
    cudaEvent_t passed = nullptr;
  };

  void StartComm();
  // False if the communicator is still busy with the last call, or has failed.
  bool CommReady();
  void StepInitializing();
  void StepWarmingUp();
  void StepUp(TimePoint now);
  bool TakePassed();
  void IssueWaiting();
  void Issue();
  Result Enqueue(const Job& job);
  bool RecordIssued();
  bool WarmUpArrivedWhole() const;
  cudaEvent_t TakeEvent();
  bool CheckedCuda(cudaError_t error, const char* what);
  void Fail(absl::Status why);
  void Report(SlotEvent event);

  const Options options_;
  std::atomic<bool> close_requested_ = false;
  std::atomic<bool> closed_ = false;
  BoundedQueue<Job> jobs_;
  BoundedQueue<SlotEvent> events_;

  // The endpoint thread's.
  State state_ = State::kNew;
  WarmUp warm_up_;
  TimePoint deadline_{};  // of coming up
  TimePoint moved_at_{};
  Comm comm_ = nullptr;
  cudaStream_t stream_ = nullptr;
  std::vector<Job> issuing_;  // handed to NCCL, which has not put them on the stream yet
  std::deque<InFlight> in_flight_;
  size_t num_in_flight_ = 0;  // slots of in_flight_
  std::deque<cudaEvent_t> spare_events_;
};

}  // namespace lodestone::nccl
