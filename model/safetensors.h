#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/tensor.h"

namespace lodestone {

// One tensor of a safetensors header; bytes [begin, end) of the file.
struct SafetensorsEntry {
  std::string name;
  DType dtype = DType::kF32;
  int rank = 0;
  std::array<int64_t, TensorView::kMaxRank> shape{};
  uint64_t begin = 0;
  uint64_t end = 0;
};

// Checks and reads a safetensors header. `head` is a prefix of the file that contains the header
// (the whole file will do), `file_size` its length in bytes. Entries come in file order. The data
// must be covered without holes or overlaps, and every range must have the bytes of its shape.
// INVALID_ARGUMENT naming the tensor otherwise; never reads outside `head`. Pure.
absl::StatusOr<std::vector<SafetensorsEntry>> ParseSafetensorsHeader(
    std::span<const std::byte> head, uint64_t file_size);

// A safetensors file mapped read-only. Tensors view the mapping and must not be written; a file may
// place them at addresses that are not multiples of their element size.
// Thread-safe (const). The file must not be shortened while it is mapped.
class SafetensorsFile {
 public:
  // NOT_FOUND without the file; INVALID_ARGUMENT for a bad header or a truncated file. Errors name
  // the file.
  static absl::StatusOr<std::unique_ptr<SafetensorsFile>> Open(const std::string& path);
  ~SafetensorsFile();
  SafetensorsFile(const SafetensorsFile&) = delete;
  SafetensorsFile& operator=(const SafetensorsFile&) = delete;

  const std::string& path() const { return path_; }
  const std::vector<SafetensorsEntry>& entries() const { return entries_; }  // in file order
  TensorView Tensor(const SafetensorsEntry& entry) const;
  // Length field and JSON text.
  std::span<const std::byte> header() const;
  std::span<const std::byte> bytes() const { return bytes_; }
  // Gives the pages of these mapped bytes back; they are read again on the next access.
  void DropPages(std::span<const std::byte> range) const;

 private:
  SafetensorsFile(std::string path, std::span<const std::byte> bytes)
      : path_(std::move(path)), bytes_(bytes) {}

  const std::string path_;
  const std::span<const std::byte> bytes_;
  std::vector<SafetensorsEntry> entries_;
};

}  // namespace lodestone
