#include "kvtransfer/decode_link.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/failpoint.h"
#include "base/logging.h"

namespace lodestone {

namespace {

std::string Names(std::span<DataListener* const> listeners) {
  return absl::StrJoin(listeners, ", ", [](std::string* out, const DataListener* listener) {
    absl::StrAppend(out, std::string(listener->name()));
  });
}

std::string Names(const std::vector<TransportOffer>& offers) {
  return absl::StrJoin(offers, ", ", [](std::string* out, const TransportOffer& offer) {
    absl::StrAppend(out, offer.name);
  });
}

std::optional<size_t> ChooseTransport(std::span<DataListener* const> listeners,
                                      const std::vector<TransportOffer>& offers) {
  for (const TransportOffer& offer : offers) {
    for (size_t i = 0; i < listeners.size(); ++i) {
      if (listeners[i]->Reaches(offer)) return i;
    }
  }
  return std::nullopt;
}

// Why the link does not run over the first transport offered; empty: it does.
std::string Fallback(const DecodeTerms& terms, std::span<DataListener* const> listeners,
                     const TransportOffer& first, const DataListener& chosen) {
  if (chosen.name() == first.name) return "";
  for (const DataListener* listener : listeners) {
    if (listener->name() != first.name) continue;
    return absl::StrCat(first.name, ": both workers are on one device, ", first.place);
  }
  return absl::StrCat("decode worker has no ",
                      terms.left_out.empty() ? first.name : terms.left_out);
}

}  // namespace

absl::StatusOr<size_t> CheckLinkOpen(const DecodeTerms& terms,
                                     std::span<DataListener* const> listeners,
                                     const LinkOpen& open) {
  std::vector<std::string> differing;
  if (open.wire_version != kLinkWireVersion) {
    differing.push_back(absl::StrCat("wire_version: ", kLinkWireVersion, " here, ",
                                     open.wire_version, " there"));
  }
  const std::optional<size_t> transport = ChooseTransport(listeners, open.transports);
  if (!transport) {
    differing.push_back(absl::StrCat("transports: ", Names(listeners), " here, ",
                                     Names(open.transports), " there"));
  }
  if (open.decode_instance != terms.instance) {
    differing.push_back(absl::StrCat("decode_instance: ", terms.instance, " here, ",
                                     open.decode_instance, " there"));
  }
  for (std::string& field : DifferingFields(terms.layout, open.layout)) {
    differing.push_back(std::move(field));
  }
  if (differing.empty() && LayoutFingerprint(terms.layout) != LayoutFingerprint(open.layout)) {
    differing.push_back("layout: same fields in another order");
  }
  if (differing.empty()) return *transport;
  return absl::FailedPreconditionError(absl::StrJoin(differing, "; "));
}

DecodeLink::DecodeLink(std::unique_ptr<DecodeControl> control, const DecodeTerms& terms,
                       const LinkTimes& times, Clock* clock,
                       std::span<DataListener* const> listeners, HandoffMetrics* metrics)
    : terms_(terms),
      times_(times),
      clock_(clock),
      listeners_(listeners),
      metrics_(metrics),
      opened_(clock->Now()),
      control_(std::move(control)) {}

DecodeLink::~DecodeLink() { Kill(absl::CancelledError("this worker shuts down")); }

std::vector<ToDecode> DecodeLink::Pump() {
  std::vector<ToDecode> others;
  while (state_ != State::kDead) {
    std::optional<ToDecode> message = control_->Receive();
    if (!message) break;
    last_used_ = clock_->Now();
    if (message->open) {
      HandleOpen(*message->open);
    } else if (state_ == State::kWaiting) {
      Kill(absl::InternalError("first message of a link is not LinkOpen"));
    }
    if (state_ == State::kDead) return others;
    if (reader_ != nullptr) reader_->Prepare();
    TakeOffers(message->offers);
    others.push_back(*std::move(message));
  }
  if (state_ == State::kDead) return others;
  if (absl::Status broken = control_->status(); !broken.ok()) Kill(broken);
  while (reader_ != nullptr && state_ != State::kDead) {
    const std::optional<SlotEvent> event = reader_->Poll();
    if (!event) break;
    HandleSlotEvent(*event);
  }
  if (state_ != State::kDead) CheckDeadlines();
  return others;
}

void DecodeLink::HandleOpen(const LinkOpen& open) {
  if (state_ != State::kWaiting) return Kill(absl::InternalError("a second LinkOpen on one link"));
  prefill_ = open.prefill_instance;
  absl::StatusOr<size_t> chosen = CheckLinkOpen(terms_, listeners_, open);
  if (absl::Status fault = FAILPOINT("kvtransfer.link_accept"); !fault.ok()) chosen = fault;
  if (!chosen.ok()) return Refuse(chosen.status());
  transport_ = *chosen;
  DataListener& listener = *listeners_[transport_];
  absl::StatusOr<std::string> key = listener.NewSessionKey();
  if (!key.ok()) return Refuse(key.status());
  reader_ = listener.Open(*key);
  state_ = State::kAccepted;
  if (listener.takes_early_bytes()) early_slots_ = terms_.spare_early_slots(transport_);
  ToPrefill reply;
  reply.accept =
      LinkAccept{.decode_instance = terms_.instance,
                 .data_port = listener.port(),
                 .session_key = *std::move(key),
                 .slot_bytes = std::min(terms_.slot_bytes, open.max_slot_bytes),
                 .slots = terms_.slots_per_link,
                 .transport = std::string(listener.name()),
                 .early_slots = early_slots_,
                 .fallback = Fallback(terms_, listeners_, open.transports.front(), listener)};
  control_->Send(std::move(reply));
}

void DecodeLink::Refuse(const absl::Status& why) {
  refused_ = true;
  control_->Send({.refuse = why});
  Kill(why);
}

void DecodeLink::TakeOffers(std::vector<Offer>& offers) {
  for (Offer& offer : offers) {
    if (offer.link_seq <= last_seq_) continue;  // a repeated message
    if (offer.link_seq != last_seq_ + 1) {
      return Kill(absl::DataLossError(
          absl::StrCat("offer ", offer.link_seq, " follows offer ", last_seq_)));
    }
    const size_t unanswered = queue_.size() + granted_.size();
    if (unanswered >= static_cast<size_t>(terms_.slots_per_link)) {
      return Kill(absl::InternalError(absl::StrCat("offer ", offer.link_seq, " comes while ",
                                                   unanswered, " are not answered, limit is ",
                                                   terms_.slots_per_link)));
    }
    if (offer.packing && !offer.early) {
      return Kill(absl::InternalError(
          absl::StrCat("offer ", offer.link_seq, " is not early and has no digests")));
    }
    if (offer.early) {
      if (absl::Status wrong = CheckEarly(offer); !wrong.ok()) return Kill(wrong);
      early_offers_.insert(offer.link_seq);
    }
    ++last_seq_;
    queue_.push_back(std::move(offer));
  }
}

// Its bytes must be taken, whatever they are.
absl::Status DecodeLink::CheckEarly(const Offer& offer) const {
  if (std::ssize(early_offers_) >= early_slots_) {
    return absl::InternalError(absl::StrCat("early offer ", offer.link_seq, " comes while ",
                                            early_offers_.size(), " are not answered, limit is ",
                                            early_slots_));
  }
  if (offer.bytes >= 1 && offer.bytes <= terms_.slot_bytes) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat("early offer ", offer.link_seq, " has ", offer.bytes,
                                          " bytes, a slot has ", terms_.slot_bytes));
}

void DecodeLink::HandleSlotEvent(const SlotEvent& event) {
  switch (event.kind) {
    case SlotEvent::Kind::kConnected:
      if (state_ == State::kAccepted) state_ = State::kUp;
      return;
    case SlotEvent::Kind::kFailed:
      return Kill(event.status);
    case SlotEvent::Kind::kDone:
      arrived_seq_ = event.link_seq;
      last_arrival_ = clock_->Now();
      return;
  }
}

void DecodeLink::CheckDeadlines() {
  const TimePoint now = clock_->Now();
  if (state_ != State::kUp) {
    if (now - opened_ <= times_.link_up) return;
    return Kill(absl::DeadlineExceededError(absl::StrCat(
        state_ == State::kWaiting ? "no LinkOpen " : "no data connection ",
        AgeAndLimit(now - opened_, times_.link_up))));
  }
  if (granted_.empty() || granted_.front().offer.link_seq <= arrived_seq_) return;
  // The peer's loop may be in a step when the grant reaches it, so bytes may start late. That they
  // flow once they started is watched by the transport.
  const Granted& oldest = granted_.front();
  const auto age = now - std::max(oldest.since, last_arrival_);
  const auto limit = times_.answer + times_.MoveLimit(oldest.offer.bytes);
  if (age <= limit) return;
  Kill(absl::UnavailableError(absl::StrCat("stalled: bytes of offer ", oldest.offer.link_seq,
                                           " have not arrived ", AgeAndLimit(age, limit))));
}

bool DecodeLink::HasOffersOf(LeaseId lease) const {
  const auto is_of = [lease](const Offer& offer) { return offer.lease == lease; };
  return std::any_of(queue_.begin(), queue_.end(), is_of) ||
         std::any_of(granted_.begin(), granted_.end(),
                     [&](const Granted& granted) { return is_of(granted.offer); });
}

void DecodeLink::Grant(Granted granted, std::span<std::byte> slot_bytes) {
  const uint64_t link_seq = granted.offer.link_seq;
  granted.since = clock_->Now();
  if (granted.offer.early) ++early_held_;
  granted_.push_back(std::move(granted));
  reader_->Expect(link_seq, slot_bytes);
  Answer(link_seq, OfferVerdict::kReady, "");
}

std::optional<DecodeLink::Granted> DecodeLink::TakeArrived() {
  if (state_ == State::kDead || granted_.empty()) return std::nullopt;
  if (granted_.front().offer.link_seq > arrived_seq_) return std::nullopt;
  Granted granted = std::move(granted_.front());
  granted_.pop_front();
  metrics_->ObservePhase(pair(), HandoffPhase::kWait, clock_->Now() - granted.since);
  return granted;
}

void DecodeLink::Answer(uint64_t link_seq, OfferVerdict verdict, std::string detail) {
  if (state_ == State::kDead) return;
  if (verdict != OfferVerdict::kReady && early_offers_.erase(link_seq) > 0) --early_held_;
  ToPrefill reply;
  reply.offers.push_back({link_seq, verdict, std::move(detail)});
  control_->Send(std::move(reply));
}

void DecodeLink::AnswerHandoff(LeaseId lease, absl::Status status) {
  if (state_ == State::kDead) return;
  ToPrefill reply;
  reply.handoffs.push_back({lease, std::move(status)});
  control_->Send(std::move(reply));
}

void DecodeLink::SendCancel(LeaseId lease, std::string_view reason) {
  if (state_ == State::kDead) return;
  ToPrefill reply;
  reply.cancels.push_back({lease, std::string(reason)});
  control_->Send(std::move(reply));
}

void DecodeLink::SendBound(std::vector<LeaseId> leases) {
  if (state_ == State::kDead) return;
  control_->Send({.bound = std::move(leases)});
}

void DecodeLink::Kill(const absl::Status& why) {
  if (state_ == State::kDead) return;
  state_ = State::kDead;
  status_ = why;
  queue_.clear();
  control_.reset();
  if (reader_ != nullptr) reader_->Close();
}

bool DecodeLink::closed() const {
  return state_ == State::kDead && (reader_ == nullptr || reader_->closed());
}

std::vector<int> DecodeLink::TakeSlots() {
  CHECK(closed());
  std::vector<int> slots;
  for (const Granted& granted : granted_) slots.push_back(granted.slot);
  granted_.clear();
  return slots;
}

}  // namespace lodestone
