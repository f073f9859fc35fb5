#include "prefill/config.h"

#include <charconv>

#include "base/status_macros.h"
#include "runtime/device.h"

namespace lodestone {

absl::StatusOr<int64_t> ChunkTokens(const PrefillConfig& config) {
  const std::string& text = config.chunk_tokens;
  if (text == "auto") {
    ASSIGN_OR_RETURN(const DeviceId device, ParseDevice(config.worker.device));
    return device.is_host() ? kCpuChunkTokens : kCudaChunkTokens;
  }
  if (text == "whole") {
    if (config.worker.max_context > 0) return config.worker.max_context;
    return absl::InvalidArgumentError(
        "--chunk-tokens whole needs --max-context: the step's memory follows from it");
  }
  int64_t tokens = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), tokens);
  if (error != std::errc() || end != text.data() + text.size() || tokens < 1) {
    return absl::InvalidArgumentError("--chunk-tokens is \"" + text +
                                      "\", must be a number above 0, \"auto\" or \"whole\"");
  }
  return tokens;
}

}  // namespace lodestone
