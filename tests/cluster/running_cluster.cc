#include "tests/cluster/running_cluster.h"

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <atomic>
#include <cstdlib>
#include <boost/json.hpp>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>
#include <utility>

#include "base/status_macros.h"
#include "tests/testing/time_limits.h"

namespace lodestone {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr milliseconds kPoll(20);
constexpr std::chrono::seconds kReplaceTimeout(60);
constexpr std::chrono::seconds kStopTimeout(40);

std::string ReadAll(const std::string& path) {
  std::ifstream stream(path);
  std::ostringstream text;
  text << stream.rdbuf();
  return std::move(text).str();
}

std::string NewRunDir() {
  static std::atomic<int> count{0};
  const std::string path = ::testing::TempDir() + "/lodestone_cluster_" + std::to_string(getpid()) +
                           "_" + std::to_string(++count);
  std::filesystem::create_directories(path);
  return path;
}

RunningMember MemberOf(const boost::json::object& entry) {
  return {.name = entry.at("name").as_string().c_str(),
          .pid = static_cast<pid_t>(entry.at("pid").as_int64()),
          .grpc_address = "127.0.0.1:" + std::to_string(entry.at("grpc").as_int64()),
          .metrics_port = static_cast<int>(entry.at("metrics").as_int64()),
          .log_path = entry.at("log").as_string().c_str()};
}

}  // namespace

RunningCluster::RunningCluster(ChildProcess process, std::string run_dir)
    : process_(std::move(process)), run_dir_(std::move(run_dir)) {}

RunningCluster::~RunningCluster() { Stop(); }

absl::StatusOr<std::unique_ptr<RunningCluster>> RunningCluster::Start(
    const std::vector<std::string>& flags, milliseconds timeout, const std::string& bin_dir) {
  const std::string run_dir = NewRunDir();
  ProcessOptions options{.argv = {bin_dir + "/lodestone", "up", "--model", kNeedleTiny,
                                  "--http-port", "0", "--run-dir", run_dir},
                         .stdout_path = run_dir + "/up.out",
                         .stderr_path = run_dir + "/up.log"};
  // Nobody hears of a worker during a step: with sanitizers, one of 64 tokens takes about as long
  // as one of 512 without. A flag of the test comes later and counts.
  if (kSanitized) options.argv.insert(options.argv.end(), {"--chunk-tokens", "64"});
  options.argv.insert(options.argv.end(), flags.begin(), flags.end());
  ASSIGN_OR_RETURN(ChildProcess process, ChildProcess::Start(options));
  std::unique_ptr<RunningCluster> cluster(new RunningCluster(std::move(process), run_dir));
  const steady_clock::time_point deadline = steady_clock::now() + timeout;
  constexpr std::string_view kReady = "ready ";
  while (steady_clock::now() < deadline) {
    const std::string out = ReadAll(options.stdout_path);
    if (out.starts_with(kReady) && out.ends_with('\n')) {
      cluster->url_ = out.substr(kReady.size(), out.size() - kReady.size() - 1);
      return cluster;
    }
    if (const auto exit = cluster->process_.PollExit()) {
      return absl::UnavailableError("lodestone up ended with " + *exit + "\n" + cluster->Output());
    }
    std::this_thread::sleep_for(kPoll);
  }
  return absl::UnavailableError("lodestone up is not ready in time\n" + cluster->Output());
}

std::vector<RunningMember> RunningCluster::Members() const {
  const boost::json::value description = boost::json::parse(ReadAll(run_dir_ + "/cluster.json"));
  std::vector<RunningMember> members;
  for (const boost::json::value& entry : description.at("members").as_array()) {
    members.push_back(MemberOf(entry.as_object()));
  }
  return members;
}

RunningMember RunningCluster::Find(const std::string& name) const {
  for (RunningMember& member : Members()) {
    if (member.name == name) return std::move(member);
  }
  ADD_FAILURE() << "cluster.json has no " << name;
  return {};
}

void RunningCluster::KillMember(const std::string& name) const {
  const pid_t pid = Find(name).pid;
  ASSERT_GT(pid, 0) << name << " does not run";
  kill(pid, SIGKILL);
}

bool RunningCluster::WaitUntilReplaced(const std::string& name, pid_t old) const {
  const steady_clock::time_point deadline = steady_clock::now() + kReplaceTimeout;
  while (steady_clock::now() < deadline) {
    const RunningMember member = Find(name);
    if (member.pid > 0 && member.pid != old) {
      const auto status = StatusOf(member);
      if (status && status->load().state() == v1::WORKER_STATE_READY) return true;
    }
    std::this_thread::sleep_for(kPoll);
  }
  return false;
}

std::string RunningCluster::Stop() {
  process_.Signal(SIGTERM);
  const steady_clock::time_point deadline = steady_clock::now() + kStopTimeout;
  while (process_.running() && steady_clock::now() < deadline) {
    if (const auto exit = process_.PollExit()) return *exit;
    std::this_thread::sleep_for(kPoll);
  }
  process_.Kill();
  return "killed";
}

std::string RunningCluster::Output() const {
  return ReadAll(run_dir_ + "/up.out") + ReadAll(run_dir_ + "/up.log");
}

std::optional<v1::GetStatusReply> RunningCluster::StatusOf(const RunningMember& member) {
  const auto stub = v1::AdminService::NewStub(
      grpc::CreateChannel(member.grpc_address, grpc::InsecureChannelCredentials()));
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(2));
  v1::GetStatusReply reply;
  if (!stub->GetStatus(&context, {}, &reply).ok()) return std::nullopt;
  return reply;
}

absl::StatusOr<std::vector<GenerateOutput>> SingleProcessAnswers(
    const ClusterFlags& flags, const std::vector<GenerateInput>& inputs) {
  ClusterFlags single = flags;
  if (const char* device = std::getenv("LODESTONE_DEVICE")) single.device = device;
  ASSIGN_OR_RETURN(const EngineOptions options, SingleProcessOptions(single));
  ASSIGN_OR_RETURN(const std::unique_ptr<Engine> engine, Engine::Create(options));
  // Batched: that it does not matter is what the engine's own tests and `verify` show.
  return Generate(*engine, inputs, {.max_sequences = options.max_sequences});
}

std::vector<GenerateInput> RandomInputs(const std::vector<int64_t>& lengths, int64_t new_tokens,
                                        int64_t seed) {
  VerifyConfig config;
  config.new_tokens = new_tokens;
  config.seed = seed;
  constexpr int64_t kVocabulary = 1024;
  return *MakeVerifyInputs(config, lengths, kVocabulary);
}

}  // namespace lodestone
