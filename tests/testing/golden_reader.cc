#include "tests/testing/golden_reader.h"

#include <boost/json.hpp>
#include <cstring>
#include <fstream>
#include <iterator>
#include <optional>

#include "base/logging.h"
#include "kernels/numeric/bf16.h"
#include "kernels/numeric/fp8.h"

namespace lodestone {
namespace {

std::optional<DType> ParseDType(std::string_view name) {
  for (int i = 0; i <= static_cast<int>(DType::kI64); ++i) {
    if (Name(static_cast<DType>(i)) == name) return static_cast<DType>(i);
  }
  return std::nullopt;
}

std::string ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  CHECK(file.good()) << "cannot open " << path;
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

template <typename T>
T Element(const GoldenTensor& tensor, int64_t i) {
  T value;
  std::memcpy(&value, tensor.bytes.data() + i * static_cast<int64_t>(sizeof(T)), sizeof(T));
  return value;
}

float FloatAt(const GoldenTensor& tensor, int64_t i) {
  switch (tensor.dtype) {
    case DType::kF32:
      return Element<float>(tensor, i);
    case DType::kBf16:
      return Bf16ToFloat(Element<uint16_t>(tensor, i));
    case DType::kF8E4M3:
      return E4m3ToFloat(Element<uint8_t>(tensor, i));
    case DType::kF8E8M0:
      return E8m0ToFloat(Element<uint8_t>(tensor, i));
    default:
      LOG(FATAL) << "no float value of type " << Name(tensor.dtype);
  }
  return 0;
}

int64_t IntAt(const GoldenTensor& tensor, int64_t i) {
  switch (tensor.dtype) {
    case DType::kI8:
      return Element<int8_t>(tensor, i);
    case DType::kU8:
      return Element<uint8_t>(tensor, i);
    case DType::kI32:
      return Element<int32_t>(tensor, i);
    case DType::kI64:
      return Element<int64_t>(tensor, i);
    default:
      LOG(FATAL) << "no integer value of type " << Name(tensor.dtype);
  }
  return 0;
}

GoldenTensor ParseTensor(const boost::json::object& entry, std::string_view data) {
  GoldenTensor tensor;
  const std::string dtype(entry.at("dtype").as_string());
  const std::optional<DType> parsed = ParseDType(dtype);
  CHECK(parsed.has_value()) << "unknown type " << dtype;
  tensor.dtype = *parsed;
  for (const boost::json::value& dim : entry.at("shape").as_array()) {
    tensor.shape.push_back(dim.to_number<int64_t>());
  }
  const boost::json::array& offsets = entry.at("data_offsets").as_array();
  const size_t first = offsets.at(0).to_number<size_t>();
  const size_t last = offsets.at(1).to_number<size_t>();
  CHECK(first <= last && last <= data.size()) << "tensor ends at " << last << " of " << data.size();
  tensor.bytes.resize(last - first);
  if (last > first) std::memcpy(tensor.bytes.data(), data.data() + first, last - first);
  CHECK_EQ(tensor.num_elements() * BytesPerElement(tensor.dtype),
           static_cast<int64_t>(tensor.bytes.size()));
  return tensor;
}

}  // namespace

int64_t GoldenTensor::num_elements() const {
  int64_t count = 1;
  for (int64_t dim : shape) count *= dim;
  return count;
}

std::vector<float> GoldenTensor::Floats() const {
  std::vector<float> values(num_elements());
  for (int64_t i = 0; i < num_elements(); ++i) values[i] = FloatAt(*this, i);
  return values;
}

std::vector<int64_t> GoldenTensor::Ints() const {
  std::vector<int64_t> values(num_elements());
  for (int64_t i = 0; i < num_elements(); ++i) values[i] = IntAt(*this, i);
  return values;
}

std::vector<uint8_t> GoldenTensor::Codes() const {
  CHECK_EQ(BytesPerElement(dtype), 1);
  std::vector<uint8_t> codes(bytes.size());
  if (!bytes.empty()) std::memcpy(codes.data(), bytes.data(), bytes.size());
  return codes;
}

GoldenFile::GoldenFile(const std::string& path) : path_(path) {
  const std::string content = ReadFile(path);
  uint64_t header_bytes = 0;
  CHECK(content.size() >= 8) << path << " has " << content.size() << " bytes";
  std::memcpy(&header_bytes, content.data(), 8);
  CHECK(header_bytes <= content.size() - 8) << path << ": header of " << header_bytes << " bytes";
  const std::string_view header(content.data() + 8, header_bytes);
  const std::string_view data = std::string_view(content).substr(8 + header_bytes);
  const boost::json::value root = boost::json::parse({header.data(), header.size()});
  for (const boost::json::key_value_pair& item : root.as_object()) {
    if (item.key() == "__metadata__") continue;
    tensors_.emplace(std::string(item.key()), ParseTensor(item.value().as_object(), data));
  }
}

const GoldenTensor& GoldenFile::operator[](std::string_view name) const {
  const auto found = tensors_.find(name);
  CHECK(found != tensors_.end()) << path_ << " has no tensor " << name;
  return found->second;
}

std::string GoldenPath(std::string_view name) {
  return std::string(LODESTONE_SOURCE_DIR) + "/tests/golden/" + std::string(name);
}

}  // namespace lodestone
