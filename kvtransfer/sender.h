#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/clock.h"
#include "base/ids.h"
#include "kvcache/layout.h"
#include "kvtransfer/control.h"
#include "kvtransfer/link.h"
#include "kvtransfer/manifest.h"
#include "kvtransfer/transport.h"

namespace lodestone {

class Metrics;
class Ops;
class SequenceCache;
class Stream;

// What became of a hand-off. Exactly one per Begin, unless Forget came first.
struct HandoffOutcome {
  LeaseId lease;
  absl::Status status;  // OK: adopted, decode owns the request now. DATA_LOSS: rows arrived wrong.
                        // UNAVAILABLE: the link or the peer is gone. CANCELLED: decode gave it up.
};

// The prefill side of all hand-offs of a worker: packs rows into staging slots as the caches grow,
// offers them over the link of their decode worker, and says when each is adopted. Belongs to the
// worker's loop thread; nothing here blocks. A link is opened on first use and shared by all
// requests to the same decode instance (kvtransfer/link.h).
//
// States of a hand-off: begun -> growing (GrowTo, any number) -> closed (Finish) -> adopted |
// failed. Forget is legal in every state and tells decode (Cancel), which frees its side.
class Sender {
 public:
  virtual ~Sender() = default;

  // `cache` is not owned; it and its pages must stay as they are until the outcome or Forget.
  virtual void Begin(LeaseId lease, const InstanceId& decode, const std::string& decode_address,
                     const SequenceCache* cache) = 0;
  // Rows of the first `num_tokens` tokens are complete in the cache and may be sent.
  virtual void GrowTo(LeaseId lease, int64_t num_tokens) = 0;
  // All rows are complete: final rows follow and then `handoff`.
  virtual void Finish(LeaseId lease, Handoff handoff) = 0;
  virtual void Forget(LeaseId lease, std::string_view reason) = 0;

  // Moves everything forward that can move: packs into free slots, takes in what the links
  // reported. Call after every step and at least every 50 ms. Returns the outcomes since last time.
  virtual std::vector<HandoffOutcome> Pump() = 0;

  // Bytes offered so far for this lease, for the reply to the router.
  virtual int64_t BytesOffered(LeaseId lease) const = 0;
  // Whether decode answers for the lease: it tells the router if the hand-off fails, even if this
  // worker dies now. True for one that has been adopted or has its outcome.
  virtual bool IsBound(LeaseId lease) const = 0;
  // To each decode worker that there was a request for in the last 10 minutes.
  virtual std::vector<LinkStatus> Links() const = 0;
  // Instances whose link is up.
  std::vector<std::string> LinkedInstances() const;
  // The device is at work for it, or a link over the device has just had news: pump again without
  // sleep.
  virtual bool MovesRows() const { return false; }
  // Not OK, for good: the device or a transport cannot be used any more and the process must end.
  virtual absl::Status health() const { return absl::OkStatus(); }
};

// Pointers are not owned and must outlive the sender; `metrics` may be null.
struct SenderOptions {
  InstanceId instance = {};
  LayoutDescriptor layout = {};
  const Ops* ops = nullptr;
  Stream* stream = nullptr;
  Clock* clock = nullptr;
  ControlDialer* control = nullptr;
  std::vector<DataDialer*> data = {};  // the best first; each has slots of its own
  std::string left_out = {};  // a better one that this worker has not, and why: "nccl: no GPU"
  Metrics* metrics = nullptr;
  int num_slots = 4;  // staging per transport; one link may hold at most half of it
  int64_t slot_bytes = int64_t{4} << 20;
  LinkTimes times = {};
};

// RESOURCE_EXHAUSTED if there is no memory for the staging slots.
absl::StatusOr<std::unique_ptr<Sender>> MakeSender(SenderOptions options);

}  // namespace lodestone
