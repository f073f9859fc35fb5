#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/tensor.h"

namespace lodestone {

// One tensor of a golden file, dense, with its bytes.
struct GoldenTensor {
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
  std::vector<std::byte> bytes;

  int64_t num_elements() const;
  // Element values; BF16, F8_E4M3 and F8_E8M0 decoded.
  std::vector<float> Floats() const;
  // REQUIRES: an integer type.
  std::vector<int64_t> Ints() const;
  // The bytes as they are. REQUIRES: elements of one byte.
  std::vector<uint8_t> Codes() const;
};

// A .safetensors file read whole, for tests: independent of the product's loader. Anything wrong
// with the file ends the process with its path.
class GoldenFile {
 public:
  explicit GoldenFile(const std::string& path);
  bool Has(std::string_view name) const { return tensors_.contains(name); }
  // Ends the process, naming file and tensor, if there is none.
  const GoldenTensor& operator[](std::string_view name) const;
  const std::map<std::string, GoldenTensor, std::less<>>& tensors() const { return tensors_; }

 private:
  const std::string path_;
  std::map<std::string, GoldenTensor, std::less<>> tensors_;
};

// tests/golden/NAME in the source tree.
std::string GoldenPath(std::string_view name);

}  // namespace lodestone
