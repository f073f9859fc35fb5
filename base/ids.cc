#include "base/ids.h"

#include <cerrno>
#include <cstddef>

#include <sys/random.h>

#include "base/logging.h"

namespace lodestone {
namespace {

constexpr char kHexDigits[] = "0123456789abcdef";

void WriteHex(uint64_t value, char* out) {
  for (int digit = 0; digit < 16; ++digit)
    out[digit] = kHexDigits[(value >> (60 - 4 * digit)) & 15];
}

int HexValue(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

}  // namespace

void FillRandom(void* data, size_t bytes) {
  char* out = static_cast<char*>(data);
  while (bytes > 0) {
    const ssize_t got = getrandom(out, bytes, 0);
    if (got < 0 && errno == EINTR) continue;
    CHECK(got > 0) << "getrandom failed with errno " << errno;
    out += got;
    bytes -= static_cast<size_t>(got);
  }
}

std::string FormatHex128(uint64_t high, uint64_t low) {
  std::string text(32, '0');
  WriteHex(high, text.data());
  WriteHex(low, text.data() + 16);
  return text;
}

bool ParseHex128(std::string_view hex, uint64_t* high, uint64_t* low) {
  if (hex.size() != 32) return false;
  uint64_t words[2] = {0, 0};
  for (size_t i = 0; i < hex.size(); ++i) {
    const int digit = HexValue(hex[i]);
    if (digit < 0) return false;
    words[i / 16] = words[i / 16] << 4 | static_cast<uint64_t>(digit);
  }
  *high = words[0];
  *low = words[1];
  return true;
}

LeaseId RandomLeaseId() {
  uint64_t value = 0;
  while (value == 0) FillRandom(&value, sizeof(value));
  return LeaseId(value);
}

}  // namespace lodestone
