#include "recall/sweep_table.h"

#include <algorithm>

#include <absl/strings/str_cat.h>
#include <boost/json.hpp>

#include "text/utf8.h"

namespace lodestone {
namespace {

std::string OutcomeName(NeedleOutcome outcome) {
  switch (outcome) {
    case NeedleOutcome::kFound:
      return "found";
    case NeedleOutcome::kMissed:
      return "missed";
    case NeedleOutcome::kFailed:
      break;
  }
  return "failed";
}

template <typename T>
void AddOnce(std::vector<T>& values, const T& value) {
  if (std::find(values.begin(), values.end(), value) == values.end()) values.push_back(value);
}

// 10498 as "10,498".
std::string WithThousands(int64_t value) {
  std::string text = std::to_string(value);
  for (auto pos = static_cast<int64_t>(text.size()) - 3; pos > 0; pos -= 3)
    text.insert(static_cast<size_t>(pos), 1, ',');
  return text;
}

// The first column is aligned left, the others right.
std::string AlignColumns(const std::vector<std::vector<std::string>>& rows) {
  std::vector<size_t> widths(rows.front().size(), 0);
  for (const std::vector<std::string>& row : rows) {
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string text;
  for (const std::vector<std::string>& row : rows) {
    for (size_t i = 0; i < row.size(); ++i) {
      if (i > 0) text.append(2 + widths[i] - row[i].size(), ' ');
      text += row[i];
      if (i == 0) text.append(widths[i] - row[i].size(), ' ');
    }
    text += '\n';
  }
  return text;
}

}  // namespace

int SweepTable::Count(NeedleOutcome outcome) const {
  return static_cast<int>(std::count_if(cells_.begin(), cells_.end(), [&](const SweepCell& cell) {
    return cell.outcome == outcome;
  }));
}

std::string SweepTable::Summary() const {
  std::string text = absl::StrCat(found(), " of ", total());
  if (failed() > 0) absl::StrAppend(&text, ", ", failed(), " failed");
  return text;
}

std::string SweepTable::CellText(const std::string& place, int64_t length) const {
  int repeats = 0;
  int found = 0;
  NeedleOutcome last = NeedleOutcome::kFailed;
  for (const SweepCell& cell : cells_) {
    if (cell.place != place || cell.length != length) continue;
    ++repeats;
    found += cell.outcome == NeedleOutcome::kFound;
    last = cell.outcome;
  }
  if (repeats == 0) return "-";
  return repeats == 1 ? OutcomeName(last) : absl::StrCat(found, " of ", repeats);
}

std::string SweepTable::ToText() const {
  std::vector<std::string> places;
  std::vector<int64_t> lengths;
  for (const SweepCell& cell : cells_) {
    AddOnce(places, cell.place);
    AddOnce(lengths, cell.length);
  }
  std::vector<std::vector<std::string>> rows = {{"depth \\ tokens"}};
  for (const int64_t length : lengths) rows.front().push_back(WithThousands(length));
  for (const std::string& place : places) {
    std::vector<std::string> row = {place};
    for (const int64_t length : lengths) row.push_back(CellText(place, length));
    rows.push_back(std::move(row));
  }
  return AlignColumns(rows);
}

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
                     {"reply", ReplaceInvalidUtf8(cell.reply)}});
  }
  return boost::json::serialize(boost::json::object{
      {"found", found()}, {"failed", failed()}, {"total", total()}, {"cells", std::move(cells)}});
}

std::string DepthName(double depth) { return absl::StrCat(depth); }

}  // namespace lodestone
