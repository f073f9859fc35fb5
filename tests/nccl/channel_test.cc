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

// Of the receives, which are put on the stream when their group ends.
int num_receives = 0;
int num_groups = 0;

Result CountedRecv(void* to, size_t count, int type, int peer, Comm comm, cudaStream_t stream) {
  ++num_receives;
  return real_api->Recv(to, count, type, peer, comm, stream);
}
Result CountedGroupEnd() {
  ++num_groups;
  return real_api->GroupEnd();
}

// The decode end of a link, on GPU 1, stepped by the test; its prefill end is an endpoint's.
class ChannelTest : public testing::Test {
 protected:
  void SetUp() override {
    if (const std::string why = WhyNoNccl(2); !why.empty()) GTEST_SKIP() << why;
    prefill_ = MakeEndpoint(Side::kPrefill, 0);
    real_api = &prefill_->api();
    api_ = *real_api;
  }
  // With `api_` as the test has left it.
  void Connect(size_t max_group) {
    const UniqueId id = prefill_->NewId().value();
    warm_up_ = std::make_unique<DeviceBytes>(1, Channel::kWarmUpBytes);
    channel_ = std::make_unique<Channel>(Channel::Options{.api = &api_,
                                                          .device = 1,
                                                          .side = Side::kDecode,
                                                          .id = id,
                                                          .max_group = max_group,
                                                          .times = QuickTimes()});
    writer_ = Dialer(prefill_.get())
                  .Connect("", 0, std::string(id.bytes.data(), id.bytes.size()));
    ASSERT_EQ(cudaSetDevice(1), cudaSuccess);
    channel_->Open(RealClock()->Now(), {warm_up_->span(), warm_up_host_});
    const auto connected = Next(milliseconds(15'000));
    ASSERT_TRUE(connected && connected->kind == Kind::kConnected);
  }
  std::optional<SlotEvent> Next(milliseconds limit) {
    std::optional<SlotEvent> event;
    WaitFor(
        [&] {
          channel_->Step(RealClock()->Now());
          return (event = channel_->Poll()).has_value();
        },
        limit);
    return event;
  }
  void Disconnect() {
    writer_->Close();
    EXPECT_TRUE(channel_->Shutdown(RealClock()->Now() + milliseconds(5'000)).ok());
  }

  Api api_;
  std::unique_ptr<Endpoint> prefill_;
  std::unique_ptr<DeviceBytes> warm_up_;
  std::vector<std::byte> warm_up_host_ = std::vector<std::byte>(Channel::kWarmUpBytes);
  std::unique_ptr<Channel> channel_;
  std::unique_ptr<SlotWriter> writer_;
};

// NCCL may take longer to put a slot on the stream than those before it take to arrive.
TEST_F(ChannelTest, ASlotThatHasArrivedIsReportedWhileNcclIsBusy) {
  const DeviceBytes from(0, kSlotBytes);
  const DeviceBytes to(1, kSlotBytes);
  api_.CommGetAsyncError = BusyAsyncError;
  ASSERT_NO_FATAL_FAILURE(Connect(/*max_group=*/2));
  channel_->Post(1, to.span());
  EXPECT_FALSE(Next(milliseconds(50)));  // nothing was sent yet
  is_busy = true;
  writer_->Write(1, from.span());
  const auto arrived = Next(milliseconds(2'000));
  EXPECT_TRUE(arrived && arrived->kind == Kind::kDone && arrived->link_seq == 1);
  is_busy = false;
  Disconnect();
}

// A group costs the GPU one kernel. While the stream has enough to do, slots wait for a whole one.
TEST_F(ChannelTest, SlotsWaitForAGroupWhileEnoughAreOnTheStream) {
  constexpr size_t kGroup = 4;
  constexpr uint64_t kSlots = Channel::kEnoughInFlight + kGroup + 1;
  DeviceBytes from(0, kSlots * kSlotBytes);
  DeviceBytes to(1, kSlots * kSlotBytes);
  from.Fill(1);
  to.Clear();
  api_.Recv = CountedRecv;
  api_.GroupEnd = CountedGroupEnd;
  ASSERT_NO_FATAL_FAILURE(Connect(kGroup));
  num_receives = num_groups = 0;
  uint64_t posted = 0;
  const auto post = [&](size_t count) {
    for (; count > 0; --count, ++posted) {
      channel_->Post(posted + 1, to.span().subspan(posted * kSlotBytes, kSlotBytes));
    }
    EXPECT_FALSE(Next(milliseconds(50)));  // nothing was sent yet
  };
  post(Channel::kEnoughInFlight);
  EXPECT_EQ(num_receives, 3);
  post(kGroup - 1);
  EXPECT_EQ(num_receives, 3) << "they wait for one more";
  const int groups = num_groups;
  post(1);
  EXPECT_EQ(num_receives, 3 + 4);
  EXPECT_EQ(num_groups, groups + 1);
  channel_->Post(kSlots, to.span().last(kSlotBytes));  // goes out when the others have arrived
  for (uint64_t seq = 1; seq <= kSlots; ++seq) {
    writer_->Write(seq, from.span().subspan((seq - 1) * kSlotBytes, kSlotBytes));
  }
  for (uint64_t seq = 1; seq <= kSlots; ++seq) {
    const auto arrived = Next(milliseconds(2'000));
    ASSERT_TRUE(arrived && arrived->kind == Kind::kDone && arrived->link_seq == seq) << seq;
  }
  EXPECT_TRUE(to.Holds(1));
  Disconnect();
}

}  // namespace
}  // namespace lodestone::nccl
