#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "kvtransfer/link.h"
#include "kvtransfer/nccl/channel.h"
#include "kvtransfer/nccl/nccl_api.h"

namespace lodestone::nccl {

struct EndpointOptions {
  std::string nccl_library = {};  // as in Api::Load
  int device = 0;
  Side side = Side::kPrefill;
  // SMs per link, a power of two, the same on all workers: about 33 GB/s each up to 8, 340 GB/s
  // with 16, and 16 MiB of device memory each on the sending, 32 MiB on the receiving side
  // (measured on H200, NVLink).
  int ctas = 8;
  int max_links = 16;
  // As in Channel::Options; 0: what is best for the side.
  size_t max_group = 0;
  LinkTimes times = {};
  std::function<void()> wake = {};  // called from the threads here when a Poll has something new

  // What NCCL takes of the device with `links` links, for the ledger.
  int64_t DeviceBytes(int links) const;
};

// All NCCL links of one GPU. One thread issues all operations, since NCCL forbids two to do so for
// one device; a link that closes is aborted on a thread of its own, for ncclCommAbort takes half a
// second and the other links go on. Thread-safe.
class Endpoint {
 public:
  // NOT_FOUND, FAILED_PRECONDITION: no usable NCCL. UNAVAILABLE: the device. RESOURCE_EXHAUSTED: no
  // memory for the warm-up buffers.
  static absl::StatusOr<std::unique_ptr<Endpoint>> Create(EndpointOptions options);
  ~Endpoint();  // closes what is open and waits for it

  const EndpointOptions& options() const { return options_; }
  const Api& api() const { return *api_; }

  // A new unique id; its bytes must stay secret.
  absl::StatusOr<UniqueId> NewId() const;
  // Opens one end. Never null: a channel that cannot be opened fails at its first Poll. With
  // max_links open it waits for one of them that closes, and fails if none does.
  std::shared_ptr<Channel> Open(const UniqueId& id);
  // Wakes the issuing thread: a slot was posted or will be soon, or a close requested.
  void Notify();

  // A link could not be aborted: its memory is lost and the process should end.
  bool poisoned() const { return poisoned_; }
  absl::Status health() const;  // INTERNAL, saying so, if poisoned
  // The GPU as NCCL tells it from others: its UUID, the same in all processes, after NCCL_HOSTID
  // where that is set. NCCL refuses two ends in one place.
  const std::string& place() const { return place_; }
  int num_links() const;

 private:
  struct DeviceFree {
    void operator()(void* bytes) const;
  };
  struct HostFree {
    void operator()(void* bytes) const;
  };
  struct Link {
    std::shared_ptr<Channel> channel;
    int place = -1;  // in users_; -1: it has waited for one in vain
  };
  struct Closing {
    Link link;
    TimePoint deadline{};
    std::atomic<bool> done = false;
    std::thread thread;
  };

  Endpoint(EndpointOptions options, const Api* api, std::string place);
  absl::Status AllocateWarmUp();
  void Serve();
  // When something on its way last moved; nullopt if nothing is.
  std::optional<TimePoint> StepAll();
  // Those whose turn it is; what is to be closed before that has no place.
  std::vector<Link> TakeWaiting();
  Channel::WarmUp WarmUpOf(int place) const;
  void StartClosing(Link link);
  void ReapClosed(bool wait);
  void WaitForWork(std::optional<TimePoint> moved_at);

  const EndpointOptions options_;
  const Api* const api_;
  const std::string place_;
  std::unique_ptr<void, DeviceFree> warm_up_device_;
  std::unique_ptr<void, HostFree> warm_up_host_;
  std::atomic<bool> stop_ = false;
  std::atomic<bool> poisoned_ = false;

  mutable Mutex mutex_;
  CondVar work_;
  bool notified_ GUARDED_BY(mutex_) = false;
  // By index of the warm-up buffers, of which there are max_links; null: free.
  std::vector<std::shared_ptr<Channel>> users_ GUARDED_BY(mutex_);
  std::deque<std::shared_ptr<Channel>> waiting_ GUARDED_BY(mutex_);  // for one of them

  // The thread's.
  std::list<Link> links_;
  std::list<Closing> closing_;
  TimePoint last_news_{};  // something was on its way, or the thread was notified
  std::thread thread_;
};

}  // namespace lodestone::nccl
