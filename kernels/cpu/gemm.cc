#include "kernels/cpu/gemm.h"

#include <cstring>

#include "base/logging.h"
#include "kernels/cpu/parallel.h"

namespace lodestone::cpu {
namespace {

int64_t PanelBytes(const PackedWeight& weight) {
  return weight.k * kPanelOutputs * BytesPerElement(weight.dtype);
}

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

int64_t GemmNs(int64_t rows, int64_t n, int64_t k, bool w_bf16) {
  constexpr int64_t kFlopsPerNs = 100;
  constexpr int64_t kBytesPerNs = 25;
  return std::max(2 * rows * n * k / kFlopsPerNs, n * k * (w_bf16 ? 2 : 4) / kBytesPerNs);
}

GemmArgs GemmOf(const TensorView& x, const PackedWeight& weight, int64_t group) {
  const int64_t x_offset = group * weight.k * BytesPerElement(x.dtype);
  const int64_t panels = CeilDiv(weight.n, kPanelOutputs);
  GemmArgs args;
  args.x = x.as<std::byte>() + x_offset;
  args.x_bf16 = x.dtype == DType::kBf16;
  args.x_stride = x.strides[0];
  args.num_rows = x.shape[0];
  args.panels = weight.data.as<std::byte>() + group * panels * PanelBytes(weight);
  args.w_bf16 = weight.dtype == DType::kBf16;
  args.n = weight.n;
  args.k = weight.k;
  return args;
}

void SkipPanels(int64_t first_panel, GemmArgs* args) {
  const int64_t panel_bytes = args->k * kPanelOutputs * (args->w_bf16 ? 2 : 4);
  args->panels = static_cast<const std::byte*>(args->panels) + first_panel * panel_bytes;
  args->n -= first_panel * kPanelOutputs;
}

int64_t PackedBytes(DType dtype, int64_t n, int64_t k, int64_t groups) {
  return groups * RoundUp(n, kPanelOutputs) * k * BytesPerElement(dtype);
}

PackedWeight PackWeight(const TensorView& source, int64_t groups, const TensorView& packed) {
  CHECK(source.rank == 2 && groups >= 1 && source.shape[0] % groups == 0)
      << "PackWeight: source is " << source.ShapeString() << " in " << groups << " groups";
  CHECK(source.dtype == DType::kBf16 || source.dtype == DType::kF32)
      << "PackWeight: source is " << source.ShapeString() << ", want BF16 or F32";
  const int64_t n = source.shape[0] / groups;
  const int64_t k = source.shape[1];
  const int64_t num_bytes = PackedBytes(source.dtype, n, k, groups);
  CHECK(packed.num_bytes() >= num_bytes)
      << "PackWeight: packed has " << packed.num_bytes() << " bytes, want " << num_bytes;
  for (int64_t g = 0; g < groups; ++g) {
    std::byte* out = packed.as<std::byte>() + g * (num_bytes / groups);
    if (source.dtype == DType::kBf16) {
      PackGroup(source.row<uint16_t>(g * n), source.strides[0], n, k,
                reinterpret_cast<uint16_t*>(out));
    } else {
      PackGroup(source.row<float>(g * n), source.strides[0], n, k, reinterpret_cast<float*>(out));
    }
  }
  return {.data = packed, .n = n, .k = k, .groups = groups, .dtype = source.dtype};
}

void Linear(const Context& context, const LinearParams& p, ThreadPool& pool) {
  const PackedWeight& weight = p.weight;
  const int64_t rows = p.x.shape[0];
  const int64_t num_panels = CeilDiv(weight.n, kPanelOutputs);
  const int64_t total_ns =
      weight.groups * GemmNs(rows, weight.n, weight.k, weight.dtype == DType::kBf16);
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
    GemmArgs args =
        GemmOf(p.x.Rows(first_row, std::min(split.rows, rows - first_row)), weight, group);
    SkipPanels(first_panel, &args);
    args.n = std::min(args.n, split.panels * kPanelOutputs);
    const int64_t first_output = group * weight.n + first_panel * kPanelOutputs;
    args.out = p.out.as<std::byte>() + (first_row * p.out.strides[0] + first_output) * out_bytes;
    args.out_bf16 = p.out.dtype == DType::kBf16;
    args.out_stride = p.out.strides[0];
    context.simd.gemm(args);
  };
  const int64_t num_tasks = row_tasks * panel_tasks * weight.groups;
  if (total_ns < 2 * kMinTaskNs) {
    for (int64_t task = 0; task < num_tasks; ++task) run(task);
  } else {
    pool.ParallelFor(num_tasks, run);
  }
}

}  // namespace lodestone::cpu
