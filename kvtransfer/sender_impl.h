#pragma once

#include <deque>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kvtransfer/prefill_link.h"
#include "kvtransfer/rows.h"
#include "kvtransfer/sender.h"
#include "kvtransfer/staging.h"

namespace lodestone {

// The Sender of a prefill worker. Made by MakeSender; the class is here for its tests.
// sender.cc has its peers and leases, sender_slots.cc its slots.
class SlotSender final : public Sender {
 public:
  static absl::StatusOr<std::unique_ptr<SlotSender>> Create(SenderOptions options);
  ~SlotSender() override;

  void Begin(LeaseId lease, const InstanceId& decode, const std::string& decode_address,
             const SequenceCache* cache) override;
  void GrowTo(LeaseId lease, int64_t num_tokens) override;
  void Finish(LeaseId lease, Handoff handoff) override;
  void Forget(LeaseId lease, std::string_view reason) override;
  std::vector<HandoffOutcome> Pump() override;
  int64_t BytesOffered(LeaseId lease) const override;
  bool IsBound(LeaseId lease) const override;
  std::vector<LinkStatus> Links() const override;
  bool MovesRows() const override;
  absl::Status health() const override;

  int num_free_slots(size_t transport = 0) const { return slots_[transport].num_free(); }
  int num_leases() const { return static_cast<int>(leases_.size()); }

 private:
  // One decode instance. Its link is single-flight: at most one is alive.
  struct Peer {
    std::string address;
    Backoff backoff;
    std::unique_ptr<PrefillLink> link = {};  // null: none alive
    TimePoint next_naming{};
    TimePoint last_used{};  // when a lease began or ended
    uint64_t epoch = 0;     // of the link; the number of links so far
    // By transport: not offered before `until`, since a link over it has failed.
    struct Avoided {
      TimePoint until{};
      std::string why = {};
    };
    std::vector<Avoided> avoided = {};
    std::string fallback = {};   // why the link was not offered the best transport, if it was not
    std::string transport = {};  // as in LinkStatus
    std::string reason = {};     // the same
  };
  // Rows that become complete together, in canonical order.
  struct Section {
    std::vector<RowRun> runs = {};
    int64_t num_rows = 0;
    int64_t next_row = 0;  // first that is not offered yet
    RunPlace place = {};   // the same
    int32_t from_tokens = 0;
    int32_t to_tokens = 0;
    bool final = false;
  };
  struct Outgoing {
    InstanceId decode = {};
    const SequenceCache* cache = nullptr;
    int64_t grown_tokens = 0;
    std::optional<Handoff> handoff = {};  // set by Finish
    Section section = {};
    int32_t chunk = 0;
    int num_packing = 0;      // slots that are not packed yet
    bool bound = false;
    bool handed_off = false;  // Handoff sent
    TimePoint all_committed{};
    Manifest totals{};
  };

  // Rows that the device packs.
  struct Packing {
    InstanceId decode = {};
    uint64_t epoch = 0;  // of the link
    size_t transport = 0;
    int slot = -1;
    Offer offer = {};
    TimePoint started{};
    uint64_t sent = 0;  // link_seq of the offer if that is sent already; the slot is the link's
  };

  SlotSender(SenderOptions options, std::vector<StagingSlots> slots);

  void PumpPeer(const InstanceId& decode, Peer& peer);
  void DialIfWanted(const InstanceId& decode, Peer& peer);
  void TakeEvent(const InstanceId& decode, Peer& peer, const PrefillLinkEvent& event);
  void CloseIfIdle(const InstanceId& decode, Peer& peer);
  bool HasLeases(const InstanceId& decode) const;
  void BuryLink(const InstanceId& decode, Peer& peer);
  void NameLeases(const InstanceId& decode, Peer& peer);
  void ReapClosedLinks();
  void ForgetOldPeers();

  void AdvanceAll();
  // Offers one slot or hands off; false if this lease cannot move now.
  bool Advance(LeaseId lease, Outgoing& outgoing);
  static bool NextSection(Outgoing& outgoing);
  bool PackSlot(LeaseId lease, Outgoing& outgoing, Peer& peer);
  // Whether the offer may go out before its rows are packed.
  bool MayOfferPacking(const Packing& packing, const Outgoing& outgoing) const;
  // Until the oldest pack is not one of rows that are offered.
  void AwaitOfferedPacks();
  // Offers what is packed by now, in order; false if nothing was.
  bool OfferPacked();
  void SendPacked(Packing packed, const RowDigests& digests);
  PrefillLink* LinkOf(const Packing& packing) const;
  bool NobodyElseIsAwaited(const InstanceId& decode) const;
  // Not offered yet.
  int NumPacking(const InstanceId& decode, uint64_t epoch) const;
  std::vector<TransportOffer> Offerable(const Peer& peer) const;
  std::string WhyNotTheBest(const Peer& peer) const;
  bool AvoidTransportOf(Peer& peer);
  void HandOff(LeaseId lease, Outgoing& outgoing, PrefillLink& link);

  void End(LeaseId lease, absl::Status status);
  int QuotaPerLink(const PrefillLink& link) const;

  const SenderOptions options_;
  HandoffMetrics metrics_;
  std::vector<StagingSlots> slots_;  // by transport
  absl::Status device_;              // not OK: it has failed
  TimePoint last_news_{};            // of a link over a device, or to it
  std::deque<Packing> packing_;      // oldest first, as the device does them per transport
  std::map<InstanceId, Peer> peers_;
  std::list<std::unique_ptr<PrefillLink>> closing_;
  std::map<LeaseId, Outgoing> leases_;
  LeaseId last_served_;  // the next round starts after it
  std::vector<HandoffOutcome> outcomes_;
};

}  // namespace lodestone
