#include "recall/sweep_table.h"

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <boost/json.hpp>

namespace lodestone {
namespace {

SweepCell Cell(int64_t length, std::string place, int repeat, NeedleOutcome outcome) {
  return {.length = length,
          .place = std::move(place),
          .repeat = repeat,
          .outcome = outcome,
          .expected = "A-12-B",
          .reply = outcome == NeedleOutcome::kFound ? "A-12-B" : "no"};
}

TEST(SweepTableTest, ShowsEachCellAndTheCount) {
  SweepTable table;
  table.Add(Cell(300, DepthName(0), 0, NeedleOutcome::kFound));
  table.Add(Cell(10500, DepthName(0), 0, NeedleOutcome::kMissed));
  table.Add(Cell(300, DepthName(0.25), 0, NeedleOutcome::kFailed));
  EXPECT_EQ(table.ToText(),
            "depth \\ tokens     300  10,500\n"
            "0                found  missed\n"
            "0.25            failed       -\n");
  EXPECT_EQ(table.Summary(), "1 of 3, 1 failed");
  EXPECT_FALSE(table.AllFound());
}

TEST(SweepTableTest, CountsRepeatsOfACell) {
  SweepTable table;
  for (int repeat = 0; repeat < 3; ++repeat) {
    table.Add(
        Cell(900, "inside", repeat, repeat == 1 ? NeedleOutcome::kMissed : NeedleOutcome::kFound));
  }
  EXPECT_EQ(table.ToText(),
            "depth \\ tokens     900\n"
            "inside          2 of 3\n");
  EXPECT_EQ(table.Summary(), "2 of 3");
}

TEST(SweepTableTest, AllFoundWhenEveryCellIs) {
  SweepTable table;
  table.Add(Cell(300, "0", 0, NeedleOutcome::kFound));
  EXPECT_TRUE(table.AllFound());
  EXPECT_EQ(table.Summary(), "1 of 1");
}

TEST(SweepTableTest, JsonHoldsEveryCell) {
  SweepTable table;
  table.Add(Cell(300, "0.5", 2, NeedleOutcome::kMissed));
  SweepCell broken = Cell(900, "0.5", 0, NeedleOutcome::kFailed);
  broken.reply = "bad \xFF byte";
  table.Add(broken);
  const boost::json::value json = boost::json::parse(table.ToJson());
  EXPECT_EQ(json.at("found").as_int64(), 0);
  EXPECT_EQ(json.at("failed").as_int64(), 1);
  EXPECT_EQ(json.at("total").as_int64(), 2);
  const boost::json::value& cell = json.at("cells").at(0);
  EXPECT_EQ(cell.at("length").as_int64(), 300);
  EXPECT_EQ(cell.at("place").as_string(), "0.5");
  EXPECT_EQ(cell.at("repeat").as_int64(), 2);
  EXPECT_EQ(cell.at("outcome").as_string(), "missed");
  EXPECT_EQ(cell.at("reply").as_string(), "no");
}

TEST(SweepTableTest, JsonIsReadBackAsItWas) {
  SweepTable table(SweepKind::kResidues, "fp8, \"stress\"");
  SweepCell cell = Cell(1023, "0.25", 1, NeedleOutcome::kMissed);
  cell.prompt_tokens = 1022;
  cell.seconds = 0.25;
  cell.answer = "The secret code is A-12-B.";
  table.Add(cell);
  table.Add(Cell(1024, "0.5", 0, NeedleOutcome::kFailed));
  const absl::StatusOr<SweepTable> read = SweepTable::FromJson(table.ToJson(), "a file");
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->kind(), SweepKind::kResidues);
  EXPECT_EQ(read->label(), "fp8, \"stress\"");
  EXPECT_EQ(read->ToJson(), table.ToJson());
  EXPECT_EQ(read->ToText(), table.ToText());
}

TEST(SweepTableTest, JsonThatIsNoSweepIsNamed) {
  SweepTable table;
  table.Add(Cell(300, "0", 0, NeedleOutcome::kFound));
  const std::string good = table.ToJson();
  const auto with = [&](std::string_view part, std::string_view other) {
    std::string changed = good;
    return changed.replace(changed.find(part), part.size(), other);
  };
  for (const std::string& bad :
       {std::string(), std::string("[]"), std::string("{}"), good.substr(0, good.size() - 1),
        with("\"depths\"", "\"widths\""), with("\"found\",", "\"lost\","),
        with("\"length\":300", "\"length\":0"), with("\"length\":300", "\"length\":\"x\""),
        with("\"reply\"", "\"replies\""), with("\"cells\":[", "\"cells\":[7,")}) {
    const absl::StatusOr<SweepTable> read = SweepTable::FromJson(bad, "a file");
    ASSERT_TRUE(absl::IsInvalidArgument(read.status())) << bad;
    EXPECT_THAT(std::string(read.status().message()),
                ::testing::StartsWith("a file is not the JSON of a sweep: "))
        << bad;
  }
}

TEST(SweepTableTest, ResiduesAreShownBy4RowsAndByColumnsOf16) {
  SweepTable table(SweepKind::kResidues);
  for (int64_t length = 120; length < 132; ++length) {
    table.Add(
        Cell(length, "0.5", 0, length == 129 ? NeedleOutcome::kMissed : NeedleOutcome::kFound));
  }
  const std::string text = table.ToText();
  EXPECT_THAT(text, ::testing::StartsWith("tokens mod 4 \\ tokens mod 128    0-15  16-31"));
  // 129 mod 128 = 1, mod 4 = 1; the row's other lengths, 121 and 125, are in the last column.
  EXPECT_THAT(text, ::testing::HasSubstr(
                        "\n1                              missed      -      -      -      -      "
                        "-       -   2 of 2\n"));
}

TEST(SweepTableTest, CountsAnswersWordForWordAndPromptsOfTheWantedLength) {
  SweepTable table(SweepKind::kResidues);
  SweepCell cell = Cell(1024, "0.5", 0, NeedleOutcome::kFound);
  cell.answer = cell.reply = "The secret code is A-12-B.";
  cell.prompt_tokens = 1024;
  table.Add(cell);
  cell.reply = "It is A-12-B.";
  cell.prompt_tokens = 1025;
  table.Add(cell);
  EXPECT_EQ(table.found(), 2);
  EXPECT_EQ(table.word_for_word(), 1);
  EXPECT_EQ(table.of_wanted_length(), 1);
}

}  // namespace
}  // namespace lodestone
