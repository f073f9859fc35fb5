#include "runtime/cache_format.h"

#include <initializer_list>

namespace lodestone {
namespace {

template <typename Enum>
std::optional<Enum> Find(std::initializer_list<Enum> values, std::string_view name) {
  for (Enum value : values) {
    if (Name(value) == name) return value;
  }
  return std::nullopt;
}

}  // namespace

std::optional<Numerics> ParseNumerics(std::string_view name) {
  return Find({Numerics::kReference, Numerics::kPlain, Numerics::kExact}, name);
}
std::optional<IndexKeyFormat> ParseIndexKeyFormat(std::string_view name) {
  return Find({IndexKeyFormat::kBf16, IndexKeyFormat::kFp8, IndexKeyFormat::kFp4,
               IndexKeyFormat::kF32},
              name);
}
std::optional<KvFormat> ParseKvFormat(std::string_view name) {
  return Find({KvFormat::kBf16, KvFormat::kFp8, KvFormat::kF32}, name);
}

}  // namespace lodestone
