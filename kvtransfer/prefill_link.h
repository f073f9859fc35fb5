#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "base/clock.h"
#include "base/ids.h"
#include "kvtransfer/control.h"
#include "kvtransfer/link.h"
#include "kvtransfer/messages.h"
#include "kvtransfer/metrics.h"
#include "kvtransfer/transport.h"

namespace lodestone {

// What a PrefillLink reports to the sender.
struct PrefillLinkEvent {
  enum class Kind : uint8_t {
    kUp,
    kBound,      // decode answers for `lease` from now on, however this link ends
    kVerdict,    // the offer of `lease` ended: kSkip, kCommitted or kCorrupt
    kSlotFree,   // nobody reads `slot` any more
    kHandedOff,  // `status` OK: adopted
    kCancelled,  // decode gave `lease` up; `status` says why
  };
  Kind kind = Kind::kUp;
  LeaseId lease = kNoLease;
  int slot = -1;
  OfferVerdict verdict = OfferVerdict::kSkip;
  absl::Status status = {};
};

// The prefill end of one link in one epoch: one control stream and one data connection. Once dead
// it stays dead; a new stream is a new PrefillLink. Worker loop only; never blocks.
//
//   opening -> connecting -> up -> dead        (dead from every state)
//
// An offer: offered -> (READY) writing -> written -> ended; SKIP and CORRUPT end it from offered
// too. An early one is writing at once (LinkAccept::early_slots). Invariants: link_seq ascends by
// 1; a slot is reported free only after its offer has its verdict and its bytes have left (a slot
// has two owners: the offer and the writer).
class PrefillLink {
 public:
  struct Identity {
    std::string prefill;
    std::string decode;
    std::string decode_address;
  };
  // Pointers are not owned and must outlive the link; `open` offers some of the dialers.
  PrefillLink(Identity identity, LinkOpen open, const LinkTimes& times, Clock* clock,
              ControlDialer* control, std::span<DataDialer* const> dialers,
              HandoffMetrics* metrics);
  ~PrefillLink();  // waits for the I/O thread unless closed()

  // Takes in what arrived and checks deadlines. After it, look at status().
  std::vector<PrefillLinkEvent> Pump();

  const Identity& identity() const { return identity_; }
  LinkPair pair() const { return {identity_.prefill, identity_.decode}; }
  bool up() const { return state_ == State::kUp; }
  TimePoint up_since() const { return up_since_; }
  const absl::Status& status() const { return status_; }  // not OK: dead
  int64_t slot_bytes() const { return accept_.slot_bytes; }  // REQUIRES: up()
  // Which of the dialers decode chose; nullopt if it has not answered yet.
  std::optional<size_t> transport() const { return transport_; }
  // Why decode did not choose the first one offered; empty if it did.
  const std::string& fallback() const { return accept_.fallback; }
  // Dead, and the transport may be why: it failed, or did not come up.
  bool transport_failed() const { return transport_failed_; }
  int max_outstanding() const { return accept_.slots; }
  int num_outstanding() const { return static_cast<int>(offers_.size()); }
  // Bytes are on their way that decode has not said it is ready for.
  bool AwaitsPeer() const;

  // REQUIRES of these: up(). PrepareOffer: one follows soon. `bytes` lie in `slot`, which is the
  // link's until kSlotFree.
  void PrepareOffer() { writer_->Prepare(); }
  // With `may_be_early` and a slot that decode keeps free for it, the bytes follow at once.
  void SendOffer(Offer offer, int slot, std::span<const std::byte> bytes, bool may_be_early);
  // An offer whose rows are not packed yet, so without digests. REQUIRES: MayBeEarly(), and all
  // offers packed before have been sent. Its bytes follow with SendPacked(its link_seq), which must
  // come, whatever becomes of the request.
  uint64_t SendPacking(Offer offer, int slot, std::span<const std::byte> bytes);
  void SendPacked(uint64_t link_seq);
  // Whether the bytes of an offer may follow without READY now.
  bool MayBeEarly() const;
  void SendHandoff(Handoff handoff);
  void SendCancel(LeaseId lease, std::string_view reason);
  void NameLeases(std::vector<LeaseId> leases);
  // No answer for this lease is wanted any more.
  void Drop(LeaseId lease) { handoffs_.erase(lease); }

  void Kill(const absl::Status& why);
  // Dead and its I/O has ended: slots may be used again.
  bool closed() const;
  // REQUIRES: closed(). Slots that were still the link's.
  std::vector<int> TakeSlots();

 private:
  enum class State : uint8_t { kOpening, kConnecting, kUp, kDead };
  enum class OfferState : uint8_t { kPacking, kOffered, kWriting, kWritten };
  struct Outstanding {
    LeaseId lease = kNoLease;
    int slot = -1;
    std::span<const std::byte> bytes = {};
    OfferState state = OfferState::kOffered;
    TimePoint since{};                    // of the state
    bool early = false;                   // written without READY
    std::optional<TimePoint> ready = {};  // when READY came, if it is early
    bool ended = false;                   // has its verdict; only the writer still holds the slot
  };

  void Handle(ToPrefill message, std::vector<PrefillLinkEvent>& events);
  void HandleAccept(const LinkAccept& accept);
  void HandleVerdict(const OfferReply& reply, std::vector<PrefillLinkEvent>& events);
  uint64_t Send(Offer offer, Outstanding outstanding);
  void StartWriting(uint64_t link_seq, Outstanding& offer);
  void HandleSlotEvent(const SlotEvent& event, std::vector<PrefillLinkEvent>& events);
  void CheckDeadlines();
  absl::Status CheckOffers(TimePoint now) const;
  bool HasOffersOf(LeaseId lease) const;  // without verdict

  const Identity identity_;
  const LinkTimes times_;
  Clock* const clock_;
  const std::span<DataDialer* const> dialers_;
  HandoffMetrics* const metrics_;
  State state_ = State::kOpening;
  absl::Status status_;
  const TimePoint opened_;
  TimePoint up_since_{};
  TimePoint last_write_{};  // when bytes last moved
  std::unique_ptr<PrefillControl> control_;
  std::optional<size_t> transport_;
  bool transport_failed_ = false;
  std::unique_ptr<SlotWriter> writer_;
  LinkAccept accept_;
  int early_slots_ = 0;
  uint64_t last_seq_ = 0;
  std::map<uint64_t, Outstanding> offers_;
  // Sent, not answered; when that was, or when the last offer of the lease was committed.
  std::map<LeaseId, TimePoint> handoffs_;
};

}  // namespace lodestone
