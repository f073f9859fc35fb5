#include "model/convert_checkpoint.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <map>
#include <vector>

#include "base/logging.h"
#include "base/status_macros.h"
#include "boost/json/array.hpp"
#include "boost/json/object.hpp"
#include "boost/json/serialize.hpp"
#include "kernels/numeric/weight_codec.h"
#include "model/inventory.h"
#include "model/strict_json.h"

namespace lodestone {
namespace {

namespace json = boost::json;

constexpr int64_t kBandRows = kQuantisedGroup;  // rows of one task: a row of FP8 tiles
constexpr int64_t kMaxBands = 16;               // in memory at once

// Converts one matrix band by band; the scales wait until it is their turn in the file.
class MatrixConverter {
 public:
  MatrixConverter(const MatrixSource& source, WeightFormat format, ThreadPool& pool)
      : source_(source),
        format_(format),
        pool_(pool),
        rows_(source.spec.groups * source.spec.n),
        row_bytes_(ValueColumns(format, source.spec.k) * BytesPerElement(ValueType(format))) {
    if (IsQuantised(format)) {
      scale_columns_ = ScaleColumns(format, source.spec.k);
      scales_.resize(static_cast<size_t>(ScaleRows(format, rows_) * scale_columns_));
    }
  }

  absl::Status Run(CheckpointWriter& writer) {
    const int64_t num_bands = (rows_ + kBandRows - 1) / kBandRows;
    const int64_t at_once = std::min({num_bands, kMaxBands, int64_t{pool_.num_threads()}});
    std::vector<std::byte> values(static_cast<size_t>(at_once * kBandRows * row_bytes_));
    for (int64_t band = 0; band < num_bands; band += at_once) {
      const int64_t count = std::min(at_once, num_bands - band);
      pool_.ParallelFor(count, [&](int64_t i) {
        ConvertBand(band + i, values.data() + i * kBandRows * row_bytes_);
      });
      if (not_finite_) return absl::InvalidArgumentError("has a weight that is not finite");
      const int64_t rows = std::min(count * kBandRows, rows_ - band * kBandRows);
      RETURN_IF_ERROR(
          writer.Append(std::span(values).first(static_cast<size_t>(rows * row_bytes_))));
    }
    return absl::OkStatus();
  }

  std::vector<uint8_t> TakeScales() { return std::move(scales_); }

 private:
  void ConvertBand(int64_t band, std::byte* out) {
    const int64_t k = source_.spec.k;
    const int64_t first = band * kBandRows;
    const int64_t count = std::min(kBandRows, rows_ - first);
    std::vector<float> rows(static_cast<size_t>(count * k));
    for (int64_t r = 0; r < count; ++r) WidenWeightRow(source_, first + r, rows.data() + r * k);
    if (!std::ranges::all_of(rows, [](float x) { return std::isfinite(x); })) not_finite_ = true;
    auto* codes = reinterpret_cast<uint8_t*>(out);
    switch (format_) {
      case WeightFormat::kFp8:
        EncodeFp8Rows(rows.data(), count, k, codes, scales_.data() + band * scale_columns_);
        return;
      case WeightFormat::kFp4:
        for (int64_t r = 0; r < count; ++r) {
          EncodeFp4Row(rows.data() + r * k, k, codes + r * row_bytes_,
                       scales_.data() + (first + r) * scale_columns_);
        }
        return;
      case WeightFormat::kBf16:
        for (int64_t i = 0; i < count * k; ++i) {
          reinterpret_cast<uint16_t*>(out)[i] = FloatToBf16(rows[static_cast<size_t>(i)]);
        }
        return;
      case WeightFormat::kF32:
        std::copy_n(rows.data(), count * k, reinterpret_cast<float*>(out));
        return;
    }
  }

  const MatrixSource source_;
  const WeightFormat format_;
  ThreadPool& pool_;
  const int64_t rows_;
  const int64_t row_bytes_;
  int64_t scale_columns_ = 0;
  std::vector<uint8_t> scales_;
  std::atomic<bool> not_finite_{false};
};

// The matrix of the source, values copied if the file places them where they are not aligned.
absl::StatusOr<MatrixSource> SourceOf(const Checkpoint& checkpoint, const TensorSpec& spec,
                                      std::vector<std::byte>& copy) {
  MatrixSource source{spec.matrix, checkpoint.Find(spec.name), {}};
  const auto address = reinterpret_cast<uintptr_t>(source.values.data);
  if (address % static_cast<uintptr_t>(BytesPerElement(spec.dtype)) != 0) {
    const auto* bytes = source.values.as<const std::byte>();
    copy.assign(bytes, bytes + source.values.num_bytes());
    source.values.data = copy.data();
  }
  if (IsQuantised(spec.matrix.format)) source.scales = checkpoint.Find(ScaleName(spec.name));
  return source;
}

std::span<const std::byte> BytesOf(const TensorView& tensor) {
  return {tensor.as<const std::byte>(), static_cast<size_t>(tensor.num_bytes())};
}

// One tensor of the target. `scales`: of the matrix before, if it was converted.
absl::Status ConvertTensor(const Checkpoint& source, const TensorSpec& from, const TensorSpec& to,
                           CheckpointWriter& writer, ThreadPool& pool,
                           std::vector<uint8_t>& scales) {
  if (to.kind != TensorSpec::Kind::kMatrix || from.matrix.format == to.matrix.format) {
    return writer.Append(BytesOf(source.Find(from.name)));
  }
  std::vector<std::byte> copy;
  ASSIGN_OR_RETURN(const MatrixSource matrix, SourceOf(source, from, copy));
  MatrixConverter converter(matrix, to.matrix.format, pool);
  RETURN_IF_ERROR(converter.Run(writer));
  scales = converter.TakeScales();
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<WeightForm> ParseWeightForm(std::string_view name) {
  using enum WeightFormat;
  if (name == "official") return WeightForm{kFp8, kFp4};
  if (name == "fp8") return WeightForm{kFp8, kFp8};
  if (name == "fp4") return WeightForm{kBf16, kFp4};
  if (name == "bf16") return WeightForm{kBf16, kBf16};
  return absl::InvalidArgumentError("form is '" + std::string(name) +
                                    "', expected official, fp8, fp4 or bf16");
}

absl::StatusOr<std::string> ConfigInForm(std::string_view text, const WeightForm& form) {
  ASSIGN_OR_RETURN(json::value root, ParseStrictJson(text));
  if (!root.is_object()) return absl::InvalidArgumentError("config is not a JSON object");
  json::object& config = root.get_object();
  config.erase("quantization_config");
  if (IsQuantised(form.dense)) {
    config["quantization_config"] = {{"activation_scheme", "dynamic"},
                                     {"fmt", "e4m3"},
                                     {"quant_method", "fp8"},
                                     {"scale_fmt", "ue8m0"},
                                     {"weight_block_size", {kQuantisedGroup, kQuantisedGroup}}};
  }
  config["expert_dtype"] = std::string(Name(form.expert));
  std::string pretty = "{";
  for (const json::key_value_pair& item : config) {
    pretty += pretty.size() > 1 ? ",\n  " : "\n  ";
    pretty += json::serialize(json::value(item.key())) + ": " + json::serialize(item.value());
  }
  return pretty + "\n}\n";
}

absl::Status ConvertCheckpoint(const Checkpoint& source, CheckpointWriter& writer, ThreadPool& pool,
                               const LoadProgress& progress) {
  std::map<std::string, TensorSpec> from;
  for (TensorSpec& spec : TensorInventory(source.config())) from[spec.name] = spec;
  std::vector<uint8_t> scales;
  int64_t bytes_done = 0;
  for (const TensorSpec& to : writer.order()) {
    if (!scales.empty() && to.kind == TensorSpec::Kind::kScale) {
      RETURN_IF_ERROR(writer.Append(std::as_bytes(std::span(scales))));
      scales.clear();
    } else {
      const auto place = from.find(to.name);
      CHECK(place != from.end()) << "the configs differ in more than formats: " << to.name;
      const absl::Status status = ConvertTensor(source, place->second, to, writer, pool, scales);
      if (absl::IsInvalidArgument(status)) {
        return absl::InvalidArgumentError(source.FileOf(to.name) + ": tensor '" + to.name + "' " +
                                          std::string(status.message()));
      }
      RETURN_IF_ERROR(status);
      source.DropPages(to.name);
    }
    bytes_done += TensorBytes(to);
    if (progress) progress(bytes_done, writer.total_bytes());
  }
  return absl::OkStatus();
}

}  // namespace lodestone
