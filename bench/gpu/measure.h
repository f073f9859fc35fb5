#pragma once

#include <algorithm>
#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include "kernels/cuda/cuda_check.h"

// Timing of queued work, and the table and JSON of what was measured.
namespace lodestone::cuda::bench {

// Median microseconds of one of `launches` calls of `queue(i, stream)`, replayed as one graph. Give
// each i other inputs, so that the L2 cache holds no more than it would in use. `after(stream)`
// queues what belongs to no time behind the last replay.
inline double GraphMicroseconds(
    int launches, const std::function<void(int, cudaStream_t)>& queue,
    const std::function<void(cudaStream_t)>& after = [](cudaStream_t) {}) {
  constexpr int kReplays = 7;
  cudaStream_t stream = nullptr;
  CUDA_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t exec = nullptr;
  CUDA_CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  for (int i = 0; i < launches; ++i) queue(i, stream);
  CUDA_CHECK(cudaStreamEndCapture(stream, &graph));
  CUDA_CHECK(cudaGraphInstantiate(&exec, graph, 0));
  cudaEvent_t begin = nullptr;
  cudaEvent_t end = nullptr;
  CUDA_CHECK(cudaEventCreate(&begin));
  CUDA_CHECK(cudaEventCreate(&end));
  std::vector<double> times;
  for (int i = 0; i < kReplays + 2; ++i) {
    CUDA_CHECK(cudaEventRecord(begin, stream));
    CUDA_CHECK(cudaGraphLaunch(exec, stream));
    CUDA_CHECK(cudaEventRecord(end, stream));
    if (i == kReplays + 1) after(stream);
    CUDA_CHECK(cudaStreamSynchronize(stream));
    float milliseconds = 0;
    CUDA_CHECK(cudaEventElapsedTime(&milliseconds, begin, end));
    if (i >= 2) times.push_back(1e3 * static_cast<double>(milliseconds) / launches);
  }
  CUDA_CHECK(cudaGraphExecDestroy(exec));
  CUDA_CHECK(cudaGraphDestroy(graph));
  CUDA_CHECK(cudaEventDestroy(begin));
  CUDA_CHECK(cudaEventDestroy(end));
  CUDA_CHECK(cudaStreamDestroy(stream));
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

struct Ceilings {
  double read_bytes = 0;  // per second, a reduction over 4 GiB
  double bf16_flops = 0;  // per second, a product of 8,192 x 8,192 x 8,192
};

struct Work {
  double bytes = 0;
  double flops = 0;
  double megahertz = 0;  // of the multiprocessors meanwhile; 0: not measured
};

// Prints one line per measurement and keeps them for the JSON file.
class Report {
 public:
  explicit Report(const Ceilings& ceilings) : ceilings_(ceilings) {}
  void Add(const std::string& op, const std::string& shape, double microseconds, const Work& work) {
    const double byte_us = 1e6 * work.bytes / ceilings_.read_bytes;
    const double flop_us = 1e6 * work.flops / ceilings_.bf16_flops;
    const double bound = std::max(byte_us, flop_us);
    std::printf("%-18s %-24s %10.2f us  bound %9.2f us (%s)  share %.2f", op.c_str(), shape.c_str(),
                microseconds, bound, byte_us >= flop_us ? "bytes" : "flops", bound / microseconds);
    if (work.megahertz > 0) std::printf("  SM %.0f MHz", work.megahertz);
    std::printf("\n");
    char line[512];
    std::snprintf(line, sizeof(line),
                  "{\"op\": \"%s\", \"shape\": \"%s\", \"us\": %.3f, \"bound_us\": %.3f, "
                  "\"bound\": \"%s\", \"share\": %.3f, \"sm_mhz\": %.0f}",
                  op.c_str(), shape.c_str(), microseconds, bound,
                  byte_us >= flop_us ? "bytes" : "flops", bound / microseconds, work.megahertz);
    lines_.push_back(line);
  }
  void WriteJson(const char* path, const std::string& card) const {
    std::FILE* file = std::fopen(path, "w");
    if (file == nullptr) return;
    std::fprintf(file,
                 "{\"card\": \"%s\", \"read_bytes_per_second\": %.4g, \"bf16_flops_per_second\": "
                 "%.4g, \"results\": [\n",
                 card.c_str(), ceilings_.read_bytes, ceilings_.bf16_flops);
    for (size_t i = 0; i < lines_.size(); ++i) {
      std::fprintf(file, "  %s%s\n", lines_[i].c_str(), i + 1 < lines_.size() ? "," : "");
    }
    std::fprintf(file, "]}\n");
    std::fclose(file);
  }

 private:
  Ceilings ceilings_;
  std::vector<std::string> lines_;
};

}  // namespace lodestone::cuda::bench
