// The same sender and receiver over real sockets: gRPC for control, TCP for bytes, on 127.0.0.1.
#include <chrono>
#include <thread>

#include <gtest/gtest.h>

#include "kvtransfer/grpc_link.h"
#include "kvtransfer/tcp_transport.h"
#include "tests/kvtransfer/run_until.h"
#include "tests/kvtransfer/worker_pair.h"
#include "worker/grpc_server.h"

namespace lodestone {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

// A prefill and a decode worker with real connections between them.
class NetworkPair {
 public:
  explicit NetworkPair(const CacheShape& cache_shape, int64_t slot_size = 1 << 20)
      : shape(cache_shape),
        slot_bytes(slot_size),
        prefill_pool(MakePool(shape)),
        decode(shape),
        dialer(grpc::InsecureChannelCredentials()),
        listener(TcpListener::Start("127.0.0.1", 0).value()) {
    StartServer();
    sender = SlotSender::Create({.instance = InstanceId::Random(),
                                 .layout = TinyLayout(shape),
                                 .ops = ops.get(),
                                 .stream = &stream,
                                 .clock = RealClock(),
                                 .control = &dialer,
                                 .data = {&data_dialer},
                                 .slot_bytes = slot_bytes})
                 .value();
  }
  ~NetworkPair() {
    sender.reset();
    StopServer();
  }

  void StartServer() {
    service = std::make_unique<GrpcLinkService>();
    server = StartGrpcServer("127.0.0.1", 0, {service.get()}).value();
    receiver = SlotReceiver::Create({.instance = decode_instance,
                                     .layout = TinyLayout(shape),
                                     .shape = shape,
                                     .ops = ops.get(),
                                     .stream = &stream,
                                     .clock = RealClock(),
                                     .control = service.get(),
                                     .data = {listener.get()},
                                     .slot_bytes = slot_bytes})
                   .value();
  }
  void StopServer() {
    receiver.reset();
    service->Shutdown();
    server.Shutdown(seconds(2));
    server = {};
  }
  std::string address() const { return "127.0.0.1:" + std::to_string(server.port); }

  LeaseId Send(const SequenceCache& cache, int64_t length) {
    const LeaseId lease = decode.Reserve(length);
    sender->Begin(lease, decode_instance, address(), &cache);
    sender->Finish(lease, WorkerPair::MakeHandoff(length));
    return lease;
  }
  void Pump() {
    for (HandoffOutcome& outcome : sender->Pump()) outcomes[outcome.lease] = outcome.status;
    if (receiver != nullptr) receiver->Pump(decode);
  }
  bool RunUntilOutcome(LeaseId lease) {
    return RunUntil([&] { return outcomes.contains(lease); }, [&] { Pump(); });
  }

  const CacheShape shape;
  const int64_t slot_bytes;
  ThreadPool threads{1};
  Stream stream{&threads};
  std::unique_ptr<Ops> ops = MakeReferenceOps();
  std::unique_ptr<CachePool> prefill_pool;
  FakeDecode decode;
  InstanceId decode_instance = InstanceId::Random();
  GrpcDialer dialer;
  TcpDialer data_dialer;
  std::unique_ptr<TcpListener> listener;
  std::unique_ptr<GrpcLinkService> service;
  GrpcServer server;
  std::unique_ptr<SlotReceiver> receiver;
  std::unique_ptr<SlotSender> sender;
  std::map<LeaseId, absl::Status> outcomes;
};

TEST(NetworkLinkTest, CachesArriveBitExact) {
  NetworkPair pair(SmallShape());
  for (int64_t length : {0, 1, 129, 700, 1500}) {
    auto prompt = pair.prefill_pool->MakeSequenceFor(2000).value();
    ASSERT_TRUE(prompt->Reserve(length).ok());
    FillCache(*prompt, length, 3);
    const LeaseId lease = pair.Send(*prompt, length);
    ASSERT_TRUE(pair.RunUntilOutcome(lease));
    ASSERT_TRUE(pair.outcomes[lease].ok()) << pair.outcomes[lease];
    EXPECT_EQ(CacheBytes(*pair.decode.caches[lease], length), CacheBytes(*prompt, length));
  }
}

TEST(NetworkLinkTest, DecodeThatDiesIsNoticedAndFoundAgain) {
  NetworkPair pair(TinyShape());
  auto prompt = pair.prefill_pool->MakeSequenceFor(300).value();
  ASSERT_TRUE(prompt->Reserve(300).ok());
  FillCache(*prompt, 300, 3);
  const LeaseId first = pair.decode.Reserve(300);
  pair.sender->Begin(first, pair.decode_instance, pair.address(), prompt.get());
  ASSERT_TRUE(RunUntil([&] { return !pair.sender->LinkedInstances().empty(); },
                       [&] { pair.Pump(); }));
  const auto start = RealClock()->Now();
  pair.StopServer();
  ASSERT_TRUE(pair.RunUntilOutcome(first));
  EXPECT_LT(RealClock()->Now() - start, seconds(4));
  EXPECT_EQ(pair.outcomes[first].code(), absl::StatusCode::kUnavailable);
  pair.StartServer();
  const LeaseId second = pair.Send(*prompt, 300);
  ASSERT_TRUE(pair.RunUntilOutcome(second));
  EXPECT_TRUE(pair.outcomes[second].ok()) << pair.outcomes[second];
}

TEST(NetworkLinkTest, AddressWhereNobodyListensFailsWithItsReason) {
  NetworkPair pair(TinyShape());
  auto prompt = pair.prefill_pool->MakeSequenceFor(10).value();
  const LeaseId lease = pair.decode.Reserve(10);
  pair.sender->Begin(lease, InstanceId::Random(), "127.0.0.1:1", prompt.get());
  ASSERT_TRUE(pair.RunUntilOutcome(lease));
  EXPECT_EQ(pair.outcomes[lease].code(), absl::StatusCode::kUnavailable) << pair.outcomes[lease];
}

TEST(NetworkLinkTest, RefusalReachesPrefillWithItsText) {
  NetworkPair pair(TinyShape());
  auto prompt = pair.prefill_pool->MakeSequenceFor(10).value();
  const LeaseId lease = pair.decode.Reserve(10);
  pair.sender->Begin(lease, InstanceId::Random(), pair.address(), prompt.get());
  ASSERT_TRUE(pair.RunUntilOutcome(lease));
  EXPECT_NE(pair.outcomes[lease].message().find("decode_instance"), absl::string_view::npos)
      << pair.outcomes[lease];
}

TEST(NetworkLinkTest, LinkThatIsIdleForSecondsStaysUp) {
  NetworkPair pair(TinyShape());
  auto prompt = pair.prefill_pool->MakeSequenceFor(300).value();
  ASSERT_TRUE(prompt->Reserve(300).ok());
  FillCache(*prompt, 300, 3);
  const LeaseId lease = pair.decode.Reserve(300);
  pair.sender->Begin(lease, pair.decode_instance, pair.address(), prompt.get());
  const auto until = RealClock()->Now() + milliseconds(2500);
  RunUntil([&] { return RealClock()->Now() > until; }, [&] { pair.Pump(); });
  EXPECT_FALSE(pair.outcomes.contains(lease));
  // Even a loop that is busy for longer than a dead peer is silent does not lose its link.
  std::this_thread::sleep_for(milliseconds(1700));
  pair.sender->Finish(lease, WorkerPair::MakeHandoff(300));
  ASSERT_TRUE(pair.RunUntilOutcome(lease));
  EXPECT_TRUE(pair.outcomes[lease].ok()) << pair.outcomes[lease];
}

// The tokens of a long prompt take longer than the grant of a slot.
TEST(NetworkLinkTest, OffersDoNotTravelWithTheHandoffBehindThem) {
  GrpcLinkService service;
  GrpcServer server = StartGrpcServer("127.0.0.1", 0, {&service}).value();
  GrpcDialer dialer(grpc::InsecureChannelCredentials());
  auto prefill = dialer.Dial("127.0.0.1:" + std::to_string(server.port));
  // All are queued before the stream stands.
  for (uint64_t seq = 1; seq <= 2; ++seq) {
    ToDecode offer;
    offer.offers.push_back({.link_seq = seq, .lease = LeaseId(1), .num_rows = 1});
    prefill->Send(std::move(offer));
  }
  ToDecode handoff;
  handoff.handoffs.push_back(WorkerPair::MakeHandoff(10));
  prefill->Send(std::move(handoff));
  ToDecode named;
  named.leases.push_back(LeaseId(2));
  prefill->Send(std::move(named));

  std::unique_ptr<DecodeControl> decode;
  size_t offers = 0;
  size_t handoffs = 0;
  bool all = false;
  EXPECT_TRUE(RunUntil([&] { return all; }, [&] {
    if (decode == nullptr) decode = service.Accept();
    if (decode == nullptr) return;
    while (const std::optional<ToDecode> message = decode->Receive()) {
      EXPECT_TRUE(message->offers.empty() || message->handoffs.empty());
      EXPECT_TRUE(message->handoffs.empty() || offers == 2) << offers;
      offers += message->offers.size();
      handoffs += message->handoffs.size();
      all = !message->leases.empty();
    }
  }));
  EXPECT_EQ(offers, 2u);
  EXPECT_EQ(handoffs, 1u);
  prefill.reset();
  decode.reset();
  service.Shutdown();
  server.Shutdown(seconds(2));
}

}  // namespace
}  // namespace lodestone
