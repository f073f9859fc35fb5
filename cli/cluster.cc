#include "cli/cluster.h"

#include <signal.h>

#include <algorithm>
#include <boost/json.hpp>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>
#include <utility>

#include "base/status_macros.h"
#include "cli/http_client.h"

namespace lodestone {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr milliseconds kPoll(50);
constexpr milliseconds kRouterStart(30'000);
constexpr milliseconds kProbeTimeout(2'000);
constexpr int kLogLines = 20;
// A process that keeps dying this soon after its start is not started for ever.
constexpr std::chrono::seconds kShortLife(5);
constexpr int kMaxShortLives = 5;
// A worker that leaves with exit code 0 as soon as it is there waits this long before its second
// life, then twice as long each time. It is never given up: somebody may be draining it.
constexpr milliseconds kFirstPauseAfterExit(100);
constexpr milliseconds kLongestPauseAfterExit(30'000);

std::string ReadFile(const std::string& path) {
  std::ifstream stream(path);
  std::ostringstream text;
  text << stream.rdbuf();
  return std::move(text).str();
}

// What a line of a member's log says: the "msg" of a JSON record, else the line.
std::string MessageOf(const std::string& line) {
  boost::json::error_code error;
  const boost::json::value record = boost::json::parse(line, error);
  if (error || !record.is_object()) return line;
  const boost::json::value* message = record.get_object().if_contains("msg");
  return message != nullptr && message->is_string() ? std::string(message->get_string().c_str())
                                                    : line;
}

std::string LastMessage(const std::string& log_path) {
  std::string line = LastLines(log_path, 1);
  if (line.ends_with('\n')) line.pop_back();
  return line.empty() ? "starting" : MessageOf(line);
}

// After `short_lives` in a row that ended with exit code 0. One alone is a drain.
milliseconds PauseAfterExit(int short_lives) {
  milliseconds pause{0};
  for (int i = 1; i < short_lives; ++i) {
    pause = std::clamp(2 * pause, kFirstPauseAfterExit, kLongestPauseAfterExit);
  }
  return pause;
}

}  // namespace

std::optional<ClusterPorts> ParseListening(std::string_view text) {
  const size_t end = text.find('\n');
  if (end == text.npos || !text.starts_with("listening ")) return std::nullopt;
  std::istringstream words{std::string(text.substr(0, end))};
  ClusterPorts ports;
  for (std::string word; words >> word;) {
    const size_t equals = word.find('=');
    if (equals == word.npos) continue;
    const std::string name = word.substr(0, equals);
    const int port = std::atoi(word.c_str() + equals + 1);
    if (name == "http") ports.http = port;
    if (name == "grpc") ports.grpc = port;
    if (name == "data") ports.data = port;
    if (name == "metrics") ports.metrics = port;
  }
  if (ports.grpc == 0) return std::nullopt;
  return ports;
}

Cluster::Cluster(FileLock lock, ClusterOptions options, Report note, Report update)
    : lock_(std::move(lock)),
      options_(std::move(options)),
      note_(std::move(note)),
      update_(std::move(update)) {}

Cluster::~Cluster() { Stop(); }

absl::StatusOr<std::unique_ptr<Cluster>> Cluster::Start(ClusterOptions options, Report note,
                                                        Report update) {
  std::error_code error;
  std::filesystem::create_directories(options.run_dir, error);
  if (error) {
    return absl::UnavailableError("cannot make the run folder " + options.run_dir + ": " +
                                  error.message());
  }
  ASSIGN_OR_RETURN(FileLock lock, FileLock::Take(options.run_dir + "/up.pid"));
  std::unique_ptr<Cluster> cluster(
      new Cluster(std::move(lock), std::move(options), std::move(note), std::move(update)));
  RETURN_IF_ERROR(cluster->StartRouter());
  const ClusterOptions& made = cluster->options_;
  cluster->AddWorkers("prefill", made.num_prefill, made.prefill_flags);
  cluster->AddWorkers("decode", made.num_decode, made.decode_flags);
  for (Member& member : cluster->members_) {
    if (!member.process) RETURN_IF_ERROR(cluster->Launch(member));
  }
  cluster->WriteDescription();
  return cluster;
}

absl::Status Cluster::StartRouter() {
  Member router{
      .name = "router",
      .argv = {options_.bin_dir + "/lodestone-router", "--http-port",
               std::to_string(options_.http_port), "--grpc-port", "0", "--metrics-port", "0"},
      .log_path = PathOf("router.log"),
      .out_path = PathOf("router.out")};
  router.argv.insert(router.argv.end(), options_.router_flags.begin(), options_.router_flags.end());
  members_.push_back(std::move(router));
  Member& member = members_.front();
  RETURN_IF_ERROR(Launch(member));
  const steady_clock::time_point deadline = steady_clock::now() + kRouterStart;
  while (!member.ports) {
    if (const auto exit = member.process->PollExit()) {
      return absl::UnavailableError("router ended with " + *exit + "; its log " + member.log_path +
                                    " ends:\n" + LastLines(member.log_path, kLogLines));
    }
    if (steady_clock::now() > deadline) {
      return absl::UnavailableError("router does not listen after 30 s; see " + member.log_path);
    }
    std::this_thread::sleep_for(kPoll);
    ReadPorts(member);
  }
  // A router that is started again must be found where it was.
  member.argv[2] = std::to_string(member.ports->http);
  member.argv[4] = std::to_string(member.ports->grpc);
  member.argv[6] = std::to_string(member.ports->metrics);
  note_("router listens on " + url());
  return absl::OkStatus();
}

void Cluster::AddWorkers(std::string_view role, int count, const std::vector<std::string>& flags) {
  for (int i = 0; i < count; ++i) {
    const std::string name = std::string(role) + "-" + std::to_string(i);
    Member member{.name = name,
                  .argv = {options_.bin_dir + "/lodestone-" + std::string(role), "--router",
                           grpc_address(), "--grpc-port", "0", "--metrics-port", "0"},
                  .log_path = PathOf(name + ".log"),
                  .out_path = PathOf(name + ".out")};
    if (role == "decode") member.argv.insert(member.argv.end(), {"--data-port", "0"});
    if (!options_.devices.empty()) {
      const size_t worker = members_.size() - 1;  // the router comes first
      member.argv.insert(member.argv.end(),
                         {"--device", options_.devices[worker % options_.devices.size()]});
    }
    member.argv.insert(member.argv.end(), flags.begin(), flags.end());
    members_.push_back(std::move(member));
  }
}

absl::Status Cluster::Launch(Member& member) {
  member.started_at = steady_clock::now();
  member.ports.reset();
  ASSIGN_OR_RETURN(member.process, ChildProcess::Start({.argv = member.argv,
                                                        .stdout_path = member.out_path,
                                                        .stderr_path = member.log_path}));
  return absl::OkStatus();
}

void Cluster::ReadPorts(Member& member) {
  if (member.ports || !member.process || !member.process->running()) return;
  member.ports = ParseListening(ReadFile(member.out_path));
  if (member.ports) WriteDescription();
}

absl::Status Cluster::WaitUntilReady(const std::function<bool()>& cancelled) {
  ASSIGN_OR_RETURN(HttpUrl url, ParseHttpUrl(this->url()));
  const HttpClient http(std::move(url));
  const steady_clock::time_point deadline = steady_clock::now() + options_.ready_timeout;
  std::string state = "no answer";
  while (steady_clock::now() < deadline) {
    if (cancelled()) return absl::CancelledError("ended before the cluster was ready");
    RETURN_IF_ERROR(CheckAlive());
    ShowLoading();
    const absl::StatusOr<HttpReply> reply = http.Get("/readyz", kProbeTimeout);
    if (reply.ok() && reply->status == 200) return absl::OkStatus();
    state = reply.ok() ? reply->body : std::string(reply.status().message());
    std::this_thread::sleep_for(kPoll);
  }
  return absl::DeadlineExceededError(
      "the cluster is not ready after " +
      std::to_string(
          std::chrono::duration_cast<std::chrono::seconds>(options_.ready_timeout).count()) +
      " s; /readyz says: " + state.substr(0, 500));
}

// Before the cluster is ready, a death ends the start.
absl::Status Cluster::CheckAlive() {
  for (Member& member : members_) {
    ReadPorts(member);
    if (const auto exit = member.process->PollExit()) {
      return absl::UnavailableError(member.name + " ended with " + *exit + "; its log " +
                                    member.log_path + " ends:\n" +
                                    LastLines(member.log_path, kLogLines));
    }
  }
  return absl::OkStatus();
}

void Cluster::ShowLoading() {
  std::string text;
  for (const Member& member : members_) {
    if (member.name == "router") continue;
    text += (text.empty() ? "" : " | ") + member.name + ": " +
            (member.ports ? "up" : LastMessage(member.log_path).substr(0, 60));
  }
  if (text != last_shown_) update_(text);
  last_shown_ = text;
}

absl::Status Cluster::Supervise() {
  for (Member& member : members_) {
    ReadPorts(member);
    if (!member.process) continue;
    if (const auto exit = member.process->PollExit()) RETURN_IF_ERROR(OnDeath(member, *exit));
    const bool due = steady_clock::now() >= member.started_at;
    if (!member.process->running() && due) {
      RETURN_IF_ERROR(Launch(member));
      WriteDescription();
      note_(member.name + " started again, pid " + std::to_string(member.process->pid()));
    }
  }
  return absl::OkStatus();
}

absl::Status Cluster::OnDeath(Member& member, const std::string& exit) {
  const bool drained = exit == "exit code 0" && member.name != "router";
  const bool short_life = steady_clock::now() - member.started_at < kShortLife;
  int& in_a_row = drained ? member.short_drains : member.short_lives;
  (drained ? member.short_lives : member.short_drains) = 0;
  in_a_row = short_life ? in_a_row + 1 : 0;
  note_(member.name + " (pid " + std::to_string(member.process->pid()) + ") " +
        (drained ? "was drained and left"
                 : "ended with " + exit + "; its log " + member.log_path + " ends:\n" +
                       LastLines(member.log_path, 5)));
  if (!options_.restart) return absl::UnavailableError(member.name + " ended with " + exit);
  if (member.short_lives >= kMaxShortLives) {
    return absl::UnavailableError(member.name + " died " + std::to_string(member.short_lives) +
                                  " times within 5 s of its start; the last time with " + exit);
  }
  member.started_at = steady_clock::now();  // when it is due
  member.started_at += drained ? PauseAfterExit(member.short_drains) : options_.restart_after;
  member.ports.reset();
  // The router's place does not change; who asks for it between two lives still gets it.
  if (member.name == "router") {
    member.ports = ClusterPorts{.http = std::atoi(member.argv[2].c_str()),
                                .grpc = std::atoi(member.argv[4].c_str()),
                                .metrics = std::atoi(member.argv[6].c_str())};
  }
  WriteDescription();
  return absl::OkStatus();
}

void Cluster::Stop() {
  // Workers first: their running requests still need the router.
  const steady_clock::time_point deadline = steady_clock::now() + options_.stop_timeout;
  const auto end = [&](Member& member) {
    while (member.process && member.process->running() && !member.process->PollExit()) {
      if (steady_clock::now() >= deadline) {
        note_(member.name + " did not end in time and is killed");
        member.process->Kill();
        return;
      }
      std::this_thread::sleep_for(kPoll);
    }
  };
  for (size_t i = members_.size(); i-- > 1;) {
    if (members_[i].process) members_[i].process->Signal(SIGTERM);
  }
  for (size_t i = members_.size(); i-- > 1;) end(members_[i]);
  if (members_.empty()) return;
  if (members_.front().process) members_.front().process->Signal(SIGTERM);
  end(members_.front());
}

void Cluster::WriteDescription() const {
  namespace json = boost::json;
  json::array members;
  for (const Member& member : members_) {
    const ClusterPorts ports = member.ports.value_or(ClusterPorts{});
    const bool runs = member.process && member.process->running();
    json::object entry{{"name", member.name},
                       {"pid", runs ? member.process->pid() : 0},
                       {"grpc", ports.grpc},
                       {"metrics", ports.metrics},
                       {"log", member.log_path}};
    if (member.name == "router") {
      entry["http"] = ports.http;
    } else {
      entry["data"] = ports.data;
    }
    json::array argv;
    for (const std::string& arg : member.argv) argv.emplace_back(arg);
    entry["argv"] = std::move(argv);
    members.push_back(std::move(entry));
  }
  // Readers see the old description or the new one, never half of one.
  const std::string path = PathOf("cluster.json");
  std::ofstream(path + ".new") << json::serialize(json::object{{"members", std::move(members)}})
                               << "\n";
  std::error_code error;
  std::filesystem::rename(path + ".new", path, error);
}

}  // namespace lodestone
