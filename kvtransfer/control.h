// The control stream of a link as the worker loops see it: messages in order, never blocking.
// Implementations: kvtransfer/grpc_link.h (between processes), kvtransfer/loopback.h (in one).
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "kvtransfer/messages.h"

namespace lodestone {

// One end of a control stream. Messages arrive in order and complete, or not at all and nothing
// after. The implementation sends a heartbeat every 500 ms by itself, so that a long step of the
// loop does not look like a dead process. Loop thread only. Destruction ends the stream, after what
// was sent; it does not block.
template <typename Out, typename In>
class ControlEnd {
 public:
  virtual ~ControlEnd() = default;
  virtual void Send(Out message) = 0;
  // The next message that has arrived. What came before a break is still delivered.
  virtual std::optional<In> Receive() = 0;
  // Not OK, for good, once the stream has broken or the peer has been silent for too long.
  virtual absl::Status status() const = 0;
};

using PrefillControl = ControlEnd<ToDecode, ToPrefill>;
using DecodeControl = ControlEnd<ToPrefill, ToDecode>;

class ControlDialer {
 public:
  virtual ~ControlDialer() = default;
  // Returns at once; an address that cannot be reached shows in status().
  virtual std::unique_ptr<PrefillControl> Dial(const std::string& address) = 0;
};

class ControlAcceptor {
 public:
  virtual ~ControlAcceptor() = default;
  // The next stream that a prefill worker has opened, or null.
  virtual std::unique_ptr<DecodeControl> Accept() = 0;
};

}  // namespace lodestone
