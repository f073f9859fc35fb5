#pragma once

#include <optional>

#include "absl/status/statusor.h"
#include "model/model_config.h"
#include "runtime/cache_format.h"
#include "runtime/tensor.h"

namespace lodestone {

// What is rounded and how cache rows are stored; fixed for the life of a worker.
struct FormatChoice {
  Numerics numerics = Numerics::kPlain;
  KvFormat kv = KvFormat::kBf16;
  IndexKeyFormat index_key = IndexKeyFormat::kBf16;

  // Type of activations between ops.
  DType activation() const { return numerics == Numerics::kExact ? DType::kF32 : DType::kBf16; }
  friend bool operator==(const FormatChoice&, const FormatChoice&) = default;
};

// Settles the three settings together; nullopt numerics is `auto`, a nullopt format is the default
// (bf16, or f32 under `exact`). INVALID_ARGUMENT for `exact` with another format than f32, and for
// f32 without `exact`.
absl::StatusOr<FormatChoice> ChooseFormats(const ModelConfig& config,
                                           std::optional<Numerics> numerics,
                                           std::optional<KvFormat> kv,
                                           std::optional<IndexKeyFormat> index_key);

}  // namespace lodestone
