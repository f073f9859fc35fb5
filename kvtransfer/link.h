// What both ends of a link share: deadlines, back-off and memory of leases that are gone.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <unordered_map>

#include "absl/status/status.h"
#include "base/clock.h"
#include "base/ids.h"

namespace lodestone {

// Every wait of the hand-off and its deadline.
struct LinkTimes {
  std::chrono::milliseconds heartbeat{500};      // the control stream is never silent for longer
  std::chrono::milliseconds dead_after{1500};    // silent for this long: the peer is dead
  std::chrono::milliseconds link_up{10'000};     // from dialling until both connections stand
  std::chrono::milliseconds stall{2'000};        // bytes in flight that do not move
  double min_bytes_per_second = 1e9;             // added to `stall` for the bytes in flight
  std::chrono::milliseconds answer{10'000};      // the peer's loop: grant, commit, adopt
  std::chrono::milliseconds naming{1'000};       // leases are named at least this often
  std::chrono::milliseconds tombstone{60'000};   // how long a finished lease is remembered
  std::chrono::milliseconds backoff_first{500};  // after a failed link-up; doubles
  std::chrono::milliseconds backoff_unreachable{1'000};  // at most: a network heals at any time
  std::chrono::milliseconds backoff_refused{30'000};     // at most: settings stay as they are
  std::chrono::milliseconds wait_for_redial{2'000};  // a request waits for a redial this near
  std::chrono::milliseconds idle{300'000};       // a link without a lease is closed after this
  // After news of a link, threads look for the next without sleep for so long: to wake one takes
  // longer than a slot between GPUs. 0 where processors are scarce.
  std::chrono::microseconds spin{0};

  // How long `bytes` may be in flight.
  std::chrono::nanoseconds MoveLimit(int64_t bytes) const {
    const double seconds = static_cast<double>(bytes) / min_bytes_per_second;
    return stall + std::chrono::nanoseconds(static_cast<int64_t>(seconds * 1e9));
  }
};

// The link of a prefill worker to one decode worker, for operators.
struct LinkStatus {
  std::string decode_instance = {};
  bool up = false;
  std::string transport = {};  // that it runs over, or ran over last; empty: it has not come up
  std::string reason = {};     // why not over a better one or, of a link that failed, why
  friend bool operator==(const LinkStatus&, const LinkStatus&) = default;
};

// When a failed link may be dialled again: 0.5 s, doubling to 1 s, or to 30 s if decode refuses it,
// each less up to a quarter of jitter so that workers that failed together do not return together.
class Backoff {
 public:
  Backoff(const LinkTimes& times, uint64_t seed) : times_(times), random_(seed | 1) {}
  void Failed(TimePoint now, const absl::Status& why);
  void Succeeded() { failures_ = 0; }
  bool MayDial(TimePoint now) const { return failures_ == 0 || now >= next_; }
  TimePoint next() const { return next_; }
  const std::string& why() const { return why_; }  // of the last failure

 private:
  const LinkTimes times_;
  uint64_t random_;
  int failures_ = 0;
  TimePoint next_{};
  std::string why_;
};

// Leases that have ended here, so that late messages about them are answered and not acted upon.
class Tombstones {
 public:
  explicit Tombstones(std::chrono::nanoseconds lifetime) : lifetime_(lifetime) {}
  void Add(LeaseId lease, TimePoint now) { until_[lease] = now + lifetime_; }
  bool Has(LeaseId lease) const { return until_.contains(lease); }
  // Drops what has expired. Cheap: looks only once per second.
  void Sweep(TimePoint now);

 private:
  const std::chrono::nanoseconds lifetime_;
  TimePoint next_sweep_{};
  std::unordered_map<LeaseId, TimePoint> until_;
};

// "for 1523 ms, limit is 1500 ms"
std::string AgeAndLimit(std::chrono::nanoseconds age, std::chrono::nanoseconds limit);

}  // namespace lodestone
