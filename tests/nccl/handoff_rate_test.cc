// The whole hand-off between two GPUs, from pages of one cache into pages of another, slots over
// NCCL: between two processes, as workers are, and in one, whose threads share a CUDA context.
// Prints rates beside the raw peer copy of the same run. handoff_copy_test.cc is the same without a
// link.
#include <gtest/gtest.h>

#include <cstdio>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/nccl/decode_process.h"
#include "tests/nccl/handoff_pair.h"
#include "tests/nccl/link_pair.h"

namespace lodestone::nccl {
namespace {

constexpr DeviceId kPrefillGpu{0};
constexpr DeviceId kDecodeGpu{1};

enum class Form { kOneProcess, kTwoProcesses };

std::unique_ptr<HandoffPair> OverNccl(Form form, int ctas, int64_t slot_bytes, int num_slots,
                                      int64_t tokens) {
  const auto end_on = [&](DeviceId gpu) {
    return EndOptions{
        .gpu = gpu, .slot_bytes = slot_bytes, .num_slots = num_slots, .tokens = tokens};
  };
  std::unique_ptr<DecodeEnd> decode;
  if (form == Form::kTwoProcesses) {
    decode = std::make_unique<DecodeProcess>(end_on(kDecodeGpu), ctas);
  } else {
    auto waker = std::make_shared<Waker>();
    decode = std::make_unique<DecodeHere>(DecodeHere::Options{
        .end = end_on(kDecodeGpu),
        .listener =
            std::make_unique<Listener>(MakeWakingEndpoint(Side::kDecode, kDecodeGpu, ctas, waker)),
        .waker = waker});
  }
  auto waker = std::make_shared<Waker>();
  return std::make_unique<HandoffPair>(
      HandoffPair::Options{.end = end_on(kPrefillGpu),
                           .dialer = std::make_unique<Dialer>(
                               MakeWakingEndpoint(Side::kPrefill, kPrefillGpu, ctas, waker)),
                           .waker = waker},
      std::move(decode));
}

class HandoffRateTest : public testing::TestWithParam<Form> {
 protected:
  void SetUp() override {
    if (const std::string why = WhyNoNccl(2); !why.empty()) GTEST_SKIP() << why;
  }
};

INSTANTIATE_TEST_SUITE_P(Forms, HandoffRateTest,
                         testing::Values(Form::kOneProcess, Form::kTwoProcesses),
                         [](const auto& test) {
                           return test.param == Form::kOneProcess ? "OneProcess" : "TwoProcesses";
                         });

TEST_P(HandoffRateTest, FromPagesIntoPages) {
  constexpr int64_t kMostTokens = 160'000;
  const double copy = PeerCopyRate(size_t{1} << 30);
  std::printf("RESULT raw peer copy of 1 GiB: %.1f GB/s\n", copy / 1e9);
  const bool one_process = GetParam() == Form::kOneProcess;
  struct Case {
    int ctas;
    int64_t slot_mib;
    int num_slots;
  };
  std::vector<Case> cases = {{16, 32, 32}};
  if (!one_process) cases.insert(cases.end(), {{8, 32, 32}, {16, 32, 16}, {32, 32, 32}});
  for (const Case& c : cases) {
    const auto pair = OverNccl(GetParam(), c.ctas, c.slot_mib << 20, c.num_slots, kMostTokens);
    MeasureHandoffs(*pair, kMostTokens, copy,
                    absl::StrCat(one_process ? "one process, " : "two processes, ", c.ctas,
                                 " CTAs, ", c.num_slots, " slots of ", c.slot_mib, " MiB"));
  }
}

}  // namespace
}  // namespace lodestone::nccl
