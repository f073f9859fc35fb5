#pragma once

#include <deque>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kvtransfer/decode_link.h"
#include "kvtransfer/receiver.h"
#include "kvtransfer/rows.h"
#include "kvtransfer/staging.h"

namespace lodestone {

// The Receiver of a decode worker. Made by MakeReceiver; the class is here for its tests.
// receiver.cc has its links and leases, receiver_slots.cc its slots.
//
// A lease belongs to the link that first named or offered it. It ends here once: adopted, released
// by decode, cancelled by prefill, or failed; from then on it is a tombstone. Calls into the target
// may call Release(): state is updated before each call and looked up again after it.
class SlotReceiver final : public Receiver {
 public:
  static absl::StatusOr<std::unique_ptr<SlotReceiver>> Create(ReceiverOptions options);
  ~SlotReceiver() override;

  bool Pump(HandoffTarget& target) override;
  void Release(LeaseId lease, std::string_view reason) override;
  std::vector<std::string> LinkedInstances() const override;
  std::vector<std::string> RefusedLinks() const override;

  bool MovesRows() const override;
  absl::Status health() const override;

  int num_free_slots(size_t transport = 0) const { return slots_[transport].num_free(); }
  int num_incoming() const { return static_cast<int>(incoming_.size()); }
  int num_links() const { return static_cast<int>(links_.size()); }

 private:
  // Rows of a lease granted and committed so far.
  struct Incoming {
    DecodeLink* link = nullptr;
    std::vector<RowRun> runs = {};  // canonical rows of the section in progress
    int64_t num_rows = 0;
    int64_t next_row = 0;      // first that is not granted yet
    RunPlace place = {};       // the same
    int32_t from_tokens = 0;
    int32_t to_tokens = 0;     // rows of all tokens below are granted, or are in the section
    bool final = false;
    Manifest totals{};         // committed
    std::optional<Handoff> handoff = {};  // here before the last commit
  };

  // A slot that the device scatters.
  struct Scattering {
    DecodeLink* link = nullptr;  // null: it is dead
    size_t transport = 0;
    DecodeLink::Granted granted;
    TimePoint started{};
  };

  SlotReceiver(ReceiverOptions options, std::vector<StagingSlots> slots);

  void AcceptLinks();
  bool PumpLink(DecodeLink& link, HandoffTarget& target);
  void DropOlderLinkOf(const DecodeLink& link);
  void HandleNamed(DecodeLink& link, std::span<const LeaseId> leases, HandoffTarget& target);
  void HandleCancel(DecodeLink& link, const LinkCancel& cancel, HandoffTarget& target);
  void HandleHandoff(DecodeLink& link, Handoff handoff, HandoffTarget& target);
  // Adopts the lease if nothing of it is under way and its hand-off is here.
  void AdoptIfComplete(DecodeLink& link, LeaseId lease, HandoffTarget& target);
  absl::Status Verify(const Handoff& handoff, HandoffTarget& target);
  void BuryDeadLinks(HandoffTarget& target);
  void LogEnd(const DecodeLink& link, size_t num_leases) const;
  void ReapClosedLinks();

  bool GrantNext(DecodeLink& link, HandoffTarget& target);
  // An early offer, whose bytes are received in any case; false if its slot has not come back yet.
  bool GrantEarly(DecodeLink& link, HandoffTarget& target);
  // Slots that offers of links over it may not take, since they are promised to early ones.
  int NumPromised(size_t transport) const;
  int32_t SpareEarlySlots(size_t transport) const;
  // The rows that an offer's bytes go into. NOT_FOUND: the lease is gone; DATA_LOSS: the offer does
  // not continue the canonical order or its counts are not those of its rows.
  absl::StatusOr<std::vector<RowRun>> RowsOf(const Offer& offer, Incoming& incoming,
                                             HandoffTarget& target);
  absl::Status BeginSection(const Offer& offer, const SequenceCache& cache, Incoming& incoming);
  void Scatter(DecodeLink& link, DecodeLink::Granted granted, HandoffTarget& target);
  // Commits what is scattered by now, in order; false if nothing was.
  bool CommitScattered(HandoffTarget& target);
  void Commit(Scattering scattered, const RowDigests& digests, HandoffTarget& target);
  int NumScattering(const DecodeLink& link) const;
  bool IsScattering(LeaseId lease) const;

  // The lease as this link may use it; null if it ended or is another link's.
  Incoming* Find(DecodeLink& link, LeaseId lease);
  void End(LeaseId lease);
  void Fail(LeaseId lease, const absl::Status& why, HandoffTarget& target);
  void NoteRefusal(const DecodeLink& link);

  const ReceiverOptions options_;
  const DecodeTerms terms_;
  HandoffMetrics metrics_;
  std::vector<StagingSlots> slots_;  // by transport
  absl::Status device_;              // not OK: it has failed
  TimePoint last_news_{};            // of a link over a device
  std::list<std::unique_ptr<DecodeLink>> links_;
  std::list<std::unique_ptr<DecodeLink>> closing_;
  std::deque<Scattering> scattering_;  // oldest first, as the device does them per transport
  std::map<LeaseId, Incoming> incoming_;
  Tombstones tombstones_;
  struct Refusal {
    TimePoint at;
    std::string what;  // "instance: reason"
  };
  std::deque<Refusal> refused_;  // oldest first
};

}  // namespace lodestone
