#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/clock.h"
#include "base/ids.h"
#include "kvcache/cache_shape.h"
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

// The decode worker's view of leases, as the receiver needs it. Called on the loop thread only.
class HandoffTarget {
 public:
  virtual ~HandoffTarget() = default;
  // The cache that the lease's rows go into, grown to hold `num_tokens`. NOT_FOUND: no such lease
  // (cancelled, expired); INVALID_ARGUMENT: more tokens than were reserved.
  virtual absl::StatusOr<SequenceCache*> CacheFor(LeaseId lease, int64_t num_tokens) = 0;
  // Every row of the handoff arrived and was verified: the request starts to decode.
  virtual absl::Status Adopt(Handoff handoff) = 0;
  // The hand-off failed (DATA_LOSS) or its prefill worker gave it up or died (UNAVAILABLE /
  // CANCELLED): free the lease and tell its router.
  virtual void Abandon(LeaseId lease, const absl::Status& why) = 0;
  // Whether the lease waits for rows: it is live and not adopted.
  virtual bool Expects(LeaseId lease) const = 0;
  // The prefill worker named these leases: they live on.
  virtual void Named(std::span<const LeaseId> leases) = 0;
};

// The decode side of all hand-offs of a worker: accepts links, grants receive slots, scatters rows,
// checks digests and row counts. Belongs to the worker's loop thread; nothing here blocks.
class Receiver {
 public:
  virtual ~Receiver() = default;
  // Takes in what links and transports reported; scatters complete slots; adopts. Call after every
  // step and at least every 50 ms. Returns true if anything moved.
  virtual bool Pump(HandoffTarget& target) = 0;
  // Decode gave the lease up (cancel, expiry, finish): later offers for it are skipped for 60 s and
  // prefill is told.
  virtual void Release(LeaseId lease, std::string_view reason) = 0;
  virtual std::vector<std::string> LinkedInstances() const = 0;
  // "instance: reason" of each refusal of the last minute, newest last.
  virtual std::vector<std::string> RefusedLinks() const = 0;
  // As of Sender.
  virtual bool MovesRows() const { return false; }
  virtual absl::Status health() const { return absl::OkStatus(); }
};

// Pointers are not owned and must outlive the receiver; `metrics` may be null.
struct ReceiverOptions {
  InstanceId instance = {};
  LayoutDescriptor layout = {};
  CacheShape shape = {};
  const Ops* ops = nullptr;
  Stream* stream = nullptr;
  Clock* clock = nullptr;
  ControlAcceptor* control = nullptr;
  std::vector<DataListener*> data = {};  // each has slots of its own
  std::string left_out = {};  // a better one that this worker has not, and why: "nccl: no GPU"
  Metrics* metrics = nullptr;
  int num_slots = 4;  // receive slots per transport; one link is granted at most half of them
  int64_t slot_bytes = int64_t{4} << 20;
  LinkTimes times = {};
};

// RESOURCE_EXHAUSTED if there is no memory for the receive slots.
absl::StatusOr<std::unique_ptr<Receiver>> MakeReceiver(ReceiverOptions options);

}  // namespace lodestone
