#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "kernels/ops.h"
#include "tests/testing/op_inputs.h"

// CPU ops under test: every instruction set that this processor has, with 1, 2 and 3 threads.
namespace lodestone {

struct CpuBackend {
  std::string name;
  std::unique_ptr<Ops> ops;
  std::unique_ptr<TestStream> stream;
};
std::vector<CpuBackend> CpuBackends();

// Bytes that an op wrote, and the same as floats where they are numbers.
struct OpResult {
  std::vector<std::byte> bytes;
  std::vector<float> floats;
  // `kF32` and `kBf16` only.
  void Add(const HostTensor& tensor);
  void AddBytes(const HostTensor& tensor);
};

// Runs `op` on every backend and expects the same bytes from all. Returns the first result.
using OpRun = std::function<OpResult(const Ops& ops, Stream& stream)>;
OpResult RunOnAllBackends(const OpRun& op);

// The same with the reference ops.
OpResult RunReference(const OpRun& op);

// |got - want| <= relative * |want| + absolute for every element.
void ExpectNear(const std::vector<float>& got, const std::vector<float>& want, double relative,
                double absolute);

// One unit in the last place of bf16, relative to a value: two roundings of nearly equal numbers
// may differ by this much.
inline constexpr double kBf16Ulp = 1.0 / 128;

// [0, total) cut into chunks of `chunk` tokens; 0: whole.
std::vector<BatchPart> Chunks(int64_t total, int64_t chunk);

}  // namespace lodestone
