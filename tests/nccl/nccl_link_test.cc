// Links over NCCL between two GPUs of this machine, both ends in this process;
// docs/handoff_protocol.md says what they promise.
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
