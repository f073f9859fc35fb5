#include "tests/nccl/gpu_side.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <regex>

#include "kernels/cuda/cuda_ops.h"

namespace lodestone::nccl {
namespace {

void AppendBytes(const RowRun& run, std::vector<std::byte>& bytes) {
  for (int part = 0; part < run.num_parts; ++part) {
    std::vector<std::byte> rows(static_cast<size_t>(run.num_rows * run.part_bytes[part]));
    cudaMemcpy2D(rows.data(), static_cast<size_t>(run.part_bytes[part]), run.At(part, 0),
                 static_cast<size_t>(run.part_stride[part]),
                 static_cast<size_t>(run.part_bytes[part]), static_cast<size_t>(run.num_rows),
                 cudaMemcpyDeviceToHost);
    bytes.insert(bytes.end(), rows.begin(), rows.end());
  }
}

}  // namespace

GpuSide::GpuSide(DeviceId device, const CacheShape& shape, int64_t tokens)
    : stream(Stream::Create(device, &threads).value()), ops(MakeCudaOps(device).value()) {
  PlanInput input;
  input.shape = shape;
  input.memory_limit_bytes = int64_t{8} << 30;
  input.max_sequences = 6;
  input.max_context = tokens;
  pool = CachePool::Create(PlanMemory(input).value(), FreedPages::kKeep, &stream).value();
}

LinkTimes TimesOfWorkers() {
  LinkTimes times;
  times.spin = std::chrono::milliseconds(3);
  return times;
}

std::vector<RowRun> PiecesOf(const std::vector<RowRun>& runs) {
  std::vector<RowRun> pieces;
  for (const RowRun& run : runs) {
    for (int64_t row = 0; row < run.num_rows;) {
      int64_t count = run.num_rows - row;
      if (run.pages != nullptr) {
        const int64_t in_page = (run.first_in_page + row) % run.rows_per_page;
        count = std::min(count, run.rows_per_page - in_page);
      }
      pieces.push_back(run.Rows(row, count));
      row += count;
    }
  }
  return pieces;
}

void FillRuns(const std::vector<RowRun>& runs, DeviceId device) {
  cudaSetDevice(device.cuda);
  int value = 1;
  for (const RowRun& run : PiecesOf(runs)) {
    for (int part = 0; part < run.num_parts; ++part) {
      value = value * 37 % 251;
      cudaMemset2DAsync(run.At(part, 0), static_cast<size_t>(run.part_stride[part]), value,
                        static_cast<size_t>(run.part_bytes[part]),
                        static_cast<size_t>(run.num_rows));
    }
  }
  cudaDeviceSynchronize();
}

std::vector<std::byte> SampleOf(const std::vector<RowRun>& runs) {
  const std::vector<RowRun> pieces = PiecesOf(runs);
  std::vector<std::byte> bytes;
  for (size_t i = 0; i < pieces.size(); i += 1 + pieces.size() / 40) AppendBytes(pieces[i], bytes);
  return bytes;
}

std::string MeanPhases(Metrics& metrics) {
  const std::regex line("seconds_(sum|count)\\{[^}]*phase=\"([a-z]+)\"[^}]*\\} ([0-9.e+-]+)");
  const std::string all = metrics.RenderText();
  std::map<std::string, std::pair<double, double>> phases;
  for (std::sregex_iterator it(all.begin(), all.end(), line), end; it != end; ++it) {
    auto& [sum, count] = phases[(*it)[2]];
    ((*it)[1] == "sum" ? sum : count) += std::stod((*it)[3]);
  }
  std::string text;
  for (const auto& [phase, total] : phases) {
    char one[64];
    std::snprintf(one, sizeof(one), " %s %.3f", phase.c_str(), 1e3 * total.first / total.second);
    text += one;
  }
  return text;
}

}  // namespace lodestone::nccl
