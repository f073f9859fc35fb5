#pragma once

#include <cstdint>
#include <string>

#include "kernels/ops.h"
#include "model/format_choice.h"
#include "tests/testing/golden_case.h"
#include "tests/testing/golden_reader.h"
#include "tests/testing/model_runner.h"

namespace lodestone {

inline constexpr FormatChoice kExactFormats{Numerics::kExact, KvFormat::kF32, IndexKeyFormat::kF32};

// "cpu" or "reference"; lives until the process ends.
const Ops& TestBackend(const std::string& name);

// "mini", "reference/mini-fp8" or "needle-tiny", loaded once for each backend; lives until the
// process ends.
const LoadedModel& TestModel(const std::string& model, const std::string& backend);

// The file with the golden values of `model` for a prompt of this length, read once.
const GoldenFile& GoldenFileOf(const std::string& model, int64_t length);

// The case of `model` with a prompt of this length, made in fp32.
GoldenCase ExactGolden(const std::string& model, int64_t length);

}  // namespace lodestone
