#include "worker/worker_config.h"

#include <bit>
#include <charconv>
#include <cinttypes>
#include <cstdio>
#include <optional>

#include "base/status_macros.h"
#include "model/model_config.h"
#include "text/tokenizer.h"

namespace lodestone {
namespace {

absl::Status CheckPositive(const char* flag, int64_t value) {
  if (value > 0) return absl::OkStatus();
  return absl::InvalidArgumentError(std::string(flag) + " is " + std::to_string(value) +
                                    ", must be at least 1");
}

std::string Hex(uint64_t value) {
  char text[17];
  std::snprintf(text, sizeof(text), "%016" PRIx64, value);
  return text;
}

}  // namespace

absl::Status CheckRouterAddress(const std::string& address) {
  const size_t colon = address.rfind(':');
  const std::string host = address.substr(0, colon);
  const std::string port = colon == address.npos ? "" : address.substr(colon + 1);
  int number = 0;
  const auto [end, error] = std::from_chars(port.data(), port.data() + port.size(), number);
  const bool is_number = error == std::errc() && end == port.data() + port.size() && !port.empty();
  const bool bare_v6 = host.find(':') != host.npos && !(host.front() == '[' && host.back() == ']');
  if (is_number && number >= 1 && number <= 65535 && !host.empty() && !bare_v6) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError("--router is \"" + address +
                                    "\", expected HOST:PORT with a port of 1 to 65535");
}

absl::StatusOr<EngineOptions> ToEngineOptions(const WorkerConfig& config,
                                              int64_t max_batch_tokens) {
  RETURN_IF_ERROR(CheckPositive("--memory", config.memory.bytes));
  RETURN_IF_ERROR(CheckPositive("--max-sequences", config.max_sequences));
  RETURN_IF_ERROR(CheckPositive("--staging-slot", config.staging_slot.bytes));
  RETURN_IF_ERROR(CheckPositive("--staging-slots", config.staging_slots));
  RETURN_IF_ERROR(CheckPositive("--nccl-links", config.nccl_links));
  if (config.nccl_ctas < 1 || config.nccl_ctas > 32 ||
      !std::has_single_bit(static_cast<uint64_t>(config.nccl_ctas))) {
    return absl::InvalidArgumentError("--nccl-ctas is " + std::to_string(config.nccl_ctas) +
                                      ", 1, 2, 4, 8, 16 and 32 are possible");
  }
  RETURN_IF_ERROR(CheckPositive("the step's tokens", max_batch_tokens));
  if (config.threads < 0 || config.threads > kMaxComputeThreads) {
    return absl::InvalidArgumentError("--threads is " + std::to_string(config.threads) + ", 0 to " +
                                      std::to_string(kMaxComputeThreads) + " are possible");
  }
  if (config.max_context < 0) {
    return absl::InvalidArgumentError("--max-context is " + std::to_string(config.max_context) +
                                      ", must not be negative");
  }
  ASSIGN_OR_RETURN(const Tokenizer tokenizer, Tokenizer::Load(config.model + "/tokenizer.json"));
  ASSIGN_OR_RETURN(const ModelConfig model, LoadModelConfig(config.model));
  if (tokenizer.vocab_size() > model.vocab_size) {
    return absl::InvalidArgumentError(
        config.model + "/tokenizer.json: has " + std::to_string(tokenizer.vocab_size()) +
        " tokens, vocab_size of config.json is " + std::to_string(model.vocab_size));
  }
  EngineOptions options;
  ASSIGN_OR_RETURN(options.device, ParseDevice(config.device));
  options.model_dir = config.model;
  options.overlay = config.overlay;
  options.verify_weights = config.verify_weights;
  // "auto" parses to nullopt, which is what the engine takes for it.
  options.numerics = ParseNumerics(config.numerics);
  options.kv = ParseKvFormat(config.kv);
  options.index_key = ParseIndexKeyFormat(config.index_k);
  options.tokenizer_fingerprint = Hex(tokenizer.fingerprint());
  options.cuda_graphs = config.cuda_graphs == "on";
  options.num_threads = static_cast<int>(config.threads);
  options.memory_limit_bytes = config.memory.bytes;
  options.max_sequences = config.max_sequences;
  options.max_context_tokens = config.max_context;
  options.max_batch_tokens = max_batch_tokens;
  options.staging_bytes = config.staging_slot.bytes * config.staging_slots;
  return options;
}

}  // namespace lodestone
