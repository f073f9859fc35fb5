#include "base/logging.h"

#include <fcntl.h>

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lodestone {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::testing::Not;

std::string Json(std::string_view text) {
  std::string out;
  AppendJsonString(text, &out);
  return out;
}

template <typename Body>
std::string Logged(Body body) {
  testing::internal::CaptureStderr();
  body();
  return testing::internal::GetCapturedStderr();
}

class LoggingTest : public testing::Test {
 protected:
  void SetUp() override { SetLogging({.format = LogFormat::kJson, .component = "test"}); }
  void TearDown() override { SetLogging({.component = "test"}); }
};

TEST(JsonStringTest, EscapesQuotesBackslashesAndControls) {
  EXPECT_EQ(Json("a\"b\\c\n\r\t"), R"("a\"b\\c\n\r\t")");
  EXPECT_EQ(Json(std::string_view("\0\x01\x1f\x7f", 4)), R"("\u0000\u0001\u001f\u007f")");
}

TEST(JsonStringTest, KeepsUtf8AndReplacesEverythingElse) {
  EXPECT_EQ(Json("\xC3\xA9 \xE2\x82\xAC \xF0\x9F\x98\x80"),
            "\"\xC3\xA9 \xE2\x82\xAC \xF0\x9F\x98\x80\"");
  const std::string bad = "\xEF\xBF\xBD";
  EXPECT_EQ(Json("\xFF"), "\"" + bad + "\"");
  EXPECT_EQ(Json("\xC0\x80"), "\"" + bad + bad + "\"");                      // overlong
  EXPECT_EQ(Json("\xED\xA0\x80"), "\"" + bad + bad + bad + "\"");            // surrogate
  EXPECT_EQ(Json("\xF4\x90\x80\x80"), "\"" + bad + bad + bad + bad + "\"");  // above U+10FFFF
  EXPECT_EQ(Json("\xE2\x82"), "\"" + bad + bad + "\"");                      // cut off
}

TEST_F(LoggingTest, WritesOneJsonLineWithFields) {
  const std::string line =
      Logged([] { LOG(INFO) << Field("request_id", 7) << "two\nlines " << 3; });
  EXPECT_THAT(line, MatchesRegex("\\{\"ts\":\"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:]{8}\\.[0-9]{3}Z\","
                                 "\"level\":\"info\",\"component\":\"test\","
                                 "\"msg\":\"two\\\\nlines 3\",\"request_id\":\"7\"\\}\n"));
}

TEST_F(LoggingTest, NamesTheSourceLineFromWarningUp) {
  EXPECT_THAT(Logged([] { LOG(WARNING) << "x"; }), HasSubstr("logging_test.cc:"));
  EXPECT_THAT(Logged([] { LOG(INFO) << "x"; }), Not(HasSubstr("logging_test.cc")));
}

TEST_F(LoggingTest, TextFormatCannotBeUsedToSteerTheTerminal) {
  SetLogging({.format = LogFormat::kText, .component = "test"});
  const std::string line = Logged([] { LOG(INFO) << "a\x1b[31mb" << Field("f", "c d\x1b"); });
  EXPECT_THAT(line, AllOf(HasSubstr("test: a?[31mb f=\"c d\\u001b\""), Not(HasSubstr("\x1b"))));
}

TEST_F(LoggingTest, VlogIsEvaluatedOnlyAtItsVerbosity) {
  int evaluations = 0;
  const auto count = [&] { return ++evaluations; };
  EXPECT_EQ(Logged([&] { VLOG(1) << count(); }), "");
  EXPECT_EQ(evaluations, 0);
  SetLogging({.format = LogFormat::kJson, .component = "test", .verbosity = 1});
  EXPECT_THAT(Logged([&] { VLOG(1) << count(); }), HasSubstr("\"level\":\"debug\""));
  EXPECT_EQ(Logged([&] { VLOG(2) << count(); }), "");
  EXPECT_EQ(evaluations, 1);
}

TEST_F(LoggingTest, RepeatedFaultIsWrittenOncePerPeriodAndCounted) {
  const auto fault = [](int times, double seconds) {
    for (int i = 0; i < times; ++i) LOG_EVERY_SECONDS(ERROR, seconds) << "link lost";
  };
  const std::string first = Logged([&] { fault(5, 3600); });
  EXPECT_EQ(std::count(first.begin(), first.end(), '\n'), 1);
  EXPECT_EQ(Logged([&] { fault(3, 3600); }), "");
}

TEST(ThrottleTest, ReportsHowManyWereSuppressed) {
  log_internal::Throttle throttle;
  EXPECT_EQ(throttle.Take(0), 0);
  EXPECT_EQ(throttle.Take(3600), 0);
  EXPECT_EQ(throttle.Take(3600), -1);
  EXPECT_EQ(throttle.Take(3600), -1);
}

TEST_F(LoggingTest, MacrosAreOneStatementInAnIfWithoutBraces) {
  const std::string lines = Logged([] {
    for (int i = 0; i < 2; ++i)
      if (i == 0)
        VLOG(5) << "no";
      else
        LOG(INFO) << "second";
  });
  EXPECT_THAT(lines, HasSubstr("second"));
}

using LoggingDeathTest = LoggingTest;

TEST_F(LoggingDeathTest, FailedChecksNameExpressionAndValues) {
  EXPECT_DEATH(CHECK(1 + 1 == 3) << "sum", "CHECK failed: 1 \\+ 1 == 3 sum");
  EXPECT_DEATH(CHECK_LE(4, 3) << "limit", "CHECK failed: 4 <= 3 \\(4 vs 3\\) limit");
  EXPECT_DEATH(LOG(FATAL) << "gone", "\"level\":\"fatal\".*gone");
  CHECK_EQ(2, 2) << "not evaluated";
}

}  // namespace
}  // namespace lodestone
