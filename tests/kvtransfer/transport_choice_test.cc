// Which transport a link runs over, and what happens to one that does not work.
#include <gtest/gtest.h>

#include "tests/kvtransfer/worker_pair.h"

namespace lodestone {
namespace {

using std::chrono::seconds;

// Ends of connections that never come up: prefill's says so at once, decode's never.
class BrokenWriter final : public SlotWriter {
 public:
  void Write(uint64_t, std::span<const std::byte>) override {}
  std::optional<SlotEvent> Poll() override {
    if (std::exchange(told_, true)) return std::nullopt;
    return SlotEvent{.kind = SlotEvent::Kind::kFailed,
                     .status = absl::UnavailableError("no such cable")};
  }
  void Close() override { closed_ = true; }
  bool closed() const override { return closed_; }

 private:
  bool told_ = false;
  bool closed_ = false;
};
class SilentReader final : public SlotReader {
 public:
  void Expect(uint64_t, std::span<std::byte>) override {}
  std::optional<SlotEvent> Poll() override { return std::nullopt; }
  void Close() override { closed_ = true; }
  bool closed() const override { return closed_; }

 private:
  bool closed_ = false;
};

class BrokenDialer final : public DataDialer {
 public:
  std::string_view name() const override { return "broken"; }
  std::string place() const override { return own_place; }
  absl::Status health() const override { return health_status; }
  std::unique_ptr<SlotWriter> Connect(const std::string&, int, const std::string&) override {
    ++num_connects;
    return std::make_unique<BrokenWriter>();
  }
  int num_connects = 0;
  absl::Status health_status;
  std::string own_place;
};
class BrokenListener final : public DataListener {
 public:
  std::string_view name() const override { return "broken"; }
  int port() const override { return 1; }
  bool Reaches(const TransportOffer& offer) const override {
    return offer.name == name() && (own_place.empty() || offer.place != own_place);
  }
  std::unique_ptr<SlotReader> Open(const std::string&) override {
    return std::make_unique<SilentReader>();
  }
  std::string own_place;
};

class TransportChoiceTest : public testing::Test {
 protected:
  TransportChoiceTest() {
    pair_.sender = MakeSenderOver({&broken_dialer_, pair_.network.data_dialer()});
    pair_.receiver = MakeReceiverOver(
        {&broken_listener_, pair_.network.listener(WorkerPair::kAddress)});
  }
  std::unique_ptr<SlotSender> MakeSenderOver(std::vector<DataDialer*> dialers,
                                             const std::string& left_out = "") {
    return SlotSender::Create({.instance = InstanceId::Random(),
                               .layout = TinyLayout(pair_.options.shape),
                               .ops = pair_.ops.get(),
                               .stream = &pair_.stream,
                               .clock = &pair_.clock,
                               .control = pair_.network.dialer(),
                               .data = std::move(dialers),
                               .left_out = left_out,
                               .metrics = &pair_.prefill_metrics,
                               .slot_bytes = 8192})
        .value();
  }
  std::unique_ptr<SlotReceiver> MakeReceiverOver(std::vector<DataListener*> listeners,
                                                 const std::string& left_out = "") {
    return SlotReceiver::Create({.instance = pair_.decode_instance,
                                 .layout = TinyLayout(pair_.options.shape),
                                 .shape = pair_.options.shape,
                                 .ops = pair_.ops.get(),
                                 .stream = &pair_.stream,
                                 .clock = &pair_.clock,
                                 .control = pair_.network.acceptor(WorkerPair::kAddress),
                                 .data = std::move(listeners),
                                 .left_out = left_out,
                                 .slot_bytes = 8192})
        .value();
  }
  // Sends a prompt; how its hand-off ended.
  absl::Status HandOver() {
    const auto prompt = pair_.Prompt(300, 1);
    const LeaseId lease = pair_.Begin(prompt.get(), 300);
    pair_.sender->Finish(lease, WorkerPair::MakeHandoff(300));
    if (!pair_.RunUntilOutcome(lease)) return absl::DeadlineExceededError("no outcome");
    return pair_.outcomes[lease];
  }

  WorkerPair pair_;
  BrokenDialer broken_dialer_;
  BrokenListener broken_listener_;
};

TEST_F(TransportChoiceTest, ARequestSurvivesATransportThatDoesNotComeUp) {
  const TimePoint start = pair_.clock.Now();
  EXPECT_TRUE(HandOver().ok());
  EXPECT_EQ(broken_dialer_.num_connects, 1);
  EXPECT_LT(pair_.clock.Now() - start, seconds(1));
  const std::string metrics = pair_.prefill_metrics.RenderText();
  EXPECT_NE(metrics.find("transport=\"loopback\"} 1"), std::string::npos) << metrics;
}

// Of the one link of the sender.
LinkStatus OnlyLink(const SlotSender& sender) {
  const std::vector<LinkStatus> links = sender.Links();
  EXPECT_EQ(links.size(), 1u);
  return links.empty() ? LinkStatus() : links.front();
}

TEST_F(TransportChoiceTest, AFallbackSaysThatTheBetterTransportFailed) {
  ASSERT_TRUE(HandOver().ok());
  const LinkStatus link{.decode_instance = pair_.decode_instance.ToString(),
                        .up = true,
                        .transport = "loopback",
                        .reason = "broken failed: UNAVAILABLE: no such cable"};
  EXPECT_EQ(OnlyLink(*pair_.sender), link);
  pair_.network.Break(WorkerPair::kAddress);
  ASSERT_TRUE(pair_.RunUntil([&] { return !OnlyLink(*pair_.sender).up; }));
  EXPECT_EQ(OnlyLink(*pair_.sender).transport, "loopback");
  EXPECT_EQ(OnlyLink(*pair_.sender).reason.find("UNAVAILABLE"), 0u);
}

TEST_F(TransportChoiceTest, AFallbackSaysWhichWorkerLacksTheBetterTransport) {
  pair_.receiver = MakeReceiverOver({pair_.network.listener(WorkerPair::kAddress)});
  ASSERT_TRUE(HandOver().ok());
  EXPECT_EQ(OnlyLink(*pair_.sender).reason, "decode worker has no broken");
  pair_.receiver =
      MakeReceiverOver({pair_.network.listener(WorkerPair::kAddress)}, "broken: not bought");
  pair_.sender = MakeSenderOver({&broken_dialer_, pair_.network.data_dialer()});
  ASSERT_TRUE(HandOver().ok());
  EXPECT_EQ(OnlyLink(*pair_.sender).reason, "decode worker has no broken: not bought");
  pair_.sender = MakeSenderOver({pair_.network.data_dialer()}, "nccl: --device is cpu");
  ASSERT_TRUE(HandOver().ok());
  EXPECT_EQ(OnlyLink(*pair_.sender).reason, "prefill worker has no nccl: --device is cpu");
}

TEST_F(TransportChoiceTest, AFallbackSaysThatBothWorkersAreOnOneDevice) {
  broken_dialer_.own_place = broken_listener_.own_place = "gpu-1";
  ASSERT_TRUE(HandOver().ok());
  EXPECT_EQ(broken_dialer_.num_connects, 0);
  EXPECT_EQ(OnlyLink(*pair_.sender).reason, "broken: both workers are on one device, gpu-1");
}

TEST_F(TransportChoiceTest, ALinkOverTheBestTransportHasNoReason) {
  pair_.sender = MakeSenderOver({pair_.network.data_dialer()});
  EXPECT_TRUE(pair_.sender->Links().empty());
  ASSERT_TRUE(HandOver().ok());
  EXPECT_EQ(OnlyLink(*pair_.sender).transport, "loopback");
  EXPECT_EQ(OnlyLink(*pair_.sender).reason, "");
}

TEST_F(TransportChoiceTest, ATransportThatFailedIsTriedAgainAfterAWhile) {
  ASSERT_TRUE(HandOver().ok());
  pair_.network.Break(WorkerPair::kAddress);
  pair_.RunUntil([] { return false; }, seconds(1));
  ASSERT_TRUE(HandOver().ok());
  EXPECT_EQ(broken_dialer_.num_connects, 1) << "30 s are not over";
  pair_.clock.Advance(seconds(31));
  pair_.network.Break(WorkerPair::kAddress);
  pair_.RunUntil([] { return false; }, seconds(1));
  ASSERT_TRUE(HandOver().ok());
  EXPECT_EQ(broken_dialer_.num_connects, 2);
}

TEST_F(TransportChoiceTest, WithoutAnotherTransportTheRequestFails) {
  pair_.sender = MakeSenderOver({&broken_dialer_});
  EXPECT_EQ(HandOver().code(), absl::StatusCode::kUnavailable);
  pair_.RunUntil([] { return false; }, seconds(2));
  EXPECT_EQ(HandOver().code(), absl::StatusCode::kUnavailable);
  EXPECT_GE(broken_dialer_.num_connects, 2);
}

TEST_F(TransportChoiceTest, ATransportBeyondRepairShowsInTheHealthOfTheSender) {
  EXPECT_TRUE(pair_.sender->health().ok());
  broken_dialer_.health_status = absl::InternalError("a link could not be ended");
  EXPECT_EQ(pair_.sender->health().code(), absl::StatusCode::kInternal);
}

}  // namespace
}  // namespace lodestone
