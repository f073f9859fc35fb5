// Many requests that overlap, some cancelled, with room for few of them at a time.

#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <thread>

#include "base/mutex.h"
#include "recall/random.h"
#include "tests/cluster/reconcile.h"
#include "tests/cluster/running_cluster.h"

namespace lodestone {
namespace {

constexpr int kRequests = 200;
constexpr int kCancelled = 20;
constexpr int kAtOnce = 40;
constexpr std::chrono::seconds kTimeout(300);

// When a client goes away: after so many tokens, or after a time whatever the request is doing.
struct Cancellation {
  std::optional<size_t> after_tokens;
  std::optional<std::chrono::milliseconds> after_time;
};

std::map<size_t, Cancellation> RandomCancellations(NeedleRandom* random) {
  std::map<size_t, Cancellation> cancellations;
  while (cancellations.size() < kCancelled) {
    Cancellation& cancellation = cancellations[random->Below(kRequests)];
    if (cancellations.size() % 2 == 0) {
      cancellation = {.after_tokens = 1 + random->Below(12), .after_time = {}};
    } else {
      cancellation = {.after_tokens = {},
                      .after_time = std::chrono::milliseconds(1 + random->Below(400))};
    }
  }
  return cancellations;
}

// Bytes in use of each pool of a worker, "name=bytes" joined; and what must be zero when idle.
std::string LedgerOf(const v1::GetStatusReply& status) {
  std::string text;
  for (const v1::MemoryPoolStatus& pool : status.pools()) {
    text += pool.pool() + "=" + std::to_string(pool.used_bytes()) + " ";
  }
  return text + "reserved=" + std::to_string(status.reserved_bytes()) +
         " orphan=" + std::to_string(status.orphan_bytes()) +
         " leases=" + std::to_string(status.live_leases()) +
         " sequences=" + std::to_string(status.live_sequences());
}

std::map<std::string, std::string> Ledgers(const RunningCluster& cluster) {
  std::map<std::string, std::string> ledgers;
  for (const RunningMember& member : cluster.Members()) {
    if (member.name == "router") continue;
    const auto status = RunningCluster::StatusOf(member);
    ledgers[member.name] = status ? LedgerOf(*status) : "no answer";
  }
  return ledgers;
}

struct Load {
  std::vector<GenerateInput> inputs;
  std::vector<GenerateOutput> expected;
  std::map<size_t, Cancellation> cancellations;
  std::atomic<size_t> next{0};
  std::atomic<int> whole{0};

  // One request, and what is wrong with its answer; "" if nothing.
  std::string Run(const GenerateClient& client, size_t i) {
    const auto found = cancellations.find(i);
    const Cancellation cancellation = found == cancellations.end() ? Cancellation{} : found->second;
    std::vector<GeneratedToken> seen;
    const auto answer = client.Generate(
        inputs[i], cancellation.after_time.value_or(kTimeout), [&](const GeneratedToken& token) {
          seen.push_back(token);
          return !cancellation.after_tokens || seen.size() < *cancellation.after_tokens;
        });
    if (answer.ok()) {
      ++whole;
      return DifferenceOf(answer->output, expected[i]);
    }
    const bool may_end =
        absl::IsCancelled(answer.status()) || absl::IsDeadlineExceeded(answer.status());
    if (found == cancellations.end() || !may_end) return answer.status().ToString();
    // What a client saw before it went is right, too.
    GenerateOutput prefix = expected[i];
    prefix.tokens.resize(std::min(seen.size(), prefix.tokens.size()));
    return DifferenceOf({.tokens = seen, .finish = prefix.finish}, prefix);
  }
};

TEST(LoadTest, AnswersAreRightAndNothingStaysBehindWhenMostMustWait) {
  auto cluster = RunningCluster::Start({"--max-context", "1024", "--memory", "96MiB",
                                        "--max-sequences", "4", "--chunk-tokens", "128"});
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  NeedleRandom random(2);
  std::vector<int64_t> lengths;
  for (int i = 0; i < kRequests; ++i)
    lengths.push_back(1 + static_cast<int64_t>(random.Below(500)));
  Load load;
  load.inputs = RandomInputs(lengths, 16, 3);
  load.cancellations = RandomCancellations(&random);
  ClusterFlags flags;
  flags.model = kNeedleTiny;
  flags.max_context = "1024";
  auto expected = SingleProcessAnswers(flags, load.inputs);
  ASSERT_TRUE(expected.ok()) << expected.status();
  load.expected = *std::move(expected);
  const auto idle = Ledgers(**cluster);

  const GenerateClient client((*cluster)->router_address());
  Mutex mutex;
  std::vector<std::string> problems;
  std::vector<std::thread> threads;
  for (int i = 0; i < kAtOnce; ++i) {
    threads.emplace_back([&] {
      for (size_t request = load.next++; request < kRequests; request = load.next++) {
        const std::string problem = load.Run(client, request);
        MutexLock lock(&mutex);
        if (!problem.empty()) problems.push_back(std::to_string(request) + ": " + problem);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(problems.size(), 0u) << problems.front();
  EXPECT_GE(load.whole, kRequests - kCancelled);

  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(15);
  auto now = Ledgers(**cluster);
  while (now != idle && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    now = Ledgers(**cluster);
  }
  EXPECT_EQ(now, idle);
  for (const auto& [name, ledger] : now) {
    EXPECT_NE(ledger.find("reserved=0 orphan=0 leases=0 sequences=0"), std::string::npos)
        << name << ": " << ledger;
  }
  EXPECT_EQ(Reconcile(**cluster), "");
}

}  // namespace
}  // namespace lodestone
