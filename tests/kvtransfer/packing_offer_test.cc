// Offers that go out before their rows are packed: early, without digests.
#include <gtest/gtest.h>

#include <vector>

#include "kvtransfer/prefill_link.h"
#include "tests/kvtransfer/worker_pair.h"

namespace lodestone {
namespace {

constexpr int64_t kLength = 700;
constexpr int64_t kSlotBytes = 8192;

bool HasDigests(const Offer& offer) {
  return std::any_of(offer.kinds.begin(), offer.kinds.end(),
                     [](const KindRows& kind) { return kind.digest != 0; });
}

struct EarlyPair : WorkerPair {
  EarlyPair() : WorkerPair({.num_slots = 16, .early = true}) {
    network.faults.to_decode = [this](ToDecode& message) {
      for (Offer& offer : message.offers) {
        if (alter) alter(offer);
        offers.push_back(offer);
      }
      return LinkFault::kNone;
    };
  }
  std::function<void(Offer&)> alter;
  std::vector<Offer> offers;
};

TEST(PackingOfferTest, OnlyTheLastRowsOfAPromptAreOfferedBeforeTheyArePacked) {
  EarlyPair pair;
  const auto prompt = pair.Prompt(kLength, 1);
  const LeaseId lease = pair.Begin(prompt.get(), kLength);
  pair.sender->GrowTo(lease, 300);
  ASSERT_TRUE(
      pair.RunUntil([&] { return !pair.offers.empty() && pair.receiver->num_free_slots() == 16; }));
  for (const Offer& offer : pair.offers) {
    EXPECT_FALSE(offer.packing) << "the next step would come between: " << offer.link_seq;
    EXPECT_TRUE(HasDigests(offer)) << offer.link_seq;
  }
  pair.offers.clear();
  pair.sender->Finish(lease, WorkerPair::MakeHandoff(kLength));
  ASSERT_TRUE(pair.RunUntilOutcome(lease));
  EXPECT_TRUE(pair.outcomes[lease].ok()) << pair.outcomes[lease];
  EXPECT_EQ(CacheBytes(*pair.decode.caches[lease], kLength), CacheBytes(*prompt, kLength));
  ASSERT_GT(pair.offers.size(), 3u);
  EXPECT_TRUE(pair.offers.front().packing);
  for (const Offer& offer : pair.offers) {
    EXPECT_EQ(offer.packing, !HasDigests(offer)) << offer.link_seq;
    EXPECT_TRUE(offer.early || !offer.packing) << offer.link_seq;
  }
  EXPECT_TRUE(pair.RunUntilIdle());
}

TEST(PackingOfferTest, AnAlteredRowShowsInTheTotals) {
  for (uint64_t altered : {1, 2, 3}) {
    EarlyPair pair;
    pair.network.faults.slot = [&](uint64_t link_seq, std::vector<std::byte>& bytes) {
      if (link_seq == altered) bytes[bytes.size() / 2] ^= std::byte{1};
      return LinkFault::kNone;
    };
    const auto prompt = pair.Prompt(kLength, 1);
    const LeaseId lease = pair.Begin(prompt.get(), kLength);
    pair.sender->Finish(lease, WorkerPair::MakeHandoff(kLength));
    ASSERT_TRUE(pair.RunUntilOutcome(lease));
    ASSERT_TRUE(pair.offers[altered - 1].packing);
    EXPECT_EQ(pair.outcomes[lease].code(), absl::StatusCode::kDataLoss) << pair.outcomes[lease];
    EXPECT_TRUE(pair.decode.abandoned.contains(lease));
    EXPECT_TRUE(pair.decode.adopted.empty());
    EXPECT_TRUE(pair.RunUntilIdle());
  }
}

TEST(PackingOfferTest, OneThatIsNotEarlyEndsTheLink) {
  EarlyPair pair;
  pair.network.takes_early_bytes = false;
  pair.alter = [](Offer& offer) { offer.packing = true; };
  const auto prompt = pair.Prompt(kLength, 1);
  const LeaseId lease = pair.Begin(prompt.get(), kLength);
  pair.sender->Finish(lease, WorkerPair::MakeHandoff(kLength));
  ASSERT_TRUE(pair.RunUntilOutcome(lease));
  EXPECT_EQ(pair.outcomes[lease].code(), absl::StatusCode::kUnavailable) << pair.outcomes[lease];
  EXPECT_TRUE(pair.RunUntilIdle());
}

// The prefill end of a link alone, whose packs take as long as a test likes, and a decode worker.
class PackingLinkTest : public testing::Test {
 protected:
  PackingLinkTest()
      : prompt_(pair_.Prompt(kLength, 1)),
        link_({.prefill = InstanceId::Random().ToString(),
               .decode = pair_.decode_instance.ToString(),
               .decode_address = WorkerPair::kAddress},
              {.prefill_instance = "",
               .decode_instance = pair_.decode_instance.ToString(),
               .layout = TinyLayout(pair_.options.shape),
               .transports = {{"loopback", ""}},
               .max_slot_bytes = kSlotBytes},
              pair_.options.times, &pair_.clock, pair_.network.dialer(), dialers_, &metrics_) {}

  void SetUp() override {
    ASSERT_TRUE(Run([&] { return link_.up(); }));
    lease_ = pair_.decode.Reserve(kLength);
    link_.NameLeases({lease_});
    RunPlace place;
    const std::vector<RowRun> runs =
        TakeRows(prompt_->AppendRuns(0, kLength), INT64_MAX, kSlotBytes, place);
    pair_.ops->PackRows(
        {.runs = runs, .slot = slot_.data(), .slot_bytes = kSlotBytes, .digests = digests_},
        pair_.stream);
    Offer offer{.lease = lease_, .to_tokens = kLength, .num_rows = CountRows(runs)};
    offer.kinds = CountKinds(runs);
    offer.bytes = TotalBytes(offer.kinds);
    ASSERT_TRUE(link_.MayBeEarly());
    seq_ =
        link_.SendPacking(offer, kSlot, std::span(slot_).first(static_cast<size_t>(offer.bytes)));
  }

  bool Run(const std::function<bool()>& done) {
    const TimePoint until = pair_.clock.Now() + std::chrono::seconds(60);
    while (!done()) {
      if (pair_.clock.Now() >= until) return false;
      for (PrefillLinkEvent& event : link_.Pump()) events_.push_back(std::move(event));
      pair_.Step();
    }
    return true;
  }
  bool Has(PrefillLinkEvent::Kind kind) const {
    return std::any_of(events_.begin(), events_.end(),
                       [kind](const PrefillLinkEvent& event) { return event.kind == kind; });
  }
  bool HasVerdict(OfferVerdict verdict) const {
    return std::any_of(events_.begin(), events_.end(), [verdict](const PrefillLinkEvent& event) {
      return event.kind == PrefillLinkEvent::Kind::kVerdict && event.verdict == verdict;
    });
  }

  static constexpr int kSlot = 5;
  EarlyPair pair_;
  std::vector<std::byte> slot_ = std::vector<std::byte>(kSlotBytes);
  RowDigests digests_ = {};
  std::unique_ptr<SequenceCache> prompt_;
  std::vector<DataDialer*> dialers_ = {pair_.network.data_dialer()};
  HandoffMetrics metrics_{nullptr};
  PrefillLink link_;
  LeaseId lease_ = kNoLease;
  uint64_t seq_ = 0;
  std::vector<PrefillLinkEvent> events_;
};

TEST_F(PackingLinkTest, DecodeIsReadyBeforeThePackIsOver) {
  EXPECT_TRUE(Run([&] { return Has(PrefillLinkEvent::Kind::kBound); }));
  EXPECT_TRUE(Run([&] { return pair_.receiver->num_free_slots() == 15; }));
  EXPECT_FALSE(HasVerdict(OfferVerdict::kCommitted));
  link_.SendPacked(seq_);
  EXPECT_TRUE(Run([&] { return HasVerdict(OfferVerdict::kCommitted); }));
  EXPECT_TRUE(Run([&] { return Has(PrefillLinkEvent::Kind::kSlotFree); }));
  EXPECT_EQ(pair_.receiver->num_free_slots(), 16);
}

TEST_F(PackingLinkTest, ARequestThatEndsMeanwhileGivesItsSlotsBack) {
  ASSERT_TRUE(Run([&] { return pair_.receiver->num_free_slots() == 15; }));
  pair_.receiver->Release(lease_, "the client is gone");
  pair_.decode.Free(lease_);
  link_.SendPacked(seq_);
  EXPECT_TRUE(Run([&] { return HasVerdict(OfferVerdict::kSkip); }));
  EXPECT_TRUE(Run([&] { return Has(PrefillLinkEvent::Kind::kSlotFree); }));
  EXPECT_EQ(pair_.receiver->num_free_slots(), 16);
  EXPECT_TRUE(link_.status().ok()) << link_.status();
}

TEST_F(PackingLinkTest, AVerdictBeforeTheBytesEndsTheLink) {
  pair_.network.faults.to_prefill = [](ToPrefill& message) {
    for (OfferReply& reply : message.offers) reply.verdict = OfferVerdict::kCommitted;
    return LinkFault::kNone;
  };
  ASSERT_TRUE(Run([&] { return !link_.status().ok(); }));
  EXPECT_EQ(link_.status().code(), absl::StatusCode::kDataLoss) << link_.status();
  ASSERT_TRUE(Run([&] { return link_.closed(); }));
  EXPECT_EQ(link_.TakeSlots(), std::vector{kSlot});
}

TEST_F(PackingLinkTest, APackThatDoesNotEndEndsTheLinkInTime) {
  const TimePoint start = pair_.clock.Now();
  ASSERT_TRUE(Run([&] { return !link_.status().ok(); }));
  EXPECT_EQ(link_.status().code(), absl::StatusCode::kUnavailable) << link_.status();
  EXPECT_LT(pair_.clock.Now() - start, pair_.options.times.answer + std::chrono::seconds(2));
  ASSERT_TRUE(Run([&] { return link_.closed(); }));
  EXPECT_EQ(link_.TakeSlots(), std::vector{kSlot});
}

}  // namespace
}  // namespace lodestone
