// What of a hand-off is not the link, on one GPU: pack and scatter by themselves, the control
// stream by itself, and whole hand-offs whose slots move by copies within the GPU, faster than
// between two.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "kvtransfer/rows.h"
#include "kvtransfer/staging.h"
#include "tests/kvcache/shapes.h"
#include "tests/nccl/copy_transport.h"
#include "tests/nccl/handoff_pair.h"
#include "tests/nccl/link_pair.h"

namespace lodestone::nccl {
namespace {

constexpr DeviceId kGpu{0};

std::unique_ptr<HandoffPair> OverCopies(double bytes_per_second, int64_t slot_bytes, int num_slots,
                                        int64_t tokens) {
  const EndOptions end = {
      .gpu = kGpu, .slot_bytes = slot_bytes, .num_slots = num_slots, .tokens = tokens};
  auto prefill_waker = std::make_shared<Waker>();
  auto decode_waker = std::make_shared<Waker>();
  auto network = std::make_shared<CopyNetwork>(kGpu.cuda, bytes_per_second,
                                               [prefill_waker, decode_waker] {
                                                 prefill_waker->Wake();
                                                 decode_waker->Wake();
                                               });
  auto decode = std::make_unique<DecodeHere>(
      DecodeHere::Options{.end = end,
                          .listener = std::make_unique<CopyListener>(network),
                          .waker = decode_waker});
  return std::make_unique<HandoffPair>(
      HandoffPair::Options{.end = end,
                           .dialer = std::make_unique<CopyDialer>(network),
                           .waker = prefill_waker},
      std::move(decode));
}

class HandoffCopyTest : public testing::Test {
 protected:
  void SetUp() override {
    int gpus = 0;
    if (cudaGetDeviceCount(&gpus) != cudaSuccess || gpus < 1) GTEST_SKIP() << "no GPU";
  }
};

// Pack and scatter of one slot by themselves: what the hand-off adds to a send.
TEST_F(HandoffCopyTest, PackAndScatterAlone) {
  constexpr int64_t kTokens = 32'768;
  GpuSide gpu(kGpu, FlashShape(), kTokens);
  auto cache = gpu.pool->MakeSequenceFor(kTokens).value();
  ASSERT_TRUE(cache->Reserve(kTokens).ok());
  const std::vector<RowRun> all = cache->AppendRuns(0, kTokens);
  FillRuns(all, kGpu);
  for (int64_t mib : {8, 32}) {
    const int64_t slot_bytes = mib << 20;
    StagingSlots slots =
        StagingSlots::Allocate(2, slot_bytes, WorkMemory(kGpu), &gpu.stream).value();
    const int slot = slots.Take().value();
    TimePoint start = RealClock()->Now();
    RunPlace place;
    const std::vector<RowRun> runs = TakeRows(all, INT64_MAX, slot_bytes, place);
    const double slice_us = 1e6 * SecondsSince(start);
    const int64_t rows = CountRows(runs);
    RowDigests packed = {};
    RowDigests scattered = {};
    for (bool pack : {true, false}) {
      constexpr int kRepeats = 20;
      double launch = 0;
      for (int repeat = -1; repeat < kRepeats; ++repeat) {
        if (repeat == 0) {
          ASSERT_TRUE(slots.stream().Synchronize().ok());
          start = RealClock()->Now();
        }
        const MoveRowsParams params{.runs = runs,
                                    .slot = slots.bytes(slot).data(),
                                    .slot_bytes = slot_bytes,
                                    .digests = slots.BeginMove(slot)};
        const TimePoint before = RealClock()->Now();
        pack ? gpu.ops->PackRows(params, slots.stream())
             : gpu.ops->ScatterRows(params, slots.stream());
        launch += repeat < 0 ? 0 : SecondsSince(before);
        slots.EndMove(slot);
      }
      ASSERT_TRUE(slots.stream().Synchronize().ok());
      const double us = 1e6 * SecondsSince(start) / kRepeats;
      ASSERT_TRUE(slots.Moved(slot, pack ? packed : scattered).value());
      std::printf("RESULT %s of %lld MiB, %zu runs, %lld rows: %.1f us = %.0f GB/s, "
                  "launching %.1f us, slicing %.1f us\n",
                  pack ? "pack" : "scatter", static_cast<long long>(mib), runs.size(),
                  static_cast<long long>(rows), us,
                  static_cast<double>(TotalBytes(CountKinds(runs))) / us / 1e3,
                  1e6 * launch / kRepeats, slice_us);
    }
    EXPECT_EQ(std::memcmp(packed, scattered, sizeof(packed)), 0);
    slots.GiveBack(slot);
  }
}

// Messages there and back between two threads that look for them without sleep: what a grant takes
// at least.
TEST(ControlStreamTest, RoundTrips) {
  if (std::thread::hardware_concurrency() < 8) GTEST_SKIP() << "six threads look without sleep";
  LinkTimes times;
  times.spin = std::chrono::milliseconds(1);
  GrpcDialer dialer(grpc::InsecureChannelCredentials(), times);
  GrpcLinkService service(times);
  GrpcServer server = StartGrpcServer("127.0.0.1", 0, {&service}).value();
  std::atomic<bool> stop = false;
  std::thread decode([&] {
    std::unique_ptr<DecodeControl> control;
    while (!stop) {
      if (control == nullptr) control = service.Accept();
      if (control == nullptr) continue;
      while (std::optional<ToDecode> message = control->Receive()) {
        for (const Offer& offer : message->offers) {
          control->Send({.offers = {{offer.link_seq, OfferVerdict::kReady, ""}}});
        }
      }
    }
  });
  std::unique_ptr<PrefillControl> control = dialer.Dial(absl::StrCat("127.0.0.1:", server.port));
  uint64_t seq = 0;
  for (int burst : {1, 1, 2, 8}) {
    std::vector<double> us;
    for (int repeat = 0; repeat < 1000; ++repeat) {
      const TimePoint start = RealClock()->Now();
      for (int i = 0; i < burst; ++i) {
        Offer offer{.link_seq = ++seq, .lease = LeaseId(7), .num_rows = 30'000, .bytes = 1 << 25};
        for (KindRows& kind : offer.kinds) kind = {10'000, 1 << 24, seq * 0x9e3779b97f4a7c15u};
        control->Send({.offers = {offer}});
      }
      uint64_t answered = 0;
      while (answered < seq && SecondsSince(start) < 5) {
        if (std::optional<ToPrefill> reply = control->Receive()) {
          for (const OfferReply& one : reply->offers) answered = one.link_seq;
        }
      }
      ASSERT_EQ(answered, seq) << control->status();
      us.push_back(1e6 * SecondsSince(start));
    }
    std::sort(us.begin(), us.end());
    std::printf("RESULT control stream, %d offers at once until all are answered: %.1f us median, "
                "%.1f least, %.1f 99th of a hundred\n",
                burst, us[us.size() / 2], us.front(), us[us.size() * 99 / 100]);
  }
  control.reset();
  stop = true;
  decode.join();
  service.Shutdown();
  server.Shutdown(std::chrono::seconds(2));
}

TEST_F(HandoffCopyTest, FromPagesIntoPages) {
  constexpr int64_t kMostTokens = 160'000;
  constexpr double kLinkRate = 395e9;  // of a raw copy between two H200
  struct Case {
    double bytes_per_second;
    int64_t slot_mib;
    int num_slots;
  };
  for (const Case& c : {Case{0, 8, 32}, Case{0, 16, 32}, Case{0, 32, 16}, Case{0, 32, 32},
                        Case{kLinkRate, 16, 32}, Case{kLinkRate, 32, 16}}) {
    const auto pair = OverCopies(c.bytes_per_second, c.slot_mib << 20, c.num_slots, kMostTokens);
    MeasureHandoffs(*pair, kMostTokens, kLinkRate,
                    absl::StrCat("one GPU, a copy for the link",
                                 c.bytes_per_second > 0 ? " held to 395 GB/s, " : ", ", c.num_slots,
                                 " slots of ", c.slot_mib, " MiB"));
  }
}

}  // namespace
}  // namespace lodestone::nccl
