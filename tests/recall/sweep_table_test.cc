#include "recall/sweep_table.h"

#include <string>

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

}  // namespace
}  // namespace lodestone
