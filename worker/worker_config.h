#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/config.h"
#include "engine/engine_options.h"

namespace lodestone {

// The settings that prefill and decode workers share. Ports and role-specific settings are in
// prefill/config.h and decode/config.h, which nest this.
struct WorkerConfig {
  std::string model;
  std::string overlay;
  bool verify_weights = false;
  std::string numerics = "auto";
  std::string index_k = "auto";
  std::string kv = "auto";

  std::string device = "cpu";
  std::string cuda_graphs = "on";
  int64_t threads = 0;
  ByteSize memory{int64_t{1} << 30};
  int64_t max_sequences = 16;
  int64_t max_context = 0;
  ByteSize staging_slot{int64_t{4} << 20};
  int64_t staging_slots = 4;
  std::string transport = "auto";
  int64_t nccl_ctas = 8;
  int64_t nccl_links = 8;

  std::string bind = "127.0.0.1";
  std::string advertise;  // "": the bind address
  std::vector<std::string> routers;
  std::chrono::milliseconds drain_timeout{120'000};
  LoggingConfig logging;

  template <typename Visitor>
  void VisitFields(Visitor& visit) {
    visit(model, "model", "checkpoint folder (config.json, tokenizer.json, *.safetensors)", "Model",
          FieldTraits{.required = true});
    visit(overlay, "overlay", "safetensors file whose tensors replace those of the checkpoint",
          "Model");
    visit(verify_weights, "verify-weights", "hash every byte of the weights into the model id",
          "Model");
    visit(numerics, "numerics", "what is rounded; auto: what the checkpoint was trained for",
          "Model", FieldTraits{.allowed = {"auto", "reference", "plain", "exact"}});
    visit(index_k, "index-k", "storage of index keys; auto: bf16 (f32 under exact numerics)",
          "Cache", FieldTraits{.allowed = {"auto", "bf16", "fp8", "fp4", "f32"}});
    visit(kv, "kv", "storage of latents; auto: bf16 (f32 under exact numerics)", "Cache",
          FieldTraits{.allowed = {"auto", "bf16", "fp8", "f32"}});
    visit(device, "device", "what computes and holds weights and caches: cpu or cuda:N", "Compute");
    visit(cuda_graphs, "cuda-graphs",
          "decode steps of a CUDA device as graphs; off: every kernel launched by itself",
          "Compute", FieldTraits{.allowed = {"on", "off"}});
    visit(threads, "threads", "compute threads of the device cpu; 0 = one per processor it may use",
          "Compute");
    visit(memory, "memory",
          "bytes of the device for weights, caches, buffers and scratch together; what NCCL takes "
          "for its links comes on top",
          "Cache");
    visit(max_sequences, "max-sequences", "most requests at once", "Cache");
    visit(max_context, "max-context", "most tokens of one request; 0 = what the model allows",
          "Cache");
    visit(staging_slot, "staging-slot", "bytes of one hand-off slot", "Hand-off");
    visit(staging_slots, "staging-slots", "number of hand-off slots, for each transport",
          "Hand-off");
    visit(transport, "transport",
          "what caches travel over; auto: nccl between two GPUs where it can be loaded, else tcp",
          "Hand-off", FieldTraits{.allowed = {"auto", "nccl", "tcp"}});
    visit(nccl_ctas, "nccl-ctas",
          "multiprocessors of the GPU for one link over nccl, the same on all workers", "Hand-off");
    visit(nccl_links, "nccl-links", "most links over nccl at once", "Hand-off");
    visit(bind, "bind", "address to listen on", "Network");
    visit(advertise, "advertise",
          "host name or address that others reach this worker by; default --bind", "Network");
    visit(routers, "router", "HOST:PORT of a router's gRPC port; repeat for several", "Network");
    visit(drain_timeout, "drain-timeout",
          "longest wait for running requests at SIGTERM; SIGINT after that ends it at once",
          "Network");
    logging.VisitFields(visit);
  }
};

// HOST:PORT, [HOST]:PORT for IPv6, with a port of 1 to 65535. INVALID_ARGUMENT with the text.
absl::Status CheckRouterAddress(const std::string& address);

// The engine's options. `max_batch_tokens` is the role's. The tokenizer of the checkpoint folder is
// read for its fingerprint. INVALID_ARGUMENT naming the flag and its value, or the file of the
// checkpoint folder that does not fit.
absl::StatusOr<EngineOptions> ToEngineOptions(const WorkerConfig& config, int64_t max_batch_tokens);

}  // namespace lodestone
