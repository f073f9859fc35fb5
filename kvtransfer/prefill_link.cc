#include "kvtransfer/prefill_link.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/failpoint.h"
#include "base/logging.h"

namespace lodestone {

using Event = PrefillLinkEvent;
using std::chrono::milliseconds;

PrefillLink::PrefillLink(Identity identity, LinkOpen open, const LinkTimes& times, Clock* clock,
                         ControlDialer* control, std::span<DataDialer* const> dialers,
                         HandoffMetrics* metrics)
    : identity_(std::move(identity)),
      times_(times),
      clock_(clock),
      dialers_(dialers),
      metrics_(metrics),
      opened_(clock->Now()),
      control_(control->Dial(identity_.decode_address)) {
  if (absl::Status fault = FAILPOINT("kvtransfer.link_open"); !fault.ok()) {
    Kill(fault);
    return;
  }
  ToDecode message;
  message.open = std::move(open);
  control_->Send(std::move(message));
}

PrefillLink::~PrefillLink() { Kill(absl::CancelledError("this worker shuts down")); }

std::vector<Event> PrefillLink::Pump() {
  std::vector<Event> events;
  if (state_ == State::kDead) return events;
  while (state_ != State::kDead) {
    std::optional<ToPrefill> message = control_->Receive();
    if (!message) break;
    Handle(*std::move(message), events);
  }
  if (state_ == State::kDead) return events;
  if (absl::Status broken = control_->status(); !broken.ok()) Kill(broken);
  while (writer_ != nullptr && state_ != State::kDead) {
    const std::optional<SlotEvent> event = writer_->Poll();
    if (!event) break;
    HandleSlotEvent(*event, events);
  }
  if (state_ != State::kDead) CheckDeadlines();
  return events;
}

void PrefillLink::Handle(ToPrefill message, std::vector<Event>& events) {
  if (!message.refuse.ok()) {
    return Kill(absl::Status(message.refuse.code(),
                             absl::StrCat("refused: ", std::string(message.refuse.message()))));
  }
  if (message.accept) HandleAccept(*message.accept);
  for (LeaseId lease : message.bound) {
    events.push_back({.kind = Event::Kind::kBound, .lease = lease});
  }
  for (const OfferReply& reply : message.offers) {
    if (state_ == State::kDead) return;
    HandleVerdict(reply, events);
  }
  for (HandoffReply& reply : message.handoffs) {
    if (handoffs_.erase(reply.lease) == 0) continue;  // forgotten meanwhile
    events.push_back({.kind = Event::Kind::kHandedOff,
                      .lease = reply.lease,
                      .status = std::move(reply.status)});
  }
  for (const LinkCancel& cancel : message.cancels) {
    events.push_back({.kind = Event::Kind::kCancelled,
                      .lease = cancel.lease,
                      .status = absl::CancelledError(cancel.reason)});
  }
}

void PrefillLink::HandleAccept(const LinkAccept& accept) {
  if (state_ != State::kOpening) return Kill(absl::InternalError("decode accepted a link twice"));
  if (accept.decode_instance != identity_.decode) {
    return Kill(absl::UnavailableError(absl::StrCat("instance ", accept.decode_instance,
                                                    " answered, meant ", identity_.decode)));
  }
  const auto chosen = std::find_if(dialers_.begin(), dialers_.end(), [&](const DataDialer* dialer) {
    return dialer->name() == accept.transport;
  });
  if (chosen == dialers_.end()) {
    return Kill(absl::InternalError(absl::StrCat("decode chose the transport \"", accept.transport,
                                                 "\", which was not offered")));
  }
  const bool sane = accept.session_key.size() == (*chosen)->session_key_bytes() &&
                    accept.slot_bytes > 0 && accept.slots > 0 && accept.data_port >= 0 &&
                    accept.data_port <= 65535 && accept.early_slots >= 0;
  if (!sane) {
    return Kill(absl::InternalError(absl::StrCat(
        "accept has a key of ", accept.session_key.size(), " bytes, slots of ", accept.slot_bytes,
        " bytes, ", accept.slots, " slots, ", accept.early_slots, " early, port ",
        accept.data_port)));
  }
  accept_ = accept;
  if ((*chosen)->takes_early_bytes()) early_slots_ = accept.early_slots;
  state_ = State::kConnecting;
  transport_ = static_cast<size_t>(chosen - dialers_.begin());
  writer_ =
      (*chosen)->Connect(HostOf(identity_.decode_address), accept.data_port, accept.session_key);
}

void PrefillLink::HandleVerdict(const OfferReply& reply, std::vector<Event>& events) {
  const auto found = offers_.find(reply.link_seq);
  if (found == offers_.end() || found->second.ended) return;  // a repeated answer
  Outstanding& offer = found->second;
  if (reply.verdict == OfferVerdict::kReady) {
    if (offer.early && !offer.ready) offer.ready = clock_->Now();
    events.push_back({.kind = Event::Kind::kBound, .lease = offer.lease});
    if (offer.state == OfferState::kOffered) StartWriting(reply.link_seq, offer);
    return;
  }
  const bool committed = reply.verdict == OfferVerdict::kCommitted;
  if (offer.state == OfferState::kPacking ||
      (committed && offer.state == OfferState::kOffered)) {
    return Kill(absl::DataLossError(
        absl::StrCat("offer ", reply.link_seq, " was ", committed ? "committed" : "ended",
                     " before its bytes were sent")));
  }
  if (committed) {
    const TimePoint now = clock_->Now();
    metrics_->ObservePhase(pair(), HandoffPhase::kMove, now - offer.since);
    if (const auto it = handoffs_.find(offer.lease); it != handoffs_.end()) it->second = now;
  }
  const std::string detail = absl::StrCat("offer ", reply.link_seq, ": ", reply.detail);
  const bool corrupt = reply.verdict == OfferVerdict::kCorrupt;
  events.push_back(
      {.kind = Event::Kind::kVerdict,
       .lease = offer.lease,
       .verdict = reply.verdict,
       .status = corrupt ? absl::DataLossError(detail) : absl::CancelledError(detail)});
  offer.ended = true;
  if (offer.state == OfferState::kWriting) return;  // the writer still reads the slot
  events.push_back({.kind = Event::Kind::kSlotFree, .slot = offer.slot});
  offers_.erase(found);
}

void PrefillLink::StartWriting(uint64_t link_seq, Outstanding& offer) {
  if (absl::Status fault = FAILPOINT("kvtransfer.write"); !fault.ok()) return Kill(fault);
  const TimePoint now = clock_->Now();
  metrics_->ObservePhase(pair(), HandoffPhase::kWait, now - offer.since);
  offer.state = OfferState::kWriting;
  offer.since = now;
  writer_->Write(link_seq, offer.bytes);
}

void PrefillLink::HandleSlotEvent(const SlotEvent& event, std::vector<Event>& events) {
  switch (event.kind) {
    case SlotEvent::Kind::kConnected:
      if (state_ != State::kConnecting) return;
      state_ = State::kUp;
      up_since_ = clock_->Now();
      events.push_back({.kind = Event::Kind::kUp});
      return;
    case SlotEvent::Kind::kFailed:
      transport_failed_ = true;
      return Kill(event.status);
    case SlotEvent::Kind::kDone: {
      last_write_ = clock_->Now();
      const auto found = offers_.find(event.link_seq);
      if (found == offers_.end()) return;
      found->second.state = OfferState::kWritten;
      if (!found->second.ended) return;
      events.push_back({.kind = Event::Kind::kSlotFree, .slot = found->second.slot});
      offers_.erase(found);
      return;
    }
  }
}

void PrefillLink::CheckDeadlines() {
  const TimePoint now = clock_->Now();
  if (state_ != State::kUp) {
    if (now - opened_ <= times_.link_up) return;
    return Kill(absl::DeadlineExceededError(
        absl::StrCat(state_ == State::kOpening ? "no answer to link-up " : "no data connection ",
                     AgeAndLimit(now - opened_, times_.link_up))));
  }
  if (absl::Status late = CheckOffers(now); !late.ok()) return Kill(late);
  for (const auto& [lease, since] : handoffs_) {
    // Offers have deadlines of their own; what comes after them is not due before.
    if (now - since <= times_.answer || HasOffersOf(lease)) continue;
    return Kill(absl::DeadlineExceededError(
        absl::StrCat("hand-off not answered ", AgeAndLimit(now - since, times_.answer))));
  }
}

bool PrefillLink::HasOffersOf(LeaseId lease) const {
  return std::any_of(offers_.begin(), offers_.end(), [lease](const auto& entry) {
    return entry.second.lease == lease && !entry.second.ended;
  });
}

absl::Status PrefillLink::CheckOffers(TimePoint now) const {
  int64_t bytes_in_flight = 0;
  for (const auto& [seq, offer] : offers_) {
    const TimePoint since = std::max(offer.since, offer.ready.value_or(offer.since));
    if (offer.state == OfferState::kWriting) {
      bytes_in_flight += static_cast<int64_t>(offer.bytes.size());
      const auto age = now - std::max(since, last_write_);
      // Before READY the peer's loop may be in a step.
      const auto limit = times_.MoveLimit(bytes_in_flight) +
                         (offer.early && !offer.ready ? times_.answer : milliseconds(0));
      if (age <= limit) continue;
      return absl::UnavailableError(absl::StrCat("stalled: bytes of offer ", seq,
                                                 " have not moved ", AgeAndLimit(age, limit)));
    }
    if (now - since <= times_.answer) continue;
    const bool granted = offer.state != OfferState::kOffered && (!offer.early || offer.ready);
    return absl::UnavailableError(absl::StrCat("stalled: offer ", seq, " not ",
                                               granted ? "committed " : "granted ",
                                               AgeAndLimit(now - since, times_.answer)));
  }
  return absl::OkStatus();
}

void PrefillLink::SendOffer(Offer offer, int slot, std::span<const std::byte> bytes,
                            bool may_be_early) {
  offer.early = may_be_early && MayBeEarly();
  const bool early = offer.early;
  const uint64_t link_seq = Send(std::move(offer), {.slot = slot, .bytes = bytes});
  if (early && up()) StartWriting(link_seq, offers_.at(link_seq));
}

uint64_t PrefillLink::SendPacking(Offer offer, int slot, std::span<const std::byte> bytes) {
  CHECK(MayBeEarly());
  offer.early = true;
  offer.packing = true;
  return Send(std::move(offer), {.slot = slot, .bytes = bytes, .state = OfferState::kPacking});
}

void PrefillLink::SendPacked(uint64_t link_seq) {
  CHECK(up());
  StartWriting(link_seq, offers_.at(link_seq));
}

uint64_t PrefillLink::Send(Offer offer, Outstanding outstanding) {
  CHECK(up());
  const uint64_t link_seq = ++last_seq_;
  offer.link_seq = link_seq;
  outstanding.lease = offer.lease;
  outstanding.early = offer.early;
  outstanding.since = clock_->Now();
  offers_[link_seq] = outstanding;
  if (absl::Status fault = FAILPOINT("kvtransfer.offer"); !fault.ok()) {
    Kill(fault);
    return link_seq;
  }
  ToDecode message;
  message.offers.push_back(std::move(offer));
  control_->Send(std::move(message));
  return link_seq;
}

// An early offer comes after offers that are all granted: those whose bytes are not on their way
// have to be before it on the transport.
bool PrefillLink::MayBeEarly() const {
  int unanswered = 0;
  for (const auto& [seq, offer] : offers_) {
    if (offer.state == OfferState::kOffered) return false;
    if (offer.early && !offer.ended) ++unanswered;
  }
  return unanswered < early_slots_;
}

bool PrefillLink::AwaitsPeer() const {
  return std::any_of(offers_.begin(), offers_.end(), [](const auto& entry) {
    return entry.second.early && !entry.second.ready && !entry.second.ended;
  });
}

void PrefillLink::SendHandoff(Handoff handoff) {
  CHECK(up());
  handoffs_[handoff.lease] = clock_->Now();
  if (absl::Status fault = FAILPOINT("kvtransfer.handoff"); !fault.ok()) return Kill(fault);
  ToDecode message;
  message.handoffs.push_back(std::move(handoff));
  control_->Send(std::move(message));
}

void PrefillLink::SendCancel(LeaseId lease, std::string_view reason) {
  ToDecode message;
  message.cancels.push_back({lease, std::string(reason)});
  control_->Send(std::move(message));
}

void PrefillLink::NameLeases(std::vector<LeaseId> leases) {
  ToDecode message;
  message.leases = std::move(leases);
  control_->Send(std::move(message));
}

void PrefillLink::Kill(const absl::Status& why) {
  if (state_ == State::kDead) return;
  // Whichever end gave up while the transport came up: decode's shows as the end of the stream.
  if (state_ == State::kConnecting) transport_failed_ = true;
  state_ = State::kDead;
  status_ = why;
  control_.reset();
  if (writer_ != nullptr) writer_->Close();
}

bool PrefillLink::closed() const {
  return state_ == State::kDead && (writer_ == nullptr || writer_->closed());
}

std::vector<int> PrefillLink::TakeSlots() {
  CHECK(closed());
  std::vector<int> slots;
  for (const auto& [seq, offer] : offers_) slots.push_back(offer.slot);
  offers_.clear();
  return slots;
}

}  // namespace lodestone
