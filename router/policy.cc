#include "router/policy.h"

#include <algorithm>
#include <set>
#include <string>
#include <tuple>

#include <absl/strings/str_cat.h>

#include "router/json_text.h"

namespace lodestone {
namespace {

constexpr std::chrono::seconds kRetrySoon{1};

bool IsPinnedAway(const Worker& worker, const PlacementNeeds& needs) {
  const std::string& pin =
      worker.hello.role == WorkerRole::kPrefill ? needs.pinned_prefill : needs.pinned_decode;
  return !pin.empty() && pin != worker.hello.instance_id;
}

bool IsSuspect(const Worker& worker, const PlacementNeeds& needs, TimePoint now) {
  return needs.avoid.contains(worker.hello.instance_id) || worker.breaker_open_until > now;
}

// Ready workers of a role; without suspects unless there is nobody else or `with_suspects`.
WorkerList Usable(WorkerRole role, const PlacementNeeds& needs, const WorkerList& workers,
                  TimePoint now, bool with_suspects) {
  WorkerList preferred;
  WorkerList all;
  for (const std::shared_ptr<Worker>& worker : workers) {
    if (worker->hello.role != role || worker->load.state != WorkerState::kReady) continue;
    if (IsPinnedAway(*worker, needs)) continue;
    all.push_back(worker);
    if (!IsSuspect(*worker, needs, now)) preferred.push_back(worker);
  }
  return preferred.empty() || with_suspects ? all : preferred;
}

int64_t QueuedTokens(const Worker& prefill) {
  return std::max(prefill.load.queued_tokens, prefill.inflight_tokens);
}

// Fits the prompt, or the request with all its choices, into the worker's whole cache?
bool CouldPrefill(const Worker& worker, const PlacementNeeds& needs) {
  return needs.prompt_tokens <= LargestRequestTokens(worker.hello);
}
bool CouldDecode(const Worker& worker, const PlacementNeeds& needs) {
  const WorkerHello& hello = worker.hello;
  if (needs.total_tokens > LargestRequestTokens(hello)) return false;
  return needs.num_choices == 1 ||
         (needs.num_choices <= hello.max_sequences &&
          needs.num_choices * WorstCaseBytes(hello, needs.total_tokens) <=
              hello.cache_capacity_bytes);
}

NoPlacement Unserved(WorkerRole role, const WorkerList& workers, std::string why) {
  NoPlacement none;
  none.kind = NoPlacement::Kind::kNoWorkers;
  none.error.http_status = 503;
  none.error.code = absl::StrCat("no_", std::string(Name(role)), "_worker");
  none.error.message = std::move(why);
  none.error.details =
      JsonText().Open("{").Key("workers").Raw(DescribeWorkers(workers)).Close("}").Take();
  none.error.retry_after = kRetrySoon;
  return none;
}

// 400 if no registered worker could ever hold the request; a 503 if one that is not ready could.
NoPlacement TooLarge(const PlacementNeeds& needs, const WorkerList& workers) {
  int64_t largest_decode = 0;
  int64_t largest_prefill = 0;
  for (const std::shared_ptr<Worker>& worker : workers) {
    const bool is_decode = worker->hello.role == WorkerRole::kDecode;
    int64_t& largest = is_decode ? largest_decode : largest_prefill;
    largest = std::max(largest, LargestRequestTokens(worker->hello));
  }
  NoPlacement none;
  none.kind = NoPlacement::Kind::kTooLarge;
  if (needs.total_tokens > largest_decode) {
    none.error = ContextLengthExceeded(
        "", absl::StrCat("prompt and new tokens are ", needs.total_tokens,
                         " tokens in the worst case, the largest decode worker holds ",
                         largest_decode, "; shorten the prompt or lower max_tokens"));
    return none;
  }
  if (needs.prompt_tokens > largest_prefill) {
    none.error = ContextLengthExceeded(
        "", absl::StrCat("the prompt has ", needs.prompt_tokens,
                         " tokens, the largest prefill worker holds ", largest_prefill));
    return none;
  }
  const auto holds_choices = [&needs](const std::shared_ptr<Worker>& worker) {
    return worker->hello.role == WorkerRole::kDecode && CouldDecode(*worker, needs);
  };
  if (std::none_of(workers.begin(), workers.end(), holds_choices)) {
    none.error = ContextLengthExceeded(
        "n", absl::StrCat("n is ", needs.num_choices, " with ", needs.total_tokens,
                          " tokens each in the worst case, no decode worker holds them all; "
                          "lower n or max_tokens"));
    return none;
  }
  return Unserved(
      WorkerRole::kDecode, workers,
      absl::StrCat("no ready pair of workers can hold ", needs.total_tokens, " tokens"));
}

NoPlacement Missing(WorkerRole role, const WorkerList& workers) {
  NoPlacement none =
      Unserved(role, workers, absl::StrCat("no ", std::string(Name(role)), " worker is ready"));
  none.missing = role;
  return none;
}

NoPlacement Full(const PlacementNeeds& needs) {
  NoPlacement none;
  none.kind = NoPlacement::Kind::kNoCapacity;
  none.error.http_status = 429;
  none.error.type = "rate_limit_error";
  none.error.code = "no_memory";
  const std::string choices =
      needs.num_choices > 1 ? absl::StrCat(needs.num_choices, " choices of ") : "";
  none.error.message = absl::StrCat("no decode worker has memory for ", choices,
                                    needs.total_tokens, " tokens now");
  none.error.retry_after = kRetrySoon;
  return none;
}

PlacementOr PlaceAmong(const PlacementNeeds& needs, const WorkerList& prefills,
                       const WorkerList& decodes, const WorkerList& workers) {
  if (prefills.empty()) return Missing(WorkerRole::kPrefill, workers);
  if (decodes.empty()) return Missing(WorkerRole::kDecode, workers);
  // Larger is better, element by element: link up, free decode bytes, fewest queued tokens.
  using Score = std::tuple<bool, int64_t, int64_t>;
  std::optional<Score> best;
  Placement chosen;
  bool layouts_meet = false;
  bool could_hold = false;
  for (const std::shared_ptr<Worker>& decode : decodes) {
    const int64_t bytes = needs.num_choices * WorstCaseBytes(decode->hello, needs.total_tokens);
    const bool has_room =
        decode->load.free_bytes >= bytes && decode->load.free_sequences >= needs.num_choices;
    for (const std::shared_ptr<Worker>& prefill : prefills) {
      if (prefill->hello.layout_fingerprint != decode->hello.layout_fingerprint) continue;
      layouts_meet = true;
      if (!CouldDecode(*decode, needs) || !CouldPrefill(*prefill, needs)) continue;
      could_hold = true;
      const Score score(LinkIsUp(*prefill, *decode), decode->load.free_bytes - bytes,
                        -QueuedTokens(*prefill));
      if (!has_room || (best.has_value() && score <= *best)) continue;
      best = score;
      chosen = Placement{prefill, decode};
    }
  }
  if (best.has_value()) return chosen;
  if (!layouts_meet) {
    return Unserved(WorkerRole::kDecode, workers,
                    absl::StrCat("no prefill and decode worker have the same cache layout: ",
                                 DifferingLayout(prefills.front()->hello, decodes.front()->hello)));
  }
  return could_hold ? Full(needs) : TooLarge(needs, workers);
}

}  // namespace

std::string DifferingLayout(const WorkerHello& here, const WorkerHello& there) {
  const auto value_of = [](const WorkerHello& hello, const std::string& name) {
    const auto field = std::find_if(hello.layout.begin(), hello.layout.end(),
                                    [&](const auto& f) { return f.first == name; });
    return field == hello.layout.end() ? std::string("none") : field->second;
  };
  std::string text;
  std::set<std::string> compared;
  for (const WorkerHello* hello : {&here, &there}) {
    for (const auto& [name, ignored] : hello->layout) {
      const std::string ours = value_of(here, name);
      const std::string theirs = value_of(there, name);
      if (!compared.insert(name).second || ours == theirs) continue;
      absl::StrAppend(&text, text.empty() ? "" : ", ", name, " ", ours, " against ", theirs);
    }
  }
  return text.empty() ? "fingerprints" : text;
}

bool LinkIsUp(const Worker& a, const Worker& b) {
  const auto names = [](const Worker& worker, const std::string& instance) {
    const auto& linked = worker.load.linked_instance_ids;
    return std::find(linked.begin(), linked.end(), instance) != linked.end();
  };
  return names(a, b.hello.instance_id) || names(b, a.hello.instance_id);
}

PlacementOr Place(const PlacementNeeds& needs, const WorkerList& workers, TimePoint now) {
  const auto place = [&](const PlacementNeeds& wanted, bool with_suspects) {
    const WorkerList prefills = Usable(WorkerRole::kPrefill, wanted, workers, now, with_suspects);
    const WorkerList decodes = Usable(WorkerRole::kDecode, wanted, workers, now, with_suspects);
    return PlaceAmong(wanted, prefills, decodes, workers);
  };
  PlacementOr result = place(needs, false);
  const NoPlacement* none = std::get_if<NoPlacement>(&result);
  if (none == nullptr) return result;
  if (none->kind != NoPlacement::Kind::kNoCapacity) return place(needs, true);
  if (needs.avoid.empty()) return result;
  PlacementNeeds anybody = needs;  // one that failed once is better than a wait
  anybody.avoid.clear();
  return place(anybody, false);
}

std::string DescribeWorkers(const WorkerList& workers) {
  JsonText text;
  text.Open("[");
  for (const std::shared_ptr<Worker>& worker : workers) {
    text.Open("{").Key("role").String(Name(worker->hello.role));
    text.Key("instance_id").String(worker->hello.instance_id);
    text.Key("address").String(worker->hello.address);
    text.Key("state").String(Name(worker->load.state));
    text.Key("reason").String(worker->load.state_reason);
    text.Key("free_bytes").Int(worker->load.free_bytes);
    text.Key("queued_tokens").Int(worker->load.queued_tokens);
    text.Key("refused_links").Open("[");
    for (const std::string& refused : worker->load.refused_links) text.String(refused);
    text.Close("]").Close("}");
  }
  text.Close("]");
  return text.Take();
}

}  // namespace lodestone
