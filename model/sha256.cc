#include "model/sha256.h"

#include <openssl/evp.h>

#include <array>

#include "base/logging.h"

namespace lodestone {

Sha256::Sha256() : context_(EVP_MD_CTX_new()) {
  CHECK(context_ != nullptr) << "no memory for a hash context";
  CHECK_EQ(EVP_DigestInit_ex(context_, EVP_sha256(), nullptr), 1);
}

Sha256::~Sha256() { EVP_MD_CTX_free(context_); }

void Sha256::AddPart(std::string_view name, std::span<const std::byte> bytes) {
  AddLength(name.size());
  Update(name.data(), name.size());
  AddLength(bytes.size());
  Update(bytes.data(), bytes.size());
}

std::string Sha256::Finish() {
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
  unsigned int size = 0;
  CHECK_EQ(EVP_DigestFinal_ex(context_, digest.data(), &size), 1);
  constexpr std::string_view kHex = "0123456789abcdef";
  std::string text;
  for (unsigned int i = 0; i < size; ++i) {
    text += kHex[digest[i] >> 4];
    text += kHex[digest[i] & 15];
  }
  return text;
}

void Sha256::Update(const void* bytes, size_t count) {
  CHECK_EQ(EVP_DigestUpdate(context_, bytes, count), 1);
}

void Sha256::AddLength(uint64_t length) {
  std::array<unsigned char, 8> bytes{};
  for (size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] = static_cast<unsigned char>(length >> (8 * i));
  }
  Update(bytes.data(), bytes.size());
}

}  // namespace lodestone
