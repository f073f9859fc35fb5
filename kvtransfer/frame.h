// The header in front of the bytes of a slot on a data connection. 48 bytes, little endian:
//   0 magic u32 | 4 version u16 | 6 type u16 | 8 number u64 | 16 length u64 | 24 MAC 16 bytes |
//   40 CRC32C u32 over bytes 0..39 | 44 zero u32
// The CRC finds damage, the MAC (HMAC-SHA256 over bytes 0..23 under the key of the session, first
// 16 bytes) finds strangers. The payload is covered by the digests of its offer.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "absl/status/statusor.h"

namespace lodestone {

inline constexpr size_t kFrameHeaderBytes = 48;
inline constexpr size_t kFrameMacBytes = 16;
inline constexpr uint32_t kFrameMagic = 0x4c53444cu;  // "LDSL" in memory
inline constexpr uint16_t kFrameVersion = 1;

enum class FrameType : uint16_t {
  kHello = 1,  // first on a connection: number = SessionId of the key, length = 0
  kSlot = 2,   // number = link_seq, length = bytes that follow
};

struct FrameHeader {
  FrameType type = FrameType::kHello;
  uint64_t number = 0;
  uint64_t length = 0;
  std::array<std::byte, kFrameMacBytes> mac{};
};

using FrameBytes = std::array<std::byte, kFrameHeaderBytes>;

// Fills in version, MAC and CRC; `header.mac` is ignored.
FrameBytes EncodeFrameHeader(const FrameHeader& header, const std::string& session_key);

// Pure. DATA_LOSS, saying what is wrong and both values, for anything that EncodeFrameHeader does
// not make. The MAC is returned, not checked: the key may depend on `number`.
absl::StatusOr<FrameHeader> ParseFrameHeader(std::span<const std::byte> bytes);

// Compares in constant time.
bool MacMatches(const FrameHeader& header, const std::string& session_key);

// Names a session in public: the key cannot be derived from it.
uint64_t SessionId(const std::string& session_key);

// CRC-32C (Castagnoli), reflected, as in RFC 3720.
uint32_t Crc32c(std::span<const std::byte> bytes);

// Whether a slot frame may be read into what was granted next. Pure.
absl::Status CheckSlotFrame(const FrameHeader& header, uint64_t expected_seq,
                            uint64_t expected_bytes);

}  // namespace lodestone
