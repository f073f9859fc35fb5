// A sender and a receiver with a proxy on their data connection that alters, repeats, delays and
// cuts frames: whatever it does, only a cache of the right bytes is adopted, and the request that
// was hit goes through when it is sent again.
#include "tests/tools/fault_proxy.h"

#include <gtest/gtest.h>

#include <iostream>

#include "base/config.h"
#include "kvtransfer/tcp_transport.h"
#include "tests/kvtransfer/worker_pair.h"
#include "tests/testing/time_limits.h"

namespace lodestone {
namespace {

using std::chrono::milliseconds;

constexpr std::chrono::seconds kLimit(20);  // of one hand-off, faults included

// Waits that end in milliseconds, so that faults that only time reveals are found as fast.
LinkTimes ShortTimes() {
  LinkTimes times;
  times.stall = Allowed(milliseconds(200));
  times.link_up = milliseconds(2000);
  times.answer = milliseconds(1000);
  times.dead_after = milliseconds(5000);
  times.backoff_first = milliseconds(1);
  times.backoff_unreachable = milliseconds(1);
  return times;
}

// Connects to the proxy, whoever is meant.
class DialerToProxy final : public DataDialer {
 public:
  DialerToProxy(TcpDialer* dialer, int port) : dialer_(dialer), port_(port) {}
  std::string_view name() const override { return dialer_->name(); }
  std::unique_ptr<SlotWriter> Connect(const std::string&, int, const std::string& key) override {
    return dialer_->Connect("127.0.0.1", port_, key);
  }

 private:
  TcpDialer* const dialer_;
  const int port_;
};

// Control messages pass through memory, bytes through TCP and the proxy.
class ProxiedPair {
 public:
  ProxiedPair() {
    sender = SlotSender::Create({.instance = InstanceId::Random(),
                                 .layout = TinyLayout(shape),
                                 .ops = ops.get(),
                                 .stream = &stream,
                                 .clock = RealClock(),
                                 .control = network.dialer(),
                                 .data = {&dialer},
                                 .slot_bytes = kSlotBytes,
                                 .times = times})
                 .value();
    receiver = SlotReceiver::Create({.instance = decode_instance,
                                     .layout = TinyLayout(shape),
                                     .shape = shape,
                                     .ops = ops.get(),
                                     .stream = &stream,
                                     .clock = RealClock(),
                                     .control = network.acceptor(kAddress),
                                     .data = {listener.get()},
                                     .slot_bytes = kSlotBytes,
                                     .times = times})
                   .value();
  }

  LeaseId Send(const SequenceCache& cache, int64_t length) {
    const LeaseId lease = decode.Reserve(length);
    sender->Begin(lease, decode_instance, kAddress, &cache);
    sender->Finish(lease, WorkerPair::MakeHandoff(length));
    return lease;
  }
  bool RunUntil(const std::function<bool()>& done) {
    const TimePoint until = RealClock()->Now() + kLimit;
    while (!done()) {
      if (RealClock()->Now() > until) return false;
      for (HandoffOutcome& outcome : sender->Pump()) outcomes[outcome.lease] = outcome.status;
      receiver->Pump(decode);
      std::this_thread::yield();
    }
    return true;
  }
  // Until both sides have done with the lease. A link that was about to die may not have told
  // decode of it at all: then only prefill has an outcome.
  bool RunUntilOver(LeaseId lease) {
    return RunUntil([&] {
      if (!outcomes.contains(lease)) return false;
      const bool unknown = !outcomes[lease].ok() && !decode.named.contains(lease);
      return decode.adopted.contains(lease) || decode.abandoned.contains(lease) || unknown;
    });
  }
  bool RunUntilIdle() {
    return RunUntil([&] {
      return sender->num_free_slots() == 4 && receiver->num_free_slots() == 4 &&
             sender->num_leases() == 0 && receiver->num_incoming() == 0;
    });
  }
  void Forget(LeaseId lease) {
    decode.named.erase(lease);
    receiver->Release(lease, "finished");
    decode.Free(lease);
    decode.adopted.erase(lease);
    decode.abandoned.erase(lease);
    outcomes.erase(lease);
  }

  static constexpr char kAddress[] = "decode:1";
  static constexpr int64_t kSlotBytes = 12'288;
  const CacheShape shape = TinyShape();
  const LinkTimes times = ShortTimes();
  ThreadPool threads{1};
  Stream stream{&threads};
  std::unique_ptr<Ops> ops = MakeReferenceOps();
  std::unique_ptr<CachePool> prefill_pool = MakePool(shape);
  FakeDecode decode{shape};
  const InstanceId decode_instance = InstanceId::Random();
  LoopbackNetwork network{RealClock(), times.dead_after};
  TcpDialer tcp{times};
  std::unique_ptr<TcpListener> listener = TcpListener::Start("127.0.0.1", 0, times).value();
  std::unique_ptr<FaultProxy> proxy =
      FaultProxy::Start({.target_port = listener->port(), .frames = true}).value();
  DialerToProxy dialer{&tcp, proxy->port()};
  std::unique_ptr<SlotSender> sender;
  std::unique_ptr<SlotReceiver> receiver;
  std::map<LeaseId, absl::Status> outcomes;
};

// More of them, and others: NUM_FAULTS=1000000 FAULTS_SEED=7.
int64_t Seed() {
  const auto seed = GetEnvironment("FAULTS_SEED");
  return seed ? std::stoll(*seed) : 2026;
}

int64_t NumFaults() {
  if (const auto count = GetEnvironment("NUM_FAULTS")) return std::stoll(*count);
  return GetEnvironment("LODESTONE_LONG_TESTS") == "1" ? 100'000 : 10'000;
}

// The n-th fault. Those that show only after a time limit are few, so that thousands of the others
// fit in.
FrameFault FaultOf(int64_t n) {
  if (n % 800 == 7) return FrameFault::kStall;
  if (n % 100 == 17) return FrameFault::kDelay;
  if (n % 200 == 27) return FrameFault::kDropBytes;
  constexpr FrameFault kFaults[] = {
      FrameFault::kFlipPayloadBit, FrameFault::kSwapRows,  FrameFault::kFlipHeaderBit,
      FrameFault::kFlipPayloadBit, FrameFault::kSwapRows,  FrameFault::kForgeHeader,
      FrameFault::kFlipPayloadBit, FrameFault::kSwapRows,  FrameFault::kShorten,
      FrameFault::kFlipPayloadBit, FrameFault::kSwapRows,  FrameFault::kDuplicate,
      FrameFault::kFlipPayloadBit, FrameFault::kSwapRows,  FrameFault::kReorder,
      FrameFault::kFlipPayloadBit, FrameFault::kRepeatOld, FrameFault::kStaleEpoch,
      FrameFault::kReset};
  return kFaults[static_cast<size_t>(n) % std::size(kFaults)];
}

int64_t NumDone(const FaultProxy& proxy) {
  int64_t done = 0;
  for (int fault = 1; fault < kNumFrameFaults; ++fault) {
    done += proxy.num_done(static_cast<FrameFault>(fault));
  }
  return done;
}

TEST(FaultProxyTest, EveryFaultIsCaughtBeforeTheFirstDecodeStep) {
  ProxiedPair pair;
  std::mt19937 random(static_cast<uint32_t>(Seed()));
  std::array<int64_t, kNumFrameFaults> refused{}, survived{};
  const int64_t wanted = NumFaults();
  const TimePoint started = RealClock()->Now();
  int64_t num_tried = 0, num_starved = 0;
  while (NumDone(*pair.proxy) < wanted) {
    const int64_t length = 1 + static_cast<int64_t>(random() % 300);
    auto prompt = pair.prefill_pool->MakeSequenceFor(length).value();
    ASSERT_TRUE(prompt->Reserve(length).ok());
    FillCache(*prompt, length, static_cast<uint32_t>(random()));
    // A request runs until it is adopted. Most attempts have one fault, at one of their frames.
    bool adopted = false;
    bool link_may_be_dying = false;
    for (int attempt = 0; !adopted; ++attempt) {
      ASSERT_LT(attempt, 60) << "does not recover";
      const FrameFault fault = random() % 4 == 0 ? FrameFault::kNone : FaultOf(num_tried++);
      std::atomic<int64_t> frames_before{static_cast<int64_t>(random() % 3)};
      const int64_t done_before = NumDone(*pair.proxy);
      pair.proxy->SetRule(
          [&](uint64_t) { return frames_before-- == 0 ? fault : FrameFault::kNone; },
          milliseconds(30));
      const LeaseId lease = pair.Send(*prompt, length);
      ASSERT_TRUE(pair.RunUntilOver(lease)) << Name(fault);
      pair.proxy->SetRule({});
      const bool was_done = NumDone(*pair.proxy) > done_before;
      adopted = pair.decode.adopted.contains(lease);
      if (adopted) {
        ASSERT_EQ(CacheBytes(*pair.decode.caches[lease], length), CacheBytes(*prompt, length))
            << Name(fault) << " changed an adopted cache";
      }
      if (was_done) ++(adopted ? survived : refused)[static_cast<size_t>(fault)];
      // On a busy machine a thread may not run for as long as a stall is allowed to last.
      if (!was_done && !adopted && !link_may_be_dying) {
        ASSERT_LE(++num_starved, 10 + wanted / 100) << pair.outcomes[lease];
      }
      link_may_be_dying = was_done;
      pair.Forget(lease);
      // Bytes that were granted are sent, also those of a request that has failed meanwhile or on a
      // link that is dead: the next fault is not for them.
      ASSERT_TRUE(pair.RunUntilIdle());
      ASSERT_TRUE(pair.RunUntil([&] {
        return !pair.sender->LinkedInstances().empty() || pair.proxy->num_open() == 0;
      }));
    }
  }
  ASSERT_TRUE(pair.RunUntilIdle());
  EXPECT_TRUE(pair.decode.pool->ledger().CheckIdle().ok());
  EXPECT_TRUE(pair.prefill_pool->ledger().CheckIdle().ok());
  for (int i = 1; i < kNumFrameFaults; ++i) {
    const auto fault = static_cast<FrameFault>(i);
    EXPECT_GT(pair.proxy->num_done(fault), 0) << Name(fault) << " never happened";
    std::cout << Name(fault) << ": " << pair.proxy->num_done(fault) << " done, "
              << refused[static_cast<size_t>(i)] << " ended the attempt, "
              << survived[static_cast<size_t>(i)] << " adopted with the right bytes\n";
  }
  // These alter what is taken in, so nothing may survive them.
  for (FrameFault fault : {FrameFault::kFlipPayloadBit, FrameFault::kFlipHeaderBit,
                           FrameFault::kForgeHeader, FrameFault::kSwapRows, FrameFault::kDropBytes,
                           FrameFault::kShorten, FrameFault::kStall, FrameFault::kReorder,
                           FrameFault::kRepeatOld, FrameFault::kStaleEpoch, FrameFault::kReset}) {
    EXPECT_EQ(survived[static_cast<size_t>(fault)], 0) << Name(fault);
  }
  const std::chrono::duration<double> time = RealClock()->Now() - started;
  std::cout << NumDone(*pair.proxy) << " faults, " << pair.proxy->num_frames() << " frames, "
            << pair.proxy->num_connections() << " connections, " << num_starved
            << " attempts without time, in " << time.count() << " s\n";
}

TEST(FaultProxyTest, WeatherOfTheDataConnectionEndsInOneOutcome) {
  for (Weather weather : {Weather::kCut, Weather::kBlackHole, Weather::kNoForward,
                          Weather::kTrickle, Weather::kNoBackward}) {
    SCOPED_TRACE(static_cast<int>(weather));
    ProxiedPair pair;
    auto prompt = pair.prefill_pool->MakeSequenceFor(300).value();
    ASSERT_TRUE(prompt->Reserve(300).ok());
    FillCache(*prompt, 300, 1);
    const LeaseId first = pair.Send(*prompt, 300);
    ASSERT_TRUE(pair.RunUntilOver(first));
    pair.proxy->SetWeather(weather);
    const LeaseId second = pair.Send(*prompt, 300);
    ASSERT_TRUE(pair.RunUntilOver(second));
    // Bytes flow in one direction only, and slow ones are no fault.
    const bool harmless = weather == Weather::kTrickle || weather == Weather::kNoBackward;
    EXPECT_EQ(pair.decode.adopted.contains(second), harmless) << pair.outcomes[second];
    pair.proxy->SetWeather(Weather::kClear);
    LeaseId third = pair.Send(*prompt, 300);
    ASSERT_TRUE(pair.RunUntilOver(third));
    if (!pair.decode.adopted.contains(third)) {  // dialled while the weather was bad
      third = pair.Send(*prompt, 300);
      ASSERT_TRUE(pair.RunUntilOver(third));
    }
    ASSERT_TRUE(pair.decode.adopted.contains(third)) << pair.outcomes[third];
    EXPECT_EQ(CacheBytes(*pair.decode.caches[third], 300), CacheBytes(*prompt, 300));
    EXPECT_TRUE(pair.RunUntilIdle());
  }
}

}  // namespace
}  // namespace lodestone
