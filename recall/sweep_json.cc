// The JSON form of a sweep, written and read.

#include <limits>
#include <string>
#include <utility>

#include <absl/strings/str_cat.h>
#include <boost/json.hpp>

#include "base/status_macros.h"
#include "recall/sweep_table.h"
#include "text/utf8.h"

namespace lodestone {
namespace {

constexpr std::string_view kDepthsName = "depths";
constexpr std::string_view kResiduesName = "residues";
constexpr int64_t kMaxLength = int64_t{1} << 31;

// Members of an object, by type; the first that is missing or of another type is remembered.
class MemberReader {
 public:
  explicit MemberReader(const boost::json::value& value) : object_(value.if_object()) {
    if (object_ == nullptr) wrong_ = "a member that is no object";
  }
  std::string Text(std::string_view name) {
    const boost::json::value* member = Find(name);
    const boost::json::string* text = member == nullptr ? nullptr : member->if_string();
    if (text == nullptr) return Wrong(name), std::string();
    return std::string(text->data(), text->size());
  }
  int64_t Number(std::string_view name, int64_t least, int64_t most) {
    const boost::json::value* member = Find(name);
    const int64_t* number = member == nullptr ? nullptr : member->if_int64();
    if (number == nullptr || *number < least || *number > most) return Wrong(name), least;
    return *number;
  }
  double Seconds(std::string_view name) {
    const boost::json::value* member = Find(name);
    if (member == nullptr || !member->is_number()) return Wrong(name), 0.0;
    return member->to_number<double>();
  }
  const boost::json::array* Array(std::string_view name) {
    const boost::json::value* member = Find(name);
    const boost::json::array* array = member == nullptr ? nullptr : member->if_array();
    if (array == nullptr) Wrong(name);
    return array;
  }
  void Wrong(std::string_view name) {
    if (wrong_.empty()) wrong_ = absl::StrCat("no usable \"", std::string(name), "\"");
  }
  const std::string& wrong() const { return wrong_; }  // "" if all were there

 private:
  const boost::json::value* Find(std::string_view name) const {
    return object_ == nullptr ? nullptr : object_->if_contains(name);
  }
  const boost::json::object* object_;
  std::string wrong_;
};

absl::Status NotASweep(std::string_view origin, const std::string& what) {
  return absl::InvalidArgumentError(
      absl::StrCat(std::string(origin), " is not the JSON of a sweep: ", what));
}

NeedleOutcome OutcomeOf(MemberReader& reader) {
  const std::string name = reader.Text("outcome");
  for (const NeedleOutcome outcome :
       {NeedleOutcome::kFound, NeedleOutcome::kMissed, NeedleOutcome::kFailed}) {
    if (name == OutcomeName(outcome)) return outcome;
  }
  reader.Wrong("outcome");
  return NeedleOutcome::kFailed;
}

absl::StatusOr<SweepCell> CellOf(const boost::json::value& value, std::string_view origin) {
  MemberReader reader(value);
  SweepCell cell{
      .length = reader.Number("length", 1, kMaxLength),
      .place = reader.Text("place"),
      .repeat = static_cast<int>(reader.Number("repeat", 0, std::numeric_limits<int>::max())),
      .outcome = OutcomeOf(reader),
      .prompt_tokens = reader.Number("prompt_tokens", 0, kMaxLength),
      .seconds = reader.Seconds("seconds"),
      .expected = reader.Text("expected"),
      .answer = reader.Text("answer"),
      .reply = reader.Text("reply")};
  if (!reader.wrong().empty()) return NotASweep(origin, reader.wrong() + " in a cell");
  return cell;
}

}  // namespace

std::string SweepTable::ToJson() const {
  boost::json::array cells;
  for (const SweepCell& cell : cells_) {
    cells.push_back({{"length", cell.length},
                     {"place", ReplaceInvalidUtf8(cell.place)},
                     {"repeat", cell.repeat},
                     {"outcome", OutcomeName(cell.outcome)},
                     {"prompt_tokens", cell.prompt_tokens},
                     {"seconds", cell.seconds},
                     {"expected", ReplaceInvalidUtf8(cell.expected)},
                     {"answer", ReplaceInvalidUtf8(cell.answer)},
                     {"reply", ReplaceInvalidUtf8(cell.reply)}});
  }
  return boost::json::serialize(
      boost::json::object{{"label", ReplaceInvalidUtf8(label_)},
                          {"kind", kind_ == SweepKind::kResidues ? kResiduesName : kDepthsName},
                          {"found", found()},
                          {"failed", failed()},
                          {"total", total()},
                          {"cells", std::move(cells)}});
}

absl::StatusOr<SweepTable> SweepTable::FromJson(std::string_view json, std::string_view origin) {
  boost::json::error_code error;
  const boost::json::value value =
      boost::json::parse(boost::json::string_view(json.data(), json.size()), error);
  if (error) return NotASweep(origin, error.message());
  MemberReader reader(value);
  const std::string kind = reader.Text("kind");
  if (kind != kDepthsName && kind != kResiduesName) reader.Wrong("kind");
  SweepTable table(kind == kResiduesName ? SweepKind::kResidues : SweepKind::kDepths,
                   reader.Text("label"));
  const boost::json::array* cells = reader.Array("cells");
  if (!reader.wrong().empty()) return NotASweep(origin, reader.wrong());
  for (const boost::json::value& cell : *cells) {
    ASSIGN_OR_RETURN(SweepCell read, CellOf(cell, origin));
    table.Add(std::move(read));
  }
  return table;
}

}  // namespace lodestone
