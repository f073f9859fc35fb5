// Links over NCCL whose other end is a process of its own, as workers have it: between two GPUs,
// and between two processes on one GPU that NCCL takes for two hosts, so that it uses its network.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "tests/nccl/link_pair.h"
#include "tests/testing/long_tests.h"

namespace lodestone::nccl {

class LinkOfProcessesTest : public testing::TestWithParam<Placement> {
 protected:
  void SetUp() override {
    if (const std::string why = WhyNoNccl(GetParam().other_gpu() + 1); !why.empty())
      GTEST_SKIP() << why;
  }
  static const char* name() { return GetParam().name; }
  // Between two processes on one GPU everything takes longer, since they take turns.
  static int Times(int many, int few) { return GetParam().two_hosts && !LongTests() ? few : many; }
};

// A decode worker's end of links in this process, with two slots.
class Receiving {
 public:
  Receiving(const Placement& placement, size_t slot_bytes, int ctas = 8)
      : decode_(MakeEndpoint(Side::kDecode, placement.other_gpu(), ctas)),
        listener_(decode_.get()),
        slots_(placement.other_gpu(), 2 * slot_bytes),
        slot_bytes_(slot_bytes) {}

  std::string NewKey() { return listener_.NewSessionKey().value(); }
  std::span<std::byte> slot(uint64_t seq) const {
    return slots_.span().subspan(seq % 2 * slot_bytes_, slot_bytes_);
  }
  std::unique_ptr<SlotReader> Open(const std::string& key) { return listener_.Open(key); }
  DeviceBytes& slots() { return slots_; }
  Endpoint& endpoint() { return *decode_; }

 private:
  std::unique_ptr<Endpoint> decode_;
  Listener listener_;
  DeviceBytes slots_;
  const size_t slot_bytes_;
};

inline bool ComesUp(SlotStream& stream) {
  const auto event = NextEvent(stream, std::chrono::milliseconds(20'000));
  return event.has_value() && event->kind == SlotEvent::Kind::kConnected;
}
inline bool Passes(SlotStream& stream, uint64_t seq) {
  const auto event = NextEvent(stream, std::chrono::milliseconds(3'000));
  return event.has_value() && event->kind == SlotEvent::Kind::kDone && event->link_seq == seq;
}

}  // namespace lodestone::nccl
