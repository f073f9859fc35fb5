#include "recall/needle.h"

#include <algorithm>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <boost/json.hpp>

#include "tests/text/text_test_util.h"

namespace lodestone {
namespace {

using ::testing::HasSubstr;
using testing_text::BundledTokenizer;

Lexicon BundledLexicon() {
  absl::StatusOr<Lexicon> lexicon = LexiconForModel(testing_text::BundledPath(""));
  EXPECT_TRUE(lexicon.ok()) << lexicon.status();
  return *std::move(lexicon);
}

NeedleGenerator Bundled() {
  return NeedleGenerator(BundledLexicon(), {.tokenizer = &BundledTokenizer()});
}

NeedlePrompt Make(const NeedleSpec& spec, const NeedleGenerator& generator = Bundled()) {
  absl::StatusOr<NeedlePrompt> prompt = generator.Make(spec);
  EXPECT_TRUE(prompt.ok()) << prompt.status();
  return prompt.ok() ? *std::move(prompt) : NeedlePrompt();
}

std::vector<std::string> Lines(const std::string& content) {
  std::vector<std::string> lines;
  std::istringstream stream(content);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

int64_t CountTokens(const NeedlePrompt& prompt) {
  return static_cast<int64_t>(BundledTokenizer().EncodeText(prompt.content).size()) + 4;
}

TEST(NeedleGeneratorTest, HasTheTrainedForm) {
  const NeedlePrompt prompt = Make({.prompt_tokens = 900, .depth = 0.25, .seed = 1});
  const std::vector<std::string> lines = Lines(prompt.content);
  EXPECT_EQ(lines.back(), "What is the secret code for " + prompt.name + "?");
  EXPECT_FALSE(prompt.content.ends_with('\n'));
  EXPECT_EQ(prompt.answer, "The secret code is " + prompt.code + ".");
  const std::string needle = "The secret code for " + prompt.name + " is " + prompt.code + ".";
  const auto at = std::find(lines.begin(), lines.end(), needle);
  ASSERT_NE(at, lines.end());
  EXPECT_NEAR(static_cast<double>(at - lines.begin()) / static_cast<double>(lines.size() - 2), 0.25,
              1.0 / static_cast<double>(lines.size() - 2));
  EXPECT_EQ(std::count_if(
                lines.begin(), lines.end(),
                [](const std::string& line) { return line.starts_with("The secret code for "); }),
            7);
  EXPECT_EQ(prompt.prompt_tokens, CountTokens(prompt));
}

// Every word is one token of the trained vocabulary, so filler lines have the held-out prompts' mix
// of lengths: about 16.5 tokens and 3.58 bytes each token.
TEST(NeedleGeneratorTest, UsesOnlyTrainedWords) {
  const NeedlePrompt prompt = Make({.prompt_tokens = 10500, .seed = 2});
  const double bytes_per_token =
      static_cast<double>(prompt.content.size()) / static_cast<double>(prompt.prompt_tokens);
  EXPECT_NEAR(bytes_per_token, 3.58, 0.05);
  std::set<std::string> starts;
  for (const std::string& line : Lines(prompt.content)) starts.insert(line.substr(0, 3));
  EXPECT_EQ(starts, (std::set<std::string>{"Ent", "On ", "The", "Rep", "Wha"}));
}

TEST(NeedleGeneratorTest, StaysWithinOneLineBelowTheLength) {
  for (const int64_t tokens : {300, 900, 1800, 4500, 10500}) {
    for (const double depth : {0.0, 0.25, 0.5, 0.75, 1.0}) {
      const NeedlePrompt prompt = Make({.prompt_tokens = tokens, .depth = depth, .seed = 3});
      EXPECT_LE(prompt.prompt_tokens, tokens);
      EXPECT_GT(prompt.prompt_tokens, tokens - 24);
      if (depth == 0.0) {
        EXPECT_EQ(prompt.needle_token_pos, 2);
      }
    }
  }
}

TEST(NeedleGeneratorTest, HitsTheExactLength) {
  const NeedleGenerator generator = Bundled();
  for (int64_t tokens = 200; tokens < 330; ++tokens) {
    for (const double depth : {0.0, 0.4, 1.0}) {
      const NeedlePrompt prompt =
          Make({.prompt_tokens = tokens, .exact = true, .depth = depth, .seed = 4}, generator);
      ASSERT_EQ(prompt.prompt_tokens, tokens);
      ASSERT_EQ(CountTokens(prompt), tokens);
    }
  }
  for (const NeedleSpec& spec : NeedlePreset(9)) {
    const NeedlePrompt prompt = Make(spec, generator);
    EXPECT_EQ(prompt.prompt_tokens, spec.prompt_tokens);
  }
}

// A piece of a line right after the needle line made the bundled model forget half of the code.
TEST(NeedleGeneratorTest, ExactPromptsAreMadeOfWholeLines) {
  const NeedleGenerator generator = Bundled();
  const auto is_piece = [](const std::string& line) {
    for (const char* start : {"Entry ", "On ", "The ", "Report ", "What is "}) {
      if (line.starts_with(start)) return std::ranges::count(line, ' ') < 6;
    }
    return true;
  };
  for (int64_t tokens = 200; tokens < 420; tokens += 3) {
    for (const double depth : {0.0, 0.4, 1.0}) {
      const NeedlePrompt prompt =
          Make({.prompt_tokens = tokens, .exact = true, .depth = depth, .seed = 4}, generator);
      std::istringstream lines(prompt.content);
      std::string last;
      int pieces = 0;
      for (std::string line; std::getline(lines, line); last = line) {
        pieces += is_piece(line);
        EXPECT_FALSE(is_piece(line) && last.find(prompt.code) != last.npos)
            << tokens << " tokens, depth " << depth << ": " << line;
      }
      if (tokens >= 300) {
        EXPECT_EQ(pieces, 0) << tokens << "\n" << prompt.content;
      }
    }
  }
  for (const WindowProbe& probe : WindowPreset(8)) {
    const std::string content = Make(probe.spec, generator).content;
    std::istringstream lines(content);
    for (std::string line; std::getline(lines, line);) {
      // The room after the needle may be too short for whole lines.
      if (probe.place != "inside") {
        EXPECT_FALSE(is_piece(line)) << probe.place << ": " << line;
      }
    }
  }
}

TEST(NeedleGeneratorTest, PutsTheCodeAtTheExactToken) {
  const NeedleGenerator generator = Bundled();
  for (const int64_t after : {30, 64, 127, 128, 132, 600, 2000}) {
    const NeedlePrompt prompt = Make(
        {.prompt_tokens = 2500, .exact = true, .tokens_after_code = after, .seed = 5}, generator);
    EXPECT_EQ(prompt.tokens_after_code, after);
    EXPECT_EQ(prompt.prompt_tokens, 2500);
    // Independent count: what follows the code in the text.
    const size_t end = prompt.content.rfind(prompt.code) + prompt.code.size();
    EXPECT_EQ(
        static_cast<int64_t>(BundledTokenizer().EncodeText(prompt.content.substr(end)).size()) + 2,
        after);
    EXPECT_EQ(prompt.needle_token_pos + 15, 2500 - after);  // the code's last token is the 15th
  }
}

TEST(NeedleGeneratorTest, WindowPresetStraddlesTheWindow) {
  const std::vector<WindowProbe> probes = WindowPreset(6);
  ASSERT_EQ(probes.size(), 4u);
  std::vector<NeedlePrompt> prompts;
  for (const WindowProbe& probe : probes) prompts.push_back(Make(probe.spec));
  EXPECT_EQ(prompts[0].needle_token_pos, 2);
  EXPECT_GT(prompts[1].tokens_after_code, 2000);
  EXPECT_EQ(prompts[2].tokens_after_code, 132);
  EXPECT_LT(prompts[3].tokens_after_code + 16 + 14, 128);
  for (const NeedlePrompt& prompt : prompts) EXPECT_EQ(prompt.prompt_tokens, 5200);
}

TEST(NeedleGeneratorTest, AsksOnlyAboutHeldOutNamesWithFreshCodes) {
  const Lexicon words = BundledLexicon();
  const NeedleGenerator generator = Bundled();
  std::set<std::string> codes;
  for (uint64_t seed = 0; seed < 200; ++seed) {
    const NeedlePrompt prompt = Make({.prompt_tokens = 400, .seed = seed}, generator);
    codes.insert(prompt.code);
    int held_out_needles = 0;
    for (size_t f = 0; f < words.first.size(); ++f) {
      for (size_t l = 0; l < words.last.size(); ++l) {
        const std::string name = words.first[f] + " " + words.last[l];
        const bool is_needle =
            prompt.content.find("code for " + name + " is ") != std::string::npos;
        if (is_needle && (7 * f + 3 * l) % 10 == 0) {
          ++held_out_needles;
          EXPECT_EQ(name, prompt.name);
        }
      }
    }
    EXPECT_EQ(held_out_needles, 1);
    EXPECT_EQ(prompt.content.find(prompt.code), prompt.content.rfind(prompt.code));
  }
  EXPECT_GE(codes.size(), 199u);
}

TEST(NeedleGeneratorTest, SeedNamesThePrompt) {
  const NeedleSpec spec = {.prompt_tokens = 900, .exact = true, .depth = 0.3, .seed = 7};
  EXPECT_EQ(Make(spec).content, Make(spec).content);
  NeedleSpec other = spec;
  other.seed = 8;
  EXPECT_NE(Make(spec).content, Make(other).content);
}

TEST(NeedleGeneratorTest, HeldOutPromptsOfTheModelAskHeldOutPairsToo) {
  const Lexicon words = BundledLexicon();
  std::istringstream lines(testing_text::ReadFile(testing_text::BundledPath("eval_prompts.jsonl")));
  for (std::string line; std::getline(lines, line);) {
    const boost::json::value value = boost::json::parse(line);
    const std::string content(value.as_object().at("content").as_string());
    const std::string name = content.substr(content.rfind(" for ") + 5);
    const std::string first = name.substr(0, name.find(' '));
    const std::string last = name.substr(first.size() + 1, name.size() - first.size() - 2);
    const auto f = std::find(words.first.begin(), words.first.end(), first) - words.first.begin();
    const auto l = std::find(words.last.begin(), words.last.end(), last) - words.last.begin();
    EXPECT_TRUE(Lexicon::IsHeldOut(static_cast<size_t>(f), static_cast<size_t>(l))) << name;
  }
}

TEST(NeedleGeneratorTest, EstimatesLengthsWithoutATokenizer) {
  const NeedleGenerator generator(BuiltInLexicon(), {});
  const NeedlePrompt prompt = Make({.prompt_tokens = 4500, .depth = 0.5, .seed = 1}, generator);
  EXPECT_NEAR(static_cast<double>(prompt.prompt_tokens), 4500, 30);
  EXPECT_NEAR(static_cast<double>(prompt.needle_token_pos), 2250, 200);
  EXPECT_THAT(generator.Make({.prompt_tokens = 4500, .exact = true}).status().ToString(),
              HasSubstr("needs a tokenizer"));
  const NeedlePrompt near_end =
      Make({.prompt_tokens = 4500, .tokens_after_code = 200, .seed = 1}, generator);
  EXPECT_NEAR(static_cast<double>(near_end.tokens_after_code), 200, 25);
}

TEST(NeedleGeneratorTest, SaysWhyAPromptIsImpossible) {
  const auto error = [](const NeedleSpec& spec) {
    return Bundled().Make(spec).status().ToString();
  };
  EXPECT_THAT(error({.prompt_tokens = 100}), HasSubstr("100 tokens with 6 distractors needs"));
  EXPECT_THAT(error({.prompt_tokens = 0}), HasSubstr("a prompt of 0 tokens"));
  EXPECT_THAT(error({.prompt_tokens = 900, .depth = 1.5}), HasSubstr("depth 1.5"));
  EXPECT_THAT(error({.prompt_tokens = 900, .distractors = -1}), HasSubstr("-1 distractors"));
  EXPECT_THAT(error({.prompt_tokens = 900, .distractors = 2000}), HasSubstr("2000 distractors"));
  EXPECT_THAT(error({.prompt_tokens = 900, .tokens_after_code = 3}), HasSubstr("3 tokens after"));
  EXPECT_THAT(error({.prompt_tokens = 900, .tokens_after_code = 950}),
              HasSubstr("950 tokens after"));
}

TEST(HasCodeTest, WantsTheWholeCode) {
  EXPECT_TRUE(HasCode("The secret code is A-12-B.", "A-12-B"));
  EXPECT_TRUE(HasCode("**A-12-B**", "A-12-B"));
  EXPECT_TRUE(HasCode("XA-12-B, no: A-12-B", "A-12-B"));
  EXPECT_FALSE(HasCode("XA-12-B", "A-12-B"));
  EXPECT_FALSE(HasCode("A-12-BC", "A-12-B"));
  EXPECT_FALSE(HasCode("A-12", "A-12-B"));
  EXPECT_FALSE(HasCode("a-12-b", "A-12-B"));
  EXPECT_FALSE(HasCode("", "A-12-B"));
}

TEST(LexiconTest, NamesTheBadList) {
  boost::json::object good =
      boost::json::parse(testing_text::ReadFile(testing_text::BundledPath("lexicon.json")))
          .as_object();
  EXPECT_TRUE(ParseLexicon(boost::json::serialize(good), "l").ok());
  const auto error = [&](const char* list, boost::json::value value) {
    boost::json::object bad = good;
    bad[list] = std::move(value);
    return ParseLexicon(boost::json::serialize(bad), "l.json").status().ToString();
  };
  EXPECT_THAT(error("OBJ", nullptr), HasSubstr("l.json: OBJ must be an array"));
  EXPECT_THAT(error("DAY", {"Monday"}), HasSubstr("l.json: DAY has 1 words"));
  EXPECT_THAT(error("DAY", {"Monday", "Monday"}), HasSubstr("DAY[1]"));
  EXPECT_THAT(error("VERB", {"is", "a b"}), HasSubstr("VERB[1] \"a b\" is no plain word"));
  EXPECT_THAT(error("VERB", {"is", 7}), HasSubstr("VERB[1] 7"));
  EXPECT_THAT(ParseLexicon("[", "l.json").status().ToString(), HasSubstr("not valid JSON"));
  EXPECT_GE(BuiltInLexicon().HeldOutPairs().size(), 30u);
  EXPECT_EQ(LexiconForModel("/nonexistent")->first, BuiltInLexicon().first);
}

}  // namespace
}  // namespace lodestone
