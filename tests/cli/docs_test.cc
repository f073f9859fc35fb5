// The documents say what the code says.

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <regex>
#include <set>
#include <sstream>
#include <string>

#include "base/config.h"
#include "monitoring/registry.h"

namespace lodestone {
namespace {

const std::filesystem::path kRoot = LODESTONE_SOURCE_DIR;

std::string ReadDocument(const std::string& name) {
  std::ifstream stream(kRoot / name);
  std::ostringstream text;
  text << stream.rdbuf();
  return std::move(text).str();
}

std::string TypeName(MetricType type) {
  switch (type) {
    case MetricType::kCounter:
      return "counter";
    case MetricType::kGauge:
      return "gauge";
    case MetricType::kHistogram:
      return "histogram";
  }
  return "";
}

std::string RoleNames(uint8_t roles) {
  if (roles == kRoleAll) return "all";
  std::string names;
  const auto add = [&](MetricRole role, const char* name) {
    if ((roles & role) != 0) names += (names.empty() ? "" : ", ") + std::string(name);
  };
  add(kRoleRouter, "router");
  add(kRolePrefill, "prefill");
  add(kRoleDecode, "decode");
  return names;
}

// docs/metrics.md as it must be.
std::string MetricsPage() {
  std::string page =
      "# Metrics\n\n"
      "Every binary serves its own on `http://HOST:METRICS_PORT/metrics`; the router also at "
      "`/metrics` of its HTTP\nport. This page is made from `monitoring/registry.cc`: a test "
      "compares "
      "them, and\n`LODESTONE_UPDATE_DOCS=1 build/release/bin/cli_tests "
      "--gtest_filter='DocsTest.*'` "
      "writes it anew.\n\n"
      "| name | type | from | labels | what it says |\n|---|---|---|---|---|\n";
  for (const MetricDef& metric : MetricTable()) {
    std::string labels;
    for (const std::string_view label : metric.labels) {
      labels += (labels.empty() ? "`" : ", `") + std::string(label) + "`";
    }
    page += "| `" + std::string(metric.name) + "` | " + TypeName(metric.type) + " | " +
            RoleNames(metric.roles) + " | " + labels + " | " + std::string(metric.help) + " |\n";
  }
  const auto add_values = [&](const std::string& label, std::span<const std::string_view> values) {
    page += "\nValues of `" + label + "`:";
    for (const std::string_view value : values) page += " `" + std::string(value) + "`";
    page += ".\n";
  };
  add_values("kind", CacheKindLabels());
  add_values("pool", MemoryPoolLabels());
  return page;
}

// Paths in backquotes that look like files of the tree: a folder, a slash, a name.
std::set<std::string> FilesNamedIn(const std::string& text) {
  static const std::regex kPath("`([a-z_]+/[A-Za-z0-9_./-]+\\.[a-z]+)`");
  std::set<std::string> files;
  for (std::sregex_iterator it(text.begin(), text.end(), kPath), end; it != end; ++it) {
    files.insert((*it)[1]);
  }
  return files;
}

TEST(DocsTest, MetricsPageIsThatOfTheRegistry) {
  if (GetEnvironment("LODESTONE_UPDATE_DOCS") == "1") {
    std::ofstream(kRoot / "docs/metrics.md") << MetricsPage();
  }
  EXPECT_EQ(ReadDocument("docs/metrics.md"), MetricsPage());
}

TEST(DocsTest, EachStepOfARequestNamesFilesThatExist) {
  const std::string text = ReadDocument("docs/life_of_a_request.md");
  static const std::regex kStep("(^|\n)([0-9]+)\\. ");
  std::vector<size_t> begins;
  for (std::sregex_iterator it(text.begin(), text.end(), kStep), end; it != end; ++it) {
    EXPECT_EQ(std::stoul((*it)[2]), begins.size() + 1);
    begins.push_back(static_cast<size_t>(it->position()));
  }
  ASSERT_EQ(begins.size(), 10u);
  begins.push_back(text.size());
  for (size_t i = 0; i + 1 < begins.size(); ++i) {
    const auto files = FilesNamedIn(text.substr(begins[i], begins[i + 1] - begins[i]));
    EXPECT_FALSE(files.empty()) << "step " << i + 1 << " names no file";
  }
}

TEST(DocsTest, FilesThatDocumentsNameExist) {
  for (const char* name : {"README.md", "CONTRIBUTING.md", "docs/life_of_a_request.md",
                           "docs/numerics.md", "docs/dependencies.md"}) {
    const std::string text = ReadDocument(name);
    EXPECT_FALSE(text.empty()) << name << " is missing";
    for (const std::string& file : FilesNamedIn(text)) {
      EXPECT_TRUE(std::filesystem::exists(kRoot / file)) << name << " names " << file;
    }
  }
}

TEST(DocsTest, ReadmeFitsIntoTwoHundredLines) {
  const std::string text = ReadDocument("README.md");
  EXPECT_LE(std::ranges::count(text, '\n'), 200);
}

}  // namespace
}  // namespace lodestone
