#include "kvtransfer/sender.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/logging.h"
#include "base/status_macros.h"
#include "kvtransfer/sender_impl.h"

namespace lodestone {
namespace {

// A link that fails this soon after it came up counts as one that did not come up.
constexpr std::chrono::seconds kSettled{5};
// A decode worker without link and leases is forgotten after this time.
constexpr std::chrono::minutes kPeerMemory{10};
// For how long a transport that has failed is left out, if there is another.
constexpr std::chrono::seconds kAvoidTransport{30};

}  // namespace

absl::StatusOr<std::unique_ptr<Sender>> MakeSender(SenderOptions options) {
  return SlotSender::Create(std::move(options));
}

absl::StatusOr<std::unique_ptr<SlotSender>> SlotSender::Create(SenderOptions options) {
  std::vector<StagingSlots> slots;
  for (const DataDialer* dialer : options.data) {
    const DeviceId device = options.stream->device();
    ASSIGN_OR_RETURN(
        StagingSlots own,
        StagingSlots::Allocate(
            options.num_slots, options.slot_bytes,
            dialer->slots_on_device() ? WorkMemory(device) : SharedMemory(device), options.stream));
    slots.push_back(std::move(own));
  }
  return std::unique_ptr<SlotSender>(new SlotSender(std::move(options), std::move(slots)));
}

SlotSender::SlotSender(SenderOptions options, std::vector<StagingSlots> slots)
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
  AwaitOfferedPacks();  // of the last call, after which first tokens left
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
  const std::vector<PrefillLinkEvent> events = peer.link->Pump();
  const std::optional<size_t> transport = peer.link->transport();
  if (!events.empty() && transport && options_.data[*transport]->slots_on_device()) {
    last_news_ = options_.clock->Now();
  }
  for (const PrefillLinkEvent& event : events) TakeEvent(decode, peer, event);
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
                .transports = Offerable(peer),
                .max_slot_bytes = options_.slot_bytes};
  const std::string best(options_.data.front()->name());
  peer.fallback = open.transports.front().name == best
                      ? ""
                      : absl::StrCat(best, " failed: ", peer.avoided.front().why);
  ++peer.epoch;
  PrefillLink::Identity identity{.prefill = options_.instance.ToString(),
                                 .decode = decode.ToString(),
                                 .decode_address = peer.address};
  peer.link = std::make_unique<PrefillLink>(std::move(identity), std::move(open), options_.times,
                                            options_.clock, options_.control, options_.data,
                                            &metrics_);
}

// All transports but those that have failed lately, unless none would be left.
std::vector<TransportOffer> SlotSender::Offerable(const Peer& peer) const {
  const TimePoint now = options_.clock->Now();
  std::vector<TransportOffer> all;
  std::vector<TransportOffer> sound;
  for (size_t i = 0; i < options_.data.size(); ++i) {
    all.push_back({std::string(options_.data[i]->name()), options_.data[i]->place()});
    if (i >= peer.avoided.size() || now >= peer.avoided[i].until) sound.push_back(all.back());
  }
  return sound.empty() ? all : sound;
}

// REQUIRES: its link is up. Empty: it runs over the best transport there is.
std::string SlotSender::WhyNotTheBest(const Peer& peer) const {
  if (!options_.left_out.empty()) {
    return absl::StrCat("prefill worker has no ", options_.left_out);
  }
  return peer.fallback.empty() ? peer.link->fallback() : peer.fallback;
}

void SlotSender::TakeEvent(const InstanceId& decode, Peer& peer, const PrefillLinkEvent& event) {
  using Kind = PrefillLinkEvent::Kind;
  switch (event.kind) {
    case Kind::kUp:
      peer.transport = std::string(options_.data[*peer.link->transport()]->name());
      peer.reason = WhyNotTheBest(peer);
      LOG(INFO) << Field("decode_instance", decode) << "link is up over " << peer.transport
                << (peer.reason.empty() ? "" : ": ") << peer.reason;
      metrics_.SetLinkUp(peer.link->pair(), peer.transport);
      peer.next_naming = TimePoint::min();
      return;
    case Kind::kBound:
      if (const auto it = leases_.find(event.lease); it != leases_.end()) it->second.bound = true;
      return;
    case Kind::kSlotFree:
      return slots_[*peer.link->transport()].GiveBack(event.slot);
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
    peer.reason = why.ToString();
    LOG(WARNING) << Field("decode_instance", decode) << "link is down: " << peer.reason;
  }
  const bool other_transport = !was_idle && AvoidTransportOf(peer);
  if (was_idle || other_transport || (up_since != TimePoint{} && now - up_since >= kSettled)) {
    peer.backoff.Succeeded();
  } else {
    peer.backoff.Failed(now, why);
  }
  metrics_.SetLinkDown(peer.link->pair());
  closing_.push_back(std::move(peer.link));
  // Decode knows of no lease before a link is up, so they can wait for the next one.
  if (other_transport && up_since == TimePoint{}) return;
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
    // A link without a transport has no slots.
    for (int slot : link->TakeSlots()) slots_[*link->transport()].GiveBack(slot);
    return true;
  });
}

// Whether the transport of the dead link is why, and there is another that has not failed lately.
bool SlotSender::AvoidTransportOf(Peer& peer) {
  if (!peer.link->transport_failed()) return false;
  const TimePoint now = options_.clock->Now();
  peer.avoided.resize(options_.data.size());
  peer.avoided[*peer.link->transport()] = {.until = now + kAvoidTransport,
                                           .why = peer.link->status().ToString()};
  return std::any_of(peer.avoided.begin(), peer.avoided.end(),
                     [now](const Peer::Avoided& avoided) { return now >= avoided.until; });
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

bool SlotSender::MovesRows() const {
  return !packing_.empty() || options_.clock->Now() - last_news_ < options_.times.spin;
}

absl::Status SlotSender::health() const {
  absl::Status health = device_;
  for (const DataDialer* dialer : options_.data) health.Update(dialer->health());
  return health;
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

int64_t SlotSender::BytesOffered(LeaseId lease) const {
  const auto it = leases_.find(lease);
  return it == leases_.end() ? 0 : TotalBytes(it->second.totals);
}

bool SlotSender::IsBound(LeaseId lease) const {
  const auto it = leases_.find(lease);
  return it == leases_.end() || it->second.bound;
}

std::vector<LinkStatus> SlotSender::Links() const {
  std::vector<LinkStatus> links;
  for (const auto& [decode, peer] : peers_) {
    links.push_back({.decode_instance = decode.ToString(),
                     .up = peer.link != nullptr && peer.link->up(),
                     .transport = peer.transport,
                     .reason = peer.reason});
  }
  return links;
}

std::vector<std::string> Sender::LinkedInstances() const {
  std::vector<std::string> linked;
  for (const LinkStatus& link : Links()) {
    if (link.up) linked.push_back(link.decode_instance);
  }
  return linked;
}

}  // namespace lodestone
