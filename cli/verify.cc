#include "cli/verify.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>
#include <thread>
#include <utility>

#include "base/mutex.h"
#include "base/shutdown.h"
#include "base/status_macros.h"
#include "cli/cluster.h"
#include "cli/command.h"
#include "cli/generate_client.h"
#include "cli/length_list.h"
#include "cli/progress.h"
#include "recall/needle.h"
#include "recall/random.h"
#include "text/chat_format.h"
#include "worker/worker_config.h"

namespace lodestone {
namespace {

constexpr std::string_view kName = "lodestone verify";
constexpr std::string_view kDescription =
    "Compares a cluster with one process: token ids, log-probabilities and ends must be equal to "
    "the\n"
    "last bit. Starts a cluster of its own unless --grpc names one.\n"
    "  lodestone verify --model models/needle-tiny --lengths 1..40,508..516 --batch 16\n"
    "  lodestone verify --model models/needle-tiny --lengths 4500 --chunk-tokens whole --index-k "
    "fp8\n"
    "The last line is `N differences`; the exit code is 1 if there are any.";

constexpr int kMaxShown = 10;
constexpr int64_t kDefaultStepTokens = 512;

std::vector<int32_t> RandomTokens(int64_t count, int64_t vocab_size, NeedleRandom* random) {
  std::vector<int32_t> tokens(static_cast<size_t>(count));
  for (int32_t& token : tokens) {
    token = static_cast<int32_t>(random->Below(static_cast<uint64_t>(vocab_size)));
  }
  return tokens;
}

// Needle prompts as the chat API would render them.
class NeedleTokens {
 public:
  static absl::StatusOr<std::unique_ptr<NeedleTokens>> Load(const std::string& model_dir) {
    ASSIGN_OR_RETURN(Tokenizer tokenizer, Tokenizer::Load(model_dir + "/tokenizer.json"));
    std::unique_ptr<NeedleTokens> made(new NeedleTokens(std::move(tokenizer)));
    ASSIGN_OR_RETURN(made->format_, ChatFormat::Create(&made->tokenizer_));
    ASSIGN_OR_RETURN(Lexicon lexicon, LexiconForModel(model_dir));
    made->generator_.emplace(std::move(lexicon), TokenCounter{.tokenizer = &made->tokenizer_});
    return made;
  }
  absl::StatusOr<std::vector<int32_t>> Make(int64_t length, uint64_t seed) const {
    ASSIGN_OR_RETURN(const NeedlePrompt prompt,
                     generator_->Make({.prompt_tokens = length, .exact = true, .seed = seed}));
    return format_->Render({ChatMessage{.role = ChatRole::kUser, .content = prompt.content}}, {});
  }

 private:
  explicit NeedleTokens(Tokenizer tokenizer) : tokenizer_(std::move(tokenizer)) {}
  const Tokenizer tokenizer_;
  std::optional<ChatFormat> format_;
  std::optional<NeedleGenerator> generator_;
};

// The cluster to compare with: one of our own, or somebody else's.
struct Target {
  std::unique_ptr<Cluster> cluster;
  std::string address;
};

absl::StatusOr<int64_t> LongestPrompt(std::span<const int64_t> lengths) {
  if (lengths.empty()) return absl::InvalidArgumentError("--lengths names none");
  return *std::ranges::max_element(lengths);
}

// "whole" as the number of tokens it stands for.
ClusterFlags WithChunk(ClusterFlags flags, int64_t longest) {
  if (flags.chunk_tokens == "whole") flags.chunk_tokens = std::to_string(longest);
  return flags;
}

absl::StatusOr<Target> StartTarget(const VerifyConfig& config, int64_t longest,
                                   Progress* progress) {
  if (!config.address.empty()) return Target{nullptr, config.address};
  ClusterOptions options = WithChunk(config.cluster, longest).ToClusterOptions();
  options.restart = false;
  progress->Note("starting a cluster; logs in " + options.run_dir);
  Target target;
  ASSIGN_OR_RETURN(
      target.cluster,
      Cluster::Start(
          std::move(options), [progress](std::string_view line) { progress->Note(line); },
          [progress](std::string_view line) { progress->Update(line); }));
  RETURN_IF_ERROR(
      target.cluster->WaitUntilReady([] { return ShutdownSignal::Install().Requested(); }));
  target.address = target.cluster->grpc_address();
  return target;
}

// Answers of the cluster, `batch` requests at once, in the order of the inputs.
std::vector<absl::StatusOr<GenerateOutput>> AskCluster(const VerifyConfig& config,
                                                       const std::string& address,
                                                       std::span<const GenerateInput> inputs,
                                                       Progress* progress) {
  const GenerateClient client(address);
  std::vector<absl::StatusOr<GenerateOutput>> answers(
      inputs.size(), absl::CancelledError("ended before it was asked"));
  std::atomic<size_t> next{0}, done{0};
  const auto work = [&] {
    for (size_t i = next++; i < inputs.size(); i = next++) {
      if (ShutdownSignal::Install().Requested()) return;
      absl::StatusOr<ClusterAnswer> answer = client.Generate(inputs[i], config.timeout);
      if (answer.ok()) {
        answers[i] = std::move(answer->output);
      } else {
        answers[i] = answer.status();
      }
      progress->Update("cluster: " + std::to_string(++done) + "/" + std::to_string(inputs.size()));
    }
  };
  std::vector<std::thread> threads;
  const size_t count = std::min(static_cast<size_t>(config.batch), inputs.size());
  for (size_t i = 0; i < count; ++i) threads.emplace_back(work);
  for (std::thread& thread : threads) thread.join();
  return answers;
}

// Compares with one process, prompt by prompt; returns how many differ.
absl::StatusOr<int> CompareAll(Engine& engine, std::span<const GenerateInput> inputs,
                               std::span<const absl::StatusOr<GenerateOutput>> answers,
                               Progress* progress) {
  int differences = 0;
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (ShutdownSignal::Install().Requested()) return absl::CancelledError("interrupted");
    ASSIGN_OR_RETURN(const std::vector<GenerateOutput> single,
                     Generate(engine, inputs.subspan(i, 1), {}));
    const std::string difference = answers[i].ok() ? DifferenceOf(*answers[i], single.front())
                                                   : "cluster: " + answers[i].status().ToString();
    if (!difference.empty() && ++differences <= kMaxShown) {
      progress->Clear();
      std::printf("prompt of %zu tokens: %s\n", inputs[i].tokens.size(), difference.c_str());
    }
    progress->Update("one process: " + std::to_string(i + 1) + "/" + std::to_string(inputs.size()) +
                     ", " + std::to_string(differences) + " differences");
  }
  return differences;
}

absl::StatusOr<int> VerifyCluster(const VerifyConfig& config) {
  RETURN_IF_ERROR(config.cluster.Validate());
  ASSIGN_OR_RETURN(const std::vector<int64_t> lengths, ParseLengthList(config.lengths));
  ASSIGN_OR_RETURN(const int64_t longest, LongestPrompt(lengths));
  ASSIGN_OR_RETURN(EngineOptions options, SingleProcessOptions(config.cluster));
  Progress progress;
  std::vector<GenerateInput> inputs;
  std::vector<absl::StatusOr<GenerateOutput>> answers;
  {
    ASSIGN_OR_RETURN(const ModelConfig model, LoadModelConfig(config.cluster.model));
    ASSIGN_OR_RETURN(inputs, MakeVerifyInputs(config, lengths, model.vocab_size));
    ASSIGN_OR_RETURN(const Target target, StartTarget(config, longest, &progress));
    answers = AskCluster(config, target.address, inputs, &progress);
  }  // our own cluster ends here: the comparison has the processors for itself
  ASSIGN_OR_RETURN(const std::unique_ptr<Engine> engine, Engine::Create(options));
  ASSIGN_OR_RETURN(const int differences, CompareAll(*engine, inputs, answers, &progress));
  progress.Clear();
  std::printf("%zu prompts of %lld to %lld tokens, %lld new tokens each\n", inputs.size(),
              static_cast<long long>(*std::ranges::min_element(lengths)),
              static_cast<long long>(longest), static_cast<long long>(config.new_tokens));
  return differences;
}

int Verify(const VerifyConfig& config) {
  ShutdownSignal::Install();
  const absl::StatusOr<int> differences = VerifyCluster(config);
  if (absl::IsInvalidArgument(differences.status())) {
    return PrintUsageError(kName, differences.status());
  }
  if (!differences.ok()) return PrintFailure(kName, differences.status());
  std::printf("%d differences\n", *differences);
  return *differences == 0 ? 0 : 1;
}

}  // namespace

absl::StatusOr<std::vector<GenerateInput>> MakeVerifyInputs(const VerifyConfig& config,
                                                            std::span<const int64_t> lengths,
                                                            int64_t vocab_size) {
  if (config.batch < 1 || config.batch > 256 || config.new_tokens < 1 ||
      config.new_tokens > 1'000'000) {
    return absl::InvalidArgumentError("--batch is " + std::to_string(config.batch) +
                                      " (1 to 256) and --new-tokens " +
                                      std::to_string(config.new_tokens) + " (1 to 1000000)");
  }
  std::unique_ptr<NeedleTokens> needles;
  if (config.needle) {
    ASSIGN_OR_RETURN(needles, NeedleTokens::Load(config.cluster.model));
  }
  std::vector<GenerateInput> inputs;
  for (size_t i = 0; i < lengths.size(); ++i) {
    const uint64_t seed = static_cast<uint64_t>(config.seed) * 1'000'003 + i;
    GenerateInput input;
    if (needles != nullptr) {
      ASSIGN_OR_RETURN(input.tokens, needles->Make(lengths[i], seed));
    } else {
      NeedleRandom random(seed);
      input.tokens = RandomTokens(lengths[i], vocab_size, &random);
    }
    input.sampling.max_new_tokens = static_cast<int32_t>(config.new_tokens);
    input.sampling.ignore_eos = true;
    input.sampling.logprobs = true;
    inputs.push_back(std::move(input));
  }
  return inputs;
}

absl::StatusOr<EngineOptions> SingleProcessOptions(const ClusterFlags& flags) {
  // The workers' own parser and defaults, so that equal flags mean equal engines.
  std::vector<std::string> words = {"verify", "--model", flags.model};
  const auto add = [&](const char* name, const std::string& value) {
    if (!value.empty()) words.insert(words.end(), {name, value});
  };
  add("--overlay", flags.overlay);
  add("--numerics", flags.numerics);
  if (!flags.device.empty()) add("--device", flags.Devices().front());
  add("--index-k", flags.index_k);
  add("--kv", flags.kv);
  add("--memory", flags.memory);
  add("--threads", flags.threads);
  add("--max-sequences", flags.max_sequences);
  add("--max-context", flags.max_context);
  std::vector<const char*> argv;
  for (const std::string& word : words) argv.push_back(word.c_str());
  WorkerConfig worker;
  RETURN_IF_ERROR(
      ParseConfig(kName, "", static_cast<int>(argv.size()), argv.data(), worker).status());
  return ToEngineOptions(worker, kDefaultStepTokens);
}

std::string DifferenceOf(const GenerateOutput& cluster, const GenerateOutput& single) {
  const size_t common = std::min(cluster.tokens.size(), single.tokens.size());
  for (size_t i = 0; i < common; ++i) {
    const GeneratedToken& a = cluster.tokens[i];
    const GeneratedToken& b = single.tokens[i];
    char text[160];
    if (a.id != b.id || a.index != b.index) {
      std::snprintf(text, sizeof(text),
                    "new token %zu is %d (index %d), one process has %d (index %d)", i, a.id,
                    a.index, b.id, b.index);
      return text;
    }
    if (std::bit_cast<uint32_t>(a.logprob) != std::bit_cast<uint32_t>(b.logprob)) {
      std::snprintf(text, sizeof(text),
                    "log-probability of new token %zu is %.9g (bits %08x), one process has %.9g "
                    "(bits %08x)",
                    i, static_cast<double>(a.logprob), std::bit_cast<uint32_t>(a.logprob),
                    static_cast<double>(b.logprob), std::bit_cast<uint32_t>(b.logprob));
      return text;
    }
  }
  if (cluster.tokens.size() != single.tokens.size()) {
    return std::to_string(cluster.tokens.size()) + " new tokens, one process has " +
           std::to_string(single.tokens.size());
  }
  if (cluster.finish != single.finish) {
    return "finish reason " + std::to_string(static_cast<int>(cluster.finish)) +
           ", one process has " + std::to_string(static_cast<int>(single.finish));
  }
  return "";
}

int RunVerify(int argc, const char* const* argv) {
  return RunCommand<VerifyConfig>(kName, kDescription, argc, argv, Verify);
}

}  // namespace lodestone
