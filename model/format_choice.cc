#include "model/format_choice.h"

#include <string>

#include "absl/status/status.h"

namespace lodestone {
namespace {

// The format asked for, the default if none, or an error if it does not go with the numerics.
template <typename Format>
absl::StatusOr<Format> Settle(std::string_view what, std::optional<Format> wanted,
                              Numerics numerics) {
  const bool exact = numerics == Numerics::kExact;
  const Format chosen = wanted.value_or(exact ? Format::kF32 : Format::kBf16);
  if ((chosen == Format::kF32) == exact) return chosen;
  return absl::InvalidArgumentError(std::string(what) + " format is " + std::string(Name(chosen)) +
                                    ", numerics '" + std::string(Name(numerics)) + "' needs " +
                                    (exact ? "f32" : "another one than f32"));
}

}  // namespace

absl::StatusOr<FormatChoice> ChooseFormats(const ModelConfig& config,
                                           std::optional<Numerics> numerics,
                                           std::optional<KvFormat> kv,
                                           std::optional<IndexKeyFormat> index_key) {
  FormatChoice choice;
  choice.numerics = numerics.value_or(AutoNumerics(config));
  const absl::StatusOr<KvFormat> kv_format = Settle("kv", kv, choice.numerics);
  if (!kv_format.ok()) return kv_format.status();
  const absl::StatusOr<IndexKeyFormat> key_format = Settle("index-k", index_key, choice.numerics);
  if (!key_format.ok()) return key_format.status();
  choice.kv = *kv_format;
  choice.index_key = *key_format;
  return choice;
}

}  // namespace lodestone
