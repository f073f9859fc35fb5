#pragma once

#include <cstddef>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include <absl/container/flat_hash_set.h>

namespace lodestone {

// The next part of one tool call, for the client.
struct ToolCallDelta {
  int index = 0;   // of the call within the reply, from 0
  std::string id;  // with the first delta of a call only, like the name
  std::string name;
  std::string arguments;  // the next piece of a JSON object's text; joined they are all of it
};

// Reads one block of tool calls, from behind the markup token of its opening tag:
//   "<" M "tool_calls>" NL invoke ( NL invoke )* NL "</" M "tool_calls>"
//   invoke := "<" M "invoke name=" Q name Q ">" NL [ param ( NL param )* ] NL "</" M "invoke>"
//   param  := "<" M "parameter name=" Q key Q " string=" Q ("true"|"false") Q ">" value
//             "</" M "parameter>"
// M is the markup token, in the text the byte kMarkup, which no UTF-8 has; so ordinary text that
// looks like a tag is none. A value ends at its closing tag and may hold anything else.
//
// Nothing is sent before the first parameter, or the end, of a call is seen; then its id and name,
// then each parameter: a value with string="true" as it comes, one with "false" when it is whole,
// unchanged if it is JSON and as a string if not. Of equal keys the first counts. A call that does
// not end well never gets its closing brace, so that nobody can take it for complete.
// Any split of the same text gives the same joined deltas. Not thread-safe.
class ToolCallParser {
 public:
  static constexpr char kMarkup = '\xFF';
  enum class State {
    kUndecided,  // may still be no call at all: nothing was sent
    kCalling,    // a call was sent
    kClosed,     // the block is complete: TakePending() is the text after it
    kMalformed,  // no block: TakePending() is the text from what was not sent on
  };

  // Call i of the reply gets the id `id_prefix` + i.
  explicit ToolCallParser(std::string id_prefix) : id_prefix_(std::move(id_prefix)) {}

  // Starts a block; the numbers of the calls go on. REQUIRES: no block is open.
  void Open();
  // Takes more of the block and appends what can be sent. REQUIRES: the block is open.
  State Push(std::string_view text, std::vector<ToolCallDelta>& deltas);
  std::string TakePending();

  // Inside the value of a parameter, where any text may stand.
  bool in_value() const { return step_ == Step::kStringValue || step_ == Step::kJsonValue; }
  // A call of this block was sent.
  bool sent_call() const { return sent_call_; }
  // Calls were sent, over all blocks, and each of them whole.
  bool all_complete() const { return num_calls_ > 0 && num_complete_ == num_calls_; }

 private:
  enum class Step {
    kBlockName,
    kBeforeName,
    kCallName,
    kCallBody,
    kKey,
    kStringValue,
    kJsonValue,
    kAfterValue,
    kAfterCall,
    kClosed,
  };
  enum class Result { kTaken, kNeedsMore, kMismatch };
  struct Option {
    std::string_view literal;
    Step next;
  };
  using Deltas = std::vector<ToolCallDelta>;

  Result Advance(Deltas& deltas);
  Result TakeOneOf(std::initializer_list<Option> options);
  Result TakeBeforeName();
  Result TakeCallName();
  Result TakeCallBody(Deltas& deltas);
  Result TakeKey(Deltas& deltas);
  Result TakeStringValue(Deltas& deltas);
  Result TakeJsonValue(Deltas& deltas);
  Result TakeAfterValue(Deltas& deltas);

  std::string_view Rest() const { return std::string_view(buffer_).substr(at_); }
  size_t FindFromScan(std::string_view needle);
  void Sent(size_t end);
  std::string& Arguments(Deltas& deltas);
  std::string ParameterStart();

  const std::string id_prefix_;
  Step step_ = Step::kClosed;
  std::string buffer_;  // all that was not sent: raw text, should the block be malformed
  size_t at_ = 0;       // how much of it is parsed
  size_t scan_ = 0;     // before here the text that is looked for does not begin
  int num_calls_ = 0;   // sent in this reply
  int num_complete_ = 0;
  bool sent_call_ = false;
  std::string name_;
  std::string key_;
  bool skips_value_ = false;  // its key came before
  bool first_parameter_ = true;
  absl::flat_hash_set<std::string> keys_;
};

}  // namespace lodestone
