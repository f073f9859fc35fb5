#include "model/synthetic_checkpoint.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <numbers>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status_macros.h"
#include "kernels/numeric/bf16.h"
#include "kernels/numeric/fp4.h"
#include "kernels/numeric/fp8.h"
#include "kernels/numeric/row_digest.h"
#include "model/inventory.h"

namespace lodestone {
namespace {

using Kind = TensorSpec::Kind;

constexpr int64_t kTaskBytes = 64 << 10;  // of a tensor, filled by one task
constexpr int64_t kTasksAtOnce = 64;

// What the codes are drawn from: their standard deviation before scaling.
constexpr double kFp8Deviation = 64;  // of codes up to 448
constexpr double kFp4Deviation = 2;   // of codes up to 6

// The value of the normal distribution with this share below it.
double NormalQuantile(double share) {
  double low = -10, high = 10;
  while (high - low > 1e-12) {
    const double middle = (low + high) / 2;
    (0.5 * std::erfc(-middle / std::numbers::sqrt2) < share ? low : high) = middle;
  }
  return low;
}

// Random bytes to normal values, and to the codes nearest to them.
struct Tables {
  Tables() {
    for (size_t i = 0; i < 256; ++i) {
      const auto value = static_cast<float>(NormalQuantile((static_cast<double>(i) + 0.5) / 256));
      normal[i] = value;
      fp8[i] = FloatToE4m3(value * static_cast<float>(kFp8Deviation));
      fp4[i] = FloatToE2m1(value * static_cast<float>(kFp4Deviation));
    }
  }
  std::array<float, 256> normal;
  std::array<uint8_t, 256> fp8, fp4;
};

// The numbers of one tensor, each from its place.
class NumberStream {
 public:
  NumberStream(uint64_t seed, std::string_view name) : state_(Mix64(seed + 0x9e3779b97f4a7c15u)) {
    for (const char c : name) state_ = Mix64(state_ ^ static_cast<unsigned char>(c)) + 1;
  }
  uint64_t At(int64_t i) const {
    return Mix64(state_ + static_cast<uint64_t>(i) * 0x9e3779b97f4a7c15u);
  }
  // N(0, 1), from 2^16 values.
  float Normal(const Tables& tables, int64_t i) const {
    const uint64_t bits = At(i);
    return 0.8f * tables.normal[bits & 255] + 0.6f * tables.normal[bits >> 8 & 255];
  }

 private:
  uint64_t state_;
};

// offset + deviation * N(0, 1).
struct Spread {
  float offset = 0;
  float deviation = 1;
};

Spread SpreadOf(const TensorSpec& spec) {
  const std::string_view name = spec.name;
  if (spec.kind == Kind::kMatrix) {
    return {0, 1 / std::sqrt(static_cast<float>(spec.matrix.k))};
  }
  if (name.ends_with("norm.weight")) return {1, 0.1f};
  if (name.ends_with("_scale")) return {0.05f, 0.01f};  // of the residual mixes
  if (name.ends_with("_base") || name.ends_with("gate.bias")) return {0, 0.1f};
  if (name.ends_with("ape")) return {0, 0.3f};
  return {0, 1};  // the embedding, attention sinks
}

class TensorGenerator {
 public:
  TensorGenerator(const ModelConfig& config, const TensorSpec& spec, const TensorSpec* matrix,
                  uint64_t seed, const Tables& tables)
      : config_(config),
        spec_(spec),
        matrix_(matrix),
        tables_(tables),
        stream_(seed, spec.name),
        spread_(SpreadOf(spec)) {}

  // Bytes [first, first + out.size()) of the tensor; `first` is a multiple of kTaskBytes.
  void Fill(int64_t first, std::span<std::byte> out) const {
    switch (spec_.dtype) {
      case DType::kF8E4M3:
        return FillFp8(first, out);
      case DType::kI8:
        return FillFp4(first, out);
      case DType::kF8E8M0:
        return FillScales(first, out);
      case DType::kI64:
        return FillTokenTable(first, out);
      case DType::kBf16:
        return FillNumbers<uint16_t>(first, out);
      default:
        return FillNumbers<float>(first, out);
    }
  }

 private:
  template <typename T>
  void FillNumbers(int64_t first, std::span<std::byte> out) const {
    const int64_t size = sizeof(T);
    for (int64_t i = 0; i < static_cast<int64_t>(out.size()) / size; ++i) {
      const float value = Number(first / size + i);
      T stored;
      if constexpr (sizeof(T) == 2)
        stored = FloatToBf16(value);
      else
        stored = value;
      std::memcpy(out.data() + i * size, &stored, sizeof(T));
    }
  }

  float Number(int64_t i) const {
    float value = spread_.offset + spread_.deviation * stream_.Normal(tables_, i);
    const int64_t m = config_.num_streams;
    const int64_t mix = i - 2 * m;  // hc_*_base: pre [M], post [M], then the mix [M, M]
    if (spec_.name.ends_with("n_base") && mix >= 0 && mix / m == mix % m) value += 2;
    return value;
  }

  void FillFp8(int64_t first, std::span<std::byte> out) const {
    for (size_t i = 0; i < out.size(); i += 8) {
      const uint64_t bits = stream_.At((first + static_cast<int64_t>(i)) / 8);
      for (size_t j = i; j < std::min(i + 8, out.size()); ++j) {
        out[j] = std::byte{tables_.fp8[bits >> (8 * (j - i)) & 255]};
      }
    }
  }

  void FillFp4(int64_t first, std::span<std::byte> out) const {
    for (size_t i = 0; i < out.size(); i += 4) {
      const uint64_t bits = stream_.At((first + static_cast<int64_t>(i)) / 4);
      for (size_t j = i; j < std::min(i + 4, out.size()); ++j) {
        const uint64_t pair = bits >> (16 * (j - i));
        out[j] = std::byte{
            static_cast<uint8_t>(tables_.fp4[pair & 255] | tables_.fp4[pair >> 8 & 255] << 4)};
      }
    }
  }

  // The power of two that gives the codes the deviation of their matrix, or its neighbours.
  void FillScales(int64_t first, std::span<std::byte> out) const {
    const double codes =
        matrix_->matrix.format == WeightFormat::kFp8 ? kFp8Deviation : kFp4Deviation;
    const double wanted = static_cast<double>(SpreadOf(*matrix_).deviation);
    const int middle = 127 + static_cast<int>(std::lround(std::log2(wanted / codes)));
    for (size_t i = 0; i < out.size(); ++i) {
      const int step = static_cast<int>(stream_.At(first + static_cast<int64_t>(i)) % 4);
      const int scale = middle + (step == 0 ? -1 : step == 1 ? 1 : 0);
      out[i] = std::byte{static_cast<uint8_t>(std::clamp(scale, 1, 254))};
    }
  }

  // Row by row: experts of one token are all different.
  void FillTokenTable(int64_t first, std::span<std::byte> out) const {
    const int64_t chosen = config_.experts_per_token;
    std::vector<int64_t> row;
    for (int64_t i = 0; i < static_cast<int64_t>(out.size()) / 8; ++i) {
      const int64_t element = first / 8 + i;
      if (row.empty() || element % chosen == 0) row = ExpertsOf(element / chosen);
      std::memcpy(out.data() + i * 8, &row[static_cast<size_t>(element % chosen)], 8);
    }
  }
  std::vector<int64_t> ExpertsOf(int64_t token) const {
    std::vector<int64_t> row;
    for (int64_t i = 0; i < config_.experts_per_token; ++i) {
      const auto left = static_cast<uint64_t>(config_.num_experts - i);
      auto expert = static_cast<int64_t>(stream_.At(token * config_.experts_per_token + i) % left);
      std::vector<int64_t> taken = row;  // the n-th expert that is not taken
      std::ranges::sort(taken);
      for (const int64_t other : taken) expert += other <= expert ? 1 : 0;
      row.push_back(expert);
    }
    return row;
  }

  const ModelConfig& config_;
  const TensorSpec& spec_;
  const TensorSpec* const matrix_;  // of scales
  const Tables& tables_;
  const NumberStream stream_;
  const Spread spread_;
};

}  // namespace

absl::Status WriteSyntheticTensors(uint64_t seed, CheckpointWriter& writer, ThreadPool& pool,
                                   const LoadProgress& progress) {
  const Tables tables;
  std::vector<std::byte> buffer(kTaskBytes * kTasksAtOnce);
  int64_t bytes_done = 0;
  const TensorSpec* before = nullptr;
  for (const TensorSpec& spec : writer.order()) {
    const TensorGenerator generator(writer.config(), spec, before, seed, tables);
    const int64_t bytes = TensorBytes(spec);
    for (int64_t first = 0; first < bytes; first += kTaskBytes * kTasksAtOnce) {
      const int64_t count = std::min(bytes - first, kTaskBytes * kTasksAtOnce);
      const std::span<std::byte> chunk = std::span(buffer).first(static_cast<size_t>(count));
      pool.ParallelFor((count + kTaskBytes - 1) / kTaskBytes, [&](int64_t task) {
        const auto at = static_cast<size_t>(task * kTaskBytes);
        generator.Fill(first + task * kTaskBytes,
                       chunk.subspan(at, std::min<size_t>(kTaskBytes, chunk.size() - at)));
      });
      RETURN_IF_ERROR(writer.Append(chunk));
      bytes_done += count;
      if (progress) progress(bytes_done, writer.total_bytes());
    }
    before = &spec;
  }
  return absl::OkStatus();
}

}  // namespace lodestone
