// How the bytes of staging slots get from a prefill to a decode worker. Implementations:
// kvtransfer/tcp_transport.h (any two machines), kvtransfer/nccl/transport.h (two GPUs),
// kvtransfer/loopback.h (in one process, with faults).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace lodestone {

// A session key is minted by decode for one link and travels over its control stream only.
inline constexpr size_t kSessionKeyBytes = 32;

struct SlotEvent {
  enum class Kind : uint8_t {
    kConnected,
    kDone,    // the bytes of `link_seq` have left, or have arrived
    kFailed,  // the connection is unusable, for good; `status` says why
  };
  Kind kind = Kind::kFailed;
  uint64_t link_seq = 0;
  absl::Status status = {};
};

// One end of the data connection of one link. Slots are moved one after the other, in the order of
// link_seq. Calls come from the worker loop and never block; the slot memory is the caller's and
// must stay until kDone for it, or until closed().
class SlotStream {
 public:
  virtual ~SlotStream() = default;  // closes, and waits for the I/O thread unless closed()
  virtual std::optional<SlotEvent> Poll() = 0;
  // Slots will be posted soon: an I/O thread that sleeps may wake up meanwhile.
  virtual void Prepare() {}
  // Ends the connection. Idempotent. Slot memory may be in use until closed() is true, which takes
  // an I/O thread a moment.
  virtual void Close() = 0;
  virtual bool closed() const = 0;
};

class SlotWriter : public SlotStream {
 public:
  virtual void Write(uint64_t link_seq, std::span<const std::byte> bytes) = 0;
};

class SlotReader : public SlotStream {
 public:
  // The next frame must be `link_seq` and fill `slot` exactly; anything else fails the stream.
  virtual void Expect(uint64_t link_seq, std::span<std::byte> slot) = 0;
};

// What a link can run over, as one end offers it: a kind of transport, and, where that matters,
// where this end is (a GPU), which two ends of one kind may not share.
struct TransportOffer {
  std::string name = {};
  std::string place = {};
  friend bool operator==(const TransportOffer&, const TransportOffer&) = default;
};

// What both sides of a transport say of it.
class DataTransport {
 public:
  virtual ~DataTransport() = default;
  virtual std::string_view name() const = 0;  // as in LinkOpen.transports
  // Slots lie in memory of the worker's GPU; else in memory of its host.
  virtual bool slots_on_device() const { return false; }
  // Bytes may be written before the other end expects them: they wait for it.
  virtual bool takes_early_bytes() const { return false; }
  virtual std::string place() const { return ""; }
  // Not OK, for good: it holds memory that it cannot give back, and the process must end.
  virtual absl::Status health() const { return absl::OkStatus(); }
};

// Prefill side. `host` is the host of the decode worker's gRPC address, never one from the wire.
class DataDialer : public DataTransport {
 public:
  virtual size_t session_key_bytes() const { return kSessionKeyBytes; }
  virtual std::unique_ptr<SlotWriter> Connect(const std::string& host, int port,
                                              const std::string& session_key) = 0;
};

// Decode side: one listener for all links; a connection finds its link by the session key.
class DataListener : public DataTransport {
 public:
  virtual int port() const = 0;
  // Whether a link to that end can come up, as far as is known before.
  virtual bool Reaches(const TransportOffer& offer) const { return offer.name == name(); }
  // Random bytes, unless the transport has keys of its own. UNAVAILABLE if it cannot make one.
  virtual absl::StatusOr<std::string> NewSessionKey();
  virtual std::unique_ptr<SlotReader> Open(const std::string& session_key) = 0;
};

// "host:port" and "[v6]:port" without the port.
std::string HostOf(const std::string& address);

}  // namespace lodestone
