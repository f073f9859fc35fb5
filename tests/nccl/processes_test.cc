// Links between processes that come and go, wait for a place, have neighbours, and their rates.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>

#include "tests/nccl/link_of_processes.h"

namespace lodestone::nccl {
namespace {

using std::chrono::milliseconds;
using Kind = SlotEvent::Kind;

constexpr size_t kSlotBytes = size_t{32} << 20;

INSTANTIATE_TEST_SUITE_P(Placements, LinkOfProcessesTest,
                         testing::Values(kTwoGpus, kTwoHostsOnOneGpu),
                         testing::PrintToStringParamName());

TEST(PlaceTest, OneGpuIsTwoPlacesOnTwoHosts) {
  if (const std::string why = WhyNoNccl(1); !why.empty()) GTEST_SKIP() << why;
  const auto prefill = MakeEndpoint(Side::kPrefill, 0);
  const auto here = MakeEndpoint(Side::kDecode, 0);
  setenv("NCCL_HOSTID", "another host", 1);
  const auto there = MakeEndpoint(Side::kDecode, 0);
  unsetenv("NCCL_HOSTID");
  const TransportOffer offer{"nccl", prefill->place()};
  EXPECT_FALSE(Listener(here.get()).Reaches(offer));
  EXPECT_TRUE(Listener(there.get()).Reaches(offer));
}

// This end closes while the other sends, which notices it in its own way.
TEST_P(LinkOfProcessesTest, LinksOfTwoProcessesLeaveDeviceMemoryAsAfterTheSecond) {
  Receiving decode(GetParam(), kSlotBytes);
  std::string key = decode.NewKey();
  auto reader = decode.Open(key);
  SenderProcess sender(GetParam(), key, kSlotBytes);
  int64_t free = 0;
  int64_t taken = 0;
  const TimePoint start = RealClock()->Now();
  const int links = Times(60, 3);
  for (int i = 1; i <= links; ++i) {
    ASSERT_TRUE(ComesUp(*reader)) << i;
    if (i == 3) taken = free - FreeBytes(GetParam().other_gpu());
    for (uint64_t seq = 1; seq <= 3; ++seq) {
      reader->Expect(seq, decode.slot(seq));
      ASSERT_TRUE(seq > static_cast<uint64_t>(i % 3) || Passes(*reader, seq));
    }
    reader->Close();
    ASSERT_TRUE(WaitFor([&] { return decode.endpoint().num_links() == 0; }, milliseconds(5'000)));
    if (i == 2) free = FreeBytes(GetParam().other_gpu());
    key = decode.NewKey();
    reader = decode.Open(key);
    sender.Relink(key);
  }
  ASSERT_TRUE(ComesUp(*reader));
  reader->Close();
  ASSERT_TRUE(WaitFor([&] { return decode.endpoint().num_links() == 0; }, milliseconds(5'000)));
  const int64_t lost = free - FreeBytes(GetParam().other_gpu());
  std::printf("RESULT %s, %d links: %.3f s per link up and down; %lld bytes of device memory less; "
              "a link takes %lld\n",
              name(), links + 1, SecondsSince(start) / (links + 1), static_cast<long long>(lost),
              static_cast<long long>(taken));
  EXPECT_LE(lost, 1 << 20);
}

// A link that comes again, as after an idle while, does so while the last one is still aborted.
TEST_P(LinkOfProcessesTest, OneThatFindsNoPlaceWaitsForOneThatCloses) {
  auto decode = Endpoint::Create({.device = GetParam().other_gpu(),
                                  .side = Side::kDecode,
                                  .max_links = 1,
                                  .times = QuickTimes()})
                    .value();
  Listener listener(decode.get());
  const auto new_key = [&] { return listener.NewSessionKey().value(); };
  std::string key = new_key();
  auto first = listener.Open(key);
  SenderProcess sender(GetParam(), key, kSlotBytes);
  ASSERT_TRUE(ComesUp(*first));
  first->Close();
  key = new_key();
  auto second = listener.Open(key);
  sender.Relink(key);
  ASSERT_TRUE(ComesUp(*second));

  auto refused = listener.Open(new_key());  // nothing closes
  const auto event = NextEvent(*refused, milliseconds(10));
  ASSERT_TRUE(event && event->kind == Kind::kFailed);
  EXPECT_EQ(event->status.code(), absl::StatusCode::kResourceExhausted) << event->status;

  second->Close();
  auto gives_up = listener.Open(new_key());
  gives_up->Close();
  auto next = listener.Open(new_key());
  EXPECT_FALSE(next->Poll().has_value()) << "it waits for the place that the one before gave up";
  next->Close();
  EXPECT_TRUE(WaitFor([&] { return gives_up->closed(); }, milliseconds(1'000)));
  EXPECT_TRUE(WaitFor([&] { return decode->num_links() == 0; }, milliseconds(2'000)));
}

// Two senders, one decode worker; one sender dies and its link is aborted while the other's slots
// go on arriving.
TEST_P(LinkOfProcessesTest, TheAbortOfAHungLinkLetsItsNeighbourFlow) {
  Receiving decode(GetParam(), kSlotBytes);
  const std::string key_a = decode.NewKey();
  const std::string key_b = decode.NewKey();
  auto a = decode.Open(key_a);
  auto b = decode.Open(key_b);
  SenderProcess sender_a(GetParam(), key_a, kSlotBytes);
  SenderProcess sender_b(GetParam(), key_b, kSlotBytes);
  ASSERT_TRUE(ComesUp(*a));
  ASSERT_TRUE(ComesUp(*b));
  DeviceBytes slots(GetParam().other_gpu(), 2 * kSlotBytes);
  a->Expect(1, decode.slot(1));
  ASSERT_TRUE(Passes(*a, 1));

  uint64_t seq = 0;
  // The longest wait for one slot of b, and how many came, in `span`.
  const auto flow = [&](milliseconds span) {
    double longest = 0;
    int count = 0;
    const TimePoint until = RealClock()->Now() + span;
    while (RealClock()->Now() < until) {
      const TimePoint start = RealClock()->Now();
      b->Expect(++seq, slots.span().first(kSlotBytes));
      if (!Passes(*b, seq)) return std::pair(99.0, count);
      longest = std::max(longest, SecondsSince(start));
      ++count;
    }
    return std::pair(longest, count);
  };
  const auto before = flow(milliseconds(300));
  sender_a.Kill();
  a->Expect(2, decode.slot(2));  // hangs: its sender is dead
  a->Expect(3, decode.slot(3));
  const auto hung = flow(milliseconds(300));
  a->Close();
  const auto aborting = flow(milliseconds(800));
  EXPECT_TRUE(a->closed());
  std::printf("RESULT %s, neighbour of an aborted link, longest ms per 32 MiB slot (slots): before "
              "%.2f (%d), hung %.2f (%d), aborting %.2f (%d)\n",
              name(), before.first * 1e3, before.second, hung.first * 1e3, hung.second,
              aborting.first * 1e3, aborting.second);
  EXPECT_LT(aborting.first, 0.2);
}

TEST_P(LinkOfProcessesTest, Rate) {
  const size_t total = size_t{GetParam().two_hosts ? 256u : 1024u} << 20;
  DeviceBytes to(GetParam().other_gpu(), total);
  for (int ctas : Times(4, 2) == 4 ? std::vector{4, 8, 16, 32} : std::vector{4, 8}) {
    Receiving decode(GetParam(), kSlotBytes, ctas);
    const std::string key = decode.NewKey();
    auto reader = decode.Open(key);
    SenderProcess sender(GetParam(), key, kSlotBytes, ctas);
    ASSERT_TRUE(ComesUp(*reader));
    const uint64_t count = total / kSlotBytes;
    uint64_t posted = 0;
    TimePoint start;
    for (uint64_t done = 0; done < 2 * count; ++done) {
      if (done == count) start = RealClock()->Now();
      for (; posted < std::min(2 * count, done + 16); ++posted) {
        reader->Expect(posted + 1, to.span().subspan(posted % count * kSlotBytes, kSlotBytes));
      }
      ASSERT_TRUE(Passes(*reader, done + 1)) << done;
    }
    std::printf("RESULT %s, %d CTAs, slots of %zu MiB: %.2f GB/s\n", name(), ctas, kSlotBytes >> 20,
                static_cast<double>(total) / SecondsSince(start) / 1e9);
  }
}

}  // namespace
}  // namespace lodestone::nccl
