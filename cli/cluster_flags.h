#pragma once

#include <string>
#include <vector>

#include "base/config.h"
#include "cli/cluster.h"

namespace lodestone {

inline constexpr char kWorkerGroup[] = "Workers (\"\": as their own --help says)";

// The settings that `up` and `verify` hand on to the processes they start. Empty means that the
// process decides; the processes check the values.
struct ClusterFlags {
  std::string model;
  std::string overlay;
  std::string numerics;
  std::string device;
  std::string index_k;
  std::string kv;
  std::string memory;
  std::string threads;
  std::string max_sequences;
  std::string max_context;
  std::string chunk_tokens;
  std::vector<std::string> router_flags;
  std::vector<std::string> prefill_flags;
  std::vector<std::string> decode_flags;
  int64_t num_prefill = 1;
  int64_t num_decode = 1;
  std::string run_dir;

  template <typename Visitor>
  void VisitFields(Visitor& visit) {
    visit(model, "model", "checkpoint folder", "Cluster", FieldTraits{.required = true});
    visit(num_prefill, "prefill", "prefill workers", "Cluster");
    visit(num_decode, "decode", "decode workers", "Cluster");
    visit(run_dir, "run-dir", "folder of logs and cluster.json; empty = a new temporary one",
          "Cluster");
    visit(overlay, "overlay", "safetensors file that replaces tensors", kWorkerGroup);
    visit(numerics, "numerics", "auto, reference, plain or exact", kWorkerGroup);
    visit(device, "device",
          "what workers compute on: cpu or cuda:N; several, as in cuda:0,cuda:1, are given to "
          "workers in turn, prefill first",
          kWorkerGroup);
    visit(index_k, "index-k", "index keys as bf16, fp8 or fp4", kWorkerGroup);
    visit(kv, "kv", "latents as bf16 or fp8", kWorkerGroup);
    visit(memory, "memory", "bytes that each worker may use, e.g. 1GiB", kWorkerGroup);
    visit(threads, "threads", "compute threads of each worker; 0 = one per processor it may use",
          kWorkerGroup);
    visit(max_sequences, "max-sequences", "most requests at once on a worker", kWorkerGroup);
    visit(max_context, "max-context", "most tokens of one request", kWorkerGroup);
    visit(chunk_tokens, "chunk-tokens", "prompt tokens of one prefill step", kWorkerGroup);
    visit(router_flags, "router-flag",
          "any other flag of the router: --router-flag=--max-running=4", kWorkerGroup);
    visit(prefill_flags, "prefill-flag", "any other flag of the prefill workers", kWorkerGroup);
    visit(decode_flags, "decode-flag", "any other flag of the decode workers", kWorkerGroup);
  }

  // INVALID_ARGUMENT for impossible counts, devices, or a folder that is no checkpoint.
  absl::Status Validate() const;
  // bin_dir is that of this program; run_dir is made up if it is empty.
  ClusterOptions ToClusterOptions() const;
  // The names in `device`, in order.
  std::vector<std::string> Devices() const;
};

}  // namespace lodestone
