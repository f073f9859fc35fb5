#include "recall/sweep_table.h"

#include <algorithm>

#include <absl/strings/str_cat.h>

#include "recall/sweep_grid.h"

namespace lodestone {
namespace {

constexpr int64_t kResiduesPerTextColumn = 16;

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
  return static_cast<int>(std::ranges::count(cells_, outcome, &SweepCell::outcome));
}

int SweepTable::word_for_word() const {
  return static_cast<int>(std::ranges::count_if(cells_, [](const SweepCell& cell) {
    return cell.outcome == NeedleOutcome::kFound && cell.reply == cell.answer;
  }));
}

int SweepTable::of_wanted_length() const {
  return static_cast<int>(std::ranges::count_if(
      cells_, [](const SweepCell& cell) { return cell.prompt_tokens == cell.length; }));
}

std::string SweepTable::Summary() const {
  std::string text = absl::StrCat(found(), " of ", total());
  if (failed() > 0) absl::StrAppend(&text, ", ", failed(), " failed");
  return text;
}

std::string SweepTable::ToText() const {
  const SweepGrid grid = GridOf(*this, kResiduesPerTextColumn);
  std::vector<std::vector<std::string>> rows = {
      {absl::StrCat(grid.row_name, " \\ ", grid.column_name)}};
  for (const std::string& column : grid.columns) rows.front().push_back(column);
  for (size_t row = 0; row < grid.rows.size(); ++row) {
    std::vector<std::string> texts = {grid.rows[row]};
    for (const GridCell& cell : grid.cells[row]) texts.push_back(cell.Text());
    rows.push_back(std::move(texts));
  }
  return AlignColumns(rows);
}

std::string_view OutcomeName(NeedleOutcome outcome) {
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

std::string DepthName(double depth) { return absl::StrCat(depth); }

}  // namespace lodestone
