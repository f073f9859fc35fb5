#include "kernels/cpu/gemm.h"

#include <algorithm>
#include <cstring>

#include "kernels/cpu/parallel.h"
#include "kernels/op_checks.h"

namespace lodestone::cpu {
namespace {

// One matrix into panels [ceil(n / 32)][k][32].
template <typename T>
void PackGroup(const T* source, int64_t row_stride, int64_t n, int64_t k, T* packed) {
  for (int64_t panel = 0; panel * kPanelOutputs < n; ++panel) {
    T* out = packed + panel * k * kPanelOutputs;
    const int64_t outputs = std::min(kPanelOutputs, n - panel * kPanelOutputs);
    if (outputs < kPanelOutputs)
      std::memset(out, 0, static_cast<size_t>(k * kPanelOutputs) * sizeof(T));
    for (int64_t i = 0; i < outputs; ++i) {
      const T* row = source + (panel * kPanelOutputs + i) * row_stride;
      for (int64_t j = 0; j < k; ++j) out[j * kPanelOutputs + i] = row[j];
    }
  }
}

// Outputs of panel `panel` of group `group`, [0, count): their codes and scales, slice by slice.
void PackQuantisedPanel(const MatrixSource& source, int64_t group, int64_t panel, uint8_t* out) {
  const MatrixSpec& spec = source.spec;
  const int64_t count = std::min(kPanelOutputs, spec.n - panel * kPanelOutputs);
  const int64_t slice_inputs = ScaledInputs(spec.format);
  std::memset(out, 0, static_cast<size_t>(PanelBytes(spec.format, spec.k)));
  for (int64_t i = 0; i < count; ++i) {
    const int64_t row = group * spec.n + panel * kPanelOutputs + i;
    const uint8_t* codes = source.values.row<uint8_t>(row);
    const uint8_t* scales = source.scales.row<uint8_t>(row / ScaledOutputs(spec.format));
    for (int64_t first = 0; first < spec.k; first += slice_inputs) {
      uint8_t* slice = out + first / slice_inputs * PanelSliceBytes(spec.format);
      slice[i] = scales[first / slice_inputs];
      uint8_t* at = slice + kPanelOutputs;
      const int64_t inputs = std::min(slice_inputs, spec.k - first);
      if (spec.format == WeightFormat::kFp8) {
        for (int64_t j = 0; j < inputs; ++j) at[j * kPanelOutputs + i] = codes[first + j];
        continue;
      }
      const int64_t shift = i < 16 ? 0 : 4;
      for (int64_t j = 0; j < inputs; ++j) {
        const int code = codes[(first + j) / 2] >> (j % 2 * 4) & 15;
        at[j * 16 + i % 16] |= static_cast<uint8_t>(code << shift);
      }
    }
  }
}

void PackPanels(const MatrixSource& source, int64_t group, std::byte* out) {
  const MatrixSpec& spec = source.spec;
  const int64_t first_row = group * spec.n;
  if (spec.format == WeightFormat::kBf16) {
    PackGroup(source.values.row<uint16_t>(first_row), source.values.strides[0], spec.n, spec.k,
              reinterpret_cast<uint16_t*>(out));
  } else if (spec.format == WeightFormat::kF32) {
    PackGroup(source.values.row<float>(first_row), source.values.strides[0], spec.n, spec.k,
              reinterpret_cast<float*>(out));
  } else {
    const int64_t panel_bytes = PanelBytes(spec.format, spec.k);
    for (int64_t panel = 0; panel < CeilDiv(spec.n, kPanelOutputs); ++panel) {
      PackQuantisedPanel(source, group, panel,
                         reinterpret_cast<uint8_t*>(out) + panel * panel_bytes);
    }
  }
}

// How one product is cut: rows and panels of a task.
struct Split {
  int64_t rows;
  int64_t panels;
};

Split SplitGemm(int64_t rows, int64_t num_panels, int64_t groups, int64_t total_ns,
                int64_t row_block, int num_threads) {
  const int64_t least_panels = rows == 1 ? 4 : rows <= 3 ? 2 : 1;
  Split split{std::min<int64_t>(rows, 96), std::min<int64_t>(num_panels, 8)};
  if (num_threads == 1 || total_ns < 2 * kMinTaskNs) return {rows, num_panels};
  const int64_t wanted = std::min<int64_t>(total_ns / kMinTaskNs, 4 * num_threads);
  while (CeilDiv(rows, split.rows) * CeilDiv(num_panels, split.panels) * groups < wanted) {
    if (split.rows > 4 * row_block) {
      split.rows = RoundUp(split.rows / 2, row_block);
    } else if (split.panels > least_panels) {
      split.panels = std::max(least_panels, CeilDiv(split.panels, 2));
    } else {
      break;
    }
  }
  return split;
}

}  // namespace

int64_t GemmNs(int64_t rows, int64_t n, int64_t k, WeightFormat format) {
  constexpr int64_t kFlopsPerNs = 100;
  constexpr int64_t kBytesPerNs = 25;
  return std::max(2 * rows * n * k / kFlopsPerNs, StoredWeightBytes(format, n, k) / kBytesPerNs);
}

GemmArgs GemmOf(const TensorView& x, const PackedWeight& weight, int64_t group, bool round_fp8) {
  const int64_t x_offset = group * weight.k * BytesPerElement(x.dtype);
  const int64_t panels = CeilDiv(weight.n, kPanelOutputs);
  GemmArgs args;
  args.x = x.as<std::byte>() + x_offset;
  args.x_bf16 = x.dtype == DType::kBf16;
  args.x_stride = x.strides[0];
  args.num_rows = x.shape[0];
  args.panels = weight.data.as<std::byte>() + group * panels * PanelBytes(weight.format, weight.k);
  args.format = weight.format;
  args.round_x = round_fp8 && weight.rounds_inputs && IsQuantised(weight.format);
  args.n = weight.n;
  args.k = weight.k;
  return args;
}

void RunGemm(const SimdTable& simd, const GemmArgs& args) {
  (IsQuantised(args.format) ? simd.gemm_quantised : simd.gemm)(args);
}

void SkipPanels(int64_t first_panel, GemmArgs* args) {
  args->panels =
      static_cast<const std::byte*>(args->panels) + first_panel * PanelBytes(args->format, args->k);
  args->n -= first_panel * kPanelOutputs;
}

int64_t PackedBytes(const MatrixSpec& spec) {
  return spec.groups * CeilDiv(spec.n, kPanelOutputs) * PanelBytes(spec.format, spec.k);
}

PackedWeight PackWeight(const MatrixSource& source, const TensorView& packed) {
  const int64_t num_bytes = PackedBytes(source.spec);
  CheckMatrixSource(source, packed, num_bytes);
  const int64_t groups = source.spec.groups;
  for (int64_t g = 0; g < groups; ++g) {
    PackPanels(source, g, packed.as<std::byte>() + g * (num_bytes / groups));
  }
  return {source.spec, packed};
}

void Linear(const Context& context, const LinearParams& p, ThreadPool& pool) {
  const PackedWeight& weight = p.weight;
  const int64_t rows = p.x.shape[0];
  const int64_t num_panels = CeilDiv(weight.n, kPanelOutputs);
  const int64_t total_ns = weight.groups * GemmNs(rows, weight.n, weight.k, weight.format);
  const Split split = SplitGemm(rows, num_panels, weight.groups, total_ns, context.simd.row_block,
                                pool.num_threads());
  if (rows == 0) return;
  const int64_t row_tasks = CeilDiv(rows, split.rows);
  const int64_t panel_tasks = CeilDiv(num_panels, split.panels);
  const int64_t out_bytes = BytesPerElement(p.out.dtype);
  const auto run = [&](int64_t task) {
    const int64_t first_row = task % row_tasks * split.rows;
    const int64_t first_panel = task / row_tasks % panel_tasks * split.panels;
    const int64_t group = task / row_tasks / panel_tasks;
    GemmArgs args = GemmOf(p.x.Rows(first_row, std::min(split.rows, rows - first_row)), weight,
                           group, p.round_fp8);
    SkipPanels(first_panel, &args);
    args.n = std::min(args.n, split.panels * kPanelOutputs);
    const int64_t first_output = group * weight.n + first_panel * kPanelOutputs;
    args.out = p.out.as<std::byte>() + (first_row * p.out.strides[0] + first_output) * out_bytes;
    args.out_bf16 = p.out.dtype == DType::kBf16;
    args.out_stride = p.out.strides[0];
    RunGemm(context.simd, args);
  };
  const int64_t num_tasks = row_tasks * panel_tasks * weight.groups;
  if (total_ns < 2 * kMinTaskNs) {
    for (int64_t task = 0; task < num_tasks; ++task) run(task);
  } else {
    pool.ParallelFor(num_tasks, run);
  }
}

}  // namespace lodestone::cpu
