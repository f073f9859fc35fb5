#include "decode/scheduler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "base/out_of_memory.h"
#include "kvcache/ledger.h"
#include "tests/testing/failing_allocations.h"

namespace lodestone {
namespace {

using std::chrono::milliseconds;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

// Notes what it was told to give up.
class FakeReceiver final : public Receiver {
 public:
  bool Pump(HandoffTarget&) override { return false; }
  void Release(LeaseId lease, std::string_view) override { released.push_back(lease); }
  std::vector<std::string> LinkedInstances() const override { return {}; }
  std::vector<std::string> RefusedLinks() const override { return {}; }

  std::vector<LeaseId> released;
};

constexpr int32_t kPromptTokens = 20;

class DecodeSchedulerTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    EngineOptions options;
    options.model_dir = std::string(LODESTONE_SOURCE_DIR) + "/models/needle-tiny";
    options.num_threads = 1;
    options.memory_limit_bytes = int64_t{96} << 20;
    options.max_sequences = 3;
    options.max_context_tokens = 1024;
    options.max_batch_tokens = 16;
    engine_ = Engine::Create(options).value().release();
  }
  static void TearDownTestSuite() { delete engine_; }
  void SetUp() override { ASSERT_TRUE(ledger().CheckIdle().ok()); }

  static Ledger& ledger() { return engine_->cache().ledger(); }

  LeaseId Reserve(int64_t max_new_tokens = 8) {
    return table_
        .Reserve({.request_id = "test",
                  .prompt_tokens = kPromptTokens,
                  .max_new_tokens = max_new_tokens})
        .value()
        .lease;
  }
  void ReceiveRows(LeaseId lease) { ASSERT_TRUE(table_.CacheFor(lease, kPromptTokens).ok()); }
  absl::Status Adopt(LeaseId lease, const SamplingParams& sampling) {
    Handoff handoff;
    handoff.lease = lease;
    handoff.tokens.assign(kPromptTokens, 300);
    handoff.first_token.id = 301;
    handoff.sampling = sampling;
    return table_.Adopt(std::move(handoff));
  }
  // A request that decodes.
  LeaseId Start(int32_t max_new_tokens = 8) {
    const LeaseId lease = Reserve(max_new_tokens);
    ReceiveRows(lease);
    EXPECT_TRUE(Adopt(lease, {.ignore_eos = true, .max_new_tokens = max_new_tokens}).ok());
    return lease;
  }

  std::shared_ptr<TokenStream> Open(StreamId id, std::vector<LeaseId> subscribe) {
    auto stream = std::make_shared<TokenStream>([] {});
    table_.OpenStream(id, stream);
    table_.NameOnStream(id, {}, subscribe);
    return stream;
  }
  // Events that were made since the last call, sent and taken.
  std::vector<LeaseEvent> Take(TokenStream& stream) {
    table_.SendEvents();
    return stream.TakeAll();
  }

  static Engine* engine_;
  FakeReceiver receiver_;
  FakeClock clock_;
  DecodeScheduler table_{engine_, &receiver_, &clock_};
};

Engine* DecodeSchedulerTest::engine_ = nullptr;

TEST_F(DecodeSchedulerTest, ReserveTakesTheWorstCaseFromTheLedger) {
  const ReserveReply reply = table_.Reserve({.prompt_tokens = 250, .max_new_tokens = 10}).value();
  EXPECT_EQ(ledger().Snapshot().reserved_bytes, reply.reserved_bytes);
  EXPECT_EQ(ledger().Find(reply.lease).value(), ReservationFor(260));
  const MemoryPlan& plan = engine_->plan();
  EXPECT_EQ(reply.free_bytes, ledger().Snapshot().free_pages * plan.bytes_per_page.total() +
                                  plan.bytes_per_slot.total());
  EXPECT_EQ(table_.Cancel(reply.lease), reply.reserved_bytes);
}

TEST_F(DecodeSchedulerTest, ReserveRefusesWhatCanNeverFit) {
  const absl::Status status =
      table_.Reserve({.prompt_tokens = 1000, .max_new_tokens = 25}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("1025"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("1024"));
  constexpr int64_t kHuge = std::numeric_limits<int32_t>::max();
  EXPECT_EQ(table_.Reserve({.prompt_tokens = kHuge, .max_new_tokens = kHuge}).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(table_.Reserve({.prompt_tokens = 0, .max_new_tokens = 1}).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_F(DecodeSchedulerTest, ReserveRefusesWhatDoesNotFitNow) {
  std::vector<LeaseId> leases;
  for (int i = 0; i < 3; ++i) leases.push_back(Reserve());
  EXPECT_EQ(table_.Reserve({.prompt_tokens = 1, .max_new_tokens = 1}).status().code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(table_.num_live(), 3);
  table_.Cancel(leases[0]);
  leases[0] = Reserve();
  for (LeaseId lease : leases) table_.Cancel(lease);
}

// Reserved, receiving, running.
class RequestStateTest : public DecodeSchedulerTest, public testing::WithParamInterface<int> {
 protected:
  LeaseId ReachState() {
    const LeaseId lease = Reserve();
    if (GetParam() >= 1) ReceiveRows(lease);
    if (GetParam() >= 2) {
      EXPECT_TRUE(Adopt(lease, {.ignore_eos = true, .max_new_tokens = 8}).ok());
      EXPECT_TRUE(table_.Step().ok());
    }
    return lease;
  }
  // The one terminal event of `lease`, with nothing left of it.
  LeaseEvent ExpectEnded(LeaseId lease, TokenStream& stream) {
    const std::vector<LeaseEvent> events = Take(stream);
    EXPECT_FALSE(events.empty());
    for (size_t i = 0; i + 1 < events.size(); ++i) EXPECT_EQ(events[i].finish, FinishReason::kNone);
    EXPECT_THAT(receiver_.released, ElementsAre(lease));
    EXPECT_TRUE(ledger().CheckIdle().ok());
    EXPECT_EQ(table_.num_live(), 0);
    EXPECT_EQ(table_.num_running(), 0);
    EXPECT_EQ(table_.Cancel(lease), 0);
    EXPECT_THAT(Take(stream), IsEmpty());
    return events.empty() ? LeaseEvent{} : events.back();
  }
};

TEST_P(RequestStateTest, CancelGivesEverythingBackOnce) {
  const LeaseId lease = ReachState();
  const auto stream = Open(1, {lease});
  EXPECT_GT(table_.Cancel(lease), 0);
  EXPECT_EQ(ExpectEnded(lease, *stream).finish, FinishReason::kCancelled);
}

TEST_P(RequestStateTest, ALeaseThatNobodyNamesExpires) {
  const LeaseId lease = ReachState();
  const auto stream = Open(1, {lease});
  clock_.Advance(kLeaseLifetime);
  table_.EndExpired();
  EXPECT_EQ(table_.num_live(), 1);
  table_.NameOnStream(1, {{lease}}, {});
  clock_.Advance(kLeaseLifetime);
  table_.EndExpired();
  EXPECT_EQ(table_.num_live(), 1);
  clock_.Advance(milliseconds(1));
  table_.EndExpired();
  EXPECT_EQ(ExpectEnded(lease, *stream).error.code(), absl::StatusCode::kUnavailable);
}

TEST_P(RequestStateTest, AnAbandonedHandoffIsToldToTheRouter) {
  const LeaseId lease = ReachState();
  const auto stream = Open(1, {lease});
  table_.Abandon(lease, absl::DataLossError("digest differs"));
  const LeaseEvent event = ExpectEnded(lease, *stream);
  EXPECT_EQ(event.finish, FinishReason::kError);
  EXPECT_EQ(event.error, absl::DataLossError("digest differs"));
}

TEST_P(RequestStateTest, ABrokenStreamEndsItsRequestsOnly) {
  const LeaseId lease = ReachState();
  const LeaseId other = Reserve();
  Open(1, {lease});
  const auto other_stream = Open(2, {other});
  table_.CloseStream(1);
  EXPECT_THAT(receiver_.released, ElementsAre(lease));
  EXPECT_EQ(table_.num_live(), 1);
  EXPECT_THAT(Take(*other_stream), IsEmpty());
  table_.Cancel(other);
}

TEST_P(RequestStateTest, TheEndOfTheWorkerEndsRequestsAndStreams) {
  const LeaseId lease = ReachState();
  const auto stream = Open(1, {lease});
  table_.EndAll(absl::UnavailableError("going away"));
  EXPECT_EQ(stream->status(), absl::UnavailableError("going away"));
  EXPECT_EQ(ExpectEnded(lease, *stream).error, absl::UnavailableError("going away"));
}

std::string StateName(const testing::TestParamInfo<int>& state) {
  static const char* const kNames[] = {"Reserved", "Receiving", "Running"};
  return kNames[state.param];
}
INSTANTIATE_TEST_SUITE_P(States, RequestStateTest, testing::Range(0, 3), StateName);

TEST_F(DecodeSchedulerTest, TokensThatComeBeforeTheSubscriptionAreKept) {
  const LeaseId lease = Start(4);
  ASSERT_TRUE(table_.Step().ok());
  ASSERT_TRUE(table_.Step().ok());
  const auto stream = Open(1, {lease});
  const std::vector<LeaseEvent> events = Take(*stream);
  ASSERT_THAT(events, SizeIs(2));
  EXPECT_EQ(events[0].tokens[0].index, 1);
  EXPECT_EQ(events[1].tokens[0].index, 2);
  table_.Cancel(lease);
}

TEST_F(DecodeSchedulerTest, ALeaseThatIsNotLiveIsAnsweredWithNotFound) {
  const auto stream = Open(1, {LeaseId(99)});
  const std::vector<LeaseEvent> events = Take(*stream);
  ASSERT_THAT(events, SizeIs(1));
  EXPECT_EQ(events[0].lease, LeaseId(99));
  EXPECT_EQ(events[0].error.code(), absl::StatusCode::kNotFound);
}

TEST_F(DecodeSchedulerTest, LengthDeliversTheLastTokenWithTheFinish) {
  const LeaseId lease = Start(3);
  const auto stream = Open(1, {lease});
  ASSERT_TRUE(table_.Step().ok());
  ASSERT_TRUE(table_.Step().ok());
  const std::vector<LeaseEvent> events = Take(*stream);
  ASSERT_THAT(events, SizeIs(2));
  EXPECT_EQ(events[0].finish, FinishReason::kNone);
  EXPECT_EQ(events[1].finish, FinishReason::kLength);
  EXPECT_THAT(events[1].tokens, SizeIs(1));
  EXPECT_TRUE(ledger().CheckIdle().ok());
}

TEST_F(DecodeSchedulerTest, AStopTokenIsNotDelivered) {
  LeaseId lease = Start(8);
  auto stream = Open(1, {lease});
  ASSERT_TRUE(table_.Step().ok());
  const int32_t second = Take(*stream).at(0).tokens.at(0).id;
  table_.Cancel(lease);
  Take(*stream);

  lease = Reserve();
  ReceiveRows(lease);
  ASSERT_TRUE(
      Adopt(lease, {.stop_token_ids = {second}, .ignore_eos = true, .max_new_tokens = 8}).ok());
  table_.NameOnStream(1, {}, {{lease}});
  ASSERT_TRUE(table_.Step().ok());
  const std::vector<LeaseEvent> events = Take(*stream);
  ASSERT_THAT(events, SizeIs(1));
  EXPECT_EQ(events[0].finish, FinishReason::kStop);
  EXPECT_THAT(events[0].tokens, IsEmpty());
}

TEST_F(DecodeSchedulerTest, OnlyWhatWasReservedIsAdopted) {
  const LeaseId lease = Reserve(8);
  EXPECT_EQ(table_.CacheFor(lease, kPromptTokens + 1).status().code(),
            absl::StatusCode::kInvalidArgument);
  ReceiveRows(lease);
  EXPECT_EQ(Adopt(lease, {.max_new_tokens = 9}).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Adopt(LeaseId(99), {.max_new_tokens = 8}).code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(table_.num_running(), 0);
  table_.Cancel(lease);
}

TEST_F(DecodeSchedulerTest, AnAdoptedRequestTakesNoMoreRows) {
  const LeaseId lease = Start();
  EXPECT_EQ(table_.CacheFor(lease, 1).status().code(), absl::StatusCode::kNotFound);
  table_.Cancel(lease);
}

TEST_F(DecodeSchedulerTest, EveryRunningRequestGetsOneTokenPerStep) {
  const std::vector<LeaseId> leases = {Start(), Start(), Start()};
  const auto stream = Open(1, leases);
  ASSERT_TRUE(table_.Step().ok());
  EXPECT_EQ(table_.last_step_tokens(), 3);
  EXPECT_THAT(Take(*stream), SizeIs(3));
  for (LeaseId lease : leases) table_.Cancel(lease);
}

class DecodeForksTest : public DecodeSchedulerTest {
 protected:
  ReserveReply ReserveThree() {
    return table_
        .Reserve({.request_id = "test",
                  .prompt_tokens = kPromptTokens,
                  .max_new_tokens = 8,
                  .num_forks = 2})
        .value();
  }
  absl::Status AdoptForks(const ReserveReply& reply, const std::vector<LeaseId>& forks,
                          int32_t first_token = 301) {
    Handoff handoff;
    handoff.lease = reply.lease;
    handoff.tokens.assign(kPromptTokens, 300);
    handoff.first_token.id = first_token;
    handoff.sampling = {.temperature = 1, .seed = 1, .max_new_tokens = 8};
    for (const LeaseId fork : forks) {
      handoff.forks.push_back({fork, fork.value(), {.id = 302}});
    }
    return table_.Adopt(std::move(handoff));
  }
  std::shared_ptr<TokenStream> OpenAll(const ReserveReply& reply) {
    std::vector<LeaseId> leases = reply.forks;
    leases.push_back(reply.lease);
    return Open(1, leases);
  }
};

TEST_F(DecodeForksTest, AllAreReservedOrNone) {
  const LeaseId other = Reserve();
  const absl::Status status =
      table_
          .Reserve({.prompt_tokens = kPromptTokens, .max_new_tokens = 8, .num_forks = 2})
          .status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(table_.num_live(), 1);
  table_.Cancel(other);
  EXPECT_TRUE(ledger().CheckIdle().ok());
  EXPECT_EQ(
      table_.Reserve({.prompt_tokens = 1, .max_new_tokens = 1, .num_forks = 3}).status().code(),
      absl::StatusCode::kInvalidArgument)
      << "4 sequences on a worker for 3";
}

TEST_F(DecodeForksTest, ForksRunBesideTheirRequest) {
  const ReserveReply reply = ReserveThree();
  ASSERT_THAT(reply.forks, SizeIs(2));
  EXPECT_EQ(reply.reserved_bytes, ledger().Snapshot().reserved_bytes);
  const auto stream = OpenAll(reply);
  ReceiveRows(reply.lease);
  ASSERT_TRUE(AdoptForks(reply, reply.forks).ok());
  EXPECT_EQ(table_.num_running(), 3);
  ASSERT_TRUE(table_.Step().ok());
  EXPECT_THAT(Take(*stream), SizeIs(3));
  table_.Cancel(reply.lease);
  EXPECT_EQ(table_.num_running(), 2) << "adopted, each is on its own";
  for (const LeaseId fork : reply.forks) table_.Cancel(fork);
  EXPECT_TRUE(ledger().CheckIdle().ok());
}

TEST_F(DecodeForksTest, UntilAdoptionForksEndWithTheirRequest) {
  const ReserveReply reply = ReserveThree();
  const auto stream = OpenAll(reply);
  ReceiveRows(reply.lease);
  table_.Abandon(reply.lease, absl::DataLossError("digest differs"));
  const std::vector<LeaseEvent> events = Take(*stream);
  ASSERT_THAT(events, SizeIs(3));
  for (const LeaseEvent& event : events) EXPECT_EQ(event.error.code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(table_.num_live(), 0);
  EXPECT_TRUE(ledger().CheckIdle().ok());
}

TEST_F(DecodeForksTest, ChoicesThatEndedInPrefillAreToldSo) {
  const ReserveReply reply = ReserveThree();
  const auto stream = OpenAll(reply);
  ReceiveRows(reply.lease);
  const int32_t eos = engine_->config().eos_ids.front();
  ASSERT_TRUE(AdoptForks(reply, {reply.forks[1]}, eos).ok());
  EXPECT_EQ(table_.num_running(), 1);
  table_.EndExpired();
  const std::vector<LeaseEvent> events = Take(*stream);
  ASSERT_THAT(events, SizeIs(2));
  for (const LeaseEvent& event : events) EXPECT_EQ(event.finish, FinishReason::kStop);
  EXPECT_EQ(table_.num_live(), 1);
  table_.Cancel(reply.forks[1]);
  EXPECT_TRUE(ledger().CheckIdle().ok());
}

TEST_F(DecodeForksTest, AFirstTokenOutsideTheVocabularyIsRefused) {
  const ReserveReply reply = ReserveThree();
  ReceiveRows(reply.lease);
  for (const int32_t id : {-1, static_cast<int32_t>(engine_->config().vocab_size)}) {
    EXPECT_EQ(AdoptForks(reply, reply.forks, id).code(), absl::StatusCode::kInvalidArgument) << id;
  }
  EXPECT_EQ(table_.num_running(), 0);
  table_.Cancel(reply.lease);
  EXPECT_TRUE(ledger().CheckIdle().ok());
}

TEST_F(DecodeForksTest, AForkThatIsCancelledEarlyIsLeftOut) {
  const ReserveReply reply = ReserveThree();
  table_.Cancel(reply.forks[0]);
  ReceiveRows(reply.lease);
  ASSERT_TRUE(AdoptForks(reply, reply.forks).ok());
  EXPECT_EQ(table_.num_running(), 2);
  table_.Cancel(reply.lease);
  table_.Cancel(reply.forks[1]);
  table_.EndExpired();
  EXPECT_TRUE(ledger().CheckIdle().ok());
}

TEST_F(DecodeForksTest, OnlyForksOfTheRequestAreStarted) {
  const ReserveReply reply = ReserveThree();
  ReceiveRows(reply.lease);
  for (const std::vector<LeaseId>& forks :
       {std::vector<LeaseId>{LeaseId(99)}, {reply.lease}, {reply.forks[0], reply.forks[0]}}) {
    EXPECT_EQ(AdoptForks(reply, forks).code(), absl::StatusCode::kInvalidArgument);
  }
  EXPECT_EQ(table_.num_running(), 0);
  table_.Cancel(reply.lease);
  EXPECT_EQ(table_.num_live(), 0);
}

TEST_F(DecodeSchedulerTest, AReservationThatThereIsNoMemoryForLeavesNoTrace) {
  const int64_t failures = FailEveryAllocation([&](auto arm) {
    const ReserveRequest request{.request_id = "a request id that is longer than a small string",
                                 .prompt_tokens = kPromptTokens,
                                 .max_new_tokens = 8,
                                 .num_forks = 1};
    absl::StatusOr<ReserveReply> reply = absl::UnknownError("");
    arm([&] {
      reply = CatchOutOfMemory("for a reservation", [&] { return table_.Reserve(request); });
    });
    if (reply.ok()) {
      EXPECT_GT(table_.Cancel(reply->lease), 0);
      return;
    }
    EXPECT_TRUE(absl::IsResourceExhausted(reply.status())) << reply.status();
    EXPECT_EQ(table_.num_live(), 0);
    EXPECT_TRUE(ledger().CheckIdle().ok());
  });
  EXPECT_GE(failures, 4);  // the id, the request, the lease and its account
}

TEST_F(DecodeSchedulerTest, AfterAnAdoptionThatThereIsNoMemoryForEverythingCanBeGivenBack) {
  const int64_t failures = FailEveryAllocation([&](auto arm) {
    const LeaseId lease = Reserve();
    ReceiveRows(lease);
    absl::Status adopted;
    arm([&] {
      adopted = CatchOutOfMemory("for an adoption",
                                 [&] { return Adopt(lease, {.max_new_tokens = 8}); });
    });
    EXPECT_TRUE(adopted.ok() || absl::IsResourceExhausted(adopted)) << adopted;
    table_.EndAll(absl::UnavailableError("the worker ends"));
    EXPECT_TRUE(ledger().CheckIdle().ok());
  });
  EXPECT_GE(failures, 2);
}

TEST(TokenStreamTest, AReaderThatIsTooSlowIsCutOff) {
  int notified = 0;
  TokenStream stream([&] { ++notified; });
  for (size_t i = 0; i < TokenStream::kMaxEvents; ++i)
    stream.Add({LeaseEvent{.lease = LeaseId(1)}});
  EXPECT_TRUE(stream.status().ok());
  stream.Add({LeaseEvent{.lease = LeaseId(1)}});
  EXPECT_EQ(stream.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(stream.TakeAll(), IsEmpty());
  EXPECT_EQ(notified, static_cast<int>(TokenStream::kMaxEvents) + 1);
}

TEST(TokenStreamTest, WhatCameBeforeTheEndIsStillThere) {
  TokenStream stream([] {});
  stream.Add({LeaseEvent{.lease = LeaseId(1)}});
  stream.End(absl::UnavailableError("over"));
  stream.Add({LeaseEvent{.lease = LeaseId(2)}});
  EXPECT_THAT(stream.TakeAll(), SizeIs(1));
  EXPECT_EQ(stream.status(), absl::UnavailableError("over"));
}

}  // namespace
}  // namespace lodestone
