#include "tests/kernels/cpu_test_support.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

namespace lodestone {

void OpResult::Add(const HostTensor& tensor) {
  EXPECT_TRUE(tensor.guards_intact());
  AddBytes(tensor);
  for (float value : tensor.Floats()) floats.push_back(value);
}

void OpResult::AddBytes(const HostTensor& tensor) {
  EXPECT_TRUE(tensor.guards_intact());
  const std::vector<std::byte> more = tensor.Bytes();
  bytes.insert(bytes.end(), more.begin(), more.end());
}

OpResult RunReference(const OpRun& op) {
  TestStream stream;
  return op(*MakeReferenceOps(), stream);
}

void ExpectNear(const std::vector<float>& got, const std::vector<float>& want, double relative,
                double absolute) {
  ASSERT_EQ(got.size(), want.size());
  int failures = 0;
  for (size_t i = 0; i < got.size() && failures < 5; ++i) {
    if (got[i] == want[i] || (std::isnan(got[i]) && std::isnan(want[i]))) continue;
    const double limit = relative * std::fabs(static_cast<double>(want[i])) + absolute;
    const double error = std::fabs(static_cast<double>(got[i]) - static_cast<double>(want[i]));
    if (error <= limit) continue;
    ++failures;
    ADD_FAILURE() << "element " << i << " is " << got[i] << ", want " << want[i] << " +- " << limit;
  }
}

std::vector<BatchPart> Chunks(int64_t total, int64_t chunk) {
  std::vector<BatchPart> parts;
  if (chunk == 0) chunk = total;
  for (int64_t first = 0; first < total; first += chunk) {
    parts.push_back({first, std::min(chunk, total - first)});
  }
  return parts;
}

}  // namespace lodestone
