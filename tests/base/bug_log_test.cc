// Holds tests/bug_log.md to the tests: what it names exists, every row names something.

#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lodestone {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::string ReadFile(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file.good()) << path;
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

std::string Trimmed(const std::string& text) {
  const size_t begin = text.find_first_not_of(' ');
  if (begin == std::string::npos) return "";
  return text.substr(begin, text.find_last_not_of(' ') - begin + 1);
}

// Suite.Name of every test in `source`.
void AddTests(const std::string& source, std::set<std::string>& tests) {
  static const std::regex pattern(R"((?:^|\n)TEST(?:_F|_P)?\(\s*(\w+)\s*,\s*(\w+)\s*\))");
  for (std::sregex_iterator it(source.begin(), source.end(), pattern), end; it != end; ++it) {
    tests.insert((*it)[1].str() + "." + (*it)[2].str());
  }
}

std::set<std::string> TestsOf(const fs::path& folder) {
  std::set<std::string> tests;
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(folder)) {
    if (entry.path().extension() == ".cc") AddTests(ReadFile(entry.path()), tests);
  }
  return tests;
}

// The cells of one line of a table; empty for any other line, the head and the rule below it.
std::vector<std::string> CellsOf(const std::string& line) {
  if (line.rfind("| ", 0) != 0 || line.rfind("| id |", 0) == 0) return {};
  std::vector<std::string> cells;
  std::istringstream stream(line.substr(1));
  for (std::string cell; std::getline(stream, cell, '|');) cells.push_back(Trimmed(cell));
  return cells;
}

// The reports of a row in full: "sglang#1, #2" is sglang#1 and sglang#2.
std::vector<std::string> IdsOf(const std::string& cell) {
  static const std::regex pattern(R"(([\w./-]*)#(\d+))");
  std::vector<std::string> ids;
  std::string repository;
  for (std::sregex_iterator it(cell.begin(), cell.end(), pattern), end; it != end; ++it) {
    if ((*it)[1].length() > 0) repository = (*it)[1];
    ids.push_back(repository + "#" + (*it)[2].str());
  }
  return ids;
}

struct Log {
  int num_rows = 0;
  std::vector<std::string> problems;
};

// Reads the log and lists what is wrong with it. `file_exists` is asked for paths from the root.
template <typename FileExists>
Log Check(const std::string& markdown, const std::set<std::string>& tests, FileExists file_exists) {
  static const std::regex quoted(R"(`([^`]+)`)"), test_name(R"(\w+\.\w+)");
  Log log;
  std::map<std::string, std::string> first_row_of;
  std::istringstream lines(markdown);
  for (std::string line; std::getline(lines, line);) {
    const std::vector<std::string> cells = CellsOf(line);
    if (cells.empty()) continue;
    ++log.num_rows;
    const auto complain = [&](const std::string& what) {
      log.problems.push_back(cells[0] + ": " + what);
    };
    if (cells.size() != 4 || cells[1].empty() || cells[2].empty()) {
      complain("is not id, symptom, prevention and tests");
      continue;
    }
    const std::vector<std::string> ids = IdsOf(cells[0]);
    if (ids.empty()) complain("has no id");
    for (const std::string& id : ids) {
      if (!first_row_of.emplace(id, cells[0]).second) complain(id + " has a row already");
    }
    int num_tests = 0;
    for (std::sregex_iterator it(cells[3].begin(), cells[3].end(), quoted), end; it != end; ++it) {
      const std::string name = (*it)[1];
      if (name.rfind("--", 0) == 0) continue;  // a flag of run-tests
      ++num_tests;
      if (name.find('/') != std::string::npos) {
        if (!file_exists(name)) complain("there is no file " + name);
      } else if (!std::regex_match(name, test_name) || !tests.contains(name)) {
        complain("there is no test " + name);
      }
    }
    if (num_tests == 0 && cells[2].rfind("not here: ", 0) != 0) complain("names no test");
  }
  return log;
}

TEST(BugLogTest, EveryRowNamesTestsThatExistOrWhyItHasNone) {
  const fs::path root = LODESTONE_SOURCE_DIR;
  const Log log = Check(ReadFile(root / "tests/bug_log.md"), TestsOf(root / "tests"),
                        [&](const std::string& path) { return fs::is_regular_file(root / path); });
  EXPECT_THAT(log.problems, IsEmpty());
  EXPECT_GE(log.num_rows, 84) << "a row is gone";
}

TEST(BugLogTest, EachKindOfMistakeIsFound) {
  std::set<std::string> tests;
  AddTests("TEST(ATest, IsThere) {\n}\nTEST_P(BTest,\n       IsToo) {\n// TEST(CTest, IsNot)\n",
           tests);
  EXPECT_THAT(tests, ElementsAre("ATest.IsThere", "BTest.IsToo"));
  const auto problems = [&](const std::string& row) {
    const Log log = Check("| id | symptom | what | tests |\n|---|---|---|---|\n" + row + "\n",
                          tests, [](const std::string& path) { return path == "tests/x"; });
    EXPECT_GT(log.num_rows, 0);
    return log.problems;
  };
  EXPECT_THAT(problems("| a#1, #2 | x | y | `ATest.IsThere`, `BTest.IsToo` (`--long`) |"),
              IsEmpty());
  EXPECT_THAT(problems("| a/b#1 | x | y | `tests/x` |"), IsEmpty());
  EXPECT_THAT(problems("| a#1 | x | not here: no such thing | |"), IsEmpty());
  EXPECT_THAT(problems("| a#1 | x | y | `ATest.WasRenamed` |"),
              ElementsAre(HasSubstr("no test ATest.WasRenamed")));
  EXPECT_THAT(problems("| a#1 | x | y | `CTest.IsNot` |"), ElementsAre(HasSubstr("no test")));
  EXPECT_THAT(problems("| a#1 | x | y | `tests/y` |"), ElementsAre(HasSubstr("no file tests/y")));
  EXPECT_THAT(problems("| a#1 | x | y | |"), ElementsAre(HasSubstr("names no test")));
  EXPECT_THAT(problems("| a#1 | x | y | some day |"), ElementsAre(HasSubstr("names no test")));
  EXPECT_THAT(problems("| a | x | y | `tests/x` |"), ElementsAre(HasSubstr("has no id")));
  EXPECT_THAT(problems("| a#1 | x | `tests/x` |"), ElementsAre(HasSubstr("is not id")));
  EXPECT_THAT(problems("| a#1 | x | y | `tests/x` |\n| b#1, a#1 | x | y | `tests/x` |"),
              ElementsAre(HasSubstr("a#1 has a row already")));
}

}  // namespace
}  // namespace lodestone
