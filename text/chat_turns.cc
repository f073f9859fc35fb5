#include "text/chat_turns.h"

#include <algorithm>
#include <cstddef>
#include <string>
#include <utility>

#include <absl/container/flat_hash_map.h>

namespace lodestone {
namespace {

// One user turn while it is collected.
class UserTurn {
 public:
  explicit UserTurn(ChatMessage message) : message_(std::move(message)) {}

  bool takes_text() const { return message_.task.empty(); }
  void Add(const ChatMessage& message) { parts_.push_back(&message); }

  // `call_order`: place of each call id in the latest calls; unknown ids count as the first.
  ChatMessage Finish(const absl::flat_hash_map<std::string, size_t>& call_order) {
    std::vector<const ChatMessage*> results;
    for (const ChatMessage* part : parts_) {
      if (part->role == ChatRole::kTool) results.push_back(part);
    }
    const auto place = [&](const ChatMessage* result) {
      const auto found = call_order.find(result->tool_call_id);
      return found == call_order.end() ? 0 : found->second;
    };
    std::stable_sort(results.begin(), results.end(),
                     [&](const auto* a, const auto* b) { return place(a) < place(b); });
    size_t next_result = 0;
    std::string text;
    for (const ChatMessage* part : parts_) {
      if (part != parts_.front()) text += "\n\n";
      if (part->role == ChatRole::kTool) {
        text += "<tool_result>" + results[next_result++]->content + "</tool_result>";
      } else {
        text += part->content;
      }
    }
    message_.content = std::move(text);
    return std::move(message_);
  }

 private:
  ChatMessage message_;
  std::vector<const ChatMessage*> parts_;
};

absl::flat_hash_map<std::string, size_t> CallOrder(const std::vector<ToolCall>& calls) {
  absl::flat_hash_map<std::string, size_t> order;
  for (size_t i = 0; i < calls.size(); ++i) {
    if (!calls[i].id.empty()) order[calls[i].id] = i;
  }
  return order;
}

}  // namespace

bool OpensTurn(const ChatMessage& message) {
  return message.role == ChatRole::kUser || message.role == ChatRole::kDeveloper;
}

int LastUserIndex(const std::vector<ChatMessage>& messages) {
  int last = static_cast<int>(messages.size()) - 1;
  while (last >= 0 && !OpensTurn(messages[static_cast<size_t>(last)])) --last;
  return last;
}

std::vector<ChatMessage> FuseUserTurns(const std::vector<ChatMessage>& messages) {
  std::vector<ChatMessage> fused;
  std::optional<UserTurn> turn;
  absl::flat_hash_map<std::string, size_t> call_order;
  const auto finish_turn = [&] {
    if (turn.has_value()) fused.push_back(turn->Finish(call_order));
    turn.reset();
  };
  for (const ChatMessage& message : messages) {
    const bool is_result = message.role == ChatRole::kTool;
    if (!is_result && message.role != ChatRole::kUser) {
      finish_turn();
      fused.push_back(message);
      if (!message.tool_calls.empty()) call_order = CallOrder(message.tool_calls);
      continue;
    }
    if (turn.has_value() && !is_result && !turn->takes_text()) finish_turn();
    if (!turn.has_value()) {
      turn.emplace(is_result ? ChatMessage{.role = ChatRole::kUser} : message);
    }
    turn->Add(message);
  }
  finish_turn();
  return fused;
}

std::vector<ChatMessage> DropEarlierReasoning(std::vector<ChatMessage> messages) {
  const int last_user = LastUserIndex(messages);
  std::vector<ChatMessage> kept;
  for (int i = 0; i < static_cast<int>(messages.size()); ++i) {
    ChatMessage& message = messages[static_cast<size_t>(i)];
    if (i < last_user) {
      if (message.role == ChatRole::kDeveloper) continue;
      message.reasoning_content.clear();
    }
    kept.push_back(std::move(message));
  }
  return kept;
}

}  // namespace lodestone
