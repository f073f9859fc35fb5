#include "model/safetensors.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>
#include <tuple>
#include <utility>

#include "absl/status/status.h"
#include "base/bytes.h"
#include "base/status_macros.h"
#include "boost/json/array.hpp"
#include "boost/json/object.hpp"
#include "boost/json/value.hpp"
#include "model/strict_json.h"

namespace lodestone {
namespace {

namespace json = boost::json;

constexpr uint64_t kLengthBytes = 8;
constexpr uint64_t kMaxHeaderBytes = 100'000'000;  // the limit of the format's own library

std::optional<DType> ParseDType(std::string_view name) {
  for (DType dtype : {DType::kF32, DType::kBf16, DType::kF8E4M3, DType::kF8E8M0, DType::kI8,
                      DType::kU8, DType::kI32, DType::kI64}) {
    if (Name(dtype) == name) return dtype;
  }
  return std::nullopt;
}

absl::Status TensorError(std::string_view name, std::string_view what) {
  return absl::InvalidArgumentError("tensor '" + std::string(name) + "' " + std::string(what));
}

absl::StatusOr<uint64_t> ReadLength(std::span<const std::byte> head, uint64_t file_size) {
  if (file_size < kLengthBytes || head.size() < kLengthBytes) {
    return absl::InvalidArgumentError("file has " + std::to_string(file_size) +
                                      " bytes, a safetensors file has at least 8");
  }
  uint64_t length = 0;
  for (uint64_t i = kLengthBytes; i-- > 0;) {
    length = length << 8 | std::to_integer<uint64_t>(head[i]);
  }
  const uint64_t limit = std::min({kMaxHeaderBytes, file_size - kLengthBytes,
                                   static_cast<uint64_t>(head.size()) - kLengthBytes});
  if (length > limit) {
    return absl::InvalidArgumentError("header claims " + std::to_string(length) +
                                      " bytes, at most " + std::to_string(limit) + " are possible");
  }
  return length;
}

// A non-negative integer, or nullopt. JSON numbers with a fraction or exponent are not integers
// here.
std::optional<uint64_t> AsCount(const json::value& value) {
  if (value.is_uint64()) return value.get_uint64();
  if (value.is_int64() && value.get_int64() >= 0) return static_cast<uint64_t>(value.get_int64());
  return std::nullopt;
}

absl::Status ReadShape(const json::value* shape, SafetensorsEntry& entry) {
  if (shape == nullptr || !shape->is_array()) return TensorError(entry.name, "has no shape");
  const json::array& dims = shape->get_array();
  if (dims.size() > TensorView::kMaxRank) {
    return TensorError(entry.name, "has " + std::to_string(dims.size()) + " dimensions, at most " +
                                       std::to_string(TensorView::kMaxRank) + " are supported");
  }
  for (const json::value& dim : dims) {
    const std::optional<uint64_t> count = AsCount(dim);
    if (!count || *count > static_cast<uint64_t>(INT64_MAX)) {
      return TensorError(entry.name, "has a dimension that is not a size");
    }
    entry.shape[static_cast<size_t>(entry.rank++)] = static_cast<int64_t>(*count);
  }
  return absl::OkStatus();
}

absl::StatusOr<uint64_t> ShapeBytes(const SafetensorsEntry& entry) {
  uint64_t bytes = static_cast<uint64_t>(BytesPerElement(entry.dtype));
  for (int axis = 0; axis < entry.rank; ++axis) {
    ASSIGN_OR_RETURN(
        bytes, CheckedMul(bytes, static_cast<uint64_t>(entry.shape[static_cast<size_t>(axis)])));
  }
  return bytes;
}

// Offsets count from the end of the header; entry.begin and end count from the start of the file.
absl::Status ReadRange(const json::value* offsets, uint64_t data_begin, uint64_t file_size,
                       SafetensorsEntry& entry) {
  if (offsets == nullptr || !offsets->is_array() || offsets->get_array().size() != 2) {
    return TensorError(entry.name, "has no data_offsets");
  }
  const std::optional<uint64_t> begin = AsCount(offsets->get_array()[0]);
  const std::optional<uint64_t> end = AsCount(offsets->get_array()[1]);
  if (!begin || !end || *begin > *end) {
    return TensorError(entry.name, "has data_offsets that are not a range");
  }
  const uint64_t data_bytes = file_size - data_begin;
  if (*end > data_bytes) {
    return TensorError(entry.name, "ends at byte " + std::to_string(*end) +
                                       " of the data, the file has " + std::to_string(data_bytes) +
                                       " (truncated?)");
  }
  const absl::StatusOr<uint64_t> bytes = ShapeBytes(entry);
  if (!bytes.ok()) return TensorError(entry.name, "has a shape too large to address");
  if (*bytes != *end - *begin) {
    return TensorError(entry.name, "has " + std::to_string(*end - *begin) +
                                       " bytes, its shape needs " + std::to_string(*bytes));
  }
  entry.begin = data_begin + *begin;
  entry.end = data_begin + *end;
  return absl::OkStatus();
}

absl::StatusOr<SafetensorsEntry> ReadEntry(std::string_view name, const json::value& value,
                                           uint64_t data_begin, uint64_t file_size) {
  SafetensorsEntry entry;
  entry.name = name;
  if (!value.is_object()) return TensorError(name, "is not described by an object");
  const json::object& fields = value.get_object();
  for (const json::key_value_pair& field : fields) {
    if (field.key() != "dtype" && field.key() != "shape" && field.key() != "data_offsets") {
      return TensorError(name, "has an unknown field '" + std::string(field.key()) + "'");
    }
  }
  const json::value* dtype = fields.if_contains("dtype");
  if (dtype == nullptr || !dtype->is_string()) return TensorError(name, "has no dtype");
  const std::string dtype_name(dtype->get_string());
  const std::optional<DType> parsed = ParseDType(dtype_name);
  if (!parsed) return TensorError(name, "has the unsupported dtype '" + dtype_name + "'");
  entry.dtype = *parsed;
  RETURN_IF_ERROR(ReadShape(fields.if_contains("shape"), entry));
  RETURN_IF_ERROR(ReadRange(fields.if_contains("data_offsets"), data_begin, file_size, entry));
  return entry;
}

// Sorts by place and checks that the data is covered exactly once.
absl::Status CheckCover(uint64_t data_begin, uint64_t file_size,
                        std::vector<SafetensorsEntry>& entries) {
  std::sort(entries.begin(), entries.end(), [](const auto& a, const auto& b) {
    return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
  });
  uint64_t covered = data_begin;
  for (const SafetensorsEntry& entry : entries) {
    if (entry.begin < covered) return TensorError(entry.name, "overlaps the tensor before it");
    if (entry.begin > covered) {
      return TensorError(entry.name, "leaves a hole of " + std::to_string(entry.begin - covered) +
                                         " bytes before it");
    }
    covered = entry.end;
  }
  if (covered != file_size) {
    return absl::InvalidArgumentError("file has " + std::to_string(file_size) +
                                      " bytes, its tensors end at " + std::to_string(covered));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::span<const std::byte>> MapFile(const std::string& path) {
  // Not blocking: opening a pipe would wait for a writer.
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return absl::NotFoundError(path + ": " + std::strerror(errno));
  struct stat info {};
  void* pages = MAP_FAILED;
  const bool is_file = fstat(fd, &info) == 0 && S_ISREG(info.st_mode);
  const auto size = static_cast<size_t>(is_file ? info.st_size : 0);
  if (size > 0) pages = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd, 0);
  const int map_errno = errno;
  close(fd);
  if (!is_file) return absl::InvalidArgumentError(path + ": not a regular file");
  if (size == 0) return absl::InvalidArgumentError(path + ": the file is empty");
  if (pages == MAP_FAILED) {
    return absl::ResourceExhaustedError(path + ": cannot map " + std::to_string(size) +
                                        " bytes: " + std::strerror(map_errno));
  }
  return std::span<const std::byte>(static_cast<const std::byte*>(pages), size);
}

}  // namespace

absl::StatusOr<std::vector<SafetensorsEntry>> ParseSafetensorsHeader(
    std::span<const std::byte> head, uint64_t file_size) {
  ASSIGN_OR_RETURN(const uint64_t length, ReadLength(head, file_size));
  const std::string_view text(reinterpret_cast<const char*>(head.data()) + kLengthBytes, length);
  ASSIGN_OR_RETURN(const json::value root, ParseStrictJson(text));
  if (!root.is_object()) return absl::InvalidArgumentError("header is not a JSON object");
  const uint64_t data_begin = kLengthBytes + length;
  std::vector<SafetensorsEntry> entries;
  for (const json::key_value_pair& item : root.get_object()) {
    if (item.key() == "__metadata__") continue;
    const std::string_view name(item.key().data(), item.key().size());
    ASSIGN_OR_RETURN(SafetensorsEntry entry, ReadEntry(name, item.value(), data_begin, file_size));
    entries.push_back(std::move(entry));
  }
  RETURN_IF_ERROR(CheckCover(data_begin, file_size, entries));
  return entries;
}

absl::StatusOr<std::unique_ptr<SafetensorsFile>> SafetensorsFile::Open(const std::string& path) {
  ASSIGN_OR_RETURN(const std::span<const std::byte> bytes, MapFile(path));
  std::unique_ptr<SafetensorsFile> file(new SafetensorsFile(path, bytes));
  absl::StatusOr<std::vector<SafetensorsEntry>> entries =
      ParseSafetensorsHeader(bytes, bytes.size());
  if (!entries.ok()) {
    return absl::Status(entries.status().code(),
                        path + ": " + std::string(entries.status().message()));
  }
  file->entries_ = *std::move(entries);
  return file;
}

SafetensorsFile::~SafetensorsFile() {
  munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

TensorView SafetensorsFile::Tensor(const SafetensorsEntry& entry) const {
  TensorView view;
  view.data = const_cast<std::byte*>(bytes_.data() + entry.begin);
  view.dtype = entry.dtype;
  view.rank = entry.rank;
  view.shape = entry.shape;
  int64_t stride = 1;
  for (int axis = entry.rank; axis-- > 0;) {
    view.strides[static_cast<size_t>(axis)] = stride;
    stride *= entry.shape[static_cast<size_t>(axis)];
  }
  return view;
}

std::span<const std::byte> SafetensorsFile::header() const {
  return bytes_.first(kLengthBytes + ReadLength(bytes_, bytes_.size()).value());
}

void SafetensorsFile::DropPages(std::span<const std::byte> range) const {
  // Only whole pages inside the range: a neighbour may still be in use.
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const uintptr_t begin = (reinterpret_cast<uintptr_t>(range.data()) + page - 1) / page * page;
  const uintptr_t end = reinterpret_cast<uintptr_t>(range.data() + range.size()) / page * page;
  if (begin < end) madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
}

}  // namespace lodestone
