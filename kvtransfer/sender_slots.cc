// How rows leave a SlotSender: packing in turn, offers and hand-offs.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/failpoint.h"
#include "kernels/ops.h"
#include "kvcache/sequence_cache.h"
#include "kvtransfer/sender_impl.h"

namespace lodestone {
namespace {

// While a link over a device has nothing to move, the next slot is this part of one: it is packed
// sooner, and the bytes move while the slot after it is packed.
constexpr int64_t kFirstPart = 4;

// A pack takes 20 to 60 us. Decode waits for one that was offered before, with multiprocessors, and
// the worker's next step must not come between: so Pump does, too. Not longer than this.
constexpr std::chrono::milliseconds kPackLimit{2};

// One frozen decode worker cannot hold more than half of the staging memory.
int HalfOf(int slots) { return std::max(1, slots / 2); }

}  // namespace

// Rounds over all leases, one slot each, until none can move: a long prompt does not starve a short
// one.
void SlotSender::AdvanceAll() {
  bool moved = true;
  while (moved) {
    moved = OfferPacked();
    std::vector<LeaseId> round;
    for (auto it = leases_.upper_bound(last_served_); it != leases_.end(); ++it) {
      round.push_back(it->first);
    }
    for (auto it = leases_.begin(); it != leases_.upper_bound(last_served_); ++it) {
      round.push_back(it->first);
    }
    for (LeaseId lease : round) {
      const auto it = leases_.find(lease);
      if (it == leases_.end() || !Advance(lease, it->second)) continue;
      last_served_ = lease;
      moved = true;
    }
  }
}

bool SlotSender::Advance(LeaseId lease, Outgoing& outgoing) {
  Peer& peer = peers_.at(outgoing.decode);
  PrefillLink* link = peer.link.get();
  if (link == nullptr || !link->up() || outgoing.handed_off || !device_.ok()) return false;
  if (NextSection(outgoing)) return PackSlot(lease, outgoing, peer);
  const bool complete = outgoing.section.final && outgoing.num_packing == 0;
  if (!complete) return false;
  HandOff(lease, outgoing, *link);
  return true;
}

// Moves on to rows that are not offered yet; false if there are none now.
bool SlotSender::NextSection(Outgoing& outgoing) {
  Section& section = outgoing.section;
  while (section.next_row == section.num_rows) {
    if (section.final) return false;
    const int32_t from = section.to_tokens;
    const bool grown = outgoing.grown_tokens > from;
    if (!grown && !outgoing.handoff.has_value()) return false;
    section = Section{.from_tokens = from,
                      .to_tokens = static_cast<int32_t>(outgoing.grown_tokens),
                      .final = !grown};
    section.runs = grown ? outgoing.cache->AppendRuns(from, outgoing.grown_tokens)
                         : outgoing.cache->FinalRuns(outgoing.grown_tokens);
    section.num_rows = CountRows(section.runs);
    ++outgoing.chunk;
  }
  return true;
}

bool SlotSender::PackSlot(LeaseId lease, Outgoing& outgoing, Peer& peer) {
  PrefillLink& link = *peer.link;
  StagingSlots& slots = slots_[*link.transport()];
  const int outstanding = link.num_outstanding() + NumPacking(outgoing.decode, peer.epoch);
  if (outstanding >= QuotaPerLink(link)) return false;
  const std::optional<int> slot = slots.Take();
  if (!slot) return false;
  Section& section = outgoing.section;
  link.PrepareOffer();
  const int64_t limit = std::min(slots.slot_bytes(), link.slot_bytes());
  const bool moves_nothing =
      outstanding == 0 && options_.data[*link.transport()]->slots_on_device();
  std::vector<RowRun> runs;
  if (moves_nothing) {
    runs = TakeRows(section.runs, section.num_rows, limit / kFirstPart, section.place);
  }
  if (runs.empty()) runs = TakeRows(section.runs, section.num_rows, limit, section.place);
  const int64_t num_rows = CountRows(runs);
  if (absl::Status fault = FAILPOINT("kvtransfer.pack"); !fault.ok() || num_rows == 0) {
    slots.GiveBack(*slot);
    link.SendCancel(lease, "prefill cannot pack its rows");
    End(lease, fault.ok() ? absl::InternalError(absl::StrCat("a row does not fit into a slot of ",
                                                             limit, " bytes"))
                          : fault);
    return false;
  }
  Packing packing{.decode = outgoing.decode,
                  .epoch = peer.epoch,
                  .transport = *link.transport(),
                  .slot = *slot,
                  .offer = {.lease = lease,
                            .chunk = outgoing.chunk,
                            .from_tokens = section.from_tokens,
                            .to_tokens = section.to_tokens,
                            .final = section.final,
                            .first_row = section.next_row,
                            .num_rows = num_rows,
                            .kinds = CountKinds(runs)},
                  .started = options_.clock->Now()};
  packing.offer.bytes = TotalBytes(packing.offer.kinds);
  if (MayOfferPacking(packing, outgoing)) {
    const auto bytes = slots.bytes(*slot).first(static_cast<size_t>(packing.offer.bytes));
    packing.sent = link.SendPacking(packing.offer, *slot, bytes);
  }
  options_.ops->PackRows({.runs = runs,
                          .slot = slots.bytes(*slot).data(),
                          .slot_bytes = slots.slot_bytes(),
                          .digests = slots.BeginMove(*slot)},
                         slots.stream());
  slots.EndMove(*slot);
  section.next_row += num_rows;
  ++outgoing.num_packing;
  packing_.push_back(std::move(packing));
  return true;
}

// Only the last rows of a prompt, with nothing else to pack before them: that takes less time than
// the offer does to decode.
bool SlotSender::MayOfferPacking(const Packing& packing, const Outgoing& outgoing) const {
  return outgoing.handoff.has_value() && LinkOf(packing)->MayBeEarly() &&
         NobodyElseIsAwaited(packing.decode) &&
         std::all_of(packing_.begin(), packing_.end(), [](const Packing& p) { return p.sent > 0; });
}

void SlotSender::AwaitOfferedPacks() {
  while (device_.ok() && !packing_.empty() && packing_.front().sent > 0 &&
         options_.clock->Now() - packing_.front().started < kPackLimit) {
    OfferPacked();
  }
}

bool SlotSender::OfferPacked() {
  bool offered = false;
  while (!packing_.empty()) {
    const Packing& oldest = packing_.front();
    RowDigests digests = {};
    const absl::StatusOr<bool> packed = slots_[oldest.transport].Moved(oldest.slot, digests);
    if (!packed.ok()) device_ = packed.status();
    if (!packed.ok() || !*packed) break;
    Packing done = std::move(packing_.front());
    packing_.pop_front();
    SendPacked(std::move(done), digests);
    offered = true;
  }
  return offered;
}

// The lease or the link may have ended meanwhile.
void SlotSender::SendPacked(Packing packed, const RowDigests& digests) {
  StagingSlots& slots = slots_[packed.transport];
  PrefillLink* link = LinkOf(packed);
  const auto lease = leases_.find(packed.offer.lease);
  if (packed.sent > 0 && link != nullptr) link->SendPacked(packed.sent);
  if (link == nullptr || lease == leases_.end()) {
    if (packed.sent == 0) slots.GiveBack(packed.slot);
    return;
  }
  --lease->second.num_packing;
  Offer& offer = packed.offer;
  for (size_t kind = 0; kind < offer.kinds.size(); ++kind) offer.kinds[kind].digest = digests[kind];
  metrics_.ObservePhase(link->pair(), HandoffPhase::kPack, options_.clock->Now() - packed.started);
  metrics_.AddBytes(link->pair(), offer.kinds);
  Accumulate(offer.kinds, lease->second.totals);
  if (packed.sent == 0) {
    const auto bytes = slots.bytes(packed.slot).first(static_cast<size_t>(offer.bytes));
    link->SendOffer(std::move(offer), packed.slot, bytes, NobodyElseIsAwaited(packed.decode));
  }
  if (options_.data[packed.transport]->slots_on_device()) last_news_ = options_.clock->Now();
}

// Bytes that wait for a peer take multiprocessors meanwhile: of one link at a time.
bool SlotSender::NobodyElseIsAwaited(const InstanceId& decode) const {
  return std::none_of(peers_.begin(), peers_.end(), [&decode](const auto& entry) {
    const PrefillLink* link = entry.second.link.get();
    return entry.first != decode && link != nullptr && link->up() && link->AwaitsPeer();
  });
}

// Null if it is not that link any more.
PrefillLink* SlotSender::LinkOf(const Packing& packing) const {
  const auto peer = peers_.find(packing.decode);
  if (peer == peers_.end() || peer->second.epoch != packing.epoch) return nullptr;
  PrefillLink* link = peer->second.link.get();
  return link != nullptr && link->up() ? link : nullptr;
}

int SlotSender::NumPacking(const InstanceId& decode, uint64_t epoch) const {
  return static_cast<int>(std::count_if(packing_.begin(), packing_.end(), [&](const Packing& p) {
    return p.decode == decode && p.epoch == epoch && p.sent == 0;
  }));
}

void SlotSender::HandOff(LeaseId lease, Outgoing& outgoing, PrefillLink& link) {
  outgoing.handed_off = true;
  Handoff handoff = *std::move(outgoing.handoff);
  handoff.lease = lease;
  handoff.totals = outgoing.totals;
  link.SendHandoff(std::move(handoff));
}

int SlotSender::QuotaPerLink(const PrefillLink& link) const {
  return std::min(link.max_outstanding(), HalfOf(options_.num_slots));
}

}  // namespace lodestone
