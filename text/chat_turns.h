#pragma once

#include <vector>

#include "text/chat_format.h"

namespace lodestone {

// Steps of ChatFormat before it renders: messages to the turns of the DeepSeek-V4 format.

bool OpensTurn(const ChatMessage& message);  // user or developer

// Index of the last message that opens a turn, -1 if there is none.
int LastUserIndex(const std::vector<ChatMessage>& messages);

// Tool and user messages become user turns: neighbours are one turn, their texts and results
// joined by two newlines; a user message does not join a turn that carries a task. Results are put
// into the order of the latest calls, texts keep their places. No tool messages are left.
std::vector<ChatMessage> FuseUserTurns(const std::vector<ChatMessage>& messages);

// Before the last user turn: no reasoning, and no developer messages.
std::vector<ChatMessage> DropEarlierReasoning(std::vector<ChatMessage> messages);

}  // namespace lodestone
