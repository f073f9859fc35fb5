#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "base/clock.h"
#include "base/ids.h"
#include "kvcache/layout.h"
#include "kvtransfer/control.h"
#include "kvtransfer/link.h"
#include "kvtransfer/messages.h"
#include "kvtransfer/metrics.h"
#include "kvtransfer/transport.h"

namespace lodestone {

// What a decode worker tells and demands of those who open a link to it.
struct DecodeTerms {
  std::string instance;
  LayoutDescriptor layout;
  int64_t slot_bytes = 0;
  int32_t slots_per_link = 0;
  std::string left_out = {};  // ReceiverOptions::left_out
  // How many slots can be kept free for the early offers of one more link over that listener.
  std::function<int32_t(size_t transport)> spare_early_slots = {};
};

// The place in `listeners` of the first offered transport that one of them has and that can come
// up; FAILED_PRECONDITION naming what differs if there is none, or anything else of `open` does not
// fit.
absl::StatusOr<size_t> CheckLinkOpen(const DecodeTerms& terms,
                                     std::span<DataListener* const> listeners,
                                     const LinkOpen& open);

// The decode end of one link in one epoch. It keeps the order of offers and their deadlines; what
// rows mean is the receiver's business. Worker loop only; never blocks.
//
//   waiting (for LinkOpen) -> accepted (no data connection yet) -> up -> dead
//
// Offers: queued -> granted -> arrived -> answered. Invariants: link_seq ascends by 1, a repeated
// number is dropped, a gap kills the link; slots are granted, filled and answered in that order; no
// more than `slots_per_link` offers are unanswered, one more kills the link. Bytes of an early
// offer may be on their way already: it is always granted, into a slot kept free for it or, if that
// is still held by a link that has died, as soon as it comes back.
class DecodeLink {
 public:
  struct Granted {
    Offer offer = {};
    int slot = -1;
    std::vector<RowRun> runs = {};  // of the lease's cache: look the lease up before use
    absl::Status unfit = {};        // not OK: an early offer whose bytes go nowhere
    TimePoint since{};
  };

  DecodeLink(std::unique_ptr<DecodeControl> control, const DecodeTerms& terms,
             const LinkTimes& times, Clock* clock, std::span<DataListener* const> listeners,
             HandoffMetrics* metrics);
  ~DecodeLink();  // waits for the I/O thread unless closed()

  // Takes in what arrived and checks deadlines. After it, look at status(). Returns what is not
  // about offers: hand-offs, cancels and named leases, in order.
  std::vector<ToDecode> Pump();

  const std::string& prefill() const { return prefill_; }  // "" before LinkOpen
  LinkPair pair() const { return {prefill_, terms_.instance}; }
  bool up() const { return state_ == State::kUp; }
  // REQUIRES: LinkOpen was accepted. Which of the listeners the link runs over.
  size_t transport() const { return transport_; }
  const absl::Status& status() const { return status_; }  // not OK: dead
  bool refused() const { return refused_; }               // dead because of CheckLinkOpen
  // When prefill last had a request for it: the leases of those are named again and again.
  TimePoint last_used() const { return last_used_; }

  std::deque<Offer>& queue() { return queue_; }  // not granted yet, oldest first
  int num_granted() const { return static_cast<int>(granted_.size()); }
  int max_granted() const { return terms_.slots_per_link; }
  // Slots to be kept free for it.
  int num_early_free() const { return early_slots_ - early_held_; }
  bool HasOffersOf(LeaseId lease) const;

  // `slot_bytes` has exactly the bytes of the offer and is the link's until TakeArrived or
  // TakeSlots.
  void Grant(Granted granted, std::span<std::byte> slot_bytes);
  // The oldest grant whose bytes are all there.
  std::optional<Granted> TakeArrived();

  void Answer(uint64_t link_seq, OfferVerdict verdict, std::string detail);
  void AnswerHandoff(LeaseId lease, absl::Status status);
  void SendCancel(LeaseId lease, std::string_view reason);
  void SendBound(std::vector<LeaseId> leases);

  void Kill(const absl::Status& why);
  bool closed() const;
  std::vector<int> TakeSlots();  // REQUIRES: closed()

 private:
  enum class State : uint8_t { kWaiting, kAccepted, kUp, kDead };

  void HandleOpen(const LinkOpen& open);
  void Refuse(const absl::Status& why);
  void TakeOffers(std::vector<Offer>& offers);
  absl::Status CheckEarly(const Offer& offer) const;
  void HandleSlotEvent(const SlotEvent& event);
  void CheckDeadlines();

  const DecodeTerms& terms_;
  const LinkTimes times_;
  Clock* const clock_;
  const std::span<DataListener* const> listeners_;
  HandoffMetrics* const metrics_;
  State state_ = State::kWaiting;
  absl::Status status_;
  bool refused_ = false;
  const TimePoint opened_;
  TimePoint last_used_ = opened_;
  std::string prefill_;
  std::unique_ptr<DecodeControl> control_;
  size_t transport_ = 0;
  std::unique_ptr<SlotReader> reader_;
  uint64_t last_seq_ = 0;
  std::deque<Offer> queue_;
  std::deque<Granted> granted_;
  uint64_t arrived_seq_ = 0;  // all grants up to this one have their bytes
  TimePoint last_arrival_{};
  int32_t early_slots_ = 0;
  int32_t early_held_ = 0;           // granted to early offers
  std::set<uint64_t> early_offers_;  // not answered yet
};

}  // namespace lodestone
