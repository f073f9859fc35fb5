// A router that is killed under streams, again and again.

#include <gtest/gtest.h>
#include <signal.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <optional>
#include <sstream>

#include "base/config.h"
#include "cli/http_client.h"
#include "tests/cluster/running_cluster.h"
#include "tests/cluster/streams.h"
#include "tests/testing/time_limits.h"

namespace lodestone {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using std::chrono::steady_clock;

constexpr int kStreams = 12;
constexpr int kWorkers = 4;
// `lodestone up` gives up on a process that dies within 5 s of its start several times in a row.
constexpr seconds kLongLife(6);

// How long until `condition` holds; a failure if that is longer than `limit`.
milliseconds TimeUntil(const char* what, const std::function<bool()>& condition,
                       milliseconds limit) {
  limit = Allowed(limit);
  const auto start = steady_clock::now();
  while (!condition()) {
    if (steady_clock::now() - start > limit) {
      ADD_FAILURE() << what << ": not within " << limit.count() << " ms";
      break;
    }
    std::this_thread::sleep_for(milliseconds(5));
  }
  return std::chrono::duration_cast<milliseconds>(steady_clock::now() - start);
}

bool HoldsNothing(const RunningMember& worker) {
  const auto status = RunningCluster::StatusOf(worker);
  return status && status->reserved_bytes() == 0 && status->orphan_bytes() == 0 &&
         status->live_leases() == 0 && status->live_sequences() == 0;
}

// Workers that a router's log, from `offset` on, says have joined.
int NumJoined(const RunningMember& router, uintmax_t offset) {
  std::ifstream file(router.log_path);
  file.seekg(static_cast<std::streamoff>(offset));
  std::stringstream log;
  log << file.rdbuf();
  int count = 0;
  for (std::string line; std::getline(log, line);) count += line.find(" joined, ") != line.npos;
  return count;
}

TEST(RouterDeathTest, WorkersFreeEverythingAndTheNextRouterServesSoon) {
  const bool is_long = GetEnvironment("LODESTONE_LONG_TESTS") == "1";
  auto started = RunningCluster::Start({"--prefill", "2", "--decode", "2", "--max-context", "1024",
                                        "--max-sequences", "16", "--threads", "1"});
  ASSERT_TRUE(started.ok()) << started.status();
  const RunningCluster& cluster = **started;
  const HttpClient http(ParseHttpUrl(cluster.url()).value());
  const std::vector<GenerateInput> inputs = RandomInputs({30, 90, 150, 300, 450, 600}, 64, 5);
  ClusterFlags flags;
  flags.model = kNeedleTiny;
  flags.max_context = "1024";
  const auto expected = SingleProcessAnswers(flags, inputs);
  ASSERT_TRUE(expected.ok()) << expected.status();
  milliseconds longest_free{0}, longest_accept{0}, longest_join{0};
  auto born = steady_clock::now() - kLongLife;
  for (int round = 0; round < (is_long ? 100 : 2); ++round) {
    const RunningMember router = cluster.Find("router");
    std::optional<Streams> streams(std::in_place, router.grpc_address, kStreams, inputs, *expected,
                                   Streams::Errors::kAllowed);
    ASSERT_TRUE(streams->WaitForTokens(100));
    if (is_long) std::this_thread::sleep_until(born + kLongLife);
    const uintmax_t log_end = std::filesystem::file_size(router.log_path);
    streams->StopAsking();
    kill(router.pid, SIGKILL);
    const auto died = steady_clock::now();
    // Every client hears of it. A stream that ended well has all of its tokens, and what the others
    // got is right.
    streams->End();
    EXPECT_LE(steady_clock::now() - died, Allowed(seconds(5)));
    EXPECT_GT(streams->errors(), 0);
    std::vector<std::string> problems = streams->problems();
    ASSERT_EQ(problems.size(), 0u) << problems.front();
    for (const RunningMember& worker : cluster.Members()) {
      if (worker.name == "router") continue;
      TimeUntil(worker.name.c_str(), [&] { return HoldsNothing(worker); }, seconds(10));
    }
    longest_free = std::max(
        longest_free, std::chrono::duration_cast<milliseconds>(steady_clock::now() - died));
    TimeUntil("the next router starts", [&] {
      const pid_t pid = cluster.Find("router").pid;
      return pid > 0 && pid != router.pid;
    }, seconds(10));
    born = steady_clock::now();
    longest_accept = std::max(
        longest_accept, TimeUntil("the next router accepts", [&] {
          const auto reply = http.Get("/livez", seconds(1));
          return reply.ok() && reply->status == 200;
        }, seconds(1)));
    TimeUntil("the next router knows all workers",
              [&] { return NumJoined(router, log_end) >= kWorkers; }, seconds(3));
    longest_join = std::max(
        longest_join, std::chrono::duration_cast<milliseconds>(steady_clock::now() - born));
    streams.emplace(router.grpc_address, kStreams, inputs, *expected);
    EXPECT_TRUE(streams->WaitForTokens(100));
    streams->End();
    problems = streams->problems();
    ASSERT_EQ(problems.size(), 0u) << problems.front();
  }
  std::cout << "workers idle within " << longest_free.count()
            << " ms of the death; accepting within " << longest_accept.count()
            << " ms, all workers known within " << longest_join.count()
            << " ms of the next router's start\n";
}

}  // namespace
}  // namespace lodestone
