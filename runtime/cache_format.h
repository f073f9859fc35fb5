#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

// How cache rows are stored. These enums are the only ones; the planner, the ledger, the metrics,
// the handshake and the kernels all take a format from here and its size from the functions below.
namespace lodestone {

// What is rounded while the model computes (docs/numerics.md).
enum class Numerics : uint8_t {
  kReference,  // bf16 where the vendor has bf16, and the vendor's FP8/FP4 steps on stored rows
  kPlain,      // bf16 where the vendor has bf16, no FP8/FP4 step
  kExact,      // fp32 throughout; cache rows are fp32 as well; CPU only, for tests
};

// Index keys, 128 dims each.
enum class IndexKeyFormat : uint8_t {
  kBf16,  // 256 B: exact
  kFp8,   // 128 e4m3 + one fp32 scale (amax / 448): lossy, what others deploy
  kFp4,   // 64 B of e2m1 pairs (low nibble first) + one E8M0 scale per 32 dims
  kF32,   // 512 B: only under Numerics::kExact
};

// Latents: ring window rows and compressed entries, 512 dims each, the last 64 rotary.
enum class KvFormat : uint8_t {
  kBf16,  // 1,024 B
  kFp8,   // 448 e4m3 + 64 bf16 (576 B), then 7 E8M0 scales + 1 pad (8 B)
  kF32,   // 2,048 B: only under Numerics::kExact
};

inline constexpr int kFp4Group = 32;      // dims that share one E8M0 scale in kFp4 index keys
inline constexpr int kFp8KvGroup = 64;    // dims that share one E8M0 scale in kFp8 latents
inline constexpr int kPageTokens = 256;   // tokens that one page of compressed entries covers

// Bytes of one row. A page or ring stores all payloads first, then all scales (planar).
struct RowBytes {
  int64_t payload = 0;
  int64_t scale = 0;
  constexpr int64_t total() const { return payload + scale; }
  friend constexpr bool operator==(const RowBytes&, const RowBytes&) = default;
};

// REQUIRES: dims is a multiple of kFp4Group.
constexpr RowBytes IndexKeyRowBytes(IndexKeyFormat format, int64_t dims) {
  switch (format) {
    case IndexKeyFormat::kBf16: return {dims * 2, 0};
    case IndexKeyFormat::kFp8: return {dims, 4};
    case IndexKeyFormat::kFp4: return {dims / 2, dims / kFp4Group};
    case IndexKeyFormat::kF32: return {dims * 4, 0};
  }
  return {};
}

// `rope_dims` of `dims` stay bf16 under kFp8; the scales are padded to 8 bytes.
// REQUIRES: dims - rope_dims is a multiple of kFp8KvGroup.
constexpr RowBytes LatentRowBytes(KvFormat format, int64_t dims, int64_t rope_dims) {
  switch (format) {
    case KvFormat::kBf16: return {dims * 2, 0};
    case KvFormat::kFp8:
      return {(dims - rope_dims) + rope_dims * 2, ((dims - rope_dims) / kFp8KvGroup + 7) / 8 * 8};
    case KvFormat::kF32: return {dims * 4, 0};
  }
  return {};
}

constexpr std::string_view Name(Numerics numerics) {
  switch (numerics) {
    case Numerics::kReference: return "reference";
    case Numerics::kPlain: return "plain";
    case Numerics::kExact: return "exact";
  }
  return "";
}
constexpr std::string_view Name(IndexKeyFormat format) {
  switch (format) {
    case IndexKeyFormat::kBf16: return "bf16";
    case IndexKeyFormat::kFp8: return "fp8";
    case IndexKeyFormat::kFp4: return "fp4";
    case IndexKeyFormat::kF32: return "f32";
  }
  return "";
}
constexpr std::string_view Name(KvFormat format) {
  switch (format) {
    case KvFormat::kBf16: return "bf16";
    case KvFormat::kFp8: return "fp8";
    case KvFormat::kF32: return "f32";
  }
  return "";
}

// The inverse of Name; nullopt for any other text.
std::optional<Numerics> ParseNumerics(std::string_view name);
std::optional<IndexKeyFormat> ParseIndexKeyFormat(std::string_view name);
std::optional<KvFormat> ParseKvFormat(std::string_view name);

// Whether latents pass through FP8 before they are attended to or stored: the vendor's own step,
// or the storage format. The step is idempotent, so storing its result in FP8 loses nothing.
constexpr bool RoundsLatentsToFp8(Numerics numerics, KvFormat format) {
  return numerics == Numerics::kReference || format == KvFormat::kFp8;
}

// How index queries and keys are rounded after rotation.
enum class IndexRounding : uint8_t { kNone, kFp4, kFp8 };

// kFp8 storage replaces the vendor's FP4 step (that is what stacks with fp8 keys do).
constexpr IndexRounding IndexRoundingOf(Numerics numerics, IndexKeyFormat format) {
  if (format == IndexKeyFormat::kFp8) return IndexRounding::kFp8;
  if (format == IndexKeyFormat::kFp4 || numerics == Numerics::kReference)
    return IndexRounding::kFp4;
  return IndexRounding::kNone;
}

}  // namespace lodestone
