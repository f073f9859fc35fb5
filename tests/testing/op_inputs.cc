#include "tests/testing/op_inputs.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <random>

#include "base/logging.h"
#include "kernels/numeric/bf16.h"
#include "kernels/numeric/row_codec.h"
#include "kernels/numeric/weight_codec.h"

namespace lodestone {
namespace {

constexpr int64_t kGuardBytes = 64;
constexpr std::byte kGuard{0xa5};

}  // namespace

void HostTensor::Free::operator()(std::byte* pointer) const { std::free(pointer); }

HostTensor::HostTensor(DType dtype, std::initializer_list<int64_t> dims)
    : view_(nullptr, dtype, dims) {
  const int64_t num_bytes = view_.num_bytes();
  const int64_t padded = (num_bytes + kGuardBytes + 63) / 64 * 64;
  data_.reset(static_cast<std::byte*>(std::aligned_alloc(64, static_cast<size_t>(padded))));
  CHECK(data_ != nullptr) << "no memory for " << padded << " bytes";
  std::memset(data_.get(), 0, static_cast<size_t>(num_bytes));
  std::fill_n(data_.get() + num_bytes, kGuardBytes, kGuard);
  view_.data = data_.get();
}

bool HostTensor::guards_intact() const {
  const std::byte* guards = data_.get() + view_.num_bytes();
  return std::all_of(guards, guards + kGuardBytes, [](std::byte b) { return b == kGuard; });
}

float HostTensor::At(int64_t i) const {
  if (view_.dtype == DType::kBf16) return Bf16ToFloat(view_.as<uint16_t>()[i]);
  CHECK(view_.dtype == DType::kF32) << "not a float tensor: " << view_.ShapeString();
  return view_.as<float>()[i];
}

void HostTensor::Set(int64_t i, float value) {
  if (view_.dtype == DType::kBf16) {
    view_.as<uint16_t>()[i] = FloatToBf16(value);
    return;
  }
  CHECK(view_.dtype == DType::kF32) << "not a float tensor: " << view_.ShapeString();
  view_.as<float>()[i] = value;
}

std::vector<float> HostTensor::Floats() const {
  std::vector<float> values(size());
  for (int64_t i = 0; i < size(); ++i) values[i] = At(i);
  return values;
}

void HostTensor::SetFloats(const std::vector<float>& values) {
  CHECK_EQ(static_cast<int64_t>(values.size()), size());
  for (int64_t i = 0; i < size(); ++i) Set(i, values[i]);
}

std::vector<int32_t> HostTensor::Ints() const {
  CHECK(view_.dtype == DType::kI32) << "not an i32 tensor: " << view_.ShapeString();
  return {view_.as<int32_t>(), view_.as<int32_t>() + size()};
}

void HostTensor::SetInts(const std::vector<int32_t>& values) {
  CHECK(view_.dtype == DType::kI32) << "not an i32 tensor: " << view_.ShapeString();
  CHECK_EQ(static_cast<int64_t>(values.size()), size());
  std::copy(values.begin(), values.end(), view_.as<int32_t>());
}

std::vector<std::byte> HostTensor::Bytes() const {
  return {data_.get(), data_.get() + view_.num_bytes()};
}

HostTensor HostTensor::Clone() const {
  HostTensor copy(DType::kU8, {view_.num_bytes()});
  std::memcpy(copy.data_.get(), data_.get(), static_cast<size_t>(view_.num_bytes()));
  copy.view_ = view_;
  copy.view_.data = copy.data_.get();
  return copy;
}

const char* Name(InputKind kind) {
  switch (kind) {
    case InputKind::kNormal:
      return "Normal";
    case InputKind::kWide:
      return "Wide";
    case InputKind::kOutlier:
      return "Outlier";
    case InputKind::kFewValues:
      return "FewValues";
    case InputKind::kTiny:
      return "Tiny";
    case InputKind::kZeros:
      return "Zeros";
  }
  return "";
}

void Fill(HostTensor* tensor, InputKind kind, uint32_t seed, float factor) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  const int rank = tensor->view().rank;
  const int64_t channels = rank == 0 ? 1 : tensor->view().shape[rank - 1];
  for (int64_t i = 0; i < tensor->size(); ++i) {
    float value = normal(random);
    const uint32_t bits = random();
    switch (kind) {
      case InputKind::kNormal:
        break;
      case InputKind::kWide:
        value = std::ldexp(value, static_cast<int>(bits % 25) - 12);
        break;
      case InputKind::kOutlier:
        value *= i % channels % 64 == 7 ? 300.0f : 1.0f;
        break;
      case InputKind::kFewValues:
        value = static_cast<float>(bits % 9) / 2 - 2;
        break;
      case InputKind::kTiny:
        value *= 1e-7f;
        break;
      case InputKind::kZeros:
        value = std::copysign(0.0f, value);
        break;
    }
    tensor->Set(i, value * factor);
  }
}

HostTensor Random(DType dtype, std::initializer_list<int64_t> dims, uint32_t seed, InputKind kind,
                  float factor) {
  HostTensor tensor(dtype, dims);
  Fill(&tensor, kind, seed, factor);
  return tensor;
}

PackedTensor Pack(const Ops& ops, const HostTensor& source, int64_t groups) {
  const TensorView& view = source.view();
  const MatrixSpec spec{
      .format = view.dtype == DType::kF32 ? WeightFormat::kF32 : WeightFormat::kBf16,
      .n = view.shape[0] / groups,
      .k = view.shape[1],
      .groups = groups};
  return Pack(ops, {spec, view, {}});
}

PackedTensor Pack(const Ops& ops, const MatrixSource& source) {
  PackedTensor result;
  result.packed = HostTensor(DType::kU8, {ops.PackedBytes(source.spec)});
  result.weight = ops.PackWeight(source, result.packed);
  return result;
}

QuantisedTensor::QuantisedTensor(const MatrixSpec& matrix, uint32_t seed, InputKind kind,
                                 float factor)
    : spec(matrix) {
  const int64_t rows = spec.groups * spec.n, k = spec.k;
  values = HostTensor(ValueType(spec.format), {rows, ValueColumns(spec.format, k)});
  scales = HostTensor(DType::kF8E8M0, {ScaleRows(spec.format, rows), ScaleColumns(spec.format, k)});
  const HostTensor numbers = Random(DType::kF32, {rows, k}, seed, kind, factor);
  const int64_t step = ScaledOutputs(spec.format);
  for (int64_t row = 0; row < rows; row += step) {
    const float* from = numbers.view().row<float>(row);
    uint8_t* codes = values.view().row<uint8_t>(row);
    uint8_t* scale = scales.view().row<uint8_t>(row / step);
    if (spec.format == WeightFormat::kFp8) {
      EncodeFp8Rows(from, std::min(step, rows - row), k, codes, scale);
    } else {
      EncodeFp4Row(from, k, codes, scale);
    }
  }
}

HostTensor QuantisedTensor::Widened() const {
  HostTensor numbers(DType::kF32, {spec.groups * spec.n, spec.k});
  for (int64_t row = 0; row < spec.groups * spec.n; ++row) {
    WidenWeightRow(source(), row, numbers.view().row<float>(row));
  }
  return numbers;
}

TestBatch::TestBatch(const std::vector<BatchPart>& parts, uint32_t seed) {
  const int64_t num_seqs = static_cast<int64_t>(parts.size());
  int64_t max_pages = 1;
  for (const BatchPart& part : parts) {
    max_pages = std::max(max_pages, (part.first_position + part.num_tokens - 1) / kPageTokens + 1);
  }
  num_slots = num_seqs + 1;
  num_pages = num_seqs * max_pages + 3;
  std::vector<int32_t> pages(num_pages);
  std::iota(pages.begin(), pages.end(), 0);
  std::shuffle(pages.begin(), pages.end(), std::mt19937(seed));
  seq_slot = HostTensor(DType::kI32, {num_seqs});
  block_table = HostTensor(DType::kI32, {num_seqs, max_pages});
  for (int64_t b = 0; b < num_seqs; ++b) {
    seq_slot.view().as<int32_t>()[b] = static_cast<int32_t>(num_slots - 1 - b);
    const int64_t own_pages = (parts[b].first_position + parts[b].num_tokens - 1) / kPageTokens + 1;
    for (int64_t page = 0; page < max_pages; ++page) {
      block_table.view().row<int32_t>(b)[page] =
          page < own_pages ? pages[b * max_pages + page] : -1;
    }
  }
  SetParts(parts);
}

void TestBatch::SetParts(const std::vector<BatchPart>& parts) {
  const int64_t num_seqs = static_cast<int64_t>(parts.size());
  CHECK_EQ(num_seqs, seq_slot.size());
  std::vector<int32_t> all_positions, all_seqs, firsts, counts;
  for (int64_t b = 0; b < num_seqs; ++b) {
    firsts.push_back(static_cast<int32_t>(all_positions.size()));
    counts.push_back(static_cast<int32_t>(parts[b].num_tokens));
    for (int64_t i = 0; i < parts[b].num_tokens; ++i) {
      all_positions.push_back(static_cast<int32_t>(parts[b].first_position + i));
      all_seqs.push_back(static_cast<int32_t>(b));
    }
  }
  const int64_t num_tokens = static_cast<int64_t>(all_positions.size());
  positions = HostTensor(DType::kI32, {num_tokens});
  token_seq = HostTensor(DType::kI32, {num_tokens});
  seq_first = HostTensor(DType::kI32, {num_seqs});
  seq_tokens = HostTensor(DType::kI32, {num_seqs});
  positions.SetInts(all_positions);
  token_seq.SetInts(all_seqs);
  seq_first.SetInts(firsts);
  seq_tokens.SetInts(counts);
  index = {positions, token_seq, seq_first, seq_tokens, seq_slot, block_table};
}

TestBatch TestBatch::With(const std::vector<BatchPart>& parts) const {
  TestBatch batch;
  batch.num_slots = num_slots;
  batch.num_pages = num_pages;
  batch.seq_slot = seq_slot.Clone();
  batch.block_table = block_table.Clone();
  batch.SetParts(parts);
  return batch;
}

TestBatch TestBatch::Only(int64_t seq, BatchPart part) const {
  const int64_t max_pages = block_table.view().shape[1];
  TestBatch batch;
  batch.num_slots = num_slots;
  batch.num_pages = num_pages;
  batch.seq_slot = HostTensor(DType::kI32, {1});
  batch.seq_slot.SetInts({seq_slot.Ints()[seq]});
  batch.block_table = HostTensor(DType::kI32, {1, max_pages});
  std::copy_n(block_table.view().row<int32_t>(seq), max_pages,
              batch.block_table.view().as<int32_t>());
  batch.SetParts({part});
  return batch;
}

HostTensor NumVisible(const TestBatch& batch, int64_t ratio) {
  std::vector<int32_t> visible = batch.positions.Ints();
  for (int32_t& position : visible) position = static_cast<int32_t>((position + 1) / ratio);
  HostTensor result(DType::kI32, {batch.index.num_tokens()});
  result.SetInts(visible);
  return result;
}

TestRowStore::TestRowStore(int64_t blocks, int64_t rows, RowBytes bytes)
    : memory(DType::kU8, {blocks, (rows * bytes.total() + 63) / 64 * 64 + 64}) {
  const int64_t block_stride = memory.view().shape[1];
  const auto part = [&](int64_t offset, int64_t row_bytes) {
    TensorView view(memory.view().as<std::byte>() + offset, DType::kU8, {blocks, rows, row_bytes});
    view.strides[0] = block_stride;
    return view;
  };
  store.payload = part(0, bytes.payload);
  if (bytes.scale > 0) store.scale = part(rows * bytes.payload, bytes.scale);
}

namespace {

template <typename Encode>
void EncodeRows(const std::vector<float>& values, int64_t dims, const RowStore& store,
                const Encode& encode) {
  const int64_t blocks = store.payload.shape[0];
  const int64_t rows = store.payload.shape[1];
  CHECK_EQ(static_cast<int64_t>(values.size()), blocks * rows * dims);
  for (int64_t b = 0; b < blocks; ++b) {
    for (int64_t r = 0; r < rows; ++r) {
      std::byte* payload = store.payload.row<std::byte>(b) + r * store.payload.strides[1];
      std::byte* scale = store.scale.empty()
                             ? nullptr
                             : store.scale.row<std::byte>(b) + r * store.scale.strides[1];
      encode(values.data() + (b * rows + r) * dims, payload, scale);
    }
  }
}

}  // namespace

void EncodeLatents(const std::vector<float>& values, int64_t dims, int64_t rope_dims,
                   KvFormat format, const TestRowStore& store) {
  EncodeRows(values, dims, store.store, [&](const float* x, std::byte* payload, std::byte* scale) {
    EncodeLatentRow(format, x, dims, rope_dims, payload, scale);
  });
}

void EncodeIndexKeys(const std::vector<float>& values, int64_t dims, IndexKeyFormat format,
                     const TestRowStore& store) {
  EncodeRows(values, dims, store.store, [&](const float* x, std::byte* payload, std::byte* scale) {
    EncodeIndexKeyRow(format, x, dims, payload, scale);
  });
}

HostTensor RopeFreqs(int64_t dims, double theta) {
  HostTensor freqs(DType::kF32, {dims / 2});
  for (int64_t i = 0; i < dims / 2; ++i) {
    const double exponent = static_cast<double>(2 * i) / static_cast<double>(dims);
    freqs.Set(i, static_cast<float>(1.0 / std::pow(theta, exponent)));
  }
  return freqs;
}

}  // namespace lodestone
