#include "recall/heat_map.h"

#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "recall/sweep_grid.h"
#include "tests/recall/xml_reader.h"

namespace lodestone {
namespace {

using ::testing::HasSubstr;

SweepCell Cell(int64_t length, std::string place, NeedleOutcome outcome, int repeat = 0) {
  return {.length = length,
          .place = std::move(place),
          .repeat = repeat,
          .outcome = outcome,
          .prompt_tokens = length,
          .seconds = 0.5,
          .expected = "A-12-B",
          .answer = "The secret code is A-12-B.",
          .reply = outcome == NeedleOutcome::kFound ? "The secret code is A-12-B." : "no"};
}

// 2 depths x 3 lengths; the panel's own cell is missed, its last failed, one is not asked.
SweepTable DepthTable(std::string label) {
  SweepTable table(SweepKind::kDepths, std::move(label));
  table.Add(Cell(300, "0.25", NeedleOutcome::kFound));
  table.Add(Cell(900, "0.25", NeedleOutcome::kMissed));
  table.Add(Cell(10500, "0.25", NeedleOutcome::kFound));
  table.Add(Cell(300, "0.75", NeedleOutcome::kFound));
  table.Add(Cell(900, "0.75", NeedleOutcome::kFailed));
  return table;
}

XmlElement Parse(const std::string& svg) {
  const absl::StatusOr<XmlElement> root = ReadXml(svg);
  EXPECT_TRUE(root.ok()) << root.status() << "\n" << svg;
  return root.ok() ? *root : XmlElement{};
}

// The one child of that name.
const XmlElement& Only(const XmlElement& element, std::string_view name) {
  const std::vector<const XmlElement*> found = element.Find(name);
  EXPECT_EQ(found.size(), 1u) << name;
  return *found.front();
}

// "found asked failed" of each cell by "panel row column".
std::map<std::string, std::string> CellsOf(const XmlElement& root) {
  std::map<std::string, std::string> cells;
  for (const XmlElement* cell : root.Find("g", "cell")) {
    const auto& data = cell->attributes;
    const bool fresh =
        cells
            .emplace(
                data.at("data-panel") + " " + data.at("data-row") + " " + data.at("data-column"),
                data.at("data-found") + " " + data.at("data-asked") + " " + data.at("data-failed"))
            .second;
    EXPECT_TRUE(fresh) << "two cells at one place";
  }
  return cells;
}

TEST(HeatMapTest, HoldsOneCellPerResultOfEveryPanel) {
  const std::vector<SweepTable> panels = {DepthTable("bf16"), DepthTable("fp8")};
  const XmlElement root = Parse(DrawHeatMap("Needles", panels));
  EXPECT_EQ(root.name, "svg");
  EXPECT_EQ(root.Find("g", "panel").size(), 2u);
  const std::map<std::string, std::string> expected = {
      {"bf16 0.25 300", "1 1 0"}, {"bf16 0.25 900", "0 1 0"}, {"bf16 0.25 10,500", "1 1 0"},
      {"bf16 0.75 300", "1 1 0"}, {"bf16 0.75 900", "0 1 1"}, {"bf16 0.75 10,500", "0 0 0"},
      {"fp8 0.25 300", "1 1 0"},  {"fp8 0.25 900", "0 1 0"},  {"fp8 0.25 10,500", "1 1 0"},
      {"fp8 0.75 300", "1 1 0"},  {"fp8 0.75 900", "0 1 1"},  {"fp8 0.75 10,500", "0 0 0"}};
  EXPECT_EQ(CellsOf(root), expected);
}

TEST(HeatMapTest, CellsSayWhatTheTextTableSays) {
  const SweepTable table = DepthTable("bf16");
  const XmlElement root = Parse(DrawHeatMap("Needles", {&table, 1}));
  const SweepGrid grid = GridOf(table);
  const std::vector<const XmlElement*> cells = root.Find("g", "cell");
  ASSERT_EQ(cells.size(), grid.rows.size() * grid.columns.size());
  for (size_t i = 0; i < cells.size(); ++i) {
    const GridCell& cell = grid.cells[i / grid.columns.size()][i % grid.columns.size()];
    EXPECT_EQ(Only(*cells[i], "text").text, cell.Text()) << i;
  }
}

TEST(HeatMapTest, CellTitlesHoldTheValues) {
  SweepTable table(SweepKind::kDepths, "fp8");
  SweepCell cell = Cell(10500, "0.5", NeedleOutcome::kMissed);
  cell.prompt_tokens = 10498;
  table.Add(cell);
  const XmlElement root = Parse(DrawHeatMap("Needles", {&table, 1}));
  const std::string& title = Only(*root.Find("g", "cell").front(), "title").text;
  EXPECT_EQ(title,
            "fp8; depth 0.5, tokens 10,500: 0 of 1 found\n"
            "10,500 tokens (10,498 as the server counted), depth 0.5: missed in 0.5 s; "
            "wanted A-12-B, got no");
}

TEST(HeatMapTest, ColoursTellFoundFromMissedFromFailed) {
  const SweepTable table = DepthTable("");
  const XmlElement root = Parse(DrawHeatMap("Needles", {&table, 1}));
  std::vector<std::string> fills;
  for (const XmlElement* cell : root.Find("g", "cell"))
    fills.push_back(Only(*cell, "rect").attributes.at("fill"));
  EXPECT_THAT(fills, ::testing::ElementsAre("#0072b2", "#d55e00", "#0072b2", "#0072b2", "#8c8c8c",
                                            "#ffffff"));
  // The legend explains each of them.
  std::vector<std::string> legend;
  for (const XmlElement* swatch : root.Find("g", "legend").front()->Find("rect"))
    legend.push_back(swatch->attributes.at("fill"));
  EXPECT_THAT(legend, ::testing::IsSupersetOf({"#0072b2", "#d55e00", "#8c8c8c", "#ffffff"}));
}

TEST(HeatMapTest, RepeatsShareACell) {
  SweepTable table;
  for (int repeat = 0; repeat < 10; ++repeat) {
    table.Add(Cell(300, "0", repeat < 5 ? NeedleOutcome::kFound : NeedleOutcome::kMissed, repeat));
  }
  const XmlElement root = Parse(DrawHeatMap("Needles", {&table, 1}));
  ASSERT_EQ(root.Find("g", "cell").size(), 1u);
  const XmlElement& cell = *root.Find("g", "cell").front();
  EXPECT_EQ(Only(cell, "text").text, "5 of 10");
  EXPECT_EQ(Only(cell, "rect").attributes.at("fill"), "#faf6ee");
  EXPECT_THAT(Only(cell, "title").text, HasSubstr("and 2 more"));
}

TEST(HeatMapTest, ResiduesFillFourRowsOf32Columns) {
  SweepTable table(SweepKind::kResidues, "bf16");
  for (int64_t length = 960; length < 1088; ++length) {
    table.Add(Cell(length, "0.5", length == 1023 ? NeedleOutcome::kMissed : NeedleOutcome::kFound));
  }
  const XmlElement root = Parse(DrawHeatMap("Residues", {&table, 1}));
  const std::map<std::string, std::string> cells = CellsOf(root);
  EXPECT_EQ(cells.size(), 128u);
  for (const auto& [place, values] : cells)
    EXPECT_EQ(values, place == "bf16 3 124" ? "0 1 0" : "1 1 0") << place;
}

TEST(HeatMapTest, HostileTextStaysText) {
  SweepTable table(SweepKind::kDepths, "a<b>&\"c\"\x01\xFF\xEF\xBF\xBF");
  SweepCell cell = Cell(300, "<script>", NeedleOutcome::kMissed);
  cell.reply = "</title><script>alert(1)</script>\x1B]0;\xED\xA0\x80";
  table.Add(cell);
  const XmlElement root = Parse(DrawHeatMap("<Needles> & more", {&table, 1}));
  EXPECT_TRUE(root.Find("script").empty());
  EXPECT_EQ(root.Find("title").front()->text, "<Needles> & more");
  const auto& data = root.Find("g", "cell").front()->attributes;
  EXPECT_EQ(data.at("data-row"), "<script>");
  EXPECT_EQ(data.at("data-panel"), "a<b>&\"c\"\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD");
}

TEST(HeatMapTest, NeedsNothingFromElsewhere) {
  const SweepTable table = DepthTable("bf16");
  const XmlElement root = Parse(DrawHeatMap("Needles", {&table, 1}));
  for (const char* name : {"script", "style", "image", "use", "a", "foreignObject", "font-face"})
    EXPECT_TRUE(root.Find(name).empty()) << name;
}

TEST(HeatMapTest, EverythingLiesInsideThePicture) {
  for (const size_t count : {0, 1, 2, 3, 4, 6}) {
    const std::vector<SweepTable> panels(count, DepthTable("fp4, synthetic stress"));
    const XmlElement root = Parse(DrawHeatMap("Needles", panels));
    const int width = std::stoi(root.attributes.at("width"));
    const int height = std::stoi(root.attributes.at("height"));
    for (const XmlElement* rect : root.Find("rect")) {
      const auto& at = rect->attributes;
      if (!at.contains("x")) continue;  // the background
      EXPECT_LE(std::stoi(at.at("x")) + std::stoi(at.at("width")), width) << count;
      EXPECT_LE(std::stoi(at.at("y")) + std::stoi(at.at("height")), height) << count;
    }
  }
}

TEST(HeatMapTest, ThePictureInTheReadmeIsSuchAMap) {
  std::ifstream file(LODESTONE_SOURCE_DIR "/docs/images/recall.svg");
  std::ostringstream svg;
  svg << file.rdbuf();
  const XmlElement root = Parse(svg.str());
  std::map<std::string, int> found;  // by panel
  for (const XmlElement* cell : root.Find("g", "cell")) {
    found[cell->attributes.at("data-panel")] += std::stoi(cell->attributes.at("data-found"));
  }
  ASSERT_EQ(found.size(), 6u);
  for (const char* panel : {"bf16", "fp8", "fp4", "bf16, synthetic stress"}) {
    EXPECT_EQ(found[panel], 25) << panel;
  }
  EXPECT_LT(found["fp8, synthetic stress"], 25);
  EXPECT_LT(found["fp4, synthetic stress"], found["fp8, synthetic stress"]);
}

// The reader is strict, else the tests above would show nothing.
TEST(XmlReaderTest, RefusesWhatIsNotWellFormed) {
  for (const char* bad : {"", "<a>", "<a></b>", "<a/><b/>", "<a>&</a>", "<a>&nbsp;</a>", "<a x=1/>",
                          "<a x=\"1\" x=\"2\"/>", "<a x=\"<\"/>", "<a x=\"1\"y=\"2\"/>",
                          "<a>\x01</a>", "<a>\xFF</a>"})
    EXPECT_FALSE(ReadXml(bad).ok()) << bad;
  EXPECT_TRUE(ReadXml("<a x=\"1\" y=\"&lt;\">t<b/>u</a>\n").ok());
}

}  // namespace
}  // namespace lodestone
