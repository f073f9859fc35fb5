// Offers whose bytes do not wait for READY.
#include <algorithm>
#include <random>
#include <set>

#include <gtest/gtest.h>

#include "tests/kvtransfer/worker_pair.h"

namespace lodestone {
namespace {

constexpr int64_t kLength = 700;

// A link whose transport holds bytes until they are expected.
struct EarlyPair : WorkerPair {
  explicit EarlyPair(int num_slots = 16) : WorkerPair({.num_slots = num_slots, .early = true}) {
    network.faults.to_decode = [this](ToDecode& message) {
      for (Offer& offer : message.offers) {
        if (alter) alter(offer);
        if (!offer.early) continue;
        ++early_offers;
        unanswered.insert(offer.link_seq);
        most_unanswered = std::max(most_unanswered, unanswered.size());
      }
      return LinkFault::kNone;
    };
    network.faults.to_prefill = [this](ToPrefill& message) {
      if (message.accept) early_slots = message.accept->early_slots;
      for (const OfferReply& reply : message.offers) {
        if (reply.verdict == OfferVerdict::kReady) ready.insert(reply.link_seq);
        if (reply.verdict != OfferVerdict::kReady) unanswered.erase(reply.link_seq);
      }
      return LinkFault::kNone;
    };
    network.faults.slot = [this](uint64_t link_seq, std::vector<std::byte>&) {
      if (!ready.contains(link_seq)) written_before_ready.insert(link_seq);
      return LinkFault::kNone;
    };
  }
  LeaseId Finish(const SequenceCache& prompt, int64_t length = kLength) {
    const LeaseId lease = Begin(&prompt, length);
    sender->Finish(lease, MakeHandoff(length));
    return lease;
  }
  void ExpectIntact(LeaseId lease, const SequenceCache& prompt, int64_t length = kLength) {
    ASSERT_TRUE(RunUntilOutcome(lease));
    ASSERT_TRUE(outcomes[lease].ok()) << outcomes[lease];
    EXPECT_EQ(CacheBytes(*decode.caches[lease], length), CacheBytes(prompt, length));
  }

  std::function<void(Offer&)> alter;
  int early_offers = 0;
  int early_slots = 0;
  std::set<uint64_t> unanswered, ready, written_before_ready;
  size_t most_unanswered = 0;
};

TEST(EarlyOfferTest, BytesOfTheFirstOffersGoOutBeforeDecodeHasAnswered) {
  EarlyPair pair;
  const auto prompt = pair.Prompt(kLength, 1);
  pair.ExpectIntact(pair.Finish(*prompt), *prompt);
  EXPECT_EQ(pair.early_slots, 4);
  EXPECT_GE(pair.early_offers, 4);
  EXPECT_TRUE(pair.written_before_ready.contains(1));
  EXPECT_TRUE(pair.written_before_ready.contains(4));
  EXPECT_FALSE(pair.written_before_ready.contains(5)) << "no slot was kept free for it";
  EXPECT_TRUE(pair.RunUntilIdle());
}

TEST(EarlyOfferTest, ATransportThatDoesNotHoldBytesHasNone) {
  EarlyPair pair;
  pair.network.takes_early_bytes = false;
  const auto prompt = pair.Prompt(kLength, 1);
  pair.ExpectIntact(pair.Finish(*prompt), *prompt);
  EXPECT_EQ(pair.early_slots, 0);
  EXPECT_EQ(pair.early_offers, 0);
  EXPECT_TRUE(pair.written_before_ready.empty());
}

// Two prefill workers, requests that come and go: an early offer always finds its slot, and no end
// has more of them than it may.
TEST(EarlyOfferTest, EveryEarlyOfferFindsASlotUnderLoad) {
  for (int num_slots : {4, 8, 16}) {
    EarlyPair pair(num_slots);
    const auto second = pair.MakeTestSender();
    std::mt19937 random(5);
    std::vector<std::unique_ptr<SequenceCache>> prompts;
    std::vector<LeaseId> leases;
    for (uint32_t round = 0; round < 24; ++round) {
      prompts.push_back(pair.Prompt(kLength, round));
      if (round % 2 == 0) {
        leases.push_back(pair.Finish(*prompts.back()));
      } else {
        const LeaseId lease = pair.decode.Reserve(kLength);
        second->Begin(lease, pair.decode_instance, WorkerPair::kAddress, prompts.back().get());
        second->Finish(lease, WorkerPair::MakeHandoff(kLength));
        leases.push_back(lease);
      }
      for (auto steps = random() % 8; steps > 0; --steps) {
        pair.Step();
        for (HandoffOutcome& outcome : second->Pump()) {
          pair.outcomes[outcome.lease] = std::move(outcome.status);
        }
      }
      if (leases.size() < 4) continue;
      ASSERT_TRUE(pair.RunUntil([&] {
        for (HandoffOutcome& outcome : second->Pump()) {
          pair.outcomes[outcome.lease] = std::move(outcome.status);
        }
        return pair.outcomes.contains(leases.front());
      }));
      ASSERT_TRUE(pair.outcomes[leases.front()].ok()) << pair.outcomes[leases.front()];
      EXPECT_EQ(CacheBytes(*pair.decode.caches[leases.front()], kLength),
                CacheBytes(*prompts.front(), kLength));
      pair.decode.Free(leases.front());
      leases.erase(leases.begin());
      prompts.erase(prompts.begin());
    }
    EXPECT_GT(pair.early_offers, 0);
    EXPECT_EQ(pair.receiver->num_links(), 2) << "no link has failed";
  }
}

// The bytes are on their way: they are taken and dropped, and the link lives on.
TEST(EarlyOfferTest, TheBytesOfARequestThatIsGoneAreDropped) {
  EarlyPair pair;
  const auto first = pair.Prompt(kLength, 1);
  pair.ExpectIntact(pair.Finish(*first), *first);
  const auto prompt = pair.Prompt(kLength, 2);
  const LeaseId lease = pair.Finish(*prompt);
  const size_t written = pair.written_before_ready.size();
  for (HandoffOutcome& outcome : pair.sender->Pump()) pair.outcomes[outcome.lease] = outcome.status;
  for (HandoffOutcome& outcome : pair.sender->Pump()) pair.outcomes[outcome.lease] = outcome.status;
  ASSERT_GT(pair.written_before_ready.size(), written);
  pair.receiver->Release(lease, "the client is gone");
  pair.decode.Free(lease);
  ASSERT_TRUE(pair.RunUntilOutcome(lease));
  EXPECT_EQ(pair.outcomes[lease].code(), absl::StatusCode::kCancelled) << pair.outcomes[lease];
  EXPECT_TRUE(pair.RunUntilIdle());
  const auto next = pair.Prompt(kLength, 3);
  pair.ExpectIntact(pair.Finish(*next), *next);
  EXPECT_EQ(pair.receiver->num_links(), 1);
  EXPECT_TRUE(pair.RunUntilIdle());
}

TEST(EarlyOfferTest, OneThatDoesNotFitItsRowsEndsItsRequestAlone) {
  EarlyPair pair;
  pair.alter = [](Offer& offer) {
    if (offer.link_seq == 1) ++offer.first_row;
  };
  const auto bad = pair.Prompt(kLength, 1);
  const LeaseId lost = pair.Finish(*bad);
  ASSERT_TRUE(pair.RunUntilOutcome(lost));
  EXPECT_EQ(pair.outcomes[lost].code(), absl::StatusCode::kDataLoss) << pair.outcomes[lost];
  EXPECT_TRUE(pair.decode.abandoned.contains(lost));
  EXPECT_TRUE(pair.RunUntilIdle());
  const auto next = pair.Prompt(kLength, 3);
  pair.ExpectIntact(pair.Finish(*next), *next);
  EXPECT_EQ(pair.receiver->num_links(), 1) << "the link has not failed";
}

// A lease of another link is not there for this one: what it says of it changes nothing.
TEST(EarlyOfferTest, OneThatNamesARequestOfAnotherLinkLeavesItAlone) {
  EarlyPair pair;
  const auto prompt = pair.Prompt(kLength, 1);
  const LeaseId lease = pair.Begin(prompt.get(), kLength);
  pair.sender->GrowTo(lease, 100);
  ASSERT_TRUE(pair.RunUntil([&] { return pair.sender->IsBound(lease); }));
  const auto second = pair.MakeTestSender();
  const auto bad = pair.Prompt(kLength, 2);
  const LeaseId liar = pair.decode.Reserve(kLength);
  pair.alter = [&](Offer& offer) {
    if (offer.lease == liar) offer.lease = lease;
  };
  second->Begin(liar, pair.decode_instance, WorkerPair::kAddress, bad.get());
  second->Finish(liar, WorkerPair::MakeHandoff(kLength));
  std::vector<HandoffOutcome> refused;
  ASSERT_TRUE(pair.RunUntil([&] { return !(refused = second->Pump()).empty(); }));
  EXPECT_EQ(refused[0].status.code(), absl::StatusCode::kCancelled) << refused[0].status;
  pair.receiver->Release(liar, "gone");
  pair.sender->Finish(lease, WorkerPair::MakeHandoff(kLength));
  pair.ExpectIntact(lease, *prompt);
  EXPECT_EQ(pair.receiver->num_links(), 2);
  EXPECT_TRUE(pair.RunUntilIdle());
}

// A grant and a commit have their times one after the other, for early offers as for all.
TEST(EarlyOfferTest, TheTimeOfACommitBeginsWithReady) {
  for (bool early : {false, true}) {
    SCOPED_TRACE(early ? "early" : "not early");
    EarlyPair pair;
    pair.network.takes_early_bytes = early;
    const auto first = pair.Prompt(kLength, 1);
    pair.ExpectIntact(pair.Finish(*first), *first);
    const auto prompt = pair.Prompt(kLength, 2);
    const LeaseId lease = pair.Finish(*prompt);
    const auto long_step_of_decode = [&] {
      pair.pump_receiver = false;
      const TimePoint until = pair.clock.Now() + pair.options.times.answer * 3 / 4;
      while (pair.clock.Now() < until) pair.Step();
      pair.pump_receiver = true;
      pair.Step();
    };
    long_step_of_decode();  // then its first offers are granted
    long_step_of_decode();  // then they are committed
    ASSERT_TRUE(pair.RunUntilOutcome(lease));
    EXPECT_TRUE(pair.outcomes[lease].ok()) << pair.outcomes[lease];
  }
}

// A hand-off fails with its link, and nothing stays behind.
void ExpectTheLinkToEnd(EarlyPair& pair) {
  const auto prompt = pair.Prompt(kLength, 1);
  const LeaseId lease = pair.Finish(*prompt);
  ASSERT_TRUE(pair.RunUntilOutcome(lease));
  EXPECT_EQ(pair.outcomes[lease].code(), absl::StatusCode::kUnavailable) << pair.outcomes[lease];
  EXPECT_TRUE(pair.RunUntilIdle());
}

TEST(EarlyOfferTest, MoreThanWereAgreedEndTheLink) {
  EarlyPair pair;
  pair.alter = [](Offer& offer) { offer.early = true; };
  ExpectTheLinkToEnd(pair);
}

TEST(EarlyOfferTest, OneOfMoreBytesThanASlotEndsTheLink) {
  EarlyPair pair;
  pair.alter = [](Offer& offer) {
    if (offer.early) offer.bytes = 1 << 30;
  };
  ExpectTheLinkToEnd(pair);
}

// Links that died in mid-transfer hold all slots until their transport has ended, which takes NCCL
// half a second. Those that come after them begin as fast as any: their early bytes wait.
TEST(EarlyOfferTest, LinksThatComeAfterDeadOnesHaveAllTheirEarlySlots) {
  EarlyPair pair(/*num_slots=*/8);
  pair.network.closing_takes = std::chrono::seconds(3);
  const auto second = pair.MakeTestSender();
  const auto prompt = pair.Prompt(kLength, 1);
  std::vector<LeaseId> leases;
  std::vector<int> early_slots;
  const auto ask_both = [&] {
    early_slots.clear();
    leases = {pair.Finish(*prompt), pair.decode.Reserve(kLength)};
    second->Begin(leases[1], pair.decode_instance, WorkerPair::kAddress, prompt.get());
    second->Finish(leases[1], WorkerPair::MakeHandoff(kLength));
  };
  const auto pump = [&] {
    for (HandoffOutcome& outcome : second->Pump()) {
      pair.outcomes[outcome.lease] = std::move(outcome.status);
    }
  };
  const auto both_have_outcomes = [&] {
    pump();
    return pair.outcomes.contains(leases[0]) && pair.outcomes.contains(leases[1]);
  };
  const auto slot_fault = std::exchange(pair.network.faults.slot, [](auto, auto&) {
    return LinkFault::kDrop;
  });
  pair.network.faults.to_prefill = [&](ToPrefill& message) {
    if (message.accept) early_slots.push_back(message.accept->early_slots);
    return LinkFault::kNone;
  };
  ask_both();
  ASSERT_TRUE(pair.RunUntil([&] {
    pump();
    return pair.receiver->num_free_slots() == 0;
  }));
  EXPECT_EQ(early_slots, (std::vector{2, 2}));
  pair.network.faults.slot = slot_fault;
  pair.network.Break(WorkerPair::kAddress);
  ASSERT_TRUE(pair.RunUntil(both_have_outcomes));
  ask_both();
  const TimePoint start = pair.clock.Now();
  ASSERT_TRUE(pair.RunUntil(both_have_outcomes));
  EXPECT_EQ(early_slots, (std::vector{2, 2}));
  EXPECT_GT(pair.clock.Now() - start, std::chrono::seconds(2)) << "the test is about held slots";
  for (LeaseId lease : leases) {
    ASSERT_TRUE(pair.outcomes[lease].ok()) << pair.outcomes[lease];
    EXPECT_EQ(CacheBytes(*pair.decode.caches[lease], kLength), CacheBytes(*prompt, kLength));
  }
}

// A peer that never says READY holds bytes that are on their way: the deadlines of both hold.
TEST(EarlyOfferTest, APeerThatDoesNotAnswerEndsTheLinkInTime) {
  EarlyPair pair;
  const auto first = pair.Prompt(kLength, 1);
  pair.ExpectIntact(pair.Finish(*first), *first);
  pair.pump_receiver = false;
  const TimePoint start = pair.clock.Now();
  const auto prompt = pair.Prompt(kLength, 2);
  const LeaseId lease = pair.Finish(*prompt);
  ASSERT_TRUE(pair.RunUntilOutcome(lease));
  EXPECT_EQ(pair.outcomes[lease].code(), absl::StatusCode::kUnavailable) << pair.outcomes[lease];
  EXPECT_GT(pair.clock.Now() - start, pair.options.times.stall) << "its loop may be in a step";
  EXPECT_LT(pair.clock.Now() - start,
            pair.options.times.answer + pair.options.times.stall + std::chrono::seconds(1));
}

// Whatever ends a request, at any step of it: all slots come back, those kept free too, and the
// next request finds them.
TEST(EarlyOfferTest, EverySlotComesBackWheneverARequestEnds) {
  enum class Blow : uint8_t { kForget, kRelease, kBreak };
  for (Blow blow : {Blow::kForget, Blow::kRelease, Blow::kBreak}) {
    for (int steps = 0; steps < 12; ++steps) {
      SCOPED_TRACE(std::to_string(steps) + " steps, blow " +
                   std::to_string(static_cast<int>(blow)));
      EarlyPair pair;
      pair.network.faults.delay = std::chrono::milliseconds(10);
      const auto first = pair.Prompt(kLength, 1);
      pair.ExpectIntact(pair.Finish(*first), *first);
      const auto prompt = pair.Prompt(kLength, 2);
      const LeaseId lease = pair.Finish(*prompt);
      for (int i = 0; i < steps; ++i) pair.Step();
      if (blow == Blow::kForget) pair.sender->Forget(lease, "the engine failed");
      if (blow == Blow::kRelease) pair.receiver->Release(lease, "the client is gone");
      if (blow == Blow::kBreak) pair.network.Break(WorkerPair::kAddress);
      ASSERT_TRUE(pair.RunUntilIdle());
      const auto next = pair.Prompt(kLength, 3);
      for (int i = 0; i < 700; ++i) pair.Step();  // longer than the first back-off
      pair.ExpectIntact(pair.Finish(*next), *next);
      EXPECT_EQ(pair.early_slots, 4);
      EXPECT_TRUE(pair.RunUntilIdle());
    }
  }
}

}  // namespace
}  // namespace lodestone
