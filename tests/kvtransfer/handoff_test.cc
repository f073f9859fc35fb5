// Sender and receiver over the loopback, without faults.
#include <optional>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/kvtransfer/worker_pair.h"

namespace lodestone {
namespace {

using testing::HasSubstr;
using testing::Not;

void ExpectAdoptedIntact(WorkerPair& pair, LeaseId lease, const SequenceCache& prompt,
                         int64_t length) {
  ASSERT_TRUE(pair.RunUntilOutcome(lease)) << length << " tokens";
  ASSERT_TRUE(pair.outcomes[lease].ok()) << length << " tokens: " << pair.outcomes[lease];
  ASSERT_TRUE(pair.decode.adopted.contains(lease));
  EXPECT_EQ(pair.decode.adopted[lease].tokens.size(), static_cast<size_t>(length));
  EXPECT_EQ(pair.decode.adopted[lease].first_token.id, 7);
  EXPECT_EQ(CacheBytes(*pair.decode.caches[lease], length), CacheBytes(prompt, length))
      << length << " tokens";
}

TEST(HandoffTest, CacheArrivesBitExactForEveryResidue) {
  WorkerPair pair;
  for (int64_t length : {0,   1,   2,   3,   4,   5,   7,   8,   63,  64,  126,  127,  128, 129,
                         131, 132, 255, 256, 257, 383, 384, 511, 512, 513, 1023, 1024, 1100}) {
    const auto prompt = pair.Prompt(length, static_cast<uint32_t>(length));
    const LeaseId lease = pair.Begin(prompt.get(), length);
    pair.sender->Finish(lease, WorkerPair::MakeHandoff(length));
    ExpectAdoptedIntact(pair, lease, *prompt, length);
    pair.decode.Free(lease);
  }
  EXPECT_TRUE(pair.RunUntilIdle());
}

// It is at decode when the last rows are, and no message later.
TEST(HandoffTest, TheHandoffGoesOutAfterTheLastOfferAndWaitsForTheLastCommit) {
  WorkerPair pair;
  size_t offered = 0;
  size_t committed = 0;
  size_t committed_at_handoff = 0;
  pair.network.faults.to_decode = [&](ToDecode& message) {
    offered += message.offers.size();
    if (!message.handoffs.empty()) {
      committed_at_handoff = committed;
      EXPECT_TRUE(pair.decode.adopted.empty());
    }
    return LinkFault::kNone;
  };
  pair.network.faults.to_prefill = [&](ToPrefill& message) {
    for (const OfferReply& reply : message.offers) {
      committed += reply.verdict == OfferVerdict::kCommitted ? 1 : 0;
    }
    if (!message.handoffs.empty()) {
      EXPECT_EQ(committed, offered);
    }
    return LinkFault::kNone;
  };
  const auto prompt = pair.Prompt(700, 1);
  const LeaseId lease = pair.Begin(prompt.get(), 700);
  pair.sender->Finish(lease, WorkerPair::MakeHandoff(700));
  ExpectAdoptedIntact(pair, lease, *prompt, 700);
  EXPECT_GT(offered, 4u);
  EXPECT_LT(committed_at_handoff, offered);
}

// Each offer may take its time: what comes after them is due once they are committed, not before.
TEST(HandoffTest, AHandoffIsNotLateWhileItsLastOffersAreUnderWay) {
  WorkerPair pair;
  pair.network.faults.delay = std::chrono::seconds(6);
  std::optional<TimePoint> handed_off;
  pair.network.faults.to_decode = [&](ToDecode& message) {
    if (!message.handoffs.empty()) handed_off = pair.clock.Now();
    return LinkFault::kNone;
  };
  pair.network.faults.to_prefill = [&](ToPrefill& message) {
    const bool is_late = handed_off.has_value() && !message.offers.empty();
    return is_late ? LinkFault::kDelay : LinkFault::kNone;
  };
  const auto prompt = pair.Prompt(700, 1);
  const LeaseId lease = pair.Begin(prompt.get(), 700);
  pair.sender->Finish(lease, WorkerPair::MakeHandoff(700));
  ExpectAdoptedIntact(pair, lease, *prompt, 700);
  ASSERT_TRUE(handed_off.has_value());
  EXPECT_GT(pair.clock.Now() - *handed_off, pair.options.times.answer);
}

// And then it is due.
TEST(HandoffTest, AHandoffWithoutAnAnswerAfterTheLastCommitEndsTheLink) {
  WorkerPair pair;
  std::optional<TimePoint> committed;
  pair.network.faults.to_prefill = [&](ToPrefill& message) {
    for (const OfferReply& reply : message.offers) {
      if (reply.verdict == OfferVerdict::kCommitted) committed = pair.clock.Now();
    }
    const bool is_end = !message.handoffs.empty() || !message.cancels.empty();
    return is_end ? LinkFault::kDrop : LinkFault::kNone;
  };
  const auto prompt = pair.Prompt(700, 1);
  const LeaseId lease = pair.Begin(prompt.get(), 700);
  pair.sender->Finish(lease, WorkerPair::MakeHandoff(700));
  ASSERT_TRUE(pair.RunUntilOutcome(lease));
  EXPECT_THAT(pair.outcomes[lease].message(), HasSubstr("hand-off not answered"));
  ASSERT_TRUE(committed.has_value());
  const auto waited = pair.clock.Now() - *committed;
  EXPECT_GT(waited, pair.options.times.answer);
  EXPECT_LT(waited, pair.options.times.answer + std::chrono::seconds(1));
}

TEST(HandoffTest, EveryFormatArrivesBitExact) {
  for (const CacheShape& shape : SmallShapesOfEveryFormat()) {
    WorkerPair pair({.shape = shape, .prefill_slot_bytes = 65536, .decode_slot_bytes = 65536});
    const auto prompt = pair.Prompt(391, 1);
    const LeaseId lease = pair.Begin(prompt.get(), 391);
    pair.sender->Finish(lease, WorkerPair::MakeHandoff(391));
    ExpectAdoptedIntact(pair, lease, *prompt, 391);
  }
}

TEST(HandoffTest, ChunkSizesDoNotChangeWhatArrives) {
  WorkerPair pair;
  for (int64_t chunk : {1, 3, 4, 100, 128, 300, 700}) {
    const auto prompt = pair.Prompt(700, 5);
    const LeaseId lease = pair.Begin(prompt.get(), 900);
    for (int64_t done = chunk; done < 700; done += chunk) {
      pair.sender->GrowTo(lease, done);
      pair.Step();
    }
    pair.sender->Finish(lease, WorkerPair::MakeHandoff(700));
    ExpectAdoptedIntact(pair, lease, *prompt, 700);
    pair.decode.Free(lease);
  }
  EXPECT_TRUE(pair.RunUntilIdle());
}

TEST(HandoffTest, TheSmallerSlotOfTheTwoSidesIsUsed) {
  for (auto [prefill, decode] : {std::pair<int64_t, int64_t>{65536, 1024}, {1024, 65536}}) {
    WorkerPair pair({.prefill_slot_bytes = prefill, .decode_slot_bytes = decode});
    const auto prompt = pair.Prompt(500, 9);
    const LeaseId lease = pair.Begin(prompt.get(), 500);
    pair.sender->Finish(lease, WorkerPair::MakeHandoff(500));
    ExpectAdoptedIntact(pair, lease, *prompt, 500);
  }
}

TEST(HandoffTest, RowLargerThanASlotEndsTheRequestOnBothSides) {
  WorkerPair pair({.prefill_slot_bytes = 40, .decode_slot_bytes = 40});
  const auto prompt = pair.Prompt(100, 9);
  const LeaseId lease = pair.Begin(prompt.get(), 100);
  pair.sender->Finish(lease, WorkerPair::MakeHandoff(100));
  ASSERT_TRUE(pair.RunUntilOutcome(lease));
  EXPECT_EQ(pair.outcomes[lease].code(), absl::StatusCode::kInternal);
  EXPECT_TRUE(pair.RunUntilIdle());
  EXPECT_TRUE(pair.decode.abandoned.contains(lease));
}

TEST(HandoffTest, ManyRequestsShareOneLink) {
  WorkerPair pair;
  std::vector<std::unique_ptr<SequenceCache>> prompts;
  std::vector<LeaseId> leases;
  for (uint32_t i = 0; i < 20; ++i) {
    const int64_t length = 17 * (i + 1);
    prompts.push_back(pair.Prompt(length, i));
    leases.push_back(pair.Begin(prompts.back().get(), length));
    pair.sender->Finish(leases.back(), WorkerPair::MakeHandoff(length));
  }
  for (uint32_t i = 0; i < 20; ++i) {
    ExpectAdoptedIntact(pair, leases[i], *prompts[i], 17 * (i + 1));
  }
  EXPECT_EQ(pair.sender->LinkedInstances(),
            std::vector<std::string>{pair.decode_instance.ToString()});
  EXPECT_EQ(pair.receiver->LinkedInstances().size(), 1u);
  EXPECT_TRUE(pair.RunUntilIdle());
}

TEST(HandoffTest, LeasesAreNamedEverySecond) {
  WorkerPair pair;
  const auto prompt = pair.Prompt(100, 1);
  const LeaseId lease = pair.Begin(prompt.get(), 100);
  ASSERT_TRUE(pair.RunUntil([&] { return pair.decode.named.contains(lease); },
                            std::chrono::seconds(1)));
  for (int i = 0; i < 3; ++i) {
    pair.decode.named.clear();
    EXPECT_TRUE(pair.RunUntil([&] { return pair.decode.named.contains(lease); },
                              std::chrono::seconds(2)));
  }
}

TEST(HandoffTest, OneFrozenDecodeWorkerDoesNotTakeAllSlots) {
  WorkerPair pair;
  // Another decode worker that accepts links and then does nothing.
  const InstanceId frozen = InstanceId::Random();
  FakeDecode other(pair.options.shape);
  auto frozen_receiver =
      SlotReceiver::Create({.instance = frozen,
                            .layout = TinyLayout(pair.options.shape),
                            .shape = pair.options.shape,
                            .ops = pair.ops.get(),
                            .stream = &pair.stream,
                            .clock = &pair.clock,
                            .control = pair.network.acceptor("frozen:1"),
                            .data = {pair.network.listener("frozen:1")},
                            .slot_bytes = 8192})
          .value();
  const auto stuck = pair.Prompt(1000, 1);
  const LeaseId stuck_lease = other.Reserve(1000);
  pair.sender->Begin(stuck_lease, frozen, "frozen:1", stuck.get());
  for (int i = 0; i < 5; ++i) {
    frozen_receiver->Pump(other);
    pair.Step();
  }
  pair.sender->Finish(stuck_lease, WorkerPair::MakeHandoff(1000));
  const auto prompt = pair.Prompt(600, 2);
  const LeaseId lease = pair.Begin(prompt.get(), 600);
  pair.sender->Finish(lease, WorkerPair::MakeHandoff(600));
  ExpectAdoptedIntact(pair, lease, *prompt, 600);
  EXPECT_FALSE(pair.outcomes.contains(stuck_lease));
  ASSERT_TRUE(pair.RunUntilOutcome(stuck_lease));
  EXPECT_EQ(pair.outcomes[stuck_lease].code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(pair.RunUntilIdle());
}

TEST(HandoffTest, TwoLinksThatCrossDoNotBlockEachOther) {
  // P1 sends to D1 and D2, P2 to D2 and D1, with one slot each: the classic deadlock of ordered
  // streams. Grants are given only where the bytes then come, so all four end.
  WorkerPair pair({.num_slots = 1});
  const auto second_sender = pair.MakeTestSender();
  const InstanceId second = InstanceId::Random();
  FakeDecode second_decode(pair.options.shape);
  auto second_receiver =
      SlotReceiver::Create({.instance = second,
                            .layout = TinyLayout(pair.options.shape),
                            .shape = pair.options.shape,
                            .ops = pair.ops.get(),
                            .stream = &pair.stream,
                            .clock = &pair.clock,
                            .control = pair.network.acceptor("second:1"),
                            .data = {pair.network.listener("second:1")},
                            .num_slots = 1,
                            .slot_bytes = 8192})
          .value();
  const auto prompt = pair.Prompt(700, 3);
  std::vector<LeaseId> leases;
  for (SlotSender* sender : {pair.sender.get(), second_sender.get()}) {
    leases.push_back(pair.decode.Reserve(700));
    sender->Begin(leases.back(), pair.decode_instance, WorkerPair::kAddress, prompt.get());
    sender->Finish(leases.back(), WorkerPair::MakeHandoff(700));
    leases.push_back(second_decode.Reserve(700));
    sender->Begin(leases.back(), second, "second:1", prompt.get());
    sender->Finish(leases.back(), WorkerPair::MakeHandoff(700));
  }
  size_t ended = 0;
  ASSERT_TRUE(pair.RunUntil([&] {
    for (const HandoffOutcome& outcome : second_sender->Pump()) ended += outcome.status.ok();
    second_receiver->Pump(second_decode);
    return ended + pair.outcomes.size() == 4;
  }));
  for (const auto& [lease, status] : pair.outcomes) EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(pair.decode.adopted.size(), 2u);
  EXPECT_EQ(second_decode.adopted.size(), 2u);
}

TEST(HandoffTest, MetricsCountBytesRowsAndDigestsOnBothSides) {
  WorkerPair pair;
  const auto prompt = pair.Prompt(300, 3);
  const LeaseId lease = pair.Begin(prompt.get(), 300);
  pair.sender->Finish(lease, WorkerPair::MakeHandoff(300));
  ExpectAdoptedIntact(pair, lease, *prompt, 300);
  EXPECT_EQ(
      pair.decode_metrics
          .Counter(MetricId::kHandoffDigests, {{"kind", "index_keys"}, {"result", "mismatch"}})
          .Value(),
      0);
  EXPECT_GT(pair.decode_metrics
                .Counter(MetricId::kHandoffDigests, {{"kind", "index_keys"}, {"result", "ok"}})
                .Value(),
            0);
  for (Metrics* metrics : {&pair.prefill_metrics, &pair.decode_metrics}) {
    const std::string text = metrics->RenderText();
    EXPECT_NE(text.find("lodestone_handoffs_total{result=\"adopted\"} 1"), std::string::npos)
        << text;
    EXPECT_NE(text.find("lodestone_link_up"), std::string::npos);
  }
}

// From the moment that prefill may answer its router, decode is the one that reports a failure.
TEST(HandoffTest, ALeaseIsBoundOnceDecodeKnowsOfIt) {
  WorkerPair pair;
  const auto prompt = pair.Prompt(300, 1);
  const LeaseId lease = pair.Begin(prompt.get(), 300);
  EXPECT_FALSE(pair.sender->IsBound(lease));
  ASSERT_TRUE(pair.RunUntil([&] { return pair.sender->IsBound(lease); }));
  EXPECT_TRUE(pair.decode.named.contains(lease));
  pair.pump_sender = false;  // prefill learns nothing any more
  pair.network.Break(WorkerPair::kAddress);
  ASSERT_TRUE(pair.RunUntil([&] { return pair.decode.abandoned.contains(lease); }));
  EXPECT_EQ(pair.decode.abandoned[lease].code(), absl::StatusCode::kUnavailable);
}

TEST(HandoffTest, ALinkWithoutLeasesIsClosedAndOpenedAgain) {
  WorkerPair::Options options;
  options.times.idle = std::chrono::seconds(30);
  WorkerPair pair(options);
  for (int round = 0; round < 2; ++round) {
    const auto prompt = pair.Prompt(300, 1);
    const LeaseId lease = pair.Begin(prompt.get(), 300);
    ASSERT_TRUE(pair.RunUntil([&] { return !pair.sender->LinkedInstances().empty(); }));
    // However long the prompt takes: a lease keeps the link.
    const TimePoint later = pair.clock.Now() + std::chrono::seconds(40);
    ASSERT_TRUE(pair.RunUntil([&] { return pair.clock.Now() > later; }));
    ASSERT_FALSE(pair.sender->LinkedInstances().empty());
    pair.sender->Finish(lease, WorkerPair::MakeHandoff(300));
    ASSERT_TRUE(pair.RunUntilOutcome(lease));
    EXPECT_TRUE(pair.outcomes[lease].ok()) << pair.outcomes[lease];
    testing::internal::CaptureStderr();
    const TimePoint idle_since = pair.clock.Now();
    ASSERT_TRUE(pair.RunUntil([&] { return pair.sender->LinkedInstances().empty(); }));
    EXPECT_GE(pair.clock.Now() - idle_since, std::chrono::seconds(29));
    ASSERT_TRUE(pair.RunUntil([&] { return pair.receiver->num_links() == 0; }));
    const std::string log = testing::internal::GetCapturedStderr();
    EXPECT_THAT(log, HasSubstr("link is closed: CANCELLED: idle for"));  // prefill
    EXPECT_THAT(log, HasSubstr("link is closed, idle for 3"));           // decode
    EXPECT_THAT(log, Not(HasSubstr("link is down")));
  }
}

}  // namespace
}  // namespace lodestone
