#include "recall/heat_map.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <vector>

#include <absl/strings/str_cat.h>

#include "recall/svg_writer.h"
#include "recall/sweep_grid.h"

namespace lodestone {
namespace {

// All sizes are in pixels.
constexpr int kMargin = 16;
constexpr int kTitleHeight = 44;
constexpr int kPanelTitleHeight = 26;
constexpr int kAxisHeight = 42;  // column labels and the name of the columns
constexpr int kLegendHeight = 46;
constexpr int kMaxPictureWidth = 1200;
constexpr int kMinPictureWidth = 720;  // the legend's
constexpr int kMostWideColumns = 12;   // more are drawn narrow, without the word in each cell
constexpr double kCharWidth = 6.8;     // of 12 px text, about
constexpr int kLegendSwatch = 18;
constexpr int kMostRepliesShown = 8;

struct Rgb {
  int red, green, blue;
};
constexpr Rgb kFoundColor{0, 114, 178};  // blue and vermilion of Okabe and Ito's palette
constexpr Rgb kMixedColor{250, 246, 238};
constexpr Rgb kMissedColor{213, 94, 0};
constexpr std::string_view kFailedFill = "#8c8c8c";
constexpr std::string_view kInk = "#1a1a1a";

std::string Between(const Rgb& from, const Rgb& to, double share) {
  const auto mix = [share](int a, int b) {
    return static_cast<int>(std::lround(a + share * (b - a)));
  };
  char text[8];
  std::snprintf(text, sizeof(text), "#%02x%02x%02x", mix(from.red, to.red) & 255,
                mix(from.green, to.green) & 255, mix(from.blue, to.blue) & 255);
  return text;
}

std::string ShareFill(double found) {
  return found < 0.5 ? Between(kMissedColor, kMixedColor, 2 * found)
                     : Between(kMixedColor, kFoundColor, 2 * found - 1);
}

std::string FillOf(const GridCell& cell) {
  if (cell.asked() == 0) return "#ffffff";
  if (cell.failed > 0) return std::string(kFailedFill);
  return ShareFill(static_cast<double>(cell.found) / cell.asked());
}

// White on blue, else ink: contrasts of 5 to 1 and more.
std::string InkOn(const GridCell& cell) {
  const bool blue = cell.failed == 0 && cell.asked() > 0 && 4 * cell.found > 3 * cell.asked();
  return blue ? "#ffffff" : std::string(kInk);
}

int TextWidth(std::string_view text) {
  return static_cast<int>(std::ceil(kCharWidth * static_cast<double>(text.size())));
}

// What is drawn of one table, and how large.
struct Panel {
  const SweepTable* table;
  SweepGrid grid;
  int cell_width;
  int cell_height;
  int label_width;  // of the row labels, left of the cells

  bool narrow() const { return cell_width < 40; }
  int grid_width() const { return cell_width * static_cast<int>(grid.columns.size()); }
  int grid_height() const { return cell_height * static_cast<int>(grid.rows.size()); }
  std::string Title() const {
    const std::string found = absl::StrCat(table->Summary(), " found");
    return table->label().empty() ? found : absl::StrCat(table->label(), ": ", found);
  }
  int Width() const {
    return std::max(label_width + grid_width(), TextWidth(Title()) * 7 / 6) + 2 * kMargin;
  }
  int Height() const { return kPanelTitleHeight + grid_height() + kAxisHeight; }
};

Panel PanelOf(const SweepTable& table) {
  Panel panel{.table = &table,
              .grid = GridOf(table),
              .cell_width = 56,
              .cell_height = 34,
              .label_width = 0};
  int label_width = 0;
  for (const std::string& row : panel.grid.rows) {
    label_width = std::max(label_width, TextWidth(row));
  }
  // The name of the rows stands upright to the left of their labels.
  panel.label_width = label_width + 32;
  if (panel.grid.columns.size() > static_cast<size_t>(kMostWideColumns)) {
    panel.cell_width = panel.cell_height = 24;
    return panel;
  }
  for (const std::vector<GridCell>& row : panel.grid.cells) {
    for (const GridCell& cell : row) {
      panel.cell_width = std::max(panel.cell_width, TextWidth(cell.Text()) + 8);
    }
  }
  for (const std::string& column : panel.grid.columns) {
    panel.cell_width = std::max(panel.cell_width, TextWidth(column) + 8);
  }
  return panel;
}

std::string Seconds(double seconds) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.1f s", seconds);
  return text;
}

std::string QuestionLine(const SweepCell& cell) {
  std::string line = absl::StrCat("\n", WithThousands(cell.length), " tokens");
  if (cell.prompt_tokens > 0 && cell.prompt_tokens != cell.length) {
    absl::StrAppend(&line, " (", WithThousands(cell.prompt_tokens), " as the server counted)");
  }
  absl::StrAppend(&line, ", depth ", cell.place, ": ", std::string(OutcomeName(cell.outcome)),
                  " in ", Seconds(cell.seconds), "; wanted ", cell.expected, ", got ", cell.reply);
  return line;
}

std::string CellTitle(const Panel& panel, size_t row, size_t column) {
  const GridCell& cell = panel.grid.cells[row][column];
  const std::string& label = panel.table->label();
  std::string title = label.empty() ? label : absl::StrCat(label, "; ");
  absl::StrAppend(&title, panel.grid.row_name, " ", panel.grid.rows[row], ", ",
                  panel.grid.column_name, " ", panel.grid.columns[column], ": ", cell.found, " of ",
                  cell.asked(), " found");
  if (cell.failed > 0) absl::StrAppend(&title, ", ", cell.failed, " failed");
  int shown = 0;
  for (const SweepCell* question : cell.questions) {
    if (shown++ == kMostRepliesShown) {
      absl::StrAppend(&title, "\nand ", cell.asked() - kMostRepliesShown, " more");
      break;
    }
    title += QuestionLine(*question);
  }
  return title;
}

// The word in a cell; a narrow one has a sign, and none if all is well.
std::string CellMark(const Panel& panel, const GridCell& cell) {
  if (!panel.narrow()) return cell.Text();
  if (cell.asked() == 0) return "-";
  if (cell.failed > 0) return "!";
  return cell.found == cell.asked() ? "" : "\xC3\x97";  // a multiplication sign
}

// One heat map while it is being drawn.
class Drawing {
 public:
  Drawing(std::string_view title, std::span<const SweepTable> tables) : title_(title) {
    for (const SweepTable& table : tables) panels_.push_back(PanelOf(table));
    Arrange();
  }

  std::string Draw() {
    svg_.Open("svg", {{"xmlns", "http://www.w3.org/2000/svg"},
                      {"width", absl::StrCat(width_)},
                      {"height", absl::StrCat(height_)},
                      {"viewBox", absl::StrCat("0 0 ", width_, " ", height_)},
                      {"font-family", "Helvetica, Arial, sans-serif"},
                      {"font-size", "12"},
                      {"fill", std::string(kInk)},
                      {"role", "img"}});
    svg_.Leaf("title", {}, title_);
    svg_.Leaf(
        "rect",
        {{"width", absl::StrCat(width_)}, {"height", absl::StrCat(height_)}, {"fill", "#ffffff"}});
    Text(kMargin, 28, title_, "start", {{"font-size", "17"}, {"font-weight", "bold"}});
    for (size_t i = 0; i < panels_.size(); ++i) DrawPanel(i);
    DrawLegend(height_ - kLegendHeight + 10);
    svg_.Close();
    return svg_.Take();
  }

 private:
  // As many panels side by side as fit, in lines of equal length. All have the size of the largest.
  void Arrange() {
    panel_width_ = panel_height_ = 0;
    for (const Panel& panel : panels_) {
      panel_width_ = std::max(panel_width_, panel.Width());
      panel_height_ = std::max(panel_height_, panel.Height());
    }
    const int count = std::max(1, static_cast<int>(panels_.size()));
    const int fit = std::max(1, kMaxPictureWidth / std::max(1, panel_width_));
    const int lines = (count + fit - 1) / fit;
    per_line_ = (count + lines - 1) / lines;
    width_ = std::max(
        {per_line_ * panel_width_, kMinPictureWidth, TextWidth(title_) * 3 / 2 + 2 * kMargin});
    height_ = kTitleHeight + lines * panel_height_ + kLegendHeight;
  }

  void Text(int x, int y, std::string_view text, std::string anchor,
            SvgWriter::Attributes more = {}) {
    SvgWriter::Attributes attributes = {
        {"x", absl::StrCat(x)}, {"y", absl::StrCat(y)}, {"text-anchor", std::move(anchor)}};
    attributes.insert(attributes.end(), more.begin(), more.end());
    if (!text.empty()) svg_.Leaf("text", attributes, text);
  }

  void DrawPanel(size_t index) {
    const Panel& panel = panels_[index];
    const int place = static_cast<int>(index);
    const int left = place % per_line_ * panel_width_ + kMargin;
    const int top = kTitleHeight + place / per_line_ * panel_height_;
    svg_.Open("g", {{"class", "panel"}, {"data-label", panel.table->label()}});
    Text(left + panel.label_width, top + 16, panel.Title(), "start",
         {{"font-size", "14"}, {"font-weight", "bold"}});
    const int cells_left = left + panel.label_width;
    const int cells_top = top + kPanelTitleHeight;
    DrawAxes(panel, left, cells_left, cells_top);
    for (size_t row = 0; row < panel.grid.rows.size(); ++row) {
      for (size_t column = 0; column < panel.grid.columns.size(); ++column) {
        DrawCell(panel, row, column, cells_left + panel.cell_width * static_cast<int>(column),
                 cells_top + panel.cell_height * static_cast<int>(row));
      }
    }
    svg_.Close();
  }

  void DrawAxes(const Panel& panel, int left, int cells_left, int cells_top) {
    for (size_t row = 0; row < panel.grid.rows.size(); ++row) {
      const int middle =
          cells_top + panel.cell_height * static_cast<int>(row) + panel.cell_height / 2;
      Text(cells_left - 6, middle + 4, panel.grid.rows[row], "end");
    }
    const int bottom = cells_top + panel.grid_height();
    for (size_t column = 0; column < panel.grid.columns.size(); ++column) {
      const int middle =
          cells_left + panel.cell_width * static_cast<int>(column) + panel.cell_width / 2;
      Text(middle, bottom + 16, panel.grid.columns[column], "middle",
           {{"font-size", panel.narrow() ? "10" : "12"}});
    }
    Text(cells_left + panel.grid_width() / 2, bottom + 33, panel.grid.column_name, "middle",
         {{"fill", "#555555"}});
    const int middle = cells_top + panel.grid_height() / 2;
    Text(left + 8, middle, panel.grid.row_name, "middle",
         {{"fill", "#555555"},
          {"transform", absl::StrCat("rotate(-90 ", left + 8, " ", middle, ")")}});
  }

  void DrawCell(const Panel& panel, size_t row, size_t column, int x, int y) {
    const GridCell& cell = panel.grid.cells[row][column];
    svg_.Open("g", {{"class", "cell"},
                    {"data-panel", panel.table->label()},
                    {"data-row", panel.grid.rows[row]},
                    {"data-column", panel.grid.columns[column]},
                    {"data-asked", absl::StrCat(cell.asked())},
                    {"data-found", absl::StrCat(cell.found)},
                    {"data-failed", absl::StrCat(cell.failed)}});
    svg_.Leaf("title", {}, CellTitle(panel, row, column));
    Box(x, y, panel.cell_width, panel.cell_height, FillOf(cell));
    Text(x + panel.cell_width / 2, y + panel.cell_height / 2 + 4, CellMark(panel, cell), "middle",
         {{"fill", InkOn(cell)}});
    svg_.Close();
  }

  void Box(int x, int y, int width, int height, std::string fill) {
    svg_.Leaf("rect", {{"x", absl::StrCat(x)},
                       {"y", absl::StrCat(y)},
                       {"width", absl::StrCat(width)},
                       {"height", absl::StrCat(height)},
                       {"fill", std::move(fill)},
                       {"stroke", "#ffffff"}});
  }

  void DrawLegend(int top) {
    svg_.Open("g", {{"class", "legend"}});
    const int baseline = top + kLegendSwatch - 4;
    int x = kMargin;
    Text(x, baseline, "needles found:", "start");
    x += 100;
    constexpr std::array kShares = {1.0, 0.75, 0.5, 0.25, 0.0};
    for (const double share : kShares) {
      x = DrawSwatch(x, top, ShareFill(share), absl::StrCat(static_cast<int>(100 * share), " %"));
    }
    x = DrawSwatch(x + 16, top, std::string(kFailedFill), "an error, no answer");
    DrawSwatch(x, top, "#ffffff", "- not asked");
    svg_.Close();
  }

  // Returns where the next one goes.
  int DrawSwatch(int x, int top, std::string fill, std::string_view text) {
    svg_.Leaf("rect", {{"x", absl::StrCat(x)},
                       {"y", absl::StrCat(top)},
                       {"width", absl::StrCat(kLegendSwatch)},
                       {"height", absl::StrCat(kLegendSwatch)},
                       {"fill", std::move(fill)},
                       {"stroke", "#999999"}});
    Text(x + kLegendSwatch + 5, top + kLegendSwatch - 4, text, "start");
    return x + kLegendSwatch + 5 + TextWidth(text) + 14;
  }

  const std::string title_;
  std::vector<Panel> panels_;
  int panel_width_ = 0;
  int panel_height_ = 0;
  int per_line_ = 1;
  int width_ = 0;
  int height_ = 0;
  SvgWriter svg_;
};

}  // namespace

std::string DrawHeatMap(std::string_view title, std::span<const SweepTable> panels) {
  return Drawing(title, panels).Draw();
}

}  // namespace lodestone
