#include "kvtransfer/receiver.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/failpoint.h"
#include "base/logging.h"
#include "base/status_macros.h"
#include "kvcache/sequence_cache.h"
#include "kvtransfer/receiver_impl.h"

namespace lodestone {
namespace {

constexpr size_t kMaxRefusedLinks = 16;
// A link that ends without a request for so long was closed for that: prefill knows the exact time.
constexpr std::chrono::seconds kLooksIdle{10};
// The peer dials again within this time, so a refusal that still holds is noted again.
constexpr std::chrono::seconds kRefusalMemory{60};
// Streams open at once; more are refused by not being accepted, and time out at the peer.
constexpr size_t kMaxLinks = 256;

}  // namespace

absl::StatusOr<std::unique_ptr<Receiver>> MakeReceiver(ReceiverOptions options) {
  return SlotReceiver::Create(std::move(options));
}

absl::StatusOr<std::unique_ptr<SlotReceiver>> SlotReceiver::Create(ReceiverOptions options) {
  std::vector<StagingSlots> slots;
  for (const DataListener* listener : options.data) {
    const DeviceId device = options.stream->device();
    ASSIGN_OR_RETURN(StagingSlots own,
                     StagingSlots::Allocate(
                         options.num_slots, options.slot_bytes,
                         listener->slots_on_device() ? WorkMemory(device) : SharedMemory(device),
                         options.stream));
    slots.push_back(std::move(own));
  }
  return std::unique_ptr<SlotReceiver>(new SlotReceiver(std::move(options), std::move(slots)));
}

SlotReceiver::SlotReceiver(ReceiverOptions options, std::vector<StagingSlots> slots)
    : options_(std::move(options)),
      terms_{.instance = options_.instance.ToString(),
             .layout = options_.layout,
             .slot_bytes = options_.slot_bytes,
             .slots_per_link = std::max(1, options_.num_slots / 2),
             .left_out = options_.left_out,
             .spare_early_slots = [this](size_t transport) { return SpareEarlySlots(transport); }},
      metrics_(options_.metrics),
      slots_(std::move(slots)),
      tombstones_(options_.times.tombstone) {}

SlotReceiver::~SlotReceiver() = default;

bool SlotReceiver::Pump(HandoffTarget& target) {
  AcceptLinks();
  bool moved = false;
  moved |= CommitScattered(target);
  for (const auto& link : links_) moved |= PumpLink(*link, target);
  moved |= CommitScattered(target);
  // One grant per link and round, so that no link takes all slots.
  for (bool granted = true; granted;) {
    granted = false;
    for (const auto& link : links_) granted |= GrantNext(*link, target);
    moved |= granted;
  }
  BuryDeadLinks(target);
  ReapClosedLinks();
  const TimePoint now = options_.clock->Now();
  tombstones_.Sweep(now);
  while (!refused_.empty() && now - refused_.front().at > kRefusalMemory) refused_.pop_front();
  return moved;
}

void SlotReceiver::AcceptLinks() {
  while (links_.size() < kMaxLinks) {
    std::unique_ptr<DecodeControl> control = options_.control->Accept();
    if (control == nullptr) return;
    links_.push_back(std::make_unique<DecodeLink>(std::move(control), terms_, options_.times,
                                                  options_.clock, options_.data, &metrics_));
  }
}

bool SlotReceiver::PumpLink(DecodeLink& link, HandoffTarget& target) {
  const bool was_up = link.up();
  std::vector<ToDecode> messages = link.Pump();
  bool moved = !messages.empty();
  if (link.up() && !was_up) {
    const std::string_view transport = options_.data[link.transport()]->name();
    LOG(INFO) << Field("prefill_instance", link.prefill()) << "link is up over " << transport;
    metrics_.SetLinkUp(link.pair(), transport);
  }
  for (ToDecode& message : messages) {
    if (message.open) DropOlderLinkOf(link);
    HandleNamed(link, message.leases, target);
    for (Handoff& handoff : message.handoffs) HandleHandoff(link, std::move(handoff), target);
    for (const LinkCancel& cancel : message.cancels) HandleCancel(link, cancel, target);
  }
  while (std::optional<DecodeLink::Granted> arrived = link.TakeArrived()) {
    Scatter(link, *std::move(arrived), target);
    moved = true;
  }
  if (moved && link.up() && options_.data[link.transport()]->slots_on_device()) {
    last_news_ = options_.clock->Now();
  }
  return moved;
}

// A new stream of an instance is a new epoch: everything of the older one dies.
void SlotReceiver::DropOlderLinkOf(const DecodeLink& link) {
  for (const auto& other : links_) {
    if (other.get() != &link && other->prefill() == link.prefill()) {
      other->Kill(absl::UnavailableError("the prefill worker opened a new link"));
    }
  }
}

void SlotReceiver::HandleNamed(DecodeLink& link, std::span<const LeaseId> leases,
                               HandoffTarget& target) {
  std::vector<LeaseId> live;
  std::vector<LeaseId> bound;
  for (LeaseId lease : leases) {
    if (tombstones_.Has(lease)) {
      link.SendCancel(lease, "the lease has ended");
    } else if (!target.Expects(lease)) {
      link.SendCancel(lease, "decode has no such lease");
      End(lease);
    } else {
      const bool is_new = !incoming_.contains(lease);
      if (Find(link, lease) == nullptr) continue;
      live.push_back(lease);
      if (is_new) bound.push_back(lease);
    }
  }
  if (!bound.empty()) link.SendBound(std::move(bound));
  if (!live.empty()) target.Named(live);
}

SlotReceiver::Incoming* SlotReceiver::Find(DecodeLink& link, LeaseId lease) {
  if (lease == kNoLease || tombstones_.Has(lease)) return nullptr;
  Incoming& incoming = incoming_.try_emplace(lease, Incoming{.link = &link}).first->second;
  return incoming.link == &link ? &incoming : nullptr;
}

void SlotReceiver::HandleCancel(DecodeLink& link, const LinkCancel& cancel,
                                HandoffTarget& target) {
  if (Find(link, cancel.lease) == nullptr) return;
  Fail(cancel.lease, absl::CancelledError(absl::StrCat("prefill gave it up: ", cancel.reason)),
       target);
}

void SlotReceiver::HandleHandoff(DecodeLink& link, Handoff handoff, HandoffTarget& target) {
  const LeaseId lease = handoff.lease;
  Incoming* const incoming = Find(link, lease);
  if (incoming == nullptr) {
    // An adopted lease has had its answer, a cancelled one its cancel; an answer more is harmless.
    return link.AnswerHandoff(lease, absl::CancelledError("the lease has ended"));
  }
  if (incoming->handoff.has_value()) return;  // a repeated message
  incoming->handoff = std::move(handoff);
  AdoptIfComplete(link, lease, target);
}

void SlotReceiver::AdoptIfComplete(DecodeLink& link, LeaseId lease, HandoffTarget& target) {
  Incoming* const incoming = Find(link, lease);
  if (incoming == nullptr || !incoming->handoff.has_value()) return;
  if (link.HasOffersOf(lease) || IsScattering(lease)) return;
  Handoff handoff = *std::move(incoming->handoff);
  const TimePoint started = options_.clock->Now();
  absl::Status status = Verify(handoff, target);
  if (status.ok()) status = FAILPOINT("kvtransfer.adopt");
  if (status.ok()) status = target.Adopt(std::move(handoff));
  if (!status.ok()) {
    link.AnswerHandoff(lease, status);
    return Fail(lease, status, target);
  }
  End(lease);
  metrics_.CountEnd(absl::OkStatus());
  metrics_.ObservePhase(link.pair(), HandoffPhase::kAdopt, options_.clock->Now() - started);
  if (absl::Status fault = FAILPOINT("kvtransfer.adopted"); !fault.ok()) return link.Kill(fault);
  link.AnswerHandoff(lease, absl::OkStatus());
}

absl::Status SlotReceiver::Verify(const Handoff& handoff, HandoffTarget& target) {
  const Incoming& incoming = incoming_.at(handoff.lease);
  const auto length = static_cast<int64_t>(handoff.tokens.size());
  Manifest expected = incoming.totals;
  for (size_t kind = 0; kind < expected.size(); ++kind) {
    expected[kind].rows = ExpectedRows(options_.shape, static_cast<CacheKind>(kind), length);
  }
  metrics_.CountComparison(expected, handoff.totals);
  if (std::string differing = DifferingKind(expected, incoming.totals); !differing.empty()) {
    return absl::DataLossError(
        absl::StrCat("incomplete cache of ", length, " tokens: ", differing));
  }
  if (std::string differing = DifferingKind(incoming.totals, handoff.totals); !differing.empty()) {
    return absl::DataLossError(absl::StrCat("totals of the request differ: ", differing));
  }
  return target.CacheFor(handoff.lease, length).status();
}

bool SlotReceiver::MovesRows() const {
  return !scattering_.empty() || options_.clock->Now() - last_news_ < options_.times.spin;
}

absl::Status SlotReceiver::health() const {
  absl::Status health = device_;
  for (const DataListener* listener : options_.data) health.Update(listener->health());
  return health;
}

// Rows of the lease that are being scattered come before whatever uses its pages next.
void SlotReceiver::End(LeaseId lease) {
  if (IsScattering(lease)) {
    for (StagingSlots& slots : slots_) slots.AwaitMoves();
  }
  incoming_.erase(lease);
  tombstones_.Add(lease, options_.clock->Now());
}

void SlotReceiver::Fail(LeaseId lease, const absl::Status& why, HandoffTarget& target) {
  End(lease);
  metrics_.CountEnd(why);
  target.Abandon(lease, why);
}

void SlotReceiver::Release(LeaseId lease, std::string_view reason) {
  const auto it = incoming_.find(lease);
  if (it != incoming_.end()) it->second.link->SendCancel(lease, reason);
  End(lease);
}

void SlotReceiver::BuryDeadLinks(HandoffTarget& target) {
  std::vector<LeaseId> lost;
  std::list<std::unique_ptr<DecodeLink>> dead;
  for (auto it = links_.begin(); it != links_.end();) {
    const auto next = std::next(it);
    if (!(*it)->status().ok()) dead.splice(dead.end(), links_, it);
    it = next;
  }
  for (const auto& link : dead) {
    for (Scattering& scattering : scattering_) {
      if (scattering.link == link.get()) scattering.link = nullptr;
    }
    if (link->refused()) NoteRefusal(*link);
    if (!link->prefill().empty()) metrics_.ForgetLink(link->pair());
    std::vector<LeaseId> leases;
    for (const auto& [lease, incoming] : incoming_) {
      if (incoming.link == link.get()) leases.push_back(lease);
    }
    const absl::Status why = absl::UnavailableError(
        absl::StrCat("link to prefill worker ", link->prefill(), " failed: ",
                     link->status().ToString()));
    LogEnd(*link, leases.size());
    for (LeaseId lease : leases) Fail(lease, why, target);
  }
  closing_.splice(closing_.end(), dead);
}

void SlotReceiver::LogEnd(const DecodeLink& link, size_t num_leases) const {
  const auto unused = std::chrono::duration_cast<std::chrono::seconds>(options_.clock->Now() -
                                                                       link.last_used());
  const std::string why = link.status().ToString();
  if (num_leases > 0) {
    LOG(WARNING) << Field("prefill_instance", link.prefill()) << "link is down, with " << num_leases
                 << " requests: " << why;
  } else if (unused >= kLooksIdle) {
    LOG(INFO) << Field("prefill_instance", link.prefill()) << "link is closed, idle for "
              << unused.count() << " s: " << why;
  } else {
    LOG(INFO) << Field("prefill_instance", link.prefill())
              << "link is down, with 0 requests: " << why;
  }
}

void SlotReceiver::ReapClosedLinks() {
  std::erase_if(closing_, [this](std::unique_ptr<DecodeLink>& link) {
    if (!link->closed()) return false;
    for (int slot : link->TakeSlots()) slots_[link->transport()].GiveBack(slot);
    return true;
  });
}

void SlotReceiver::NoteRefusal(const DecodeLink& link) {
  refused_.push_back(
      {.at = options_.clock->Now(),
       .what = absl::StrCat(link.prefill(), ": ", std::string(link.status().message()))});
  if (refused_.size() > kMaxRefusedLinks) refused_.pop_front();
}

std::vector<std::string> SlotReceiver::LinkedInstances() const {
  std::vector<std::string> linked;
  for (const auto& link : links_) {
    if (link->up()) linked.push_back(link->prefill());
  }
  return linked;
}

std::vector<std::string> SlotReceiver::RefusedLinks() const {
  std::vector<std::string> refused;
  for (const Refusal& refusal : refused_) refused.push_back(refusal.what);
  return refused;
}

}  // namespace lodestone
