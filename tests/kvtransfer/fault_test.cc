// Faults at every state of the protocol: each ends in the right bytes or in one clear outcome, with
// every slot and every lease returned.
#include <random>
#include <tuple>

#include <gtest/gtest.h>

#include "base/failpoint.h"
#include "tests/kvtransfer/worker_pair.h"

namespace lodestone {
namespace {

constexpr int64_t kLength = 400;

// Whatever happened: at most one outcome on each side, nothing adopted but right bytes, all idle.
void ExpectCleanEnd(WorkerPair& pair, LeaseId lease, const SequenceCache& prompt) {
  ASSERT_TRUE(pair.RunUntilOutcome(lease));
  ASSERT_TRUE(pair.RunUntilIdle()) << "prefill slots " << pair.sender->num_free_slots()
                                   << ", decode slots " << pair.receiver->num_free_slots()
                                   << ", incoming " << pair.receiver->num_incoming();
  if (pair.outcomes[lease].ok()) {
    EXPECT_TRUE(pair.decode.adopted.contains(lease)) << "prefill believes it was adopted";
  }
  if (pair.decode.adopted.contains(lease)) {
    EXPECT_EQ(CacheBytes(*pair.decode.caches[lease], kLength), CacheBytes(prompt, kLength));
  }
}

// A pair whose first offers have their bytes on the way before they are granted, or one without.
WorkerPair::Options With(bool early, int64_t slot_bytes = 4096) {
  return {.prefill_slot_bytes = slot_bytes,
          .decode_slot_bytes = slot_bytes,
          .num_slots = early ? 16 : 4,
          .early = early};
}

// After the fault, the same pair of workers hands over the next request.
void ExpectNextOneWorks(WorkerPair& pair) {
  pair.network.faults = {};
  for (int i = 0; i < 700; ++i) pair.Step();  // longer than the first back-off
  const auto prompt = pair.Prompt(kLength, 99);
  const LeaseId lease = pair.Begin(prompt.get(), kLength);
  pair.sender->Finish(lease, WorkerPair::MakeHandoff(kLength));
  ASSERT_TRUE(pair.RunUntilOutcome(lease));
  ASSERT_TRUE(pair.outcomes[lease].ok()) << pair.outcomes[lease];
  EXPECT_EQ(CacheBytes(*pair.decode.caches[lease], kLength), CacheBytes(*prompt, kLength));
}

template <typename Case>
std::string CaseName(const testing::TestParamInfo<Case>& named) {
  return named.param.name;
}

// ---- Bytes

// Slots of one request: enough that each kind fills at least one.
int CountSlots() {
  WorkerPair pair({.prefill_slot_bytes = 2048, .decode_slot_bytes = 2048});
  int slots = 0;
  pair.network.faults.slot = [&](uint64_t, std::vector<std::byte>&) {
    ++slots;
    return LinkFault::kNone;
  };
  const auto prompt = pair.Prompt(kLength, 1);
  const LeaseId lease = pair.Begin(prompt.get(), kLength);
  pair.sender->Finish(lease, WorkerPair::MakeHandoff(kLength));
  EXPECT_TRUE(pair.RunUntilOutcome(lease));
  return slots;
}

TEST(FaultTest, OneFlippedBitInAnySlotIsDataLossOnBothSides) {
  const int num_slots = CountSlots();
  ASSERT_GT(num_slots, 10);
  std::mt19937 random(7);
  std::set<std::string> kinds;
  for (int slot = 1; slot <= num_slots; ++slot) {
    WorkerPair pair({.prefill_slot_bytes = 2048, .decode_slot_bytes = 2048});
    pair.network.faults.slot = [&](uint64_t seq, std::vector<std::byte>& bytes) {
      if (seq == static_cast<uint64_t>(slot)) {
        bytes[random() % bytes.size()] ^= static_cast<std::byte>(1u << (random() % 8));
      }
      return LinkFault::kNone;
    };
    const auto prompt = pair.Prompt(kLength, 1);
    const LeaseId lease = pair.Begin(prompt.get(), kLength);
    pair.sender->Finish(lease, WorkerPair::MakeHandoff(kLength));
    ExpectCleanEnd(pair, lease, *prompt);
    EXPECT_EQ(pair.outcomes[lease].code(), absl::StatusCode::kDataLoss) << pair.outcomes[lease];
    ASSERT_TRUE(pair.decode.abandoned.contains(lease));
    const absl::Status& why = pair.decode.abandoned[lease];
    EXPECT_EQ(why.code(), absl::StatusCode::kDataLoss);
    const std::string message(why.message());
    kinds.insert(message.substr(0, message.find(':')));
    EXPECT_NE(message.find("digest"), std::string::npos) << message;
    EXPECT_TRUE(pair.decode.adopted.empty());
    if (slot == 1) ExpectNextOneWorks(pair);
  }
  EXPECT_TRUE(kinds.contains("latents_indexed"));
  EXPECT_TRUE(kinds.contains("latents_dense"));
  EXPECT_TRUE(kinds.contains("index_keys"));
  EXPECT_TRUE(kinds.contains("ring_windows"));
  EXPECT_TRUE(kinds.contains("compressor_states"));
}

struct SlotFaultCase {
  const char* name;
  LinkFault fault;
  bool cut_short;
};

class SlotFaultTest : public testing::TestWithParam<SlotFaultCase> {};

void HitEverySlot(const SlotFaultCase& c, bool early) {
  for (uint64_t slot : {1, 2, 5, 9}) {
    WorkerPair pair(With(early));
    pair.network.faults.slot = [&](uint64_t seq, std::vector<std::byte>& bytes) {
      if (seq != slot) return LinkFault::kNone;
      if (c.cut_short) bytes.pop_back();
      return c.fault;
    };
    const auto prompt = pair.Prompt(kLength, 1);
    const LeaseId lease = pair.Begin(prompt.get(), kLength);
    pair.sender->Finish(lease, WorkerPair::MakeHandoff(kLength));
    ExpectCleanEnd(pair, lease, *prompt);
    if (c.fault == LinkFault::kDelay) {
      EXPECT_TRUE(pair.outcomes[lease].ok()) << pair.outcomes[lease];
    } else {
      EXPECT_FALSE(pair.outcomes[lease].ok());
      EXPECT_TRUE(pair.decode.abandoned.contains(lease));
    }
    ExpectNextOneWorks(pair);
  }
}

TEST_P(SlotFaultTest, EndsCleanlyInEverySlot) { HitEverySlot(GetParam(), false); }
TEST_P(SlotFaultTest, EndsCleanlyInEverySlotOfEarlyOffers) { HitEverySlot(GetParam(), true); }

INSTANTIATE_TEST_SUITE_P(
    All, SlotFaultTest,
    testing::Values(SlotFaultCase{"Short", LinkFault::kNone, true},
                    SlotFaultCase{"Dropped", LinkFault::kDrop, false},
                    SlotFaultCase{"Duplicated", LinkFault::kDuplicate, false},
                    SlotFaultCase{"Reordered", LinkFault::kSwap, false},
                    SlotFaultCase{"Delayed", LinkFault::kDelay, false},
                    SlotFaultCase{"Reset", LinkFault::kBreak, false}),
    CaseName<SlotFaultCase>);

// ---- Control messages

struct MessageFaultCase {
  const char* name;
  LinkFault fault;
  // Faults that a request survives; the others end it with UNAVAILABLE or DATA_LOSS.
  bool harmless;
};

class MessageFaultTest : public testing::TestWithParam<MessageFaultCase> {};

// The n-th message in one direction suffers the fault, for every n of a whole hand-off.
void HitEveryMessage(const MessageFaultCase& c, bool towards_decode, bool early) {
  int num_messages = 1000;
  for (int hit = 0; hit < num_messages; ++hit) {
    WorkerPair pair(With(early, 8192));
    int count = 0;
    const auto decide = [&](auto&) { return count++ == hit ? c.fault : LinkFault::kNone; };
    if (towards_decode) {
      pair.network.faults.to_decode = decide;
    } else {
      pair.network.faults.to_prefill = decide;
    }
    const auto prompt = pair.Prompt(kLength, 1);
    const LeaseId lease = pair.Begin(prompt.get(), kLength);
    pair.sender->Finish(lease, WorkerPair::MakeHandoff(kLength));
    ExpectCleanEnd(pair, lease, *prompt);
    if (count <= hit) {
      num_messages = hit;  // the fault hit nothing: this was a clean hand-off
      EXPECT_TRUE(pair.outcomes[lease].ok());
      break;
    }
    if (c.harmless) {
      EXPECT_TRUE(pair.outcomes[lease].ok()) << "message " << hit << ": " << pair.outcomes[lease];
    }
    ExpectNextOneWorks(pair);
  }
  EXPECT_GT(num_messages, 5);
}

TEST_P(MessageFaultTest, EndsCleanlyAtEveryMessageToDecode) {
  for (bool early : {false, true}) HitEveryMessage(GetParam(), /*towards_decode=*/true, early);
}
TEST_P(MessageFaultTest, EndsCleanlyAtEveryMessageToPrefill) {
  for (bool early : {false, true}) HitEveryMessage(GetParam(), /*towards_decode=*/false, early);
}

INSTANTIATE_TEST_SUITE_P(All, MessageFaultTest,
                         testing::Values(MessageFaultCase{"Dropped", LinkFault::kDrop, false},
                                         MessageFaultCase{"Duplicated", LinkFault::kDuplicate,
                                                          false},
                                         MessageFaultCase{"Swapped", LinkFault::kSwap, false},
                                         MessageFaultCase{"Delayed", LinkFault::kDelay, true},
                                         MessageFaultCase{"Reset", LinkFault::kBreak, false}),
                         CaseName<MessageFaultCase>);

// ---- Cancel and death in every state: after any number of steps.

enum class Blow {
  kForget,
  kRelease,
  kBreak,
  kSilence,
  kFreezeDecode,
  kFreezePrefill,
  kNewReceiver
};

std::string BlowName(const testing::TestParamInfo<std::tuple<Blow, bool>>& named) {
  constexpr const char* kNames[] = {"Forget",       "Release",       "Break",      "Silence",
                                    "FreezeDecode", "FreezePrefill", "NewReceiver"};
  const auto [blow, early] = named.param;
  return std::string(kNames[static_cast<int>(blow)]) + (early ? "Early" : "");
}

class BlowTest : public testing::TestWithParam<std::tuple<Blow, bool>> {};

TEST_P(BlowTest, AfterAnyNumberOfStepsEverythingIsReturned) {
  const auto [blow, early] = GetParam();
  for (int steps = 0; steps < 25; ++steps) {
    WorkerPair pair(With(early));
    pair.network.faults.delay = std::chrono::milliseconds(10);
    // Bytes take a while, so that blows fall while they are under way.
    pair.network.faults.slot = [](uint64_t, std::vector<std::byte>&) { return LinkFault::kDelay; };
    const auto prompt = pair.Prompt(kLength, 1);
    const LeaseId lease = pair.Begin(prompt.get(), kLength);
    pair.sender->GrowTo(lease, 100);
    for (int i = 0; i < steps; ++i) {
      if (i == 8) pair.sender->Finish(lease, WorkerPair::MakeHandoff(kLength));
      pair.Step();
    }
    const bool was_over = pair.outcomes.contains(lease);
    switch (blow) {
      case Blow::kForget:
        pair.sender->Forget(lease, "the client left");
        break;
      case Blow::kRelease:
        pair.receiver->Release(lease, "the client left");
        pair.decode.Free(lease);
        break;
      case Blow::kBreak:
        pair.network.Break(WorkerPair::kAddress);
        break;
      case Blow::kSilence:
        pair.network.Silence(WorkerPair::kAddress);
        break;
      case Blow::kFreezeDecode:
        pair.pump_receiver = false;
        for (int i = 0; i < 3000; ++i) pair.Step();
        pair.pump_receiver = true;
        break;
      case Blow::kFreezePrefill:
        pair.pump_sender = false;
        for (int i = 0; i < 3000; ++i) pair.Step();
        pair.pump_sender = true;
        break;
      case Blow::kNewReceiver:
        pair.receiver = pair.MakeTestReceiver();
        break;
    }
    if (blow != Blow::kForget && !was_over) {
      if (steps <= 8) pair.sender->Finish(lease, WorkerPair::MakeHandoff(kLength));
      ASSERT_TRUE(pair.RunUntilOutcome(lease)) << steps << " steps";
    }
    ASSERT_TRUE(pair.RunUntilIdle()) << steps << " steps";
    if (blow == Blow::kForget && steps > 8 && !was_over) {
      EXPECT_TRUE(pair.decode.adopted.contains(lease) || pair.decode.abandoned.contains(lease))
          << steps << " steps";
    }
    if (blow == Blow::kRelease) {
      EXPECT_FALSE(pair.decode.abandoned.contains(lease));
    }
    if (blow == Blow::kNewReceiver) continue;  // the old one forgot its leases with itself
    pair.network.faults = {};
    ExpectNextOneWorks(pair);
  }
}

INSTANTIATE_TEST_SUITE_P(All, BlowTest,
                         testing::Combine(testing::Values(Blow::kForget, Blow::kRelease,
                                                          Blow::kBreak, Blow::kSilence,
                                                          Blow::kFreezeDecode,
                                                          Blow::kFreezePrefill,
                                                          Blow::kNewReceiver),
                                          testing::Bool()),
                         BlowName);

TEST(FaultTest, SilentPeerIsDeadWithinThreeHeartbeats) {
  WorkerPair pair;
  const auto prompt = pair.Prompt(kLength, 1);
  const LeaseId lease = pair.Begin(prompt.get(), kLength);
  ASSERT_TRUE(pair.RunUntil([&] { return !pair.sender->LinkedInstances().empty(); }));
  pair.network.Silence(WorkerPair::kAddress);
  const TimePoint start = pair.clock.Now();
  ASSERT_TRUE(pair.RunUntil([&] {
    return pair.outcomes.contains(lease) && pair.decode.abandoned.contains(lease);
  }));
  EXPECT_LE(pair.clock.Now() - start, std::chrono::milliseconds(1520));
  EXPECT_EQ(pair.outcomes[lease].code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(pair.decode.abandoned[lease].code(), absl::StatusCode::kUnavailable);
}

TEST(FaultTest, LeaseThatDecodeDoesNotKnowIsCancelled) {
  WorkerPair pair;
  const auto prompt = pair.Prompt(kLength, 1);
  const LeaseId lease = RandomLeaseId();
  pair.sender->Begin(lease, pair.decode_instance, WorkerPair::kAddress, prompt.get());
  pair.sender->Finish(lease, WorkerPair::MakeHandoff(kLength));
  ASSERT_TRUE(pair.RunUntilOutcome(lease));
  EXPECT_EQ(pair.outcomes[lease].code(), absl::StatusCode::kCancelled) << pair.outcomes[lease];
  EXPECT_TRUE(pair.RunUntilIdle());
}

TEST(FaultTest, MoreTokensThanReservedEndTheRequest) {
  WorkerPair pair;
  const auto prompt = pair.Prompt(kLength, 1);
  const LeaseId lease = pair.Begin(prompt.get(), 100);
  pair.sender->Finish(lease, WorkerPair::MakeHandoff(kLength));
  ExpectCleanEnd(pair, lease, *prompt);
  EXPECT_EQ(pair.outcomes[lease].code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(pair.decode.abandoned[lease].code(), absl::StatusCode::kInvalidArgument);
}

TEST(FaultTest, AdoptionThatFailsIsReportedToBothSides) {
  WorkerPair pair;
  pair.decode.adopt_status = absl::InternalError("no room in the batch");
  const auto prompt = pair.Prompt(kLength, 1);
  const LeaseId lease = pair.Begin(prompt.get(), kLength);
  pair.sender->Finish(lease, WorkerPair::MakeHandoff(kLength));
  ExpectCleanEnd(pair, lease, *prompt);
  EXPECT_EQ(pair.outcomes[lease].message(), "no room in the batch");
  EXPECT_EQ(pair.decode.abandoned[lease].message(), "no room in the batch");
}

// A prefill worker that lies: every number of an offer and of the totals, one at a time.
TEST(FaultTest, EveryAlteredNumberOfAnOfferIsRefused) {
  const std::vector<std::pair<const char*, std::function<void(Offer&)>>> lies = {
      {"from_tokens", [](Offer& o) { o.from_tokens += 4; }},
      {"from_tokens huge", [](Offer& o) { o.from_tokens = 1 << 30; }},
      {"to_tokens", [](Offer& o) { o.to_tokens -= 4; }},
      {"to_tokens huge", [](Offer& o) { o.to_tokens = 1 << 30; }},
      {"final", [](Offer& o) { o.final = !o.final; }},
      {"first_row", [](Offer& o) { ++o.first_row; }},
      {"first_row huge", [](Offer& o) { o.first_row = int64_t{1} << 62; }},
      {"num_rows 0", [](Offer& o) { o.num_rows = 0; }},
      {"num_rows", [](Offer& o) { --o.num_rows; }},
      {"num_rows huge", [](Offer& o) { o.num_rows = int64_t{1} << 62; }},
      {"bytes", [](Offer& o) { ++o.bytes; }},
      {"bytes huge", [](Offer& o) { o.bytes = int64_t{1} << 62; }},
      {"rows of a kind", [](Offer& o) { ++o.kinds[0].rows; }},
      {"bytes of a kind", [](Offer& o) { ++o.kinds[0].bytes; }},
      {"digest of a kind", [](Offer& o) { ++o.kinds[0].digest; }},
      {"digest of an absent kind", [](Offer& o) { ++o.kinds[3].digest; }},
  };
  for (const auto& [name, lie] : lies) {
    for (uint64_t seq : {1, 3}) {
      SCOPED_TRACE(name);
      WorkerPair pair;
      pair.network.faults.to_decode = [&](ToDecode& message) {
        for (Offer& offer : message.offers) {
          if (offer.link_seq == seq) lie(offer);
        }
        return LinkFault::kNone;
      };
      const auto prompt = pair.Prompt(kLength, 1);
      const LeaseId lease = pair.Begin(prompt.get(), kLength);
      pair.sender->GrowTo(lease, 200);
      pair.sender->Finish(lease, WorkerPair::MakeHandoff(kLength));
      ExpectCleanEnd(pair, lease, *prompt);
      EXPECT_FALSE(pair.outcomes[lease].ok());
      EXPECT_TRUE(pair.decode.adopted.empty());
      ExpectNextOneWorks(pair);
    }
  }
}

TEST(FaultTest, EveryAlteredTotalIsRefusedBeforeAdoption) {
  for (size_t kind : {0, 1, 2, 3, 4, 5}) {
    for (int field : {0, 1, 2, 3}) {
      WorkerPair pair;
      pair.network.faults.to_decode = [&](ToDecode& message) {
        for (Handoff& handoff : message.handoffs) {
          if (field == 0) ++handoff.totals[kind].rows;
          if (field == 1) ++handoff.totals[kind].bytes;
          if (field == 2) ++handoff.totals[kind].digest;
          if (field == 3) handoff.tokens.resize(handoff.tokens.size() - 4);
        }
        return LinkFault::kNone;
      };
      const auto prompt = pair.Prompt(kLength, 1);
      const LeaseId lease = pair.Begin(prompt.get(), kLength);
      pair.sender->Finish(lease, WorkerPair::MakeHandoff(kLength));
      ExpectCleanEnd(pair, lease, *prompt);
      EXPECT_EQ(pair.outcomes[lease].code(), absl::StatusCode::kDataLoss) << pair.outcomes[lease];
      EXPECT_TRUE(pair.decode.adopted.empty());
    }
  }
}

// ---- Named faults

void HitFailpoint(const char* name, bool early) {
  SCOPED_TRACE(std::string(name) + (early ? ", early" : ""));
  WorkerPair pair(With(early));
  ASSERT_TRUE(failpoint::Arm(name, "1*error(UNAVAILABLE)").ok());
  const auto prompt = pair.Prompt(kLength, 1);
  const LeaseId lease = pair.Begin(prompt.get(), kLength);
  pair.sender->Finish(lease, WorkerPair::MakeHandoff(kLength));
  ExpectCleanEnd(pair, lease, *prompt);
  EXPECT_EQ(failpoint::NumHits(name), 1);
  EXPECT_FALSE(pair.outcomes[lease].ok());
  failpoint::DisarmAll();
  ExpectNextOneWorks(pair);
}

// `write` and `grant` are hit by an early offer while its bytes are not granted.
TEST(FaultTest, EveryFailpointEndsCleanly) {
  if (!kFailpointsEnabled) GTEST_SKIP() << "built without failpoints";
  for (const char* name :
       {"kvtransfer.link_open", "kvtransfer.link_accept", "kvtransfer.pack", "kvtransfer.offer",
        "kvtransfer.grant", "kvtransfer.write", "kvtransfer.commit", "kvtransfer.handoff",
        "kvtransfer.adopt", "kvtransfer.adopted"}) {
    for (bool early : {false, true}) HitFailpoint(name, early);
  }
}

}  // namespace
}  // namespace lodestone
