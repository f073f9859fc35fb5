// A TCP proxy that does to connections what networks and their worst days do. Put it between a
// prefill and a decode worker: it takes connections at its own address and hands every byte on to
// the target, except as its weather or its rule says.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "kvtransfer/socket.h"

namespace lodestone {

// What happens to all bytes of the proxy.
enum class Weather : uint8_t {
  kClear,
  kCut,         // every connection is reset, new ones are too
  kBlackHole,   // nothing arrives any more in either direction, and no one is told
  kNoForward,   // as kBlackHole, only towards the target
  kNoBackward,  // as kBlackHole, only from the target
  kTrickle,     // a few bytes at a time: a peer that is slow, not dead
};

// What happens to one frame of a data connection (kvtransfer/frame.h).
enum class FrameFault : uint8_t {
  kNone,
  kFlipPayloadBit,
  kFlipHeaderBit,
  kForgeHeader,  // another number or length, with the right checksum
  kSwapRows,     // two pieces of the payload change places
  kDropBytes,    // some are missing in the middle, what follows moves up
  kShorten,      // the last ones are missing, then the connection ends
  kDuplicate,    // sent twice
  kReorder,      // sent after the next one
  kRepeatOld,    // an earlier frame of this connection comes first
  kStaleEpoch,   // a frame of an earlier connection comes first
  kDelay,        // sent after `delay`
  kStall,        // half of it, then nothing until the peer has gone
  kReset,        // the connection is reset in the middle of it
};
inline constexpr int kNumFrameFaults = 14;
std::string_view Name(FrameFault fault);

// Thread-safe.
class FaultProxy {
 public:
  struct Options {
    std::string listen_host = "127.0.0.1";
    int listen_port = 0;  // 0: any free one
    std::string target_host = "127.0.0.1";
    int target_port = 0;
    bool frames = false;  // a data connection: the rule sees its frames
    // How long a frame that is to be reordered waits for the one that overtakes it.
    std::chrono::milliseconds next_frame{50};
    uint64_t seed = 1;
  };
  // Called for every slot frame before it is sent; `number` is its link_seq.
  using Rule = std::function<FrameFault(uint64_t number)>;

  static absl::StatusOr<std::unique_ptr<FaultProxy>> Start(const Options& options);
  ~FaultProxy();

  int port() const { return port_; }
  void SetWeather(Weather weather) { weather_ = weather; }
  void SetRule(Rule rule, std::chrono::milliseconds delay = std::chrono::milliseconds(0));
  // How often a fault other than kNone has been done. Not counted: one that had to be left out (the
  // first frame of all has no earlier one to repeat).
  int64_t num_done(FrameFault fault) const { return done_[static_cast<size_t>(fault)]; }
  int64_t num_frames() const { return num_frames_; }
  int64_t num_connections() const { return num_connections_; }
  // Connections that may still carry a frame.
  int64_t num_open() const { return num_open_; }

 private:
  class Connection;
  using Frame = std::vector<std::byte>;

  FaultProxy(Options options, Listening listening);
  void Serve();
  void ReapEnded();
  void AcceptOne();
  FrameFault Decide(const Frame& frame);
  size_t Below(size_t limit);  // random

  const Options options_;
  const Socket socket_;
  const int port_;
  std::atomic<bool> stop_{false};
  std::atomic<Weather> weather_{Weather::kClear};
  std::atomic<int64_t> num_frames_{0}, num_connections_{0}, num_open_{0};
  std::array<std::atomic<int64_t>, kNumFrameFaults> done_{};
  std::atomic<int64_t> delay_ms_{0};
  Mutex mutex_;
  Rule rule_ GUARDED_BY(mutex_);
  std::mt19937_64 random_ GUARDED_BY(mutex_);
  Frame last_of_earlier_ GUARDED_BY(mutex_);            // of a connection that has ended
  std::list<std::unique_ptr<Connection>> connections_;  // the thread's
  std::thread thread_;
};

}  // namespace lodestone
