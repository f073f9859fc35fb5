#include "kvtransfer/sender.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/failpoint.h"
#include "base/logging.h"
#include "base/status_macros.h"
#include "kernels/ops.h"
#include "kvcache/sequence_cache.h"
#include "kvtransfer/rows.h"
#include "kvtransfer/sender_impl.h"

namespace lodestone {
namespace {

// A link that fails this soon after it came up counts as one that did not come up.
constexpr std::chrono::seconds kSettled{5};
// A decode worker without link and leases is forgotten after this time.
constexpr std::chrono::minutes kPeerMemory{10};

// One frozen decode worker cannot hold more than half of the staging memory.
int HalfOf(int slots) { return std::max(1, slots / 2); }

}  // namespace

absl::StatusOr<std::unique_ptr<Sender>> MakeSender(SenderOptions options) {
  return SlotSender::Create(std::move(options));
}

absl::StatusOr<std::unique_ptr<SlotSender>> SlotSender::Create(SenderOptions options) {
  ASSIGN_OR_RETURN(StagingSlots slots,
                   StagingSlots::Allocate(options.num_slots, options.slot_bytes, options.stream));
  return std::unique_ptr<SlotSender>(new SlotSender(std::move(options), std::move(slots)));
}

SlotSender::SlotSender(SenderOptions options, StagingSlots slots)
    : options_(std::move(options)), metrics_(options_.metrics), slots_(std::move(slots)) {}

SlotSender::~SlotSender() = default;

void SlotSender::Begin(LeaseId lease, const InstanceId& decode, const std::string& decode_address,
                       const SequenceCache* cache) {
  CHECK(!leases_.contains(lease)) << "lease " << lease << " has begun already";
  auto [it, is_new] = peers_.try_emplace(
      decode, Peer{.address = decode_address, .backoff = Backoff(options_.times, decode.low())});
  Peer& peer = it->second;
  peer.address = decode_address;
  peer.next_naming = TimePoint::min();  // the new lease is named at once
  leases_[lease] = Outgoing{.decode = decode, .cache = cache};
  const TimePoint now = options_.clock->Now();
  peer.last_used = now;
  if (peer.link != nullptr || peer.backoff.MayDial(now)) return;
  if (peer.backoff.next() - now <= options_.times.wait_for_redial) return;
  End(lease, absl::UnavailableError(absl::StrCat("link to decode worker ", decode.ToString(),
                                                 " is down: ", peer.backoff.why())));
}

void SlotSender::GrowTo(LeaseId lease, int64_t num_tokens) {
  const auto it = leases_.find(lease);
  if (it == leases_.end()) return;  // its outcome is on the way
  CHECK(num_tokens >= it->second.grown_tokens)
      << num_tokens << " tokens after " << it->second.grown_tokens;
  it->second.grown_tokens = num_tokens;
}

void SlotSender::Finish(LeaseId lease, Handoff handoff) {
  const auto it = leases_.find(lease);
  if (it == leases_.end()) return;
  CHECK(!it->second.handoff.has_value()) << "lease " << lease << " is finished already";
  GrowTo(lease, static_cast<int64_t>(handoff.tokens.size()));
  it->second.handoff = std::move(handoff);
  it->second.all_committed = options_.clock->Now();
}

void SlotSender::Forget(LeaseId lease, std::string_view reason) {
  const auto it = leases_.find(lease);
  if (it != leases_.end()) {
    PrefillLink* link = peers_.at(it->second.decode).link.get();
    if (link != nullptr && link->up()) {
      link->SendCancel(lease, reason);
      link->Drop(lease);
    }
    peers_.at(it->second.decode).last_used = options_.clock->Now();
    leases_.erase(it);
    metrics_.CountEnd(absl::CancelledError(std::string(reason)));
  }
  std::erase_if(outcomes_, [lease](const HandoffOutcome& o) { return o.lease == lease; });
}

std::vector<HandoffOutcome> SlotSender::Pump() {
  for (auto& [decode, peer] : peers_) PumpPeer(decode, peer);
  AdvanceAll();
  // Packing may have shown that a link is dead.
  for (auto& [decode, peer] : peers_) {
    if (peer.link != nullptr && !peer.link->status().ok()) BuryLink(decode, peer);
  }
  ReapClosedLinks();
  ForgetOldPeers();
  return std::exchange(outcomes_, {});
}

void SlotSender::PumpPeer(const InstanceId& decode, Peer& peer) {
  if (peer.link == nullptr) DialIfWanted(decode, peer);
  if (peer.link == nullptr) return;
  for (const PrefillLinkEvent& event : peer.link->Pump()) TakeEvent(decode, peer, event);
  CloseIfIdle(decode, peer);
  if (!peer.link->status().ok()) return BuryLink(decode, peer);
  NameLeases(decode, peer);
}

// The next request opens it again.
void SlotSender::CloseIfIdle(const InstanceId& decode, Peer& peer) {
  const auto idle = options_.clock->Now() - peer.last_used;
  if (!peer.link->up() || idle < options_.times.idle || HasLeases(decode)) return;
  peer.link->Kill(
      absl::CancelledError(absl::StrCat("idle ", AgeAndLimit(idle, options_.times.idle))));
}

bool SlotSender::HasLeases(const InstanceId& decode) const {
  return std::any_of(leases_.begin(), leases_.end(),
                     [&decode](const auto& entry) { return entry.second.decode == decode; });
}

void SlotSender::DialIfWanted(const InstanceId& decode, Peer& peer) {
  if (!peer.backoff.MayDial(options_.clock->Now()) || !HasLeases(decode)) return;
  LinkOpen open{.prefill_instance = options_.instance.ToString(),
                .decode_instance = decode.ToString(),
                .layout = options_.layout,
                .transport = std::string(options_.data->name()),
                .max_slot_bytes = slots_.slot_bytes()};
  PrefillLink::Identity identity{.prefill = options_.instance.ToString(),
                                 .decode = decode.ToString(),
                                 .decode_address = peer.address};
  peer.link = std::make_unique<PrefillLink>(std::move(identity), std::move(open), options_.times,
                                            options_.clock, options_.control, options_.data,
                                            &metrics_);
}

void SlotSender::TakeEvent(const InstanceId& decode, Peer& peer, const PrefillLinkEvent& event) {
  using Kind = PrefillLinkEvent::Kind;
  switch (event.kind) {
    case Kind::kUp:
      LOG(INFO) << Field("decode_instance", decode) << "link is up";
      metrics_.SetLinkUp(peer.link->pair(), 1);
      peer.next_naming = TimePoint::min();
      return;
    case Kind::kBound:
      if (const auto it = leases_.find(event.lease); it != leases_.end()) it->second.bound = true;
      return;
    case Kind::kSlotFree:
      return slots_.GiveBack(event.slot);
    case Kind::kHandedOff:
      if (const auto it = leases_.find(event.lease); it != leases_.end() && event.status.ok()) {
        metrics_.ObservePhase(peer.link->pair(), HandoffPhase::kAdopt,
                              options_.clock->Now() - it->second.all_committed);
      }
      return End(event.lease, event.status);
    case Kind::kCancelled:
      return End(event.lease, event.status);
    case Kind::kVerdict: {
      const auto it = leases_.find(event.lease);
      if (it == leases_.end()) return;
      --it->second.num_outstanding;
      it->second.all_committed = options_.clock->Now();
      if (event.verdict != OfferVerdict::kCommitted) End(event.lease, event.status);
      return;
    }
  }
}

void SlotSender::BuryLink(const InstanceId& decode, Peer& peer) {
  const absl::Status why = peer.link->status();
  const TimePoint now = options_.clock->Now();
  const TimePoint up_since = peer.link->up_since();
  const bool was_idle = absl::IsCancelled(why);
  if (was_idle) {
    LOG(INFO) << Field("decode_instance", decode) << "link is closed: " << why.ToString();
  } else {
    LOG(WARNING) << Field("decode_instance", decode) << "link is down: " << why.ToString();
  }
  if (was_idle || (up_since != TimePoint{} && now - up_since >= kSettled)) {
    peer.backoff.Succeeded();
  } else {
    peer.backoff.Failed(now, why);
  }
  metrics_.SetLinkUp(peer.link->pair(), 0);
  closing_.push_back(std::move(peer.link));
  std::vector<LeaseId> lost;
  for (const auto& [lease, outgoing] : leases_) {
    if (outgoing.decode == decode) lost.push_back(lease);
  }
  for (LeaseId lease : lost) {
    End(lease, absl::UnavailableError(absl::StrCat("link to decode worker ", decode.ToString(),
                                                   " failed: ", why.ToString())));
  }
}

void SlotSender::NameLeases(const InstanceId& decode, Peer& peer) {
  const TimePoint now = options_.clock->Now();
  if (!peer.link->up() || now < peer.next_naming) return;
  peer.next_naming = now + options_.times.naming;
  std::vector<LeaseId> named;
  for (const auto& [lease, outgoing] : leases_) {
    if (outgoing.decode == decode) named.push_back(lease);
  }
  if (!named.empty()) peer.link->NameLeases(std::move(named));
}

void SlotSender::ReapClosedLinks() {
  std::erase_if(closing_, [this](std::unique_ptr<PrefillLink>& link) {
    if (!link->closed()) return false;
    for (int slot : link->TakeSlots()) slots_.GiveBack(slot);
    return true;
  });
}

void SlotSender::ForgetOldPeers() {
  const TimePoint now = options_.clock->Now();
  std::erase_if(peers_, [&](const auto& entry) {
    const Peer& peer = entry.second;
    if (peer.link != nullptr || now - peer.last_used < kPeerMemory) return false;
    if (HasLeases(entry.first)) return false;
    metrics_.ForgetLink({options_.instance.ToString(), entry.first.ToString()});
    return true;
  });
}

// Rounds over all leases, one slot each, until none can move: a long prompt does not starve a short
// one.
void SlotSender::AdvanceAll() {
  bool moved = true;
  while (moved) {
    moved = false;
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
  PrefillLink* link = peers_.at(outgoing.decode).link.get();
  if (link == nullptr || !link->up() || outgoing.handed_off) return false;
  if (NextSection(outgoing)) return OfferSlot(lease, outgoing, *link);
  const bool complete = outgoing.section.final && outgoing.num_outstanding == 0;
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

bool SlotSender::OfferSlot(LeaseId lease, Outgoing& outgoing, PrefillLink& link) {
  if (link.num_outstanding() >= QuotaPerLink(link)) return false;
  const std::optional<int> slot = slots_.Take();
  if (!slot) return false;
  Section& section = outgoing.section;
  const int64_t limit = std::min(slots_.slot_bytes(), link.slot_bytes());
  const int64_t num_rows = RowsThatFit(section.runs, section.next_row, limit);
  if (absl::Status fault = FAILPOINT("kvtransfer.pack"); !fault.ok() || num_rows == 0) {
    slots_.GiveBack(*slot);
    link.SendCancel(lease, "prefill cannot pack its rows");
    End(lease, fault.ok() ? absl::InternalError(absl::StrCat("a row does not fit into a slot of ",
                                                             limit, " bytes"))
                          : fault);
    return false;
  }
  const std::vector<RowRun> runs = SliceRuns(section.runs, section.next_row, num_rows);
  const TimePoint started = options_.clock->Now();
  Offer offer{.lease = lease,
              .chunk = outgoing.chunk,
              .from_tokens = section.from_tokens,
              .to_tokens = section.to_tokens,
              .final = section.final,
              .first_row = section.next_row,
              .num_rows = num_rows,
              .kinds = Pack(runs, slots_.bytes(*slot))};
  offer.bytes = TotalBytes(offer.kinds);
  metrics_.ObservePhase(link.pair(), HandoffPhase::kPack, options_.clock->Now() - started);
  metrics_.AddBytes(link.pair(), offer.kinds);
  section.next_row += num_rows;
  ++outgoing.num_outstanding;
  Accumulate(offer.kinds, outgoing.totals);
  const auto bytes = slots_.bytes(*slot).first(static_cast<size_t>(offer.bytes));
  link.SendOffer(std::move(offer), *slot, bytes);
  return true;
}

Manifest SlotSender::Pack(std::span<const RowRun> runs, std::span<std::byte> slot) {
  Manifest kinds = CountKinds(runs);
  options_.ops->PackRows({.runs = runs,
                          .slot = slot.data(),
                          .slot_bytes = static_cast<int64_t>(slot.size()),
                          .digests = slots_.ClearDigests()},
                         *options_.stream);
  RowDigests digests = {};
  const absl::Status done = slots_.ReadDigests(digests);
  CHECK(done.ok()) << done.ToString();
  for (size_t kind = 0; kind < kinds.size(); ++kind) kinds[kind].digest = digests[kind];
  return kinds;
}

void SlotSender::HandOff(LeaseId lease, Outgoing& outgoing, PrefillLink& link) {
  outgoing.handed_off = true;
  Handoff handoff = *std::move(outgoing.handoff);
  handoff.lease = lease;
  handoff.totals = outgoing.totals;
  link.SendHandoff(std::move(handoff));
}

void SlotSender::End(LeaseId lease, absl::Status status) {
  const auto it = leases_.find(lease);
  if (it == leases_.end()) return;
  Peer& peer = peers_.at(it->second.decode);
  if (peer.link != nullptr) peer.link->Drop(lease);
  peer.last_used = options_.clock->Now();
  leases_.erase(it);
  metrics_.CountEnd(status);
  outcomes_.push_back({lease, std::move(status)});
}

int SlotSender::QuotaPerLink(const PrefillLink& link) const {
  return std::min(link.max_outstanding(), HalfOf(slots_.num_slots()));
}

int64_t SlotSender::BytesOffered(LeaseId lease) const {
  const auto it = leases_.find(lease);
  return it == leases_.end() ? 0 : TotalBytes(it->second.totals);
}

bool SlotSender::IsBound(LeaseId lease) const {
  const auto it = leases_.find(lease);
  return it == leases_.end() || it->second.bound;
}

std::vector<std::string> SlotSender::LinkedInstances() const {
  std::vector<std::string> linked;
  for (const auto& [decode, peer] : peers_) {
    if (peer.link != nullptr && peer.link->up()) linked.push_back(decode.ToString());
  }
  return linked;
}

}  // namespace lodestone
