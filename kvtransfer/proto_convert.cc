#include "kvtransfer/proto_convert.h"

#include <array>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "proto/convert.h"

namespace lodestone {
namespace {

absl::Status Negative(std::string_view field, int64_t value) {
  return absl::InvalidArgumentError(absl::StrCat(std::string(field), " is ", value));
}

template <typename Repeated>
void SetManifest(const Manifest& manifest, Repeated* proto) {
  for (size_t kind = 0; kind < manifest.size(); ++kind) {
    const KindRows& rows = manifest[kind];
    if (rows == KindRows{}) continue;
    v1::KindRows* entry = proto->Add();
    entry->set_kind(static_cast<int32_t>(kind));
    entry->set_rows(rows.rows);
    entry->set_bytes(rows.bytes);
    entry->set_digest(rows.digest);
  }
}

template <typename Repeated>
absl::StatusOr<Manifest> ParseManifest(const Repeated& proto) {
  Manifest manifest{};
  std::array<bool, kNumCacheKinds> seen{};
  for (const v1::KindRows& entry : proto) {
    if (entry.kind() < 0 || entry.kind() >= kNumCacheKinds) {
      return absl::InvalidArgumentError(
          absl::StrCat("cache kind is ", entry.kind(), ", known are 0 to ", kNumCacheKinds - 1));
    }
    const auto kind = static_cast<size_t>(entry.kind());
    if (seen[kind]) {
      return absl::InvalidArgumentError(absl::StrCat("cache kind ", entry.kind(), " occurs twice"));
    }
    seen[kind] = true;
    if (entry.rows() < 0) return Negative("rows", entry.rows());
    if (entry.bytes() < 0) return Negative("bytes", entry.bytes());
    manifest[kind] = {.rows = entry.rows(), .bytes = entry.bytes(), .digest = entry.digest()};
  }
  return manifest;
}

void SetOffer(const Offer& offer, v1::Offer* proto) {
  proto->set_link_seq(offer.link_seq);
  proto->set_lease_id(offer.lease.value());
  proto->set_chunk(offer.chunk);
  proto->set_from_tokens(offer.from_tokens);
  proto->set_to_tokens(offer.to_tokens);
  proto->set_final(offer.final);
  proto->set_first_row(offer.first_row);
  proto->set_num_rows(offer.num_rows);
  proto->set_bytes(offer.bytes);
  SetManifest(offer.kinds, proto->mutable_kinds());
  proto->set_early(offer.early);
  proto->set_packing(offer.packing);
}

absl::StatusOr<Offer> ParseOffer(const v1::Offer& proto) {
  Offer offer{.link_seq = proto.link_seq(),
              .lease = LeaseId(proto.lease_id()),
              .chunk = proto.chunk(),
              .from_tokens = proto.from_tokens(),
              .to_tokens = proto.to_tokens(),
              .final = proto.final(),
              .first_row = proto.first_row(),
              .num_rows = proto.num_rows(),
              .bytes = proto.bytes(),
              .early = proto.early(),
              .packing = proto.packing()};
  if (offer.from_tokens < 0) return Negative("from_tokens", offer.from_tokens);
  if (offer.to_tokens < 0) return Negative("to_tokens", offer.to_tokens);
  if (offer.first_row < 0) return Negative("first_row", offer.first_row);
  if (offer.num_rows < 0) return Negative("num_rows", offer.num_rows);
  if (offer.bytes < 0) return Negative("bytes", offer.bytes);
  ASSIGN_OR_RETURN(offer.kinds, ParseManifest(proto.kinds()));
  return offer;
}

void SetHandoff(const Handoff& handoff, v1::Handoff* proto) {
  proto->set_lease_id(handoff.lease.value());
  proto->set_request_id(handoff.request_id);
  proto->mutable_tokens()->Add(handoff.tokens.begin(), handoff.tokens.end());
  proto->set_num_generated(handoff.num_generated);
  *proto->mutable_first_token() = ToProto(handoff.first_token);
  *proto->mutable_sampling() = ToProto(handoff.sampling);
  for (const HandoffFork& fork : handoff.forks) {
    v1::HandoffFork* entry = proto->add_forks();
    entry->set_lease_id(fork.lease.value());
    entry->set_seed(fork.seed);
    *entry->mutable_first_token() = ToProto(fork.first_token);
  }
  SetManifest(handoff.totals, proto->mutable_totals());
}

absl::StatusOr<Handoff> ParseHandoff(const v1::Handoff& proto) {
  Handoff handoff;
  handoff.lease = LeaseId(proto.lease_id());
  handoff.request_id = proto.request_id();
  handoff.tokens.assign(proto.tokens().begin(), proto.tokens().end());
  handoff.num_generated = proto.num_generated();
  if (handoff.num_generated < 0) return Negative("num_generated", handoff.num_generated);
  if (handoff.num_generated > proto.tokens_size()) {
    return absl::InvalidArgumentError(absl::StrCat("num_generated is ", handoff.num_generated,
                                                   " of ", proto.tokens_size(), " tokens"));
  }
  handoff.first_token = FromProto(proto.first_token());
  handoff.sampling = FromProto(proto.sampling());
  for (const v1::HandoffFork& entry : proto.forks()) {
    handoff.forks.push_back(
        {LeaseId(entry.lease_id()), entry.seed(), FromProto(entry.first_token())});
  }
  ASSIGN_OR_RETURN(handoff.totals, ParseManifest(proto.totals()));
  return handoff;
}

void SetOpen(const LinkOpen& open, v1::LinkOpen* proto) {
  proto->set_prefill_instance_id(open.prefill_instance);
  proto->set_decode_instance_id(open.decode_instance);
  proto->mutable_layout()->set_fingerprint(LayoutFingerprint(open.layout));
  for (const LayoutField& field : open.layout) {
    v1::LayoutField* entry = proto->mutable_layout()->add_fields();
    entry->set_name(field.name);
    entry->set_value(field.value);
  }
  for (const TransportOffer& offer : open.transports) {
    v1::TransportOffer* entry = proto->add_transports();
    entry->set_name(offer.name);
    entry->set_place(offer.place);
  }
  proto->set_wire_version(open.wire_version);
  proto->set_max_slot_bytes(open.max_slot_bytes);
}

absl::StatusOr<LinkOpen> ParseOpen(const v1::LinkOpen& proto) {
  LinkOpen open{.prefill_instance = proto.prefill_instance_id(),
                .decode_instance = proto.decode_instance_id(),
                .wire_version = proto.wire_version(),
                .max_slot_bytes = proto.max_slot_bytes()};
  if (!InstanceId::FromString(open.prefill_instance)) {
    return absl::InvalidArgumentError("prefill_instance_id is not 32 hex digits");
  }
  if (open.max_slot_bytes < 1) return Negative("max_slot_bytes", open.max_slot_bytes);
  for (const v1::TransportOffer& offer : proto.transports()) {
    open.transports.push_back({offer.name(), offer.place()});
  }
  for (const v1::LayoutField& field : proto.layout().fields()) {
    open.layout.push_back({field.name(), field.value()});
  }
  if (const uint64_t computed = LayoutFingerprint(open.layout);
      computed != proto.layout().fingerprint()) {
    return absl::InvalidArgumentError(
        absl::StrCat("layout fingerprint is ", absl::Hex(proto.layout().fingerprint()),
                     ", its fields give ", absl::Hex(computed)));
  }
  return open;
}

v1::OfferResult::Kind ToProtoKind(OfferVerdict verdict) {
  switch (verdict) {
    case OfferVerdict::kReady: return v1::OfferResult::READY;
    case OfferVerdict::kSkip: return v1::OfferResult::SKIP;
    case OfferVerdict::kCommitted: return v1::OfferResult::COMMITTED;
    case OfferVerdict::kCorrupt: return v1::OfferResult::CORRUPT;
  }
  return v1::OfferResult::KIND_UNSPECIFIED;
}

absl::StatusOr<OfferReply> ParseOfferReply(const v1::OfferResult& proto) {
  OfferReply reply{.link_seq = proto.link_seq(), .detail = proto.detail()};
  switch (proto.kind()) {
    case v1::OfferResult::READY: reply.verdict = OfferVerdict::kReady; return reply;
    case v1::OfferResult::SKIP: reply.verdict = OfferVerdict::kSkip; return reply;
    case v1::OfferResult::COMMITTED: reply.verdict = OfferVerdict::kCommitted; return reply;
    case v1::OfferResult::CORRUPT: reply.verdict = OfferVerdict::kCorrupt; return reply;
    default: break;
  }
  return absl::InvalidArgumentError(absl::StrCat("result of offer ", proto.link_seq(), " is ",
                                                 static_cast<int>(proto.kind())));
}

template <typename Repeated>
void SetCancels(const std::vector<LinkCancel>& cancels, Repeated* proto) {
  for (const LinkCancel& cancel : cancels) {
    v1::LinkCancel* entry = proto->Add();
    entry->set_lease_id(cancel.lease.value());
    entry->set_reason(cancel.reason);
  }
}

template <typename Repeated>
std::vector<LinkCancel> ParseCancels(const Repeated& proto) {
  std::vector<LinkCancel> cancels;
  for (const v1::LinkCancel& cancel : proto) {
    cancels.push_back({LeaseId(cancel.lease_id()), cancel.reason()});
  }
  return cancels;
}

}  // namespace

v1::LinkRequest ToProto(const ToDecode& message) {
  v1::LinkRequest proto;
  if (message.open) SetOpen(*message.open, proto.mutable_open());
  for (const Offer& offer : message.offers) SetOffer(offer, proto.add_offers());
  for (const Handoff& handoff : message.handoffs) SetHandoff(handoff, proto.add_handoffs());
  SetCancels(message.cancels, proto.mutable_cancels());
  for (LeaseId lease : message.leases) proto.add_leases(lease.value());
  return proto;
}

absl::StatusOr<ToDecode> FromProto(const v1::LinkRequest& proto) {
  ToDecode message;
  if (proto.has_open()) {
    ASSIGN_OR_RETURN(message.open, ParseOpen(proto.open()));
  }
  for (const v1::Offer& entry : proto.offers()) {
    ASSIGN_OR_RETURN(Offer offer, ParseOffer(entry));
    message.offers.push_back(std::move(offer));
  }
  for (const v1::Handoff& entry : proto.handoffs()) {
    ASSIGN_OR_RETURN(Handoff handoff, ParseHandoff(entry));
    message.handoffs.push_back(std::move(handoff));
  }
  message.cancels = ParseCancels(proto.cancels());
  for (uint64_t lease : proto.leases()) message.leases.push_back(LeaseId(lease));
  return message;
}

v1::LinkReply ToProto(const ToPrefill& message) {
  v1::LinkReply proto;
  if (message.accept) {
    v1::LinkAccept* accept = proto.mutable_accept();
    accept->set_decode_instance_id(message.accept->decode_instance);
    accept->set_data_port(static_cast<uint32_t>(message.accept->data_port));
    accept->set_session_key(message.accept->session_key);
    accept->set_slot_bytes(message.accept->slot_bytes);
    accept->set_slots(message.accept->slots);
    accept->set_transport(message.accept->transport);
    accept->set_early_slots(message.accept->early_slots);
    accept->set_fallback(message.accept->fallback);
  }
  if (!message.refuse.ok()) *proto.mutable_refuse() = ToProto(message.refuse);
  for (const OfferReply& reply : message.offers) {
    v1::OfferResult* result = proto.add_offers();
    result->set_link_seq(reply.link_seq);
    result->set_kind(ToProtoKind(reply.verdict));
    result->set_detail(reply.detail);
  }
  for (const HandoffReply& reply : message.handoffs) {
    v1::HandoffResult* result = proto.add_handoffs();
    result->set_lease_id(reply.lease.value());
    if (!reply.status.ok()) *result->mutable_error() = ToProto(reply.status);
  }
  SetCancels(message.cancels, proto.mutable_cancels());
  for (LeaseId lease : message.bound) proto.add_bound(lease.value());
  return proto;
}

absl::StatusOr<ToPrefill> FromProto(const v1::LinkReply& proto) {
  ToPrefill message;
  if (proto.has_accept()) {
    if (proto.accept().data_port() > 65535) {
      return Negative("data_port", proto.accept().data_port());
    }
    message.accept = LinkAccept{.decode_instance = proto.accept().decode_instance_id(),
                                .data_port = static_cast<int32_t>(proto.accept().data_port()),
                                .session_key = proto.accept().session_key(),
                                .slot_bytes = proto.accept().slot_bytes(),
                                .slots = proto.accept().slots(),
                                .transport = proto.accept().transport(),
                                .early_slots = proto.accept().early_slots(),
                                .fallback = proto.accept().fallback()};
  }
  message.refuse = FromProto(proto.refuse());
  for (const v1::OfferResult& entry : proto.offers()) {
    ASSIGN_OR_RETURN(OfferReply reply, ParseOfferReply(entry));
    message.offers.push_back(std::move(reply));
  }
  for (const v1::HandoffResult& entry : proto.handoffs()) {
    message.handoffs.push_back({LeaseId(entry.lease_id()), FromProto(entry.error())});
  }
  message.cancels = ParseCancels(proto.cancels());
  for (uint64_t lease : proto.bound()) message.bound.push_back(LeaseId(lease));
  return message;
}

}  // namespace lodestone
