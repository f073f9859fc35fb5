// Links over NCCL between two GPUs of this machine; docs/handoff_protocol.md says what they
// promise.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>

#include "tests/nccl/link_pair.h"

namespace lodestone::nccl {
namespace {

using std::chrono::milliseconds;
using Kind = SlotEvent::Kind;

constexpr size_t kSlotBytes = size_t{32} << 20;

class NcclLinkTest : public testing::Test {
 protected:
  void SetUp() override {
    if (const std::string why = WhyNoNccl(2); !why.empty()) GTEST_SKIP() << why;
  }
};

TEST_F(NcclLinkTest, SlotsOfAnySizeArriveWholeAndInOrder) {
  auto prefill = MakeEndpoint(Side::kPrefill, 0);
  auto decode = MakeEndpoint(Side::kDecode, 1);
  LinkPair pair = Connect(*prefill, *decode);
  DeviceBytes from(0, kSlotBytes);
  DeviceBytes to(1, kSlotBytes);
  uint64_t seq = 0;
  for (size_t bytes : {size_t{1}, size_t{132}, size_t{4096}, size_t{1000003}, kSlotBytes}) {
    from.Fill(++seq);
    to.Clear();
    pair.reader->Expect(seq, to.span().first(bytes));
    pair.writer->Write(seq, from.span().first(bytes));
    const auto sent = NextEvent(*pair.writer, milliseconds(2'000));
    const auto arrived = NextEvent(*pair.reader, milliseconds(2'000));
    ASSERT_TRUE(sent && sent->kind == Kind::kDone && sent->link_seq == seq) << bytes << " bytes";
    ASSERT_TRUE(arrived && arrived->kind == Kind::kDone && arrived->link_seq == seq);
    DeviceBytes expected(1, bytes);
    expected.Fill(seq);
    std::vector<std::byte> a(bytes);
    std::vector<std::byte> b(bytes);
    cudaMemcpy(a.data(), to.span().data(), bytes, cudaMemcpyDeviceToHost);
    cudaMemcpy(b.data(), expected.span().data(), bytes, cudaMemcpyDeviceToHost);
    ASSERT_EQ(a, b) << bytes << " bytes";
  }
  Disconnect(std::move(pair));
}

TEST_F(NcclLinkTest, TwoLinksThatCrossDoNotWaitForEachOther) {
  auto prefill0 = MakeEndpoint(Side::kPrefill, 0);
  auto decode0 = MakeEndpoint(Side::kDecode, 0);
  auto prefill1 = MakeEndpoint(Side::kPrefill, 1);
  auto decode1 = MakeEndpoint(Side::kDecode, 1);
  LinkPair there = Connect(*prefill0, *decode1);
  LinkPair back = Connect(*prefill1, *decode0);
  DeviceBytes slots0(0, 2 * kSlotBytes);
  DeviceBytes slots1(1, 2 * kSlotBytes);
  constexpr uint64_t kRounds = 20;
  for (uint64_t seq = 1; seq <= kRounds; ++seq) {
    there.reader->Expect(seq, slots1.span().first(kSlotBytes));
    back.writer->Write(seq, slots1.span().last(kSlotBytes));
    there.writer->Write(seq, slots0.span().first(kSlotBytes));
    back.reader->Expect(seq, slots0.span().last(kSlotBytes));
  }
  for (SlotStream* end : {static_cast<SlotStream*>(there.reader.get()),
                          static_cast<SlotStream*>(back.reader.get())}) {
    for (uint64_t seq = 1; seq <= kRounds; ++seq) {
      const auto event = NextEvent(*end, milliseconds(2'000));
      ASSERT_TRUE(event && event->kind == Kind::kDone && event->link_seq == seq) << seq;
    }
  }
  Disconnect(std::move(there));
  Disconnect(std::move(back));
}

TEST_F(NcclLinkTest, APeerThatNeverComesFailsAtTheDeadline) {
  LinkTimes times = QuickTimes();
  times.link_up = milliseconds(1'000);
  auto decode = MakeEndpoint(Side::kDecode, 1, 8, times);
  Listener listener(decode.get());
  const auto key = listener.NewSessionKey();
  ASSERT_TRUE(key.ok());
  auto reader = listener.Open(*key);
  const auto event = NextEvent(*reader, milliseconds(2'000));
  ASSERT_TRUE(event.has_value());
  EXPECT_EQ(event->kind, Kind::kFailed);
  EXPECT_EQ(event->status.code(), absl::StatusCode::kDeadlineExceeded);
  reader->Close();
  EXPECT_TRUE(WaitFor([&] { return reader->closed(); }, milliseconds(3'000)));
  EXPECT_TRUE(WaitFor([&] { return decode->num_links() == 0; }, milliseconds(1'000)));
}

TEST_F(NcclLinkTest, AKeyThatIsNoIdFails) {
  auto prefill = MakeEndpoint(Side::kPrefill, 0);
  auto writer = Dialer(prefill.get()).Connect("", 0, "short");
  const auto event = NextEvent(*writer, milliseconds(10));
  ASSERT_TRUE(event.has_value());
  EXPECT_EQ(event->status.code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(NcclLinkTest, SixtyLinkUpsAndDownsLeaveDeviceMemoryAsAfterTheSecond) {
  auto prefill = MakeEndpoint(Side::kPrefill, 0);
  auto decode = MakeEndpoint(Side::kDecode, 1);
  int64_t free0 = 0;
  int64_t free1 = 0;
  const TimePoint start = RealClock()->Now();
  for (int i = 1; i <= 60; ++i) {
    Disconnect(Connect(*prefill, *decode));
    ASSERT_TRUE(WaitFor([&] { return prefill->num_links() + decode->num_links() == 0; },
                        milliseconds(2'000)));
    if (i == 2) {
      free0 = FreeBytes(0);
      free1 = FreeBytes(1);
    }
  }
  std::printf(
      "RESULT churn: %.3f s per link up and down; memory lost: prefill %lld, decode %lld bytes\n",
      SecondsSince(start) / 60, static_cast<long long>(free0 - FreeBytes(0)),
      static_cast<long long>(free1 - FreeBytes(1)));
  EXPECT_LE(free0 - FreeBytes(0), 1 << 20);
  EXPECT_LE(free1 - FreeBytes(1), 1 << 20);
}

// The survivor of a kill -9 in mid-transfer has its slots back and serves the next link.
TEST_F(NcclLinkTest, AKilledSenderFreesTheReceiverForTheNext) {
  auto decode = MakeEndpoint(Side::kDecode, 1);
  Listener listener(decode.get());
  DeviceBytes slots(1, 2 * kSlotBytes);
  double slowest = 0;
  for (int round = 0; round < 10; ++round) {
    const auto key = listener.NewSessionKey();
    ASSERT_TRUE(key.ok());
    auto reader = listener.Open(*key);
    SenderProcess sender(0, *key, kSlotBytes);
    auto event = NextEvent(*reader, milliseconds(20'000));
    ASSERT_TRUE(event && event->kind == Kind::kConnected);
    slots.Clear();
    for (uint64_t seq = 1; seq <= 6; ++seq) {
      reader->Expect(seq, slots.span().subspan((seq % 2) * kSlotBytes, kSlotBytes));
      event = NextEvent(*reader, milliseconds(2'000));
      ASSERT_TRUE(event && event->kind == Kind::kDone && event->link_seq == seq) << round;
    }
    std::vector<std::byte> arrived(kSlotBytes);
    cudaMemcpy(arrived.data(), slots.span().data(), kSlotBytes, cudaMemcpyDeviceToHost);
    DeviceBytes expected(1, kSlotBytes);
    expected.Fill(1);
    std::vector<std::byte> sent(kSlotBytes);
    cudaMemcpy(sent.data(), expected.span().data(), kSlotBytes, cudaMemcpyDeviceToHost);
    ASSERT_EQ(arrived, sent);
    sender.Kill();
    const TimePoint killed = RealClock()->Now();
    reader->Expect(100, slots.span().first(kSlotBytes));  // granted, and nobody will send it
    reader->Expect(101, slots.span().last(kSlotBytes));
    std::this_thread::sleep_for(milliseconds(50));
    reader->Close();
    ASSERT_TRUE(WaitFor([&] { return reader->closed(); }, milliseconds(3'000)));
    slowest = std::max(slowest, SecondsSince(killed));
    while (const auto late = reader->Poll()) EXPECT_LT(late->link_seq, 103u);
  }
  EXPECT_FALSE(decode->poisoned());
  std::printf("RESULT sender killed 10 times: slots free after %.3f s at most\n", slowest);
  EXPECT_LT(slowest, 3.0);
}

TEST_F(NcclLinkTest, AKilledReceiverFreesTheSenderForTheNext) {
  auto prefill = MakeEndpoint(Side::kPrefill, 0);
  Dialer dialer(prefill.get());
  DeviceBytes slots(0, 2 * kSlotBytes);
  slots.Fill(1);
  double slowest = 0;
  for (int round = 0; round < 10; ++round) {
    ReceiverProcess receiver(1, kSlotBytes);
    auto writer = dialer.Connect("", 0, receiver.session_key());
    auto event = NextEvent(*writer, milliseconds(20'000));
    ASSERT_TRUE(event && event->kind == Kind::kConnected);
    for (uint64_t seq = 1; seq <= 6; ++seq) {
      writer->Write(seq, slots.span().first(kSlotBytes));
      event = NextEvent(*writer, milliseconds(2'000));
      ASSERT_TRUE(event && event->kind == Kind::kDone && event->link_seq == seq) << round;
    }
    receiver.Kill();
    const TimePoint killed = RealClock()->Now();
    for (uint64_t seq = 7; seq <= 10; ++seq) writer->Write(seq, slots.span().last(kSlotBytes));
    std::this_thread::sleep_for(milliseconds(50));
    writer->Close();
    ASSERT_TRUE(WaitFor([&] { return writer->closed(); }, milliseconds(3'000)));
    slowest = std::max(slowest, SecondsSince(killed));
  }
  EXPECT_FALSE(prefill->poisoned());
  std::printf("RESULT receiver killed 10 times: slots free after %.3f s at most\n", slowest);
  EXPECT_LT(slowest, 3.0);
}

// Two senders on GPU 0, one decode worker on GPU 1; one sender dies and its link is aborted while
// the other's slots go on arriving.
TEST_F(NcclLinkTest, TheAbortOfAHungLinkLetsItsNeighbourFlow) {
  auto decode = MakeEndpoint(Side::kDecode, 1);
  Listener listener(decode.get());
  const auto key_a = listener.NewSessionKey();
  const auto key_b = listener.NewSessionKey();
  ASSERT_TRUE(key_a.ok() && key_b.ok());
  auto a = listener.Open(*key_a);
  auto b = listener.Open(*key_b);
  SenderProcess sender_a(0, *key_a, kSlotBytes);
  SenderProcess sender_b(0, *key_b, kSlotBytes);
  auto event = NextEvent(*a, milliseconds(20'000));
  ASSERT_TRUE(event && event->kind == Kind::kConnected);
  event = NextEvent(*b, milliseconds(20'000));
  ASSERT_TRUE(event && event->kind == Kind::kConnected);
  DeviceBytes slots(1, 4 * kSlotBytes);
  a->Expect(1, slots.span().first(kSlotBytes));
  event = NextEvent(*a, milliseconds(2'000));
  ASSERT_TRUE(event && event->kind == Kind::kDone);

  uint64_t seq = 0;
  // The longest wait for one slot of b, and how many came, in `span`.
  const auto flow = [&](milliseconds span) {
    double longest = 0;
    int count = 0;
    const TimePoint until = RealClock()->Now() + span;
    while (RealClock()->Now() < until) {
      const TimePoint start = RealClock()->Now();
      b->Expect(++seq, slots.span().subspan(2 * kSlotBytes, kSlotBytes));
      const auto arrived = NextEvent(*b, milliseconds(3'000));
      if (!arrived || arrived->kind != Kind::kDone) return std::pair(99.0, count);
      longest = std::max(longest, SecondsSince(start));
      ++count;
    }
    return std::pair(longest, count);
  };
  const auto before = flow(milliseconds(300));
  sender_a.Kill();
  a->Expect(2, slots.span().first(kSlotBytes));  // hangs: its sender is dead
  a->Expect(3, slots.span().subspan(kSlotBytes, kSlotBytes));
  const auto hung = flow(milliseconds(300));
  a->Close();
  const auto aborting = flow(milliseconds(800));
  EXPECT_TRUE(a->closed());
  std::printf(
      "RESULT neighbour of an aborted link, longest ms per 32 MiB slot (slots): before %.2f (%d), "
      "hung "
      "%.2f (%d), aborting %.2f (%d)\n",
      before.first * 1e3, before.second, hung.first * 1e3, hung.second, aborting.first * 1e3,
      aborting.second);
  EXPECT_LT(aborting.first, 0.2);
}

// Bytes per second of `count` slots of `slot` bytes, `depth` of them posted at a time; 0 if one
// fails.
double LinkRate(LinkPair& pair, const DeviceBytes& from, const DeviceBytes& to, size_t slot,
                uint64_t count, uint64_t depth, uint64_t* seq) {
  const uint64_t base = *seq;
  *seq += count;
  const size_t places = to.span().size() / slot;
  const TimePoint start = RealClock()->Now();
  uint64_t posted = 0;
  for (uint64_t done = 0; done < count; ++done) {
    for (; posted < std::min(count, done + depth); ++posted) {
      const size_t at = posted % places * slot;
      pair.reader->Expect(base + posted + 1, to.span().subspan(at, slot));
      pair.writer->Write(base + posted + 1, from.span().subspan(at, slot));
    }
    std::optional<SlotEvent> event;
    while (!(event = pair.reader->Poll())) {
      if (SecondsSince(start) > 5) return 0;
    }
    if (event->kind != Kind::kDone) return 0;
    while (pair.writer->Poll()) {
    }
  }
  return static_cast<double>(count * slot) / SecondsSince(start);
}

// As workers have it: each end in a process of its own.
TEST_F(NcclLinkTest, RateBetweenTwoProcesses) {
  constexpr size_t kTotal = size_t{1} << 30;
  DeviceBytes to(1, kTotal);
  for (int ctas : {4, 8, 16, 32}) {
    for (size_t slot : {kSlotBytes}) {
      auto decode = MakeEndpoint(Side::kDecode, 1, ctas);
      Listener listener(decode.get());
      const auto key = listener.NewSessionKey();
      ASSERT_TRUE(key.ok());
      auto reader = listener.Open(*key);
      SenderProcess sender(0, *key, slot, ctas);
      const auto connected = NextEvent(*reader, milliseconds(20'000));
      ASSERT_TRUE(connected && connected->kind == Kind::kConnected);
      const uint64_t count = kTotal / slot;
      uint64_t posted = 0;
      TimePoint start;
      for (uint64_t done = 0; done < 2 * count; ++done) {
        if (done == count) start = RealClock()->Now();
        for (; posted < std::min(2 * count, done + 16); ++posted) {
          reader->Expect(posted + 1, to.span().subspan(posted % count * slot, slot));
        }
        std::optional<SlotEvent> event;
        while (!(event = reader->Poll())) {
        }
        ASSERT_EQ(event->kind, Kind::kDone);
      }
      std::printf("RESULT two processes, %d CTAs, slots of %zu MiB: %.1f GB/s\n", ctas, slot >> 20,
                  kTotal / SecondsSince(start) / 1e9);
    }
  }
}

TEST_F(NcclLinkTest, RateAgainstARawPeerCopy) {
  constexpr size_t kTotal = size_t{1} << 30;
  DeviceBytes from(0, kTotal);
  DeviceBytes to(1, kTotal);
  const double copy = PeerCopyRate(kTotal);
  std::printf("RESULT raw peer copy of 1 GiB: %.1f GB/s\n", copy / 1e9);
  for (int ctas : {4, 8, 16, 32}) {
    for (size_t group : {1, 4, 0}) {
      auto prefill = MakeEndpoint(Side::kPrefill, 0, ctas, QuickTimes(), group);
      auto decode = MakeEndpoint(Side::kDecode, 1, ctas, QuickTimes(), group);
      LinkPair pair = Connect(*prefill, *decode);
      uint64_t seq = 0;
      for (size_t slot : {kSlotBytes / 4, kSlotBytes / 2, kSlotBytes}) {
        for (uint64_t depth : {4, 16}) {
          const double rate = LinkRate(pair, from, to, slot, kTotal / slot, depth, &seq);
          EXPECT_GT(rate, 0);
          std::printf("RESULT 1 GiB, %d CTAs, groups of %zu (0: as workers), slots of %zu MiB, "
                      "%d posted: %.1f GB/s, %.3f of the copy\n",
                      ctas, group, slot >> 20, static_cast<int>(depth), rate / 1e9, rate / copy);
        }
      }
      Disconnect(std::move(pair));
    }
  }
}

}  // namespace
}  // namespace lodestone::nccl
