// The header of a frame on a data connection. First byte: bit 0 repairs the CRC, bit 1 makes the
// frame with our own encoder and then flips the bit that the second byte names.
// Properties: a frame whose MAC is right is byte for byte what the encoder makes; one flipped bit
// is always refused; only the granted frame passes CheckSlotFrame; nothing is read outside 48
// bytes.
#include <array>
#include <cstring>

#include "kvtransfer/frame.h"
#include "tests/fuzz/fuzz_input.h"

namespace lodestone {
namespace {

const std::string kKey(32, 'k');
const std::string kOtherKey(32, 'o');
constexpr size_t kCrcAt = 40;

void CheckParsed(const FrameHeader& header, const std::vector<std::byte>& bytes) {
  CHECK(header.type == FrameType::kHello || header.type == FrameType::kSlot);
  if (header.type == FrameType::kHello) CHECK_EQ(header.length, 0u);
  const FrameBytes ours = EncodeFrameHeader(header, kKey);
  const bool authentic = MacMatches(header, kKey);
  CHECK_EQ(authentic, std::equal(bytes.begin(), bytes.end(), ours.begin()));
  CHECK(!authentic || !MacMatches(header, kOtherKey));
  const bool is_slot = header.type == FrameType::kSlot;
  CHECK_EQ(CheckSlotFrame(header, header.number, header.length).ok(), is_slot);
  CHECK(!CheckSlotFrame(header, header.number + 1, header.length).ok());
  CHECK(!CheckSlotFrame(header, header.number, header.length + 1).ok());
}

// Ours, then with one bit flipped: refused, or, where the CRC is repaired too, not authentic.
void CheckFlip(FuzzInput input, bool repair) {
  const size_t bit = input.Byte() % (8 * kFrameHeaderBytes);
  const FrameHeader header{.type = (input.Byte() & 1) != 0 ? FrameType::kHello : FrameType::kSlot,
                           .number = input.Word(8),
                           .length = input.Word(8)};
  const bool valid = header.type == FrameType::kSlot || header.length == 0;
  FrameBytes bytes = EncodeFrameHeader(header, kKey);
  const absl::StatusOr<FrameHeader> parsed = ParseFrameHeader(bytes);
  CHECK_EQ(parsed.ok(), valid);
  if (!valid) return;
  CHECK(parsed->type == header.type && parsed->number == header.number);
  CHECK_EQ(parsed->length, header.length);
  CHECK(MacMatches(*parsed, kKey));
  bytes[bit / 8] ^= static_cast<std::byte>(1 << (bit % 8));
  if (!repair || bit / 8 >= kCrcAt) {
    CHECK(!ParseFrameHeader(bytes).ok()) << "bit " << bit;
    return;
  }
  const uint32_t crc = Crc32c(std::span(bytes).first(kCrcAt));
  std::memcpy(&bytes[kCrcAt], &crc, sizeof(crc));
  const absl::StatusOr<FrameHeader> flipped = ParseFrameHeader(bytes);
  CHECK(!flipped.ok() || !MacMatches(*flipped, kKey)) << "bit " << bit;
}

void Run(FuzzInput input) {
  const uint8_t choice = input.Byte();
  if ((choice & 2) != 0) return CheckFlip(input, (choice & 1) != 0);
  const std::span<const std::byte> rest = AsBytes(input.Rest());
  std::vector<std::byte> bytes(rest.begin(), rest.end());  // of just this size
  if ((choice & 1) != 0 && bytes.size() >= kFrameHeaderBytes) {
    bytes.resize(kFrameHeaderBytes);
    const uint32_t crc = Crc32c(std::span(bytes).first(kCrcAt));
    std::memcpy(&bytes[kCrcAt], &crc, sizeof(crc));
  }
  const absl::StatusOr<FrameHeader> header = ParseFrameHeader(bytes);
  if (header.ok()) return CheckParsed(*header, bytes);
  CHECK(header.status().code() == absl::StatusCode::kDataLoss) << header.status();
}

}  // namespace
}  // namespace lodestone

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  lodestone::Run(lodestone::FuzzInput(data, size));
  return 0;
}
