// What a process leaves to the other end of its link when it dies or freezes.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>

#include "tests/nccl/link_of_processes.h"

namespace lodestone::nccl {
namespace {

using std::chrono::milliseconds;
using Kind = SlotEvent::Kind;

constexpr size_t kSlotBytes = size_t{32} << 20;

using DeathsOfProcessesTest = LinkOfProcessesTest;
INSTANTIATE_TEST_SUITE_P(Placements, DeathsOfProcessesTest,
                         testing::Values(kTwoGpus, kTwoHostsOnOneGpu),
                         testing::PrintToStringParamName());

// How long survivors of a kill took: until NCCL itself said so, where it did, and until their slots
// were free.
struct Aftermath {
  double told = 0;
  int times_told = 0;
  double freed = 0;
  int kills = 0;

  // Closes the link `limit` after the kill, or once it has failed.
  void Take(SlotStream& stream, milliseconds limit) {
    const TimePoint killed = RealClock()->Now();
    std::optional<SlotEvent> event;
    while ((event = NextEvent(stream, limit)) && event->kind != Kind::kFailed) {
    }
    if (event.has_value()) {
      ++times_told;
      told = std::max(told, SecondsSince(killed));
    }
    const TimePoint closing = RealClock()->Now();
    stream.Close();
    ASSERT_TRUE(WaitFor([&] { return stream.closed(); }, milliseconds(3'000)));
    freed = std::max(freed, SecondsSince(closing));
    ++kills;
  }
  void Print(const char* placement, const char* what) const {
    std::printf("RESULT %s, %s %d times: NCCL said so %d times, after %.3f s at most; slots "
                "free %.3f s after the close at most\n",
                placement, what, kills, times_told, told, freed);
  }
};

// The survivor of a kill -9 in mid-transfer has its slots back and serves the next link.
TEST_P(DeathsOfProcessesTest, AKilledSenderFreesTheReceiverForTheNext) {
  Receiving decode(GetParam(), kSlotBytes);
  DeviceBytes expected(GetParam().other_gpu(), kSlotBytes);
  expected.Fill(1);
  Aftermath aftermath;
  const int rounds = Times(10, 2);
  for (int round = 0; round < rounds; ++round) {
    const std::string key = decode.NewKey();
    auto reader = decode.Open(key);
    SenderProcess sender(GetParam(), key, kSlotBytes);
    ASSERT_TRUE(ComesUp(*reader));
    decode.slots().Clear();
    for (uint64_t seq = 1; seq <= 6; ++seq) {
      reader->Expect(seq, decode.slot(seq));
      ASSERT_TRUE(Passes(*reader, seq)) << round;
    }
    ASSERT_TRUE(SameBytes(decode.slot(0), expected.span()));
    ASSERT_TRUE(SameBytes(decode.slot(1), expected.span()));
    sender.Kill();
    reader->Expect(7, decode.slot(7));  // granted, and nobody will send it
    reader->Expect(8, decode.slot(8));
    aftermath.Take(*reader, milliseconds(round % 2 == 0 ? 50 : 500));
    ASSERT_FALSE(HasFailure()) << round;
    while (const auto late = reader->Poll()) EXPECT_LT(late->link_seq, 9u);
  }
  EXPECT_FALSE(decode.endpoint().poisoned());
  aftermath.Print(name(), "sender killed");
}

TEST_P(DeathsOfProcessesTest, AKilledReceiverFreesTheSenderForTheNext) {
  auto prefill = MakeEndpoint(Side::kPrefill, 0);
  Dialer dialer(prefill.get());
  DeviceBytes slots(0, 2 * kSlotBytes);
  slots.Fill(1);
  Aftermath aftermath;
  const int rounds = Times(10, 2);
  for (int round = 0; round < rounds; ++round) {
    ReceiverProcess receiver(GetParam(), kSlotBytes);
    auto writer = dialer.Connect("", 0, receiver.session_key());
    ASSERT_TRUE(ComesUp(*writer));
    for (uint64_t seq = 1; seq <= 6; ++seq) {
      writer->Write(seq, slots.span().first(kSlotBytes));
      ASSERT_TRUE(Passes(*writer, seq)) << round;
    }
    receiver.Kill();
    for (uint64_t seq = 7; seq <= 10; ++seq) writer->Write(seq, slots.span().last(kSlotBytes));
    aftermath.Take(*writer, milliseconds(round % 2 == 0 ? 50 : 500));
    ASSERT_FALSE(HasFailure()) << round;
  }
  EXPECT_FALSE(prefill->poisoned());
  aftermath.Print(name(), "receiver killed");
}

// As a host that has hung or is cut off: nobody closes the connections.
TEST_P(DeathsOfProcessesTest, AFrozenSenderFreesTheReceiver) {
  Receiving decode(GetParam(), kSlotBytes);
  const std::string key = decode.NewKey();
  auto reader = decode.Open(key);
  SenderProcess sender(GetParam(), key, kSlotBytes);
  ASSERT_TRUE(ComesUp(*reader));
  reader->Expect(1, decode.slot(1));
  ASSERT_TRUE(Passes(*reader, 1));
  sender.Freeze();
  for (uint64_t seq = 2; seq <= 17; ++seq) reader->Expect(seq, decode.slot(seq));
  Aftermath aftermath;
  aftermath.Take(*reader, milliseconds(500));
  EXPECT_FALSE(decode.endpoint().poisoned());
  aftermath.Print(name(), "sender frozen");
}

// From before the other process has joined until after its first bytes.
TEST_P(DeathsOfProcessesTest, ASenderKilledWhileTheLinkComesUpFreesTheReceiver) {
  Receiving decode(GetParam(), kSlotBytes);
  Aftermath aftermath;
  int came_up = 0;
  const int rounds = Times(12, 3);
  for (int round = 0; round < rounds; ++round) {
    const std::string key = decode.NewKey();
    auto reader = decode.Open(key);
    SenderProcess sender(GetParam(), key, kSlotBytes);
    const milliseconds life(200 + 1'400 * round / rounds);
    WaitFor([&] { return false; }, life);
    sender.Kill();
    const auto event = reader->Poll();
    if (event && event->kind == Kind::kConnected) ++came_up;
    aftermath.Take(*reader, milliseconds(round % 2 == 0 ? 0 : 500));
    ASSERT_FALSE(HasFailure()) << "killed after " << life.count() << " ms";
  }
  EXPECT_TRUE(WaitFor([&] { return decode.endpoint().num_links() == 0; }, milliseconds(1'000)));
  EXPECT_FALSE(decode.endpoint().poisoned());
  std::printf("RESULT %s, sender killed while the link came up: %d of %d were up\n", name(),
              came_up, rounds);
  aftermath.Print(name(), "sender killed at link-up");
}

}  // namespace
}  // namespace lodestone::nccl
