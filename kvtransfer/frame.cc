#include "kvtransfer/frame.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>

#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/logging.h"

namespace lodestone {
namespace {

constexpr size_t kMacOffset = 24;
constexpr size_t kCrcOffset = 40;
constexpr size_t kZeroOffset = 44;

template <typename T>
void Put(T value, std::byte* at) {
  for (size_t i = 0; i < sizeof(T); ++i) at[i] = static_cast<std::byte>(value >> (8 * i));
}

template <typename T>
T Get(const std::byte* at) {
  T value = 0;
  for (size_t i = 0; i < sizeof(T); ++i) {
    value = static_cast<T>(value | static_cast<T>(static_cast<T>(at[i]) << (8 * i)));
  }
  return value;
}

std::array<uint32_t, 256> MakeCrcTable() {
  std::array<uint32_t, 256> table{};
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t crc = i;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? 0x82f63b78u : 0);
    table[i] = crc;
  }
  return table;
}

std::array<std::byte, 32> HmacSha256(const std::string& key, std::span<const std::byte> bytes) {
  std::array<std::byte, 32> digest{};
  unsigned int size = 0;
  const unsigned char* result =
      HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()),
           reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size(),
           reinterpret_cast<unsigned char*>(digest.data()), &size);
  CHECK(result != nullptr && size == digest.size()) << "HMAC-SHA256 is not available";
  return digest;
}

// What the MAC covers.
std::array<std::byte, kMacOffset> EncodeFields(const FrameHeader& header) {
  std::array<std::byte, kMacOffset> bytes{};
  Put<uint32_t>(kFrameMagic, &bytes[0]);
  Put<uint16_t>(kFrameVersion, &bytes[4]);
  Put<uint16_t>(static_cast<uint16_t>(header.type), &bytes[6]);
  Put<uint64_t>(header.number, &bytes[8]);
  Put<uint64_t>(header.length, &bytes[16]);
  return bytes;
}

}  // namespace

uint32_t Crc32c(std::span<const std::byte> bytes) {
  static const std::array<uint32_t, 256> table = MakeCrcTable();
  uint32_t crc = 0xffffffffu;
  for (std::byte b : bytes) {
    crc = table[(crc ^ static_cast<uint32_t>(b)) & 0xff] ^ (crc >> 8);
  }
  return ~crc;
}

uint64_t SessionId(const std::string& session_key) {
  static constexpr char kPurpose[] = "lodestone data session";
  const auto digest =
      HmacSha256(session_key, std::as_bytes(std::span(kPurpose, sizeof(kPurpose) - 1)));
  return Get<uint64_t>(digest.data());
}

FrameBytes EncodeFrameHeader(const FrameHeader& header, const std::string& session_key) {
  FrameBytes bytes{};
  const auto fields = EncodeFields(header);
  const auto mac = HmacSha256(session_key, fields);
  std::memcpy(bytes.data(), fields.data(), fields.size());
  std::memcpy(&bytes[kMacOffset], mac.data(), kFrameMacBytes);
  Put<uint32_t>(Crc32c(std::span(bytes).first(kCrcOffset)), &bytes[kCrcOffset]);
  return bytes;
}

absl::StatusOr<FrameHeader> ParseFrameHeader(std::span<const std::byte> bytes) {
  if (bytes.size() != kFrameHeaderBytes) {
    return absl::DataLossError(absl::StrCat("frame header has ", bytes.size(), " bytes, needs ",
                                            kFrameHeaderBytes));
  }
  const auto magic = Get<uint32_t>(&bytes[0]);
  if (magic != kFrameMagic) {
    return absl::DataLossError(absl::StrCat("frame magic is 0x", absl::Hex(magic), ", expected 0x",
                                            absl::Hex(kFrameMagic)));
  }
  const auto crc = Get<uint32_t>(&bytes[kCrcOffset]);
  const uint32_t computed = Crc32c(bytes.first(kCrcOffset));
  if (crc != computed) {
    return absl::DataLossError(absl::StrCat("frame header CRC is 0x", absl::Hex(crc),
                                            ", computed 0x", absl::Hex(computed)));
  }
  const auto version = Get<uint16_t>(&bytes[4]);
  if (version != kFrameVersion) {
    return absl::DataLossError(
        absl::StrCat("frame version is ", version, ", this side speaks ", kFrameVersion));
  }
  const auto type = Get<uint16_t>(&bytes[6]);
  if (type != static_cast<uint16_t>(FrameType::kHello) &&
      type != static_cast<uint16_t>(FrameType::kSlot)) {
    return absl::DataLossError(absl::StrCat("frame type is ", type, ", known are 1 and 2"));
  }
  if (const auto zero = Get<uint32_t>(&bytes[kZeroOffset]); zero != 0) {
    return absl::DataLossError(absl::StrCat("frame trailer is ", zero, ", must be 0"));
  }
  FrameHeader header{.type = static_cast<FrameType>(type),
                     .number = Get<uint64_t>(&bytes[8]),
                     .length = Get<uint64_t>(&bytes[16])};
  if (header.type == FrameType::kHello && header.length != 0) {
    return absl::DataLossError(
        absl::StrCat("hello frame has ", header.length, " bytes, must be 0"));
  }
  std::memcpy(header.mac.data(), &bytes[kMacOffset], kFrameMacBytes);
  return header;
}

bool MacMatches(const FrameHeader& header, const std::string& session_key) {
  const auto mac = HmacSha256(session_key, EncodeFields(header));
  return CRYPTO_memcmp(mac.data(), header.mac.data(), kFrameMacBytes) == 0;
}

absl::Status CheckSlotFrame(const FrameHeader& header, uint64_t expected_seq,
                            uint64_t expected_bytes) {
  if (header.type != FrameType::kSlot) {
    return absl::DataLossError("a second hello on a data connection");
  }
  if (header.number != expected_seq) {
    return absl::DataLossError(
        absl::StrCat("frame is for offer ", header.number, ", granted next is ", expected_seq));
  }
  if (header.length != expected_bytes) {
    return absl::DataLossError(absl::StrCat("frame of offer ", header.number, " has ",
                                            header.length, " bytes, granted are ", expected_bytes));
  }
  return absl::OkStatus();
}

}  // namespace lodestone
