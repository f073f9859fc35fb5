#include "base/config.h"

#include <unistd.h>

#include <cstdlib>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lodestone {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

struct TestConfig {
  bool streaming = true;
  int64_t http_port = 8000;
  double temperature = 0.5;
  std::string model = "tiny";
  std::string index_k = "bf16";
  std::string api_key;
  std::vector<std::string> routers;
  ByteSize memory{64 << 20};
  std::chrono::milliseconds timeout{30000};
  LoggingConfig logging;

  template <typename Visitor>
  void VisitFields(Visitor& visit) {
    visit(streaming, "streaming", "stream answers", "Serving");
    visit(http_port, "http-port", "port of the API", "Network");
    visit(temperature, "temperature", "default temperature", "Serving");
    visit(model, "model", "folder of the checkpoint", "Model");
    visit(index_k, "index-k", "storage of index keys", "Model",
          FieldTraits{.allowed = {"bf16", "fp8", "fp4"}});
    visit(api_key, "api-key", "key of clients", "Network", FieldTraits{.secret = true});
    visit(routers, "router", "address of a router", "Network");
    visit(memory, "memory", "bytes for caches", "Model");
    visit(timeout, "timeout", "longest wait", "Serving");
    logging.VisitFields(visit);
  }
};

struct AskConfig {
  std::string question;
  std::vector<std::string> files;
  std::string url;

  template <typename Visitor>
  void VisitFields(Visitor& visit) {
    visit(question, "question", "what to ask", "",
          FieldTraits{.required = true, .positional = true});
    visit(files, "file", "files to add", "", FieldTraits{.positional = true});
    visit(url, "url", "server", "Network", FieldTraits{.required = true});
  }
};

template <typename Config>
absl::StatusOr<ParseOutcome> Parse(Config* config, std::vector<const char*> args) {
  args.insert(args.begin(), "program");
  return ParseConfig("program", "Does things.", static_cast<int>(args.size()), args.data(),
                     *config);
}

template <typename Config = TestConfig>
std::string ErrorOf(std::vector<const char*> args) {
  Config config;
  return std::string(Parse(&config, std::move(args)).status().message());
}

class ConfigTest : public testing::Test {
 protected:
  ~ConfigTest() override {
    for (const std::string& name : set_) unsetenv(name.c_str());
    if (!path_.empty()) unlink(path_.c_str());
  }
  void SetEnv(const std::string& name, const std::string& value) {
    setenv(name.c_str(), value.c_str(), 1);
    set_.push_back(name);
  }
  const char* WriteFile(const std::string& text) {
    path_ = testing::TempDir() + "lodestone_config_" + std::to_string(getpid()) + ".toml";
    std::ofstream(path_) << text;
    return path_.c_str();
  }

  TestConfig config_;

 private:
  std::vector<std::string> set_;
  std::string path_;
};

TEST_F(ConfigTest, DefaultsStayWithoutAnySource) {
  ASSERT_TRUE(Parse(&config_, {}).ok());
  EXPECT_TRUE(config_.streaming);
  EXPECT_EQ(config_.http_port, 8000);
  EXPECT_EQ(config_.timeout, std::chrono::seconds(30));
}

TEST_F(ConfigTest, FlagsSetEveryType) {
  const auto outcome =
      Parse(&config_, {"--no-streaming", "--http-port", "-5", "--temperature=1e-3", "--model",
                       "a b", "--index-k=fp8", "--router", "a:1", "--router=b:2", "--memory",
                       "1.5GiB", "--timeout", "500ms", "--verbosity=2"});
  ASSERT_TRUE(outcome.ok()) << outcome.status();
  EXPECT_FALSE(outcome->exit);
  EXPECT_FALSE(config_.streaming);
  EXPECT_EQ(config_.http_port, -5);
  EXPECT_EQ(config_.temperature, 1e-3);
  EXPECT_EQ(config_.model, "a b");
  EXPECT_EQ(config_.index_k, "fp8");
  EXPECT_THAT(config_.routers, ElementsAre("a:1", "b:2"));
  EXPECT_EQ(config_.memory.bytes, int64_t{3} << 29);
  EXPECT_EQ(config_.timeout, std::chrono::milliseconds(500));
  EXPECT_EQ(config_.logging.verbosity, 2);
}

TEST_F(ConfigTest, BoolFlagTakesAValueToo) {
  ASSERT_TRUE(Parse(&config_, {"--streaming=false"}).ok());
  EXPECT_FALSE(config_.streaming);
  ASSERT_TRUE(Parse(&config_, {"--streaming=true"}).ok());
  EXPECT_TRUE(config_.streaming);
  ASSERT_TRUE(Parse(&config_, {"--no-streaming", "--streaming"}).ok());
  EXPECT_TRUE(config_.streaming) << "the last one counts";
  EXPECT_THAT(ErrorOf({"--streaming=maybe"}), HasSubstr("maybe"));
  EXPECT_THAT(ErrorOf({"--no-streaming=99999999999999999999"}), HasSubstr("out of range"));
}

TEST_F(ConfigTest, FlagBeatsEnvironmentBeatsFileBeatsDefault) {
  const char* file = WriteFile("http-port = 1\nmodel = 'file'\nindex-k = \"fp4\"\n");
  SetEnv("LODESTONE_HTTP_PORT", "2");
  SetEnv("LODESTONE_MODEL", "env");
  const auto outcome = Parse(&config_, {"--config", file, "--http-port", "3", "--print-config"});
  ASSERT_TRUE(outcome.ok()) << outcome.status();
  EXPECT_EQ(config_.http_port, 3);
  EXPECT_EQ(config_.model, "env");
  EXPECT_EQ(config_.index_k, "fp4");
  EXPECT_TRUE(outcome->exit);
  EXPECT_THAT(
      outcome->text,
      AllOf(HasSubstr("http-port = 3  # flag\n"), HasSubstr("model = \"env\"  # env\n"),
            HasSubstr("index-k = \"fp4\"  # file\n"), HasSubstr("timeout = \"30s\"  # default\n"),
            HasSubstr("memory = \"64MiB\"  # default\n")));
}

TEST_F(ConfigTest, PrintedConfigurationIsAFileThatGivesTheSame) {
  const auto first = Parse(&config_, {"--router=a", "--router=b,\"c\" # d", "--temperature=0.1",
                                      "--timeout=1500ms", "--no-streaming", "--print-config"});
  ASSERT_TRUE(first.ok()) << first.status();
  TestConfig again;
  const auto second = Parse(&again, {"--config", WriteFile(first->text)});
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_EQ(again.routers, config_.routers);
  EXPECT_EQ(again.temperature, config_.temperature);
  EXPECT_EQ(again.timeout, config_.timeout);
  EXPECT_FALSE(again.streaming);
}

TEST_F(ConfigTest, ListsComeFromArraysAndFromCommas) {
  SetEnv("LODESTONE_ROUTER", "a:1,b:2");
  ASSERT_TRUE(Parse(&config_, {}).ok());
  EXPECT_THAT(config_.routers, ElementsAre("a:1", "b:2"));
  unsetenv("LODESTONE_ROUTER");
  ASSERT_TRUE(
      Parse(&config_, {"--config", WriteFile("router = [\n 'c', # one\n \"d\",\n]\n")}).ok());
  EXPECT_THAT(config_.routers, ElementsAre("c", "d"));
}

TEST_F(ConfigTest, EmptyVariableIsNotSet) {
  SetEnv("LODESTONE_HTTP_PORT", "");
  ASSERT_TRUE(Parse(&config_, {}).ok());
  EXPECT_EQ(config_.http_port, 8000);
}

TEST_F(ConfigTest, UnknownNamesAreRefusedWithTheNearest) {
  EXPECT_THAT(ErrorOf({"--htp-port", "1"}),
              AllOf(HasSubstr("unknown flag --htp-port"), HasSubstr("did you mean --http-port?")));
  EXPECT_THAT(ErrorOf({"--zzzzzzzzzzzz=1"}),
              AllOf(HasSubstr("unknown flag --zzzzzzzzzzzz"), Not(HasSubstr("did you mean"))));
  EXPECT_THAT(ErrorOf({"stray"}), HasSubstr("unexpected argument 'stray'"));
  EXPECT_THAT(
      ErrorOf({"--config", WriteFile("\nhttp_port = 1\n")}),
      AllOf(HasSubstr("line 2: unknown key http_port"), HasSubstr("did you mean http-port?")));
}

TEST_F(ConfigTest, VariableOfAnotherProgramPassesButAMisspeltOneIsNamed) {
  SetEnv("LODESTONE_HTPP_PORT", "1");
  SetEnv("LODESTONE_SOMETHING_OF_ANOTHER_PROGRAM", "1");
  const auto outcome = Parse(&config_, {});
  ASSERT_TRUE(outcome.ok());
  EXPECT_THAT(outcome->warnings, ElementsAre(AllOf(HasSubstr("LODESTONE_HTPP_PORT"),
                                                   HasSubstr("LODESTONE_HTTP_PORT"))));
}

TEST_F(ConfigTest, ValuesThatCannotBeParsedNameTheirSource) {
  EXPECT_THAT(ErrorOf({"--http-port", "8o"}), HasSubstr("--http-port: '8o' is not a whole number"));
  EXPECT_THAT(ErrorOf({"--http-port", "99999999999999999999"}), HasSubstr("--http-port"));
  EXPECT_THAT(ErrorOf({"--temperature", "nan"}), HasSubstr("is not a number"));
  EXPECT_THAT(ErrorOf({"--index-k", "fp6"}), HasSubstr("'fp6' is not one of bf16, fp8, fp4"));
  EXPECT_THAT(ErrorOf({"--memory", "64M"}), HasSubstr("--memory: '64M' is not a size"));
  EXPECT_THAT(ErrorOf({"--timeout", "5"}), HasSubstr("--timeout: '5' is not a duration"));
  EXPECT_THAT(ErrorOf({"--http-port"}), HasSubstr("--http-port"));
  SetEnv("LODESTONE_TIMEOUT", "soon");
  EXPECT_THAT(ErrorOf({}), HasSubstr("LODESTONE_TIMEOUT: 'soon'"));
}

TEST_F(ConfigTest, MissingFileIsAnError) {
  EXPECT_THAT(ErrorOf({"--config", "/nonexistent/x.toml"}),
              HasSubstr("/nonexistent/x.toml: cannot be read"));
}

TEST_F(ConfigTest, EmptyFileIsFine) {
  EXPECT_TRUE(Parse(&config_, {"--config", WriteFile("")}).ok());
}

TEST_F(ConfigTest, HelpIsGroupedAndShowsDefaultsAndVariables) {
  const auto outcome = Parse(&config_, {"--help"});
  ASSERT_TRUE(outcome.ok());
  EXPECT_TRUE(outcome->exit);
  EXPECT_THAT(
      outcome->text,
      AllOf(HasSubstr("Does things."), HasSubstr("Network:"), HasSubstr("--http-port N"),
            HasSubstr("default 8000; env LODESTONE_HTTP_PORT"), HasSubstr("--index-k bf16|fp8|fp4"),
            HasSubstr("--no-streaming "), Not(HasSubstr("{false}"))));
}

TEST_F(ConfigTest, VersionNamesProgramAndVersion) {
  const auto outcome = Parse(&config_, {"--version"});
  ASSERT_TRUE(outcome.ok());
  EXPECT_THAT(outcome->text, testing::StartsWith("program 0."));
}

TEST_F(ConfigTest, SecretsAreNeverPrinted) {
  SetEnv("LODESTONE_API_KEY", "hunter2");
  for (const char* flag : {"--print-config", "--help"}) {
    const auto outcome = Parse(&config_, {flag});
    ASSERT_TRUE(outcome.ok());
    EXPECT_THAT(outcome->text, Not(HasSubstr("hunter2")));
  }
  EXPECT_EQ(config_.api_key, "hunter2");
}

TEST(PositionalConfigTest, ArgumentsAndFlagsMix) {
  AskConfig config;
  ASSERT_TRUE(Parse(&config, {"why?", "--url", "http://x", "a.txt", "b.txt"}).ok());
  EXPECT_EQ(config.question, "why?");
  EXPECT_EQ(config.url, "http://x");
  EXPECT_THAT(config.files, ElementsAre("a.txt", "b.txt"));
}

TEST(PositionalConfigTest, ArgumentsAreNoSettings) {
  AskConfig config;
  const auto outcome = Parse(&config, {"why?", "--print-config"});
  ASSERT_TRUE(outcome.ok()) << outcome.status();
  EXPECT_EQ(outcome->text, "url = \"\"  # default\n");
}

TEST(PositionalConfigTest, RequiredOnesAreNamed) {
  EXPECT_THAT(ErrorOf<AskConfig>({"--url", "x"}), HasSubstr("question is missing"));
  EXPECT_THAT(ErrorOf<AskConfig>({"why?"}), HasSubstr("--url (or LODESTONE_URL) is required"));
}

TEST(DurationTest, ParsesAndFormats) {
  EXPECT_EQ(ParseDuration("1.5s").value(), std::chrono::milliseconds(1500));
  EXPECT_EQ(ParseDuration("2h").value(), std::chrono::hours(2));
  EXPECT_EQ(ParseDuration("0").value(), std::chrono::milliseconds(0));
  for (const char* text : {"", "s", "-1s", "1.0001s", "5 s", "1d", "99999999999h"}) {
    EXPECT_FALSE(ParseDuration(text).ok()) << text;
  }
  EXPECT_EQ(FormatDuration(std::chrono::milliseconds(1500)), "1500ms");
  EXPECT_EQ(FormatDuration(std::chrono::minutes(120)), "2h");
  EXPECT_EQ(FormatDuration(std::chrono::milliseconds(0)), "0s");
}

}  // namespace
}  // namespace lodestone
