// Liveness apart from readiness: what makes the cluster unready, and what makes it ready again.
#include <grpcpp/grpcpp.h>

#include "proto/lodestone/v1/worker.grpc.pb.h"
#include "tests/router/router_fixture.h"
#include "tests/testing/time_limits.h"

namespace lodestone {
namespace {

using std::chrono::milliseconds;
using testing::HasSubstr;

class HealthTest : public RouterFixture {
 protected:
  bool IsReady() const { return Fetch(http_, "GET", "/readyz").status == 200; }
  std::string Readyz() const { return Fetch(http_, "GET", "/readyz").body; }
  double ProbesThatPassed() { return Metric("lodestone_readiness_probes_total{result=\"ok\"}"); }
};

// A worker's stream of reports, message by message.
class RawRegistration {
 public:
  explicit RawRegistration(const std::string& router)
      : stub_(v1::WorkerRegistry::NewStub(
            grpc::CreateChannel(router, grpc::InsecureChannelCredentials()))),
        stream_(stub_->Register(&context_)) {}
  ~RawRegistration() {
    context_.TryCancel();
    stream_->Finish().ok();
  }
  void Say(const v1::WorkerReport& report) { ASSERT_TRUE(stream_->Write(report)); }

 private:
  grpc::ClientContext context_;
  const std::unique_ptr<v1::WorkerRegistry::Stub> stub_;
  const std::unique_ptr<grpc::ClientReaderWriter<v1::WorkerReport, v1::RegistryReply>> stream_;
};

v1::WorkerReport LoadingReport(const std::string& reason) {
  v1::WorkerReport report;
  report.mutable_hello()->set_role(v1::WORKER_ROLE_DECODE);
  report.mutable_hello()->set_instance_id("00000000000000000000000000000001");
  report.mutable_hello()->set_model_name("needle-tiny");
  report.mutable_load()->set_state(v1::WORKER_STATE_LOADING);
  report.mutable_load()->set_state_reason(reason);
  return report;
}

TEST_F(HealthTest, AWorkerThatWasNotReadyNeedsANewSelfTest) {
  StartRouter();
  StartWorkers("north");
  const double before = ProbesThatPassed();
  decodes_[0]->SetState(v1::WORKER_STATE_UNHEALTHY, "the loop has not turned for 5 s");
  ASSERT_TRUE(Eventually([&] { return !IsReady(); }, 1));
  EXPECT_THAT(Readyz(), HasSubstr("has not turned for 5 s"));
  EXPECT_EQ(Fetch(http_, "GET", "/livez").status, 200);
  decodes_[0]->FailHandOffs(1000, grpc::StatusCode::UNAVAILABLE);  // it says ready, and is not
  decodes_[0]->SetState(v1::WORKER_STATE_READY, "");
  ASSERT_TRUE(Eventually([&] { return Readyz().find("the probe failed") != std::string::npos; }));
  EXPECT_FALSE(IsReady());
  decodes_[0]->FailHandOffs(0, 0);
  ASSERT_TRUE(Eventually([&] { return IsReady(); }));
  EXPECT_EQ(ProbesThatPassed(), before + 1);
}

// However short the break is, and though the watch is busy with another pair.
TEST_F(HealthTest, AMomentOfUnreadinessIsNotOverlookedWhileAnotherPairIsProbed) {
  StartRouter();
  StartWorkers("north");
  const double before = ProbesThatPassed();
  ScriptedPrefill& slow = AddPrefill();
  slow.SetRunPause(milliseconds(1'500));  // its probe keeps the watch busy
  ASSERT_TRUE(Eventually([&] { return slow.num_runs() >= 1; }));
  decodes_[0]->SetState(v1::WORKER_STATE_UNHEALTHY, "for a moment");
  ASSERT_TRUE(Eventually([&] { return !IsReady(); }, 1));
  decodes_[0]->SetState(v1::WORKER_STATE_READY, "");
  std::this_thread::sleep_for(milliseconds(300));
  EXPECT_FALSE(IsReady());
  slow.SetRunPause(milliseconds(0));
  EXPECT_TRUE(Eventually([&] { return IsReady(); }));
  EXPECT_GT(ProbesThatPassed(), before);
}

TEST_F(HealthTest, AWorkerThatLoadsIsListedAndNotUsed) {
  StartRouter();
  RawRegistration loading(grpc_address_);
  loading.Say(LoadingReport("loaded 3 MiB of 25 MiB"));
  ASSERT_TRUE(Eventually([&] { return Readyz().find("\"loading\"") != std::string::npos; }));
  EXPECT_THAT(Readyz(), HasSubstr("loaded 3 MiB of 25 MiB"));
  EXPECT_FALSE(IsReady());
  v1::WorkerReport early;  // it is at no address yet
  early.mutable_load()->set_state(v1::WORKER_STATE_READY);
  early.mutable_load()->set_state_reason("too early");
  loading.Say(early);
  ASSERT_TRUE(Eventually([&] { return Readyz().find("too early") != std::string::npos; }));
  EXPECT_EQ(Parse(Readyz()).at("workers").at(0).at("state").as_string(), "loading");
  RawRegistration another(grpc_address_);  // without an address, too: they are two
  v1::WorkerReport report = LoadingReport("");
  report.mutable_hello()->set_instance_id("00000000000000000000000000000002");
  another.Say(report);
  ASSERT_TRUE(Eventually([&] { return Parse(Readyz()).at("workers").as_array().size() == 2; }));
  const ClientResponse chat = Chat();
  EXPECT_EQ(chat.status, 503);
  EXPECT_EQ(ErrorCode(chat), "no_prefill_worker");
}

TEST_F(HealthTest, AWorkerThatHasLoadedSaysSoOnTheSameStream) {
  StartRouter();
  testing::internal::CaptureStderr();
  RawRegistration worker(grpc_address_);
  worker.Say(LoadingReport("loading"));
  ASSERT_TRUE(Eventually([&] { return Readyz().find("\"loading\"") != std::string::npos; }));
  v1::WorkerReport report = LoadingReport("");
  v1::WorkerHello& hello = *report.mutable_hello();
  hello.set_address("127.0.0.1:1");
  hello.set_page_tokens(256);
  hello.set_vocab_size(Model().vocab_size);
  hello.set_eos_token_id(Model().eos_token_id);
  report.mutable_load()->set_state(v1::WORKER_STATE_READY);
  worker.Say(report);
  const bool came = Eventually([&] { return Readyz().find("127.0.0.1:1\"") != std::string::npos; });
  const std::string log = testing::internal::GetCapturedStderr();
  ASSERT_TRUE(came);
  EXPECT_EQ(Parse(Readyz()).at("workers").as_array().size(), 1u);
  EXPECT_THAT(log, HasSubstr("worker joined, loading"));
  EXPECT_THAT(log, HasSubstr("worker at 127.0.0.1:1 joined, ready"));
  EXPECT_THAT(log, testing::Not(HasSubstr("left")));
}

TEST_F(HealthTest, ARefusedWorkerIsShownWithItsReason) {
  StartRouter();
  StartWorkers("north");
  script_.vocab_size = 2048;
  ScriptedDecode& other = AddDecode();
  ASSERT_TRUE(Eventually([&] { return !other.refusal().empty(); }));
  const boost::json::value ready = Parse(Readyz());
  ASSERT_EQ(ready.at("refused").as_array().size(), 1u);
  const boost::json::value& refused = ready.at("refused").at(0);
  EXPECT_EQ(refused.at("role").as_string(), "decode");
  EXPECT_EQ(refused.at("instance_id").as_string(), other.instance_id());
  EXPECT_EQ(refused.at("address").as_string(), other.address());
  EXPECT_THAT(std::string(refused.at("reason").as_string()),
              HasSubstr("vocab_size: router 1024, worker 2048"));
  EXPECT_TRUE(IsReady());
}

TEST_F(HealthTest, TheSameCheckpointFromAnotherFolderIsAccepted) {
  StartRouter();
  StartWorkers("north");
  script_.model_name = "a-copy-of-it";
  ScriptedDecode& copy = AddDecode();
  WaitReady();
  EXPECT_EQ(copy.refusal(), "");
  script_.model_id = "another checkpoint";
  ScriptedDecode& other = AddDecode();
  ASSERT_TRUE(Eventually([&] { return !other.refusal().empty(); }));
  EXPECT_THAT(other.refusal(), HasSubstr("model_name: router needle-tiny, worker a-copy-of-it"));
  EXPECT_THAT(other.refusal(), HasSubstr("model_id: router scripted, worker another checkpoint"));
}

TEST_F(HealthTest, TheNamedCheckpointIsAcceptedFromAnyFolder) {
  RouterConfig config = Config();
  config.model_id = "scripted";
  StartRouter(config);
  script_.model_name = "a-copy-of-it";
  StartWorkers("north");
  EXPECT_EQ(ContentOf(Chat()), "north");
}

TEST_F(HealthTest, LivenessDoesNotDependOnLoad) {
  RouterConfig config = Config();
  config.max_running = 4;
  StartRouter(config);
  StartWorkers("north");
  prefills_[0]->SetRunPause(milliseconds(2'000));
  std::vector<std::unique_ptr<HttpClient>> clients;
  for (int i = 0; i < 64; ++i) {
    clients.push_back(std::make_unique<HttpClient>(http_));
    clients.back()->Send("POST", "/v1/chat/completions", ChatBody());
  }
  ASSERT_TRUE(Eventually([&] { return Metric("lodestone_router_queue_depth") >= 32; }));
  for (int i = 0; i < 20; ++i) {
    const auto start = std::chrono::steady_clock::now();
    EXPECT_EQ(Fetch(http_, "GET", "/livez").status, 200);
    EXPECT_LT(std::chrono::steady_clock::now() - start, Allowed(milliseconds(500)));
  }
  EXPECT_TRUE(IsReady());
}

}  // namespace
}  // namespace lodestone
