// One end of a link by itself, stepped by the test, between two GPUs of this machine.
#include "kvtransfer/nccl/channel.h"

#include <gtest/gtest.h>

#include "tests/nccl/link_pair.h"

namespace lodestone::nccl {
namespace {

using std::chrono::milliseconds;
using Kind = SlotEvent::Kind;

constexpr size_t kSlotBytes = size_t{4} << 20;

// NCCL that says it is busy as long as a test wants it to.
const Api* real_api = nullptr;
std::atomic<bool> is_busy = false;

Result BusyAsyncError(Comm comm, Result* error) {
  const Result result = real_api->CommGetAsyncError(comm, error);
  if (is_busy && *error == Result::kSuccess) *error = Result::kInProgress;
  return result;
}

std::optional<SlotEvent> StepUntilEvent(Channel& channel, milliseconds limit) {
  std::optional<SlotEvent> event;
  WaitFor(
      [&] {
        channel.Step(RealClock()->Now());
        return (event = channel.Poll()).has_value();
      },
      limit);
  return event;
}

// NCCL may take longer to put a slot on the stream than those before it take to arrive.
TEST(NcclChannelTest, ASlotThatHasArrivedIsReportedWhileNcclIsBusy) {
  if (const std::string why = WhyNoNccl(2); !why.empty()) GTEST_SKIP() << why;
  auto prefill = MakeEndpoint(Side::kPrefill, 0);
  real_api = &prefill->api();
  Api api = *real_api;
  api.CommGetAsyncError = BusyAsyncError;
  const UniqueId id = prefill->NewId().value();
  const DeviceBytes from(0, kSlotBytes);
  const DeviceBytes to(1, kSlotBytes);
  const DeviceBytes warm_up(1, Channel::kWarmUpBytes);
  std::vector<std::byte> warm_up_host(Channel::kWarmUpBytes);
  Channel channel({.api = &api,
                   .device = 1,
                   .side = Side::kDecode,
                   .id = id,
                   .times = QuickTimes(),
                   .warm_up_device = warm_up.span(),
                   .warm_up_host = warm_up_host});
  auto writer = Dialer(prefill.get()).Connect("", 0, std::string(id.bytes.data(), id.bytes.size()));
  ASSERT_EQ(cudaSetDevice(1), cudaSuccess);
  channel.Open(RealClock()->Now());
  const auto connected = StepUntilEvent(channel, milliseconds(15'000));
  ASSERT_TRUE(connected && connected->kind == Kind::kConnected);

  channel.Post(1, to.span());
  EXPECT_FALSE(StepUntilEvent(channel, milliseconds(50)));  // nothing was sent yet
  is_busy = true;
  writer->Write(1, from.span());
  const auto arrived = StepUntilEvent(channel, milliseconds(2'000));
  EXPECT_TRUE(arrived && arrived->kind == Kind::kDone && arrived->link_seq == 1);
  is_busy = false;
  writer->Close();
  EXPECT_TRUE(channel.Shutdown(RealClock()->Now() + milliseconds(5'000)).ok());
}

}  // namespace
}  // namespace lodestone::nccl
