#include "worker/registration.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <vector>

#include "base/mutex.h"
#include "proto/convert.h"
#include "worker/grpc_server.h"

namespace lodestone {
namespace {

using std::chrono::milliseconds;
using testing::Each;

constexpr std::chrono::seconds kLong{60};

// A router that writes down what it is told.
class ScriptedRouter final : public v1::WorkerRegistry::Service {
 public:
  grpc::Status Register(
      grpc::ServerContext*,
      grpc::ServerReaderWriter<v1::RegistryReply, v1::WorkerReport>* stream) override {
    Count([this] { ++num_streams_; });
    v1::WorkerReport report;
    bool first = true;
    while (stream->Read(&report)) {
      Count([&] {
        reports_.push_back(report);
        hello_first_ = hello_first_ && report.has_hello() == first;
      });
      if (first && !Answer(stream)) return grpc::Status::OK;
      first = false;
      if (break_next_.exchange(false)) return {grpc::StatusCode::UNAVAILABLE, "scripted"};
    }
    Count([this] { ++num_goodbyes_; });
    return grpc::Status::OK;
  }

  void RefuseNext(std::string why) {
    MutexLock lock(&mutex_);
    refusal_ = std::move(why);
  }
  void BreakNext() { break_next_ = true; }

  bool WaitForReports(size_t count) {
    return WaitFor([&] { return reports_.size() >= count; });
  }
  bool WaitForStreams(int count) {
    return WaitFor([&] { return num_streams_ >= count; });
  }
  bool WaitForState(v1::WorkerState state) {
    return WaitFor([&] { return !reports_.empty() && reports_.back().load().state() == state; });
  }
  std::vector<v1::WorkerReport> reports() const {
    MutexLock lock(&mutex_);
    return reports_;
  }
  // Every stream began with a hello and had no other.
  bool hello_first() const {
    MutexLock lock(&mutex_);
    return hello_first_;
  }
  int num_goodbyes() const {
    MutexLock lock(&mutex_);
    return num_goodbyes_;
  }

 private:
  // False if the stream shall end.
  bool Answer(grpc::ServerReaderWriter<v1::RegistryReply, v1::WorkerReport>* stream) {
    v1::RegistryReply reply;
    std::string refusal;
    Count([&] { refusal = std::exchange(refusal_, ""); });
    reply.set_accepted(refusal.empty());
    reply.set_router_id("scripted");
    if (!refusal.empty()) *reply.mutable_error() = ToProto(absl::FailedPreconditionError(refusal));
    return stream->Write(reply) && refusal.empty();
  }
  template <typename Change>
  void Count(Change change) {
    MutexLock lock(&mutex_);
    change();
    changed_.NotifyAll();
  }
  template <typename Condition>
  bool WaitFor(Condition condition) {
    MutexLock lock(&mutex_);
    return changed_.WaitFor(&mutex_, kLong, condition);
  }

  mutable Mutex mutex_;
  CondVar changed_;
  std::vector<v1::WorkerReport> reports_;
  std::string refusal_;
  bool hello_first_ = true;
  int num_streams_ = 0;
  int num_goodbyes_ = 0;
  std::atomic<bool> break_next_{false};
};

class RegistrationTest : public testing::Test {
 protected:
  RegistrationTest() { board_.Set({.state = LoopState::kReady}); }
  ~RegistrationTest() override {
    registration_ = nullptr;
    server_.Shutdown(milliseconds(0));
  }

  void Register(const RegistrationTimes& times = {}) {
    v1::WorkerHello hello;
    hello.set_instance_id("instance");
    registration_ = std::make_unique<Registration>(
        "127.0.0.1:" + std::to_string(server_.port), hello,
        [this] {
          v1::WorkerLoad load;
          load.set_state(board_.Get().state == LoopState::kReady ? v1::WORKER_STATE_READY
                                                                   : v1::WORKER_STATE_DRAINING);
          return load;
        },
        &board_, times);
  }

  StatusBoard board_;
  ScriptedRouter router_;
  GrpcServer server_ = StartGrpcServer("127.0.0.1", 0, {&router_}).value();
  std::unique_ptr<Registration> registration_;
};

TEST_F(RegistrationTest, SaysHelloAndThenReportsItsLoad) {
  Register({.report = milliseconds(10)});
  ASSERT_TRUE(router_.WaitForReports(4));
  EXPECT_TRUE(router_.hello_first());
  EXPECT_EQ(router_.reports().front().hello().instance_id(), "instance");
  EXPECT_THAT(router_.reports(), Each(testing::Property(&v1::WorkerReport::has_load, true)));
}

TEST_F(RegistrationTest, SaysANewHelloAtOnceOnTheSameStream) {
  Register({.report = kLong});
  ASSERT_TRUE(router_.WaitForReports(1));
  v1::WorkerHello hello;
  hello.set_instance_id("instance");
  hello.set_address("127.0.0.1:1234");
  registration_->SetHello(hello);
  ASSERT_TRUE(router_.WaitForReports(2));
  EXPECT_EQ(router_.reports().back().hello().address(), "127.0.0.1:1234");
}

TEST_F(RegistrationTest, SaysTheNewHelloFirstWhenTheStreamBreaks) {
  Register({.report = milliseconds(10), .backoff_first = milliseconds(1)});
  ASSERT_TRUE(router_.WaitForReports(1));
  v1::WorkerHello hello;
  hello.set_address("127.0.0.1:1234");
  registration_->SetHello(hello);
  ASSERT_TRUE(router_.WaitForReports(3));
  router_.BreakNext();
  ASSERT_TRUE(router_.WaitForStreams(2));
  const size_t count = router_.reports().size();
  ASSERT_TRUE(router_.WaitForReports(count + 2));
  int num_hellos = 0;
  for (const v1::WorkerReport& report : router_.reports()) {
    if (report.has_hello() && report.hello().address() == "127.0.0.1:1234") ++num_hellos;
  }
  EXPECT_EQ(num_hellos, 2);
}

TEST_F(RegistrationTest, ReportsAChangeOfStateAtOnce) {
  Register({.report = kLong});
  ASSERT_TRUE(router_.WaitForReports(1));
  board_.Set({.state = LoopState::kDraining});
  EXPECT_TRUE(router_.WaitForState(v1::WORKER_STATE_DRAINING));
}

TEST_F(RegistrationTest, RegistersAgainWhenTheStreamBreaks) {
  Register({.report = milliseconds(10), .backoff_first = milliseconds(1)});
  ASSERT_TRUE(router_.WaitForReports(2));
  router_.BreakNext();
  EXPECT_TRUE(router_.WaitForStreams(2));
  router_.BreakNext();
  EXPECT_TRUE(router_.WaitForStreams(3));
  EXPECT_TRUE(router_.hello_first());
}

// Reports are on their way whenever a stream ends, at every moment of its end.
TEST_F(RegistrationTest, SurvivesStreamsThatEndWhileItReports) {
  Register({.report = milliseconds(0), .backoff_first = milliseconds(0)});
  for (int streams = 1; streams <= 50; ++streams) {
    ASSERT_TRUE(router_.WaitForStreams(streams));
    router_.BreakNext();
  }
  EXPECT_TRUE(router_.hello_first());
}

TEST_F(RegistrationTest, TriesAgainWhenItWasRefused) {
  router_.RefuseNext("another model");
  Register({.report = milliseconds(10), .refused = milliseconds(1)});
  EXPECT_TRUE(router_.WaitForStreams(2));
  EXPECT_TRUE(router_.WaitForReports(3));
  EXPECT_TRUE(router_.hello_first());
}

TEST_F(RegistrationTest, EndsWithItsLastStateAndAGoodbye) {
  Register({.report = kLong});
  ASSERT_TRUE(router_.WaitForReports(1));
  board_.Set({.state = LoopState::kDraining});
  registration_ = nullptr;
  EXPECT_EQ(router_.reports().back().load().state(), v1::WORKER_STATE_DRAINING);
  EXPECT_EQ(router_.num_goodbyes(), 1);
}

TEST_F(RegistrationTest, EndsWithoutARouter) {
  server_.Shutdown(milliseconds(0));
  Register();
  EXPECT_FALSE(registration_->registered());
  registration_ = nullptr;
}

}  // namespace
}  // namespace lodestone
