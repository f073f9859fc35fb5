// The whole hand-off between two GPUs, from pages of one cache into pages of another, slots over
// NCCL. Prints rates beside the raw peer copy of the same run. handoff_copy_test.cc is the same
// without a link.
#include <gtest/gtest.h>

#include <cstdio>

#include "absl/strings/str_cat.h"
#include "tests/nccl/handoff_pair.h"
#include "tests/nccl/link_pair.h"

namespace lodestone::nccl {
namespace {

constexpr DeviceId kPrefillGpu{0};
constexpr DeviceId kDecodeGpu{1};

std::unique_ptr<Endpoint> MakeWakingEndpoint(Side side, DeviceId device, int ctas,
                                             std::shared_ptr<Waker> waker) {
  return Endpoint::Create({.device = device.cuda,
                           .side = side,
                           .ctas = ctas,
                           .max_links = 2,
                           .wake = [waker] { waker->Wake(); }})
      .value();
}

HandoffPair::Options OverNccl(int ctas, int64_t slot_bytes, int num_slots, int64_t tokens) {
  HandoffPair::Options options{.prefill_gpu = kPrefillGpu,
                               .decode_gpu = kDecodeGpu,
                               .prefill_waker = std::make_shared<Waker>(),
                               .decode_waker = std::make_shared<Waker>(),
                               .slot_bytes = slot_bytes,
                               .num_slots = num_slots,
                               .tokens = tokens};
  options.dialer = std::make_unique<Dialer>(
      MakeWakingEndpoint(Side::kPrefill, kPrefillGpu, ctas, options.prefill_waker));
  options.listener = std::make_unique<Listener>(
      MakeWakingEndpoint(Side::kDecode, kDecodeGpu, ctas, options.decode_waker));
  return options;
}

class HandoffRateTest : public testing::Test {
 protected:
  void SetUp() override {
    if (const std::string why = WhyNoNccl(2); !why.empty()) GTEST_SKIP() << why;
  }
};

TEST_F(HandoffRateTest, FromPagesIntoPages) {
  constexpr int64_t kMostTokens = 160'000;
  const double copy = PeerCopyRate(size_t{1} << 30);
  std::printf("RESULT raw peer copy of 1 GiB: %.1f GB/s\n", copy / 1e9);
  struct Case {
    int ctas;
    int64_t slot_mib;
    int num_slots;
  };
  for (const Case& c : {Case{8, 32, 16}, Case{8, 32, 32}, Case{16, 16, 32}, Case{16, 32, 16},
                        Case{16, 32, 32}, Case{32, 32, 32}}) {
    HandoffPair pair(OverNccl(c.ctas, c.slot_mib << 20, c.num_slots, kMostTokens));
    MeasureHandoffs(pair, kMostTokens, copy,
                    absl::StrCat(c.ctas, " CTAs, ", c.num_slots, " slots of ", c.slot_mib, " MiB"));
  }
}

}  // namespace
}  // namespace lodestone::nccl
