#include "text/tool_call_parser.h"

#include <algorithm>
#include <utility>

#include <absl/strings/str_cat.h>

#include "text/python_json.h"

namespace lodestone {
namespace {

constexpr std::string_view kBlockName = "tool_calls>\n<\xFFinvoke";
constexpr std::string_view kNameAttribute = "name=\"";
constexpr std::string_view kNameEnd = "\">\n";
constexpr std::string_view kParameter = "<\xFFparameter name=\"";
constexpr std::string_view kKeyEndString = "\" string=\"true\">";
constexpr std::string_view kKeyEndJson = "\" string=\"false\">";
constexpr std::string_view kKeyEndCommon = "\" string=\"";
constexpr std::string_view kValueEnd = "</\xFFparameter>";
constexpr std::string_view kCallEnd = "</\xFFinvoke>";
constexpr std::string_view kEmptyCallEnd = "\n</\xFFinvoke>";
constexpr std::string_view kNextParameter = "\n<\xFFparameter name=\"";
constexpr std::string_view kNextCall = "\n<\xFFinvoke";
constexpr std::string_view kBlockEnd = "\n</\xFFtool_calls>";
constexpr std::string_view kSpaces = " \t\n\r\f\v";

// Bytes at the end of `text` that may be the start of `literal`.
size_t PartialMatch(std::string_view text, std::string_view literal) {
  size_t size = std::min(text.size(), literal.size() - 1);
  while (!text.ends_with(literal.substr(0, size))) --size;
  return size;
}

// A markup token in a value is text there.
std::string WithMarkupText(std::string_view value) {
  std::string out;
  for (const char c : value) {
    if (c == ToolCallParser::kMarkup) {
      out += "｜DSML｜";
    } else {
      out.push_back(c);
    }
  }
  return out;
}

}  // namespace

void ToolCallParser::Open() {
  step_ = Step::kBlockName;
  buffer_.clear();
  at_ = 0;
  scan_ = 0;
  sent_call_ = false;
}

ToolCallParser::State ToolCallParser::Push(std::string_view text, Deltas& deltas) {
  buffer_ += text;
  Result result = Result::kTaken;
  while (result == Result::kTaken && step_ != Step::kClosed) result = Advance(deltas);
  if (step_ == Step::kClosed) return State::kClosed;
  if (result == Result::kMismatch) {
    step_ = Step::kClosed;
    return State::kMalformed;
  }
  return sent_call_ ? State::kCalling : State::kUndecided;
}

std::string ToolCallParser::TakePending() {
  step_ = Step::kClosed;
  at_ = 0;
  return std::exchange(buffer_, {});
}

ToolCallParser::Result ToolCallParser::Advance(Deltas& deltas) {
  switch (step_) {
    case Step::kBlockName:
      return TakeOneOf({{kBlockName, Step::kBeforeName}});
    case Step::kBeforeName:
      return TakeBeforeName();
    case Step::kCallName:
      return TakeCallName();
    case Step::kCallBody:
      return TakeCallBody(deltas);
    case Step::kKey:
      return TakeKey(deltas);
    case Step::kStringValue:
      return TakeStringValue(deltas);
    case Step::kJsonValue:
      return TakeJsonValue(deltas);
    case Step::kAfterValue:
      return TakeAfterValue(deltas);
    case Step::kAfterCall: {
      const Result result = TakeOneOf({{kNextCall, Step::kBeforeName}, {kBlockEnd, Step::kClosed}});
      if (step_ == Step::kClosed) Sent(at_);
      return result;
    }
    case Step::kClosed:
      break;
  }
  return Result::kMismatch;
}

ToolCallParser::Result ToolCallParser::TakeOneOf(std::initializer_list<Option> options) {
  bool may_match = false;
  for (const Option& option : options) {
    if (Rest().starts_with(option.literal)) {
      at_ += option.literal.size();
      scan_ = at_;
      step_ = option.next;
      return Result::kTaken;
    }
    may_match = may_match || option.literal.starts_with(Rest());
  }
  return may_match ? Result::kNeedsMore : Result::kMismatch;
}

ToolCallParser::Result ToolCallParser::TakeBeforeName() {
  while (at_ < buffer_.size() && kSpaces.find(buffer_[at_]) != std::string_view::npos) ++at_;
  return TakeOneOf({{kNameAttribute, Step::kCallName}});
}

// Position of `needle` in the buffer, npos if it is not there yet. Text is looked at once.
size_t ToolCallParser::FindFromScan(std::string_view needle) {
  const size_t found = buffer_.find(needle, scan_);
  if (found == std::string::npos) {
    scan_ = std::max(scan_, buffer_.size() - PartialMatch(Rest(), needle));
  }
  return found;
}

ToolCallParser::Result ToolCallParser::TakeCallName() {
  const size_t markup = buffer_.find(kMarkup, scan_);
  const size_t end = FindFromScan(kNameEnd);
  if (std::min(end, markup) == std::string::npos) return Result::kNeedsMore;
  if (markup < end || end == at_) return Result::kMismatch;
  name_ = buffer_.substr(at_, end - at_);
  at_ = end + kNameEnd.size();
  step_ = Step::kCallBody;
  return Result::kTaken;
}

// From here on the call counts: what follows its head is a parameter or its end.
ToolCallParser::Result ToolCallParser::TakeCallBody(Deltas& deltas) {
  const size_t begin = at_;
  const Result result = TakeOneOf(
      {{kParameter, Step::kKey}, {kCallEnd, Step::kAfterCall}, {kEmptyCallEnd, Step::kAfterCall}});
  if (result != Result::kTaken) return result;
  deltas.push_back({num_calls_, absl::StrCat(id_prefix_, num_calls_), name_, ""});
  ++num_calls_;
  sent_call_ = true;
  first_parameter_ = true;
  keys_.clear();
  if (step_ == Step::kAfterCall) {
    Arguments(deltas) += "{}";
    ++num_complete_;
    Sent(at_);
  } else {
    Sent(begin);
  }
  return result;
}

ToolCallParser::Result ToolCallParser::TakeKey(Deltas& deltas) {
  const size_t markup = buffer_.find(kMarkup, scan_);
  // The key ends at the first quote that the whole rest of the tag follows.
  while (true) {
    const size_t end = FindFromScan(kKeyEndCommon);
    if (markup < end) return Result::kMismatch;
    if (end == std::string::npos) return Result::kNeedsMore;
    const std::string_view tail = std::string_view(buffer_).substr(end);
    const bool is_string = tail.starts_with(kKeyEndString);
    if (is_string || tail.starts_with(kKeyEndJson)) {
      key_ = buffer_.substr(at_, end - at_);
      skips_value_ = !keys_.insert(key_).second;
      at_ = end + (is_string ? kKeyEndString : kKeyEndJson).size();
      scan_ = at_;
      step_ = is_string ? Step::kStringValue : Step::kJsonValue;
      break;
    }
    scan_ = end;
    if (kKeyEndString.starts_with(tail) || kKeyEndJson.starts_with(tail)) return Result::kNeedsMore;
    scan_ = end + 1;
  }
  if (step_ == Step::kStringValue) {
    if (!skips_value_) {
      const int index = num_calls_ - 1;
      deltas.push_back({index, "", "", ParameterStart() + "\""});
    }
    Sent(at_);
  }
  return Result::kTaken;
}

ToolCallParser::Result ToolCallParser::TakeStringValue(Deltas& deltas) {
  const size_t end = buffer_.find(kValueEnd);
  const size_t value_size =
      end != std::string::npos ? end : buffer_.size() - PartialMatch(buffer_, kValueEnd);
  if (value_size > 0 && !skips_value_) {
    Arguments(deltas) += JsonEscape(WithMarkupText(buffer_.substr(0, value_size)));
  }
  if (end == std::string::npos) {
    Sent(value_size);
    at_ = 0;
    return Result::kNeedsMore;
  }
  if (!skips_value_) Arguments(deltas) += '"';
  Sent(end + kValueEnd.size());
  step_ = Step::kAfterValue;
  return Result::kTaken;
}

ToolCallParser::Result ToolCallParser::TakeJsonValue(Deltas& deltas) {
  const size_t end = FindFromScan(kValueEnd);
  if (end == std::string::npos) return Result::kNeedsMore;
  const std::string value = WithMarkupText(std::string_view(buffer_).substr(at_, end - at_));
  if (!skips_value_) {
    deltas.push_back(
        {num_calls_ - 1, "", "", ParameterStart() + (IsJson(value) ? value : JsonQuote(value))});
  }
  Sent(end + kValueEnd.size());
  step_ = Step::kAfterValue;
  return Result::kTaken;
}

ToolCallParser::Result ToolCallParser::TakeAfterValue(Deltas& deltas) {
  const Result result =
      TakeOneOf({{kNextParameter, Step::kKey}, {kEmptyCallEnd, Step::kAfterCall}});
  if (result == Result::kTaken && step_ == Step::kAfterCall) {
    Arguments(deltas) += '}';
    ++num_complete_;
    Sent(at_);
  }
  return result;
}

// The buffer up to `end` is with the client, or needs not be.
void ToolCallParser::Sent(size_t end) {
  buffer_.erase(0, end);
  at_ = at_ > end ? at_ - end : 0;
  scan_ = at_;
}

// Where more of the current call's arguments goes.
std::string& ToolCallParser::Arguments(Deltas& deltas) {
  if (deltas.empty() || deltas.back().index != num_calls_ - 1) {
    deltas.push_back({num_calls_ - 1, "", "", ""});
  }
  return deltas.back().arguments;
}

std::string ToolCallParser::ParameterStart() {
  return absl::StrCat(std::exchange(first_parameter_, false) ? "{" : ", ", JsonQuote(key_), ": ");
}

}  // namespace lodestone
