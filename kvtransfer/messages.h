// What the two ends of a link tell each other, as plain structs (docs/handoff_protocol.md).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "base/ids.h"
#include "kvcache/layout.h"
#include "kvtransfer/manifest.h"
#include "kvtransfer/transport.h"

namespace lodestone {

// One more with every change that the other end has to know of: of messages, frames or their order.
// Both ends must have the same. 3: a hand-off follows the last offer, not its commit.
// 4: its tokens have a fixed size. 5: early offers. 6: the last of a prompt may be sent
// before its rows are packed.
inline constexpr int kLinkWireVersion = 6;

// First message of a link, from prefill.
struct LinkOpen {
  std::string prefill_instance = {};
  std::string decode_instance = {};  // whom we mean; another one at this address refuses
  LayoutDescriptor layout = {};
  std::vector<TransportOffer> transports = {};  // the best first; decode takes one
  int32_t wire_version = kLinkWireVersion;
  int64_t max_slot_bytes = 0;
};

// First message back, unless the link is refused.
struct LinkAccept {
  std::string decode_instance;
  int32_t data_port = 0;    // on the host of the gRPC address
  std::string session_key;  // of the transport; authenticates the data connection
  int64_t slot_bytes = 0;   // largest offer taken
  int32_t slots = 0;        // offers that may be outstanding
  std::string transport;    // the name of the one that the link runs over
  int32_t early_slots = 0;  // kept free for early offers: so many may be unanswered
  std::string fallback = {};  // why not over the first one offered; empty: it is that one
};

enum class OfferVerdict : uint8_t {
  kReady,      // a receive slot is free: send the bytes now
  kSkip,       // the request is gone: the number is used up
  kCommitted,  // applied and verified
  kCorrupt,    // rows, bytes or a digest differ; the request is dead
};

struct OfferReply {
  uint64_t link_seq = 0;
  OfferVerdict verdict = OfferVerdict::kSkip;
  std::string detail;
};

struct HandoffReply {
  LeaseId lease;
  absl::Status status;  // OK: adopted
};

struct LinkCancel {
  LeaseId lease;
  std::string reason;
};

// An empty message is a heartbeat.
struct ToDecode {
  std::optional<LinkOpen> open = {};
  std::vector<Offer> offers = {};
  std::vector<Handoff> handoffs = {};
  std::vector<LinkCancel> cancels = {};
  std::vector<LeaseId> leases = {};  // named: they live on
};

struct ToPrefill {
  std::optional<LinkAccept> accept = {};
  absl::Status refuse = {};  // not OK: the link ends
  std::vector<OfferReply> offers = {};
  std::vector<HandoffReply> handoffs = {};
  std::vector<LinkCancel> cancels = {};
  // Leases that this link has just become responsible for: however it ends, decode tells their
  // routers.
  std::vector<LeaseId> bound = {};
};

}  // namespace lodestone
