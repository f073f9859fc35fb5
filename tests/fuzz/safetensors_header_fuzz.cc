// The header of a safetensors file. First byte: 0 the rest is the file; else the rest is the JSON
// of the header, behind a right length field, and four bytes say how much data follows it.
// Properties: accepted tensors cover the data exactly once, in order, each with the bytes of its
// shape; the head alone gives what the whole file gives; a file of another size is refused.
#include "model/safetensors.h"
#include "tests/fuzz/fuzz_input.h"

namespace lodestone {
namespace {

using Entries = absl::StatusOr<std::vector<SafetensorsEntry>>;

// A copy of just this size, so that a read behind it is seen.
Entries Parse(std::string_view head, uint64_t file_size) {
  const std::vector<char> copy(head.begin(), head.end());
  return ParseSafetensorsHeader(AsBytes({copy.data(), copy.size()}), file_size);
}

void CheckEntries(const std::vector<SafetensorsEntry>& entries, uint64_t data_begin,
                  uint64_t file_size) {
  uint64_t covered = data_begin;
  for (const SafetensorsEntry& entry : entries) {
    CHECK_EQ(entry.begin, covered);
    CHECK_LE(entry.begin, entry.end);
    CHECK(entry.rank >= 0 && entry.rank <= TensorView::kMaxRank) << entry.rank;
    unsigned __int128 bytes = static_cast<unsigned>(BytesPerElement(entry.dtype));
    for (int axis = 0; axis < entry.rank; ++axis) {
      const int64_t dim = entry.shape[static_cast<size_t>(axis)];
      CHECK_LE(0, dim);
      bytes *= static_cast<uint64_t>(dim);
      CHECK(bytes <= file_size);
    }
    CHECK(bytes == entry.end - entry.begin);
    covered = entry.end;
  }
  CHECK_EQ(covered, file_size);
}

void Run(FuzzInput input) {
  std::string file;
  uint64_t data_bytes = 0;
  if (input.Byte() == 0) {
    file = input.Rest();
  } else {
    data_bytes = input.Word(4);
    const std::string_view json = input.Rest();
    for (int i = 0; i < 8; ++i) file.push_back(static_cast<char>(uint64_t{json.size()} >> (8 * i)));
    file += json;
  }
  const uint64_t file_size = file.size() + data_bytes;
  const Entries entries = Parse(file, file_size);
  if (!entries.ok()) {
    CHECK(entries.status().code() == absl::StatusCode::kInvalidArgument) << entries.status();
    return;
  }
  uint64_t length = 0;
  for (int i = 7; i >= 0; --i) {
    length = length << 8 | static_cast<unsigned char>(file[static_cast<size_t>(i)]);
  }
  CheckEntries(*entries, 8 + length, file_size);
  const Entries head_alone = Parse(std::string_view(file).substr(0, 8 + length), file_size);
  CHECK(head_alone.ok() && head_alone->size() == entries->size());
  CHECK(!Parse(file, file_size + 1).ok());
  if (file_size > 8 + length) CHECK(!Parse(file, file_size - 1).ok());
  CHECK(!Parse(std::string_view(file).substr(0, 8 + length - 1), file_size).ok());
}

}  // namespace
}  // namespace lodestone

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  lodestone::Run(lodestone::FuzzInput(data, size));
  return 0;
}
