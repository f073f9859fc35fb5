#include <chrono>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "base/clock.h"
#include "kvtransfer/frame.h"
#include "kvtransfer/tcp_transport.h"

// What "done" means on the TCP transport: the bytes are in the reader's slot, all of them.
namespace lodestone {
namespace {

constexpr size_t kSlotBytes = 4096;
constexpr uint64_t kWindow = 16;  // slots under way at once, as a link has them
const std::string kKey(kSessionKeyBytes, 'k');

// Every 8 bytes of a slot say which slot it is and where they are.
void Stamp(uint64_t seq, std::vector<std::byte>& slot) {
  for (size_t at = 0; at < slot.size(); at += 8) {
    const uint64_t word = seq << 16 | at;
    std::memcpy(slot.data() + at, &word, 8);
  }
}

std::optional<SlotEvent> WaitEvent(SlotStream& slots) {
  const TimePoint end = RealClock()->Now() + std::chrono::seconds(20);
  while (RealClock()->Now() < end) {
    if (std::optional<SlotEvent> event = slots.Poll()) return event;
    std::this_thread::yield();
  }
  return std::nullopt;
}

// Connections of IPv4 loopback that have `port` at either end, by state: 1 is ESTABLISHED, 6 is
// TIME_WAIT.
int Connections(int port, int state) {
  std::ifstream table("/proc/net/tcp");
  std::string line;
  std::getline(table, line);
  int count = 0;
  while (std::getline(table, line)) {
    unsigned local = 0, remote = 0, found = 0;
    if (std::sscanf(line.c_str(), " %*d: %*8X:%X %*8X:%X %X", &local, &remote, &found) != 3)
      continue;
    const auto wanted = static_cast<unsigned>(port);
    count += (local == wanted || remote == wanted) && found == static_cast<unsigned>(state);
  }
  return count;
}

TEST(CompletionTest, ASlotThatIsDoneIsWholeAndAllGoThroughOneConnection) {
  const uint64_t num_slots = std::getenv("LODESTONE_LONG_TESTS") != nullptr ? 100'000 : 5'000;
  auto listener = TcpListener::Start("127.0.0.1", 0).value();
  auto reader = listener->Open(kKey);
  TcpDialer dialer;
  auto writer = dialer.Connect("127.0.0.1", listener->port(), kKey);
  ASSERT_EQ(WaitEvent(*reader)->kind, SlotEvent::Kind::kConnected);
  ASSERT_EQ(WaitEvent(*writer)->kind, SlotEvent::Kind::kConnected);

  std::vector<std::vector<std::byte>> sent(kWindow, std::vector<std::byte>(kSlotBytes));
  std::vector<std::vector<std::byte>> received = sent;
  std::vector<std::byte> expected(kSlotBytes);
  for (uint64_t first = 1; first <= num_slots; first += kWindow) {
    for (uint64_t i = 0; i < kWindow; ++i) {
      std::memset(received[i].data(), 0xee, kSlotBytes);
      reader->Expect(first + i, received[i]);
      Stamp(first + i, sent[i]);
      writer->Write(first + i, sent[i]);
    }
    for (uint64_t i = 0; i < kWindow; ++i) {
      const std::optional<SlotEvent> event = WaitEvent(*reader);
      ASSERT_TRUE(event.has_value() && event->kind == SlotEvent::Kind::kDone) << event->status;
      ASSERT_EQ(event->link_seq, first + i);
      Stamp(first + i, expected);
      ASSERT_TRUE(received[i] == expected) << "slot " << first + i << " is torn";
    }
    for (uint64_t i = 0; i < kWindow; ++i) {
      ASSERT_EQ(WaitEvent(*writer)->kind, SlotEvent::Kind::kDone);
    }
  }
  EXPECT_EQ(Connections(listener->port(), 1), 2);  // both ends of one
  EXPECT_EQ(Connections(listener->port(), 6), 0);
}

}  // namespace
}  // namespace lodestone
