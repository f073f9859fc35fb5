#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

struct evp_md_ctx_st;

namespace lodestone {

// SHA-256 over a list of named parts. Each part goes in with the length of its name and of its
// bytes, so no two different lists give the same input.
class Sha256 {
 public:
  Sha256();
  ~Sha256();
  Sha256(const Sha256&) = delete;
  Sha256& operator=(const Sha256&) = delete;

  void AddPart(std::string_view name, std::span<const std::byte> bytes);
  void AddPart(std::string_view name, std::string_view text) {
    AddPart(name, std::as_bytes(std::span(text)));
  }
  // 64 lower-case hex digits. Call once, last.
  std::string Finish();

 private:
  void Update(const void* bytes, size_t count);
  void AddLength(uint64_t length);

  evp_md_ctx_st* const context_;
};

}  // namespace lodestone
