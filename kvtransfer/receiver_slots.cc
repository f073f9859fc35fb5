// How rows arrive at a SlotReceiver: grants, the rows that an offer means, scatters and commits.
#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/failpoint.h"
#include "base/logging.h"
#include "base/status_macros.h"
#include "kernels/ops.h"
#include "kvcache/sequence_cache.h"
#include "kvtransfer/receiver_impl.h"

namespace lodestone {
namespace {

// Slots that a link's first offers find without asking: enough for the way there and back of a
// grant, which takes up to 0.25 ms, and for all of a short prompt. Never more than a quarter of all
// for one link, or half for all.
constexpr int kEarlySlots = 6;

absl::Status OutOfOrder(const Offer& offer, std::string_view what, int64_t have, int64_t got) {
  return absl::DataLossError(absl::StrCat("offer ", offer.link_seq, " is out of order: ",
                                          std::string(what), " is ", got, ", expected ", have));
}

}  // namespace

bool SlotReceiver::GrantNext(DecodeLink& link, HandoffTarget& target) {
  if (!link.up() || link.queue().empty() || !device_.ok()) return false;
  StagingSlots& slots = slots_[link.transport()];
  const Offer& offer = link.queue().front();
  if (offer.early) return GrantEarly(link, target);
  Incoming* incoming = Find(link, offer.lease);
  if (incoming == nullptr) {
    link.Answer(offer.link_seq, OfferVerdict::kSkip, "the lease has ended");
    link.queue().pop_front();
    return true;
  }
  if (link.num_granted() + NumScattering(link) >= link.max_granted()) return false;
  if (slots.num_free() <= NumPromised(link.transport())) return false;
  const std::optional<int> slot = slots.Take();
  if (!slot) return false;
  absl::StatusOr<std::vector<RowRun>> runs = RowsOf(offer, *incoming, target);
  if (absl::Status fault = FAILPOINT("kvtransfer.grant"); runs.ok() && !fault.ok()) runs = fault;
  Offer granted = std::move(link.queue().front());
  link.queue().pop_front();
  if (!runs.ok()) {
    slots.GiveBack(*slot);
    const bool gone = absl::IsNotFound(runs.status());
    link.Answer(granted.link_seq, gone ? OfferVerdict::kSkip : OfferVerdict::kCorrupt,
                std::string(runs.status().message()));
    if (gone) {
      End(granted.lease);
    } else {
      Fail(granted.lease, runs.status(), target);
    }
    return true;
  }
  const auto bytes = slots.bytes(*slot).first(static_cast<size_t>(granted.bytes));
  link.Grant({.offer = std::move(granted), .slot = *slot, .runs = *std::move(runs)}, bytes);
  return true;
}

bool SlotReceiver::GrantEarly(DecodeLink& link, HandoffTarget& target) {
  StagingSlots& slots = slots_[link.transport()];
  const std::optional<int> slot = slots.Take();
  if (!slot) return false;  // a link that has died still holds it
  DecodeLink::Granted granted{.offer = std::move(link.queue().front()), .slot = *slot};
  link.queue().pop_front();
  Incoming* incoming = Find(link, granted.offer.lease);
  absl::StatusOr<std::vector<RowRun>> runs = absl::NotFoundError("the lease has ended");
  if (incoming != nullptr) runs = RowsOf(granted.offer, *incoming, target);
  if (absl::Status fault = FAILPOINT("kvtransfer.grant"); runs.ok() && !fault.ok()) runs = fault;
  if (runs.ok()) {
    granted.runs = *std::move(runs);
  } else {
    granted.unfit = runs.status();
  }
  const auto bytes = slots.bytes(*slot).first(static_cast<size_t>(granted.offer.bytes));
  link.Grant(std::move(granted), bytes);
  return true;
}

int SlotReceiver::NumPromised(size_t transport) const {
  int promised = 0;
  for (const auto& link : links_) {
    if (link->status().ok() && link->transport() == transport) promised += link->num_early_free();
  }
  return promised;
}

// What links hold that have died comes back when their transport has ended: it counts as free, and
// early bytes wait that long.
int32_t SlotReceiver::SpareEarlySlots(size_t transport) const {
  int free = slots_[transport].num_free();
  for (const auto* links : {&links_, &closing_}) {
    for (const auto& link : *links) {
      if (!link->status().ok() && link->transport() == transport) free += link->num_granted();
    }
  }
  const int most = std::min(kEarlySlots, options_.num_slots / 4);
  const int promised = NumPromised(transport);
  return std::max(0, std::min({most, free - promised, options_.num_slots / 2 - promised}));
}

absl::StatusOr<std::vector<RowRun>> SlotReceiver::RowsOf(const Offer& offer, Incoming& incoming,
                                                         HandoffTarget& target) {
  if (offer.to_tokens < offer.from_tokens || offer.from_tokens < 0) {
    return OutOfOrder(offer, "to_tokens", offer.from_tokens, offer.to_tokens);
  }
  ASSIGN_OR_RETURN(const SequenceCache* cache, target.CacheFor(offer.lease, offer.to_tokens));
  const bool same_section = incoming.num_rows > 0 && incoming.from_tokens == offer.from_tokens &&
                            incoming.to_tokens == offer.to_tokens && incoming.final == offer.final;
  if (!same_section) RETURN_IF_ERROR(BeginSection(offer, *cache, incoming));
  if (offer.first_row != incoming.next_row) {
    return OutOfOrder(offer, "first_row", incoming.next_row, offer.first_row);
  }
  const int64_t rows_left = incoming.num_rows - incoming.next_row;
  if (offer.num_rows < 1 || offer.num_rows > rows_left) {
    return absl::DataLossError(absl::StrCat("offer ", offer.link_seq, " has ", offer.num_rows,
                                            " rows, left are ", rows_left));
  }
  RunPlace place = incoming.place;
  std::vector<RowRun> runs = TakeRows(incoming.runs, offer.num_rows,
                                      std::numeric_limits<int64_t>::max(), place);
  const Manifest counted = CountKinds(runs);
  Manifest offered = offer.kinds;
  for (KindRows& kind : offered) kind.digest = 0;
  if (std::string differing = DifferingKind(counted, offered); !differing.empty()) {
    return absl::DataLossError(absl::StrCat("offer ", offer.link_seq, ": ", differing));
  }
  if (offer.bytes != TotalBytes(counted) || offer.bytes > options_.slot_bytes) {
    return absl::DataLossError(absl::StrCat("offer ", offer.link_seq, " has ", offer.bytes,
                                            " bytes, its rows have ", TotalBytes(counted),
                                            ", a slot has ", options_.slot_bytes));
  }
  incoming.next_row += offer.num_rows;
  incoming.place = place;
  return runs;
}

// Sections follow each other without a hole: rows of tokens that no offer mentions do not exist.
absl::Status SlotReceiver::BeginSection(const Offer& offer, const SequenceCache& cache,
                                        Incoming& incoming) {
  if (incoming.next_row != incoming.num_rows) {
    return absl::DataLossError(absl::StrCat("offer ", offer.link_seq, " begins new rows while ",
                                            incoming.num_rows - incoming.next_row,
                                            " of the last ones are missing"));
  }
  if (incoming.final) return absl::DataLossError("rows after the final ones");
  const int32_t first = offer.final ? offer.to_tokens : offer.from_tokens;
  if (first < incoming.to_tokens) {
    return OutOfOrder(offer, "from_tokens", incoming.to_tokens, first);
  }
  if (const int64_t hole = CountRows(cache.AppendRuns(incoming.to_tokens, first)); hole != 0) {
    return absl::DataLossError(absl::StrCat("offer ", offer.link_seq, " leaves out ", hole,
                                            " rows of tokens ", incoming.to_tokens, " to ", first));
  }
  incoming.runs = offer.final ? cache.FinalRuns(offer.to_tokens)
                              : cache.AppendRuns(offer.from_tokens, offer.to_tokens);
  incoming.num_rows = CountRows(incoming.runs);
  incoming.next_row = 0;
  incoming.place = {};
  incoming.from_tokens = offer.from_tokens;
  incoming.to_tokens = offer.to_tokens;
  incoming.final = offer.final;
  return absl::OkStatus();
}

void SlotReceiver::Scatter(DecodeLink& link, DecodeLink::Granted granted, HandoffTarget& target) {
  const Offer& offer = granted.offer;
  StagingSlots& slots = slots_[link.transport()];
  const bool unfit = !granted.unfit.ok() && !absl::IsNotFound(granted.unfit);
  if (unfit && Find(link, offer.lease) != nullptr) {
    slots.GiveBack(granted.slot);
    link.Answer(offer.link_seq, OfferVerdict::kCorrupt, std::string(granted.unfit.message()));
    return Fail(offer.lease, granted.unfit, target);
  }
  // The lease may have ended while the bytes were on their way: its rows are somebody else's now.
  const bool alive = granted.unfit.ok() && Find(link, offer.lease) != nullptr &&
                     target.CacheFor(offer.lease, offer.to_tokens).ok();
  if (!alive) {
    slots.GiveBack(granted.slot);
    if (Find(link, offer.lease) != nullptr) End(offer.lease);  // it may be another link's
    return link.Answer(offer.link_seq, OfferVerdict::kSkip, "the lease has ended");
  }
  options_.ops->ScatterRows({.runs = granted.runs,
                             .slot = slots.bytes(granted.slot).data(),
                             .slot_bytes = offer.bytes,
                             .digests = slots.BeginMove(granted.slot)},
                            slots.stream());
  slots.EndMove(granted.slot);
  scattering_.push_back({.link = &link,
                         .transport = link.transport(),
                         .granted = std::move(granted),
                         .started = options_.clock->Now()});
}

bool SlotReceiver::CommitScattered(HandoffTarget& target) {
  bool committed = false;
  while (!scattering_.empty()) {
    const Scattering& oldest = scattering_.front();
    RowDigests digests = {};
    const absl::StatusOr<bool> over =
        slots_[oldest.transport].Moved(oldest.granted.slot, digests);
    if (!over.ok()) device_ = over.status();
    if (!over.ok() || !*over) break;
    Scattering done = std::move(scattering_.front());
    scattering_.pop_front();
    slots_[done.transport].GiveBack(done.granted.slot);
    Commit(std::move(done), digests, target);
    committed = true;
  }
  return committed;
}

// The lease or the link may have ended while the device was at it.
void SlotReceiver::Commit(Scattering scattered, const RowDigests& digests, HandoffTarget& target) {
  if (scattered.link == nullptr || !scattered.link->up()) return;
  DecodeLink& link = *scattered.link;
  const Offer& offer = scattered.granted.offer;
  if (Find(link, offer.lease) == nullptr) {
    return link.Answer(offer.link_seq, OfferVerdict::kSkip, "the lease has ended");
  }
  Manifest received = CountKinds(scattered.granted.runs);
  for (size_t kind = 0; kind < received.size(); ++kind) received[kind].digest = digests[kind];
  metrics_.ObservePhase(link.pair(), HandoffPhase::kScatter,
                        options_.clock->Now() - scattered.started);
  metrics_.AddBytes(link.pair(), received);
  Manifest offered = offer.kinds;
  for (size_t kind = 0; offer.packing && kind < offered.size(); ++kind) {
    offered[kind].digest = digests[kind];  // not known yet when offered; the totals will have it
  }
  metrics_.CountComparison(received, offered);
  if (std::string differing = DifferingKind(received, offered); !differing.empty()) {
    link.Answer(offer.link_seq, OfferVerdict::kCorrupt, differing);
    return Fail(offer.lease, absl::DataLossError(differing), target);
  }
  Accumulate(received, incoming_.at(offer.lease).totals);
  if (absl::Status fault = FAILPOINT("kvtransfer.commit"); !fault.ok()) return link.Kill(fault);
  link.Answer(offer.link_seq, OfferVerdict::kCommitted, "");
  AdoptIfComplete(link, offer.lease, target);
}

int SlotReceiver::NumScattering(const DecodeLink& link) const {
  return static_cast<int>(std::count_if(scattering_.begin(), scattering_.end(),
                                        [&link](const Scattering& s) { return s.link == &link; }));
}

bool SlotReceiver::IsScattering(LeaseId lease) const {
  return std::any_of(scattering_.begin(), scattering_.end(), [lease](const Scattering& s) {
    return s.granted.offer.lease == lease;
  });
}

}  // namespace lodestone
