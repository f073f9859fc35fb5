// Link-up: who pairs with whom, and when it is tried again.
#include "kvtransfer/link.h"

#include <gtest/gtest.h>

#include "kvtransfer/transport.h"
#include "tests/kvtransfer/worker_pair.h"

namespace lodestone {
namespace {

using std::chrono::milliseconds;

TEST(LinkTest, EveryDifferingLayoutFieldIsNamed) {
  const LayoutDescriptor layout = TinyLayout(TinyShape());
  ASSERT_GT(layout.size(), 8u);
  for (size_t i = 0; i < layout.size(); ++i) {
    LayoutDescriptor other = layout;
    other[i].value += "x";
    WorkerPair pair({.decode_layout = other});
    const auto prompt = pair.Prompt(10, 1);
    const LeaseId lease = pair.Begin(prompt.get(), 10);
    const TimePoint start = pair.clock.Now();
    ASSERT_TRUE(pair.RunUntilOutcome(lease));
    EXPECT_LE(pair.clock.Now() - start, std::chrono::seconds(1));
    const absl::Status& status = pair.outcomes[lease];
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
    EXPECT_EQ(pair.decode.caches[lease]->pages().size(), 0u) << "rows were taken";
    EXPECT_NE(status.message().find(layout[i].name + ":"), absl::string_view::npos) << status;
    ASSERT_EQ(pair.receiver->RefusedLinks().size(), 1u);
    EXPECT_NE(pair.receiver->RefusedLinks()[0].find(layout[i].name + ":"), std::string::npos);
    EXPECT_TRUE(pair.receiver->LinkedInstances().empty());
    EXPECT_TRUE(pair.RunUntilIdle());
  }
}

// What changes the meaning of bytes: law 9 of a safe hand-off.
TEST(LinkTest, TheHandshakeHasAFieldForWhateverChangesTheMeaningOfBytes) {
  std::set<std::string> names;
  for (const LayoutField& field : TinyLayout(TinyShape())) names.insert(field.name);
  for (const char* name :
       {"model_id", "tokenizer", "numerics", "kv", "index_k", "page_tokens", "compress_ratios",
        "head_dim", "rope_dim", "index_head_dim", "window", "rope_form", "rope_theta",
        "compress_rope_theta", "rope_scaling", "wire_version"}) {
    EXPECT_TRUE(names.contains(name)) << name;
  }
}

TEST(LinkTest, MissingFieldIsNamedToo) {
  LayoutDescriptor other = TinyLayout(TinyShape());
  const std::string name = other.back().name;
  other.pop_back();
  WorkerPair pair({.decode_layout = other});
  const auto prompt = pair.Prompt(10, 1);
  const LeaseId lease = pair.Begin(prompt.get(), 10);
  ASSERT_TRUE(pair.RunUntilOutcome(lease));
  EXPECT_NE(pair.outcomes[lease].message().find(name), absl::string_view::npos);
}

TEST(LinkTest, AnotherInstanceAtTheAddressRefuses) {
  WorkerPair pair;
  const auto prompt = pair.Prompt(10, 1);
  const LeaseId lease = pair.decode.Reserve(10);
  pair.sender->Begin(lease, InstanceId::Random(), WorkerPair::kAddress, prompt.get());
  ASSERT_TRUE(pair.RunUntilOutcome(lease));
  EXPECT_NE(pair.outcomes[lease].message().find("decode_instance"), absl::string_view::npos)
      << pair.outcomes[lease];
}

// Only asked what it is.
class NamedListener final : public DataListener {
 public:
  explicit NamedListener(std::string name, std::string place = "")
      : name_(std::move(name)), place_(std::move(place)) {}
  std::string_view name() const override { return name_; }
  std::string place() const override { return place_; }
  int port() const override { return 0; }
  bool Reaches(const TransportOffer& offer) const override {
    return offer.name == name_ && (place_.empty() || offer.place != place_);
  }
  std::unique_ptr<SlotReader> Open(const std::string&) override { return nullptr; }

 private:
  const std::string name_, place_;
};

TEST(LinkTest, OtherTransportOrWireVersionIsRefused) {
  const DecodeTerms terms{.instance = "d", .layout = {}, .slot_bytes = 1, .slots_per_link = 1};
  LinkOpen open{.prefill_instance = "p", .decode_instance = "d", .transports = {{"tcp", ""}}};
  NamedListener tcp("tcp");
  NamedListener loopback("loopback");
  DataListener* const both[] = {&loopback, &tcp};
  DataListener* const other[] = {&loopback};
  EXPECT_EQ(CheckLinkOpen(terms, both, open).value(), 1u);
  EXPECT_NE(CheckLinkOpen(terms, other, open).status().message().find("loopback here, tcp there"),
            absl::string_view::npos);
  for (int theirs : {kLinkWireVersion - 1, kLinkWireVersion + 1}) {
    open.wire_version = theirs;
    EXPECT_EQ(CheckLinkOpen(terms, both, open).status().message(),
              "wire_version: " + std::to_string(kLinkWireVersion) + " here, " +
                  std::to_string(theirs) + " there");
  }
}

TEST(LinkTest, TheFirstOfferThatCanComeUpIsChosen) {
  const DecodeTerms terms{.instance = "d", .layout = {}, .slot_bytes = 1, .slots_per_link = 1};
  NamedListener tcp("tcp");
  NamedListener nccl("nccl", "gpu-1");
  DataListener* const both[] = {&nccl, &tcp};
  LinkOpen open{.prefill_instance = "p",
                .decode_instance = "d",
                .transports = {{"nccl", "gpu-0"}, {"tcp", ""}}};
  EXPECT_EQ(CheckLinkOpen(terms, both, open).value(), 0u);
  open.transports = {{"tcp", ""}, {"nccl", "gpu-0"}};
  EXPECT_EQ(CheckLinkOpen(terms, both, open).value(), 1u);
  open.transports = {{"nccl", "gpu-1"}, {"tcp", ""}};  // both ends on one GPU
  EXPECT_EQ(CheckLinkOpen(terms, both, open).value(), 1u);
  open.transports = {{"nccl", "gpu-1"}};
  EXPECT_FALSE(CheckLinkOpen(terms, both, open).ok());
}

TEST(LinkTest, LinkThatNobodyAcceptsFailsAtItsDeadline) {
  WorkerPair pair;
  pair.pump_receiver = false;
  const auto prompt = pair.Prompt(10, 1);
  const LeaseId lease = pair.Begin(prompt.get(), 10);
  const TimePoint start = pair.clock.Now();
  ASSERT_TRUE(pair.RunUntilOutcome(lease));
  EXPECT_NEAR((pair.clock.Now() - start).count() * 1e-9, 10.0, 0.1);
  EXPECT_EQ(pair.outcomes[lease].code(), absl::StatusCode::kUnavailable);
}

TEST(LinkTest, RequestsWaitForANearRedialAndFailAtOnceBeforeAFarOne) {
  LayoutDescriptor other = TinyLayout(TinyShape());
  other[0].value += "x";
  WorkerPair pair({.decode_layout = other});
  const auto prompt = pair.Prompt(10, 1);
  int waited = 0;
  bool failed_at_once = false;
  for (int i = 0; i < 8 && !failed_at_once; ++i) {
    const LeaseId lease = pair.Begin(prompt.get(), 10);
    pair.Step();
    failed_at_once = pair.outcomes.contains(lease);
    waited += failed_at_once ? 0 : 1;
    ASSERT_TRUE(pair.RunUntilOutcome(lease));
  }
  EXPECT_TRUE(failed_at_once);
  EXPECT_GE(waited, 3);
}

TEST(LinkTest, ARefusalIsToldForAMinute) {
  LayoutDescriptor other = TinyLayout(TinyShape());
  other[0].value += "x";
  WorkerPair pair({.decode_layout = other});
  const auto prompt = pair.Prompt(10, 1);
  ASSERT_TRUE(pair.RunUntilOutcome(pair.Begin(prompt.get(), 10)));
  pair.clock.Advance(std::chrono::seconds(59));
  pair.receiver->Pump(pair.decode);
  EXPECT_EQ(pair.receiver->RefusedLinks().size(), 1u);
  pair.clock.Advance(std::chrono::seconds(2));
  pair.receiver->Pump(pair.decode);
  EXPECT_TRUE(pair.receiver->RefusedLinks().empty());
}

TEST(LinkTest, MoreOffersThanThereAreSlotsBreakTheLink) {
  WorkerPair pair;
  pair.pump_sender = false;
  const std::unique_ptr<PrefillControl> prefill =
      pair.network.dialer()->Dial(WorkerPair::kAddress);
  ToDecode message;
  message.open = LinkOpen{.prefill_instance = "p",
                          .decode_instance = pair.decode_instance.ToString(),
                          .layout = TinyLayout(pair.options.shape),
                          .transports = {{std::string(pair.network.data_dialer()->name()), ""}},
                          .max_slot_bytes = 8192};
  prefill->Send(std::move(message));
  std::optional<ToPrefill> reply;
  ASSERT_TRUE(pair.RunUntil([&] { return (reply = prefill->Receive()).has_value(); }));
  ASSERT_TRUE(reply->accept.has_value());
  const auto offer = [&](uint64_t link_seq) {
    ToDecode next;
    next.offers.push_back({.link_seq = link_seq, .lease = LeaseId(1)});
    prefill->Send(std::move(next));
    pair.RunUntil([] { return false; }, std::chrono::seconds(1));
  };
  const auto slots = static_cast<uint64_t>(reply->accept->slots);
  for (uint64_t link_seq = 1; link_seq <= slots; ++link_seq) offer(link_seq);
  EXPECT_TRUE(prefill->status().ok()) << prefill->status();
  offer(slots + 1);
  EXPECT_FALSE(prefill->status().ok());
}

void ExpectWaits(const absl::Status& why, const std::vector<double>& waits) {
  Backoff backoff(LinkTimes{}, 1);
  TimePoint now{};
  EXPECT_TRUE(backoff.MayDial(now));
  for (double expected : waits) {
    backoff.Failed(now, why);
    const double wait = std::chrono::duration<double>(backoff.next() - now).count();
    EXPECT_LE(wait, expected);
    EXPECT_GE(wait, 0.74 * expected);
    EXPECT_FALSE(backoff.MayDial(now));
    now = backoff.next();
    EXPECT_TRUE(backoff.MayDial(now));
  }
  backoff.Succeeded();
  EXPECT_TRUE(backoff.MayDial(TimePoint{}));
}

TEST(BackoffTest, DoublesFromHalfASecondToThirtySecondsWhenRefused) {
  ExpectWaits(absl::FailedPreconditionError("layout"), {0.5, 1, 2, 4, 8, 16, 30, 30});
}

// A network that has healed is found within a second.
TEST(BackoffTest, StaysAtOneSecondWhileThePeerCannotBeReached) {
  ExpectWaits(absl::UnavailableError("silent"), {0.5, 1, 1, 1, 1, 1});
}

TEST(TombstonesTest, LastAMinute) {
  Tombstones tombstones(std::chrono::seconds(60));
  const TimePoint now{};
  tombstones.Add(LeaseId(1), now);
  tombstones.Sweep(now + std::chrono::seconds(59));
  EXPECT_TRUE(tombstones.Has(LeaseId(1)));
  tombstones.Sweep(now + std::chrono::seconds(61));
  EXPECT_FALSE(tombstones.Has(LeaseId(1)));
}

TEST(HostOfTest, TakesThePortOff) {
  EXPECT_EQ(HostOf("127.0.0.1:8201"), "127.0.0.1");
  EXPECT_EQ(HostOf("decode-0.decode:8201"), "decode-0.decode");
  EXPECT_EQ(HostOf("[::1]:8201"), "::1");
}

}  // namespace
}  // namespace lodestone
