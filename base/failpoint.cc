#include "base/failpoint.h"

#include <charconv>
#include <chrono>
#include <csignal>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <absl/strings/str_cat.h>

#include "base/config.h"
#include "base/logging.h"
#include "base/mutex.h"
#include "base/status_macros.h"

namespace lodestone::failpoint {
namespace {

enum class ActionKind { kError, kDelay, kCrash };

struct Action {
  ActionKind kind = ActionKind::kError;
  absl::StatusCode code = absl::StatusCode::kUnavailable;
  std::chrono::milliseconds delay{0};
  int64_t passes_left = 0;
  int64_t hits_left = std::numeric_limits<int64_t>::max();
  int64_t num_hits = 0;
};

struct Table {
  Mutex mutex;
  std::map<std::string, Action, std::less<>> actions GUARDED_BY(mutex);
};

Table& GetTable() {
  static Table* const table = new Table();
  return *table;
}

absl::StatusOr<absl::StatusCode> ParseCode(std::string_view name) {
  for (int code = 1; code <= static_cast<int>(absl::StatusCode::kUnauthenticated); ++code) {
    const absl::StatusCode candidate = static_cast<absl::StatusCode>(code);
    if (absl::StatusCodeToString(candidate) == name) return candidate;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("'", std::string(name), "' is not a status code such as UNAVAILABLE"));
}

// The text between "verb(" and ")"; nullopt if `action` has not that form.
std::optional<std::string_view> Argument(std::string_view action, std::string_view verb) {
  if (!action.starts_with(verb) || !action.ends_with(")")) return std::nullopt;
  action.remove_prefix(verb.size());
  if (!action.starts_with("(")) return std::nullopt;
  return action.substr(1, action.size() - 2);
}

// Moves the number in front of `mark` from `text` to `count`; leaves both if there is no mark.
absl::Status TakeCount(std::string_view& text, char mark, int64_t& count) {
  const size_t at = text.find(mark);
  if (at == text.npos) return absl::OkStatus();
  const char* end = text.data() + at;
  const auto [stop, error] = std::from_chars(text.data(), end, count);
  if (error != std::errc() || stop != end || count < 1) {
    return absl::InvalidArgumentError(absl::StrCat("failpoint action '", std::string(text),
                                                   "' has no count before '", std::string(1, mark),
                                                   "'"));
  }
  text.remove_prefix(at + 1);
  return absl::OkStatus();
}

absl::StatusOr<Action> ParseAction(std::string_view text) {
  Action action;
  std::string_view verb = text;
  RETURN_IF_ERROR(TakeCount(verb, '+', action.passes_left));
  RETURN_IF_ERROR(TakeCount(verb, '*', action.hits_left));
  if (verb == "crash") {
    action.kind = ActionKind::kCrash;
  } else if (const auto code = Argument(verb, "error")) {
    ASSIGN_OR_RETURN(action.code, ParseCode(*code));
  } else if (const auto delay = Argument(verb, "delay")) {
    action.kind = ActionKind::kDelay;
    ASSIGN_OR_RETURN(action.delay, ParseDuration(*delay));
  } else {
    return absl::InvalidArgumentError(absl::StrCat(
        "failpoint action '", std::string(text),
        "' is none of error(CODE), delay(TIME), crash, with M+ or N* in front or not"));
  }
  return action;
}

void Store(std::string_view name, const Action& action) {
  Table& table = GetTable();
  MutexLock lock(&table.mutex);
  table.actions.insert_or_assign(std::string(name), action);
}

// Counts the hit. nullopt if the point is not armed or used up.
std::optional<Action> TakeAction(std::string_view name) {
  Table& table = GetTable();
  MutexLock lock(&table.mutex);
  const auto found = table.actions.find(name);
  if (found == table.actions.end()) return std::nullopt;
  Action& action = found->second;
  if (action.passes_left > 0) {
    --action.passes_left;
    return std::nullopt;
  }
  if (action.hits_left == 0) return std::nullopt;
  --action.hits_left;
  ++action.num_hits;
  return action;
}

}  // namespace

absl::Status Arm(std::string_view name, std::string_view action) {
  ASSIGN_OR_RETURN(const Action parsed, ParseAction(action));
  Store(name, parsed);
  return absl::OkStatus();
}

absl::Status ArmList(std::string_view list) {
  std::vector<std::pair<std::string_view, Action>> parsed;
  while (!list.empty()) {
    const size_t end = list.find(';');
    const std::string_view part = list.substr(0, end);
    list = end == list.npos ? std::string_view() : list.substr(end + 1);
    if (part.empty()) continue;
    const size_t equals = part.find('=');
    if (equals == part.npos || equals == 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("failpoint '", std::string(part), "' has not the form name=action"));
    }
    ASSIGN_OR_RETURN(const Action action, ParseAction(part.substr(equals + 1)));
    parsed.emplace_back(part.substr(0, equals), action);
  }
  for (const auto& [name, action] : parsed) Store(name, action);
  return absl::OkStatus();
}

absl::Status ArmFromEnvironment() {
  const std::optional<std::string> list = GetEnvironment("LODESTONE_FAILPOINTS");
  if (!list.has_value()) return absl::OkStatus();
  if (!kFailpointsEnabled) {
    return absl::FailedPreconditionError(
        "LODESTONE_FAILPOINTS is set, but this build has no failpoints "
        "(-DLODESTONE_FAILPOINTS=ON)");
  }
  RETURN_IF_ERROR(ArmList(*list));
  LOG(WARNING) << "faults will be injected: LODESTONE_FAILPOINTS=" << *list;
  return absl::OkStatus();
}

void DisarmAll() {
  Table& table = GetTable();
  MutexLock lock(&table.mutex);
  table.actions.clear();
}

int64_t NumHits(std::string_view name) {
  Table& table = GetTable();
  MutexLock lock(&table.mutex);
  const auto found = table.actions.find(name);
  return found == table.actions.end() ? 0 : found->second.num_hits;
}

absl::Status Hit(std::string_view name) {
  const std::optional<Action> action = TakeAction(name);
  if (!action.has_value()) return absl::OkStatus();
  switch (action->kind) {
    case ActionKind::kError:
      return absl::Status(action->code, absl::StrCat("failpoint ", std::string(name)));
    case ActionKind::kDelay:
      std::this_thread::sleep_for(action->delay);
      break;
    case ActionKind::kCrash:
      std::raise(SIGKILL);
      break;
  }
  return absl::OkStatus();
}

}  // namespace lodestone::failpoint
