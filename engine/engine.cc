#include "engine/engine.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include "base/logging.h"
#include "base/out_of_memory.h"
#include "base/processors.h"
#include "base/status_macros.h"
#include "base/thread_pool.h"
#include "engine/batch.h"
#include "engine/sampler.h"
#include "kernels/cuda/cuda_ops.h"
#include "model/checkpoint.h"
#include "model/device_weights.h"
#include "model/transformer.h"
#include "runtime/graph.h"

namespace lodestone {
namespace {

CacheShape ShapeOf(const ModelConfig& config, const FormatChoice& formats) {
  return {.compress_ratios = {config.compress_ratios.begin(), config.compress_ratios.end()},
          .head_dim = config.head_dim,
          .rope_dim = config.rope_dims,
          .index_head_dim = config.index_head_dim,
          .window = config.window,
          .kv_format = formats.kv,
          .index_key_format = formats.index_key};
}

LayoutIdentity IdentityOf(const ModelConfig& config, const FormatChoice& formats,
                          const std::string& model_id, const std::string& tokenizer) {
  const YarnScaling& yarn = config.yarn;
  return {.model_id = model_id,
          .tokenizer_fingerprint = tokenizer,
          .numerics = formats.numerics,
          .rope_theta = config.rope_theta,
          .compress_rope_theta = config.compress_rope_theta,
          .rope_scaling = "yarn factor=" + std::to_string(yarn.factor) +
                          " original=" + std::to_string(yarn.original_positions) +
                          " fast=" + std::to_string(yarn.beta_fast) +
                          " slow=" + std::to_string(yarn.beta_slow)};
}

absl::StatusOr<int64_t> ContextOf(const EngineOptions& options, const ModelConfig& config) {
  if (options.max_context_tokens > config.max_context_tokens) {
    return absl::InvalidArgumentError(
        "max context of " + std::to_string(options.max_context_tokens) +
        " tokens is more than the model's " + std::to_string(config.max_context_tokens));
  }
  return options.max_context_tokens > 0 ? options.max_context_tokens : config.max_context_tokens;
}

ForwardLimits LimitsOf(const EngineOptions& options, int64_t max_context) {
  return {.max_tokens = std::max(options.max_batch_tokens, options.max_sequences),
          .max_logit_rows = options.max_sequences,
          .max_context = max_context};
}

}  // namespace

int NumComputeThreads(const EngineOptions& options) {
  if (options.num_threads > 0) return options.num_threads;
  return UsableProcessors();
}

absl::StatusOr<MemoryPlan> PlanEngine(const EngineOptions& options, const ModelConfig& config,
                                      const FormatChoice& formats, const Ops& ops) {
  ASSIGN_OR_RETURN(const int64_t max_context, ContextOf(options, config));
  const ForwardLimits limits = LimitsOf(options, max_context);
  const int64_t logits_bytes = limits.max_logit_rows * config.vocab_size * int64_t{sizeof(float)};
  const int64_t batch_bytes =
      options.device.is_host()
          ? 0
          : Batch::DeviceBytes(limits.max_tokens, options.max_sequences, max_context);
  return PlanMemory(
      {.shape = ShapeOf(config, formats),
       .memory_limit_bytes = options.memory_limit_bytes,
       .weight_bytes = WeightBytes(config, ops),
       .scratch_bytes = Transformer::WorkspaceBytes(config, ops, formats, limits) + logits_bytes +
                        batch_bytes,
       .staging_bytes = options.staging_bytes,
       .transport_bytes = options.transport_bytes,
       .max_sequences = options.max_sequences,
       .max_context = max_context});
}

namespace {

constexpr int kMaxSampleThreads = 8;  // beside a GPU

// What ops run on, and the ops.
struct Backend {
  std::unique_ptr<ThreadPool> pool;
  Stream stream;
  std::unique_ptr<Ops> ops;
};

absl::StatusOr<Backend> MakeBackend(const EngineOptions& options) {
  if (options.device.is_host()) {
    if (!CpuOpsSupported()) {
      return absl::UnavailableError(
          "this processor lacks AVX2 or FMA, which the CPU backend needs");
    }
    auto pool = std::make_unique<ThreadPool>(NumComputeThreads(options));
    Stream stream(pool.get());
    std::unique_ptr<Ops> ops = MakeCpuOps(pool->num_threads());
    return Backend{std::move(pool), std::move(stream), std::move(ops)};
  }
  auto pool = std::make_unique<ThreadPool>(std::min(NumComputeThreads(options), kMaxSampleThreads));
  ASSIGN_OR_RETURN(Stream stream, Stream::Create(options.device, pool.get()));
  ASSIGN_OR_RETURN(std::unique_ptr<Ops> ops, MakeCudaOps(options.device));
  return Backend{std::move(pool), std::move(stream), std::move(ops)};
}

absl::Status CheckFormats(DeviceId device, const FormatChoice& formats) {
  if (device.is_host()) return absl::OkStatus();
  if (formats.numerics == Numerics::kExact) {
    return absl::InvalidArgumentError("numerics exact are for the device cpu only, not for " +
                                      Name(device));
  }
  return absl::OkStatus();
}

}  // namespace

constexpr int kMaxLoadThreads = 16;  // more than memory's bandwidth has use for

// A sequence and the logits of its next token.
struct SampleTask {
  Sequence* sequence = nullptr;
  std::span<float> logits;
};

struct Engine::Impl {
  Impl(const EngineOptions& engine_options, ModelConfig model_config, FormatChoice format_choice,
       Backend backend)
      : options(engine_options),
        config(std::move(model_config)),
        formats(format_choice),
        pool(std::move(backend.pool)),
        stream(std::move(backend.stream)),
        ops(std::move(backend.ops)) {}

  absl::Status Load(const Checkpoint& checkpoint);
  absl::Status CheckParts(std::span<const StepPart> parts) const;
  bool UsesGraph(std::span<const StepPart> parts) const;
  ForwardArgs PassArgs() const;
  void QueuePass();  // over what the batch was filled with
  void RunPlain(std::span<const StepPart> parts);
  void RunGraph(std::span<const StepPart> parts);
  absl::StatusOr<StepResult> Sample(Sequence& sequence, std::span<float> row) const;
  absl::StatusOr<std::vector<StepResult>> SampleAll(std::span<const SampleTask> tasks) const;
  absl::StatusOr<std::vector<ForkResult>> SampleForks(Sequence& sequence,
                                                      std::span<const float> row) const;

  const EngineOptions options;
  const ModelConfig config;
  const FormatChoice formats;
  const std::unique_ptr<ThreadPool> pool;
  Stream stream;
  const std::unique_ptr<Ops> ops;
  LayoutDescriptor layout;
  std::string model_id;
  Weights weights;
  std::unique_ptr<CachePool> cache;
  std::unique_ptr<Transformer> transformer;
  std::unique_ptr<Batch> batch;
  Buffer workspace;
  Buffer logits;
  Buffer host_logits;  // where the ops do not work on the host
  std::map<StepBucket, Graph> graphs;  // of decode steps, each captured when first needed
  bool no_more_graphs = false;  // one could not be had
};

absl::Status Engine::Impl::Load(const Checkpoint& checkpoint) {
  model_id = checkpoint.model_id();
  layout = DescribeLayout(ShapeOf(config, formats),
                          IdentityOf(config, formats, model_id, options.tokenizer_fingerprint));
  ASSIGN_OR_RETURN(const MemoryPlan plan, PlanEngine(options, config, formats, *ops));
  const MemoryPlace place = WorkMemory(options.device);
  ASSIGN_OR_RETURN(cache, CachePool::Create(plan, options.freed_pages, &stream));
  ASSIGN_OR_RETURN(weights, LoadWeights(config, checkpoint, *ops, options.progress,
                                        std::min(NumComputeThreads(options), kMaxLoadThreads)));
  if (!options.device.is_host()) {
    ASSIGN_OR_RETURN(weights, CopyToDevice(std::move(weights), options.device));
  }
  const ForwardLimits limits = LimitsOf(options, plan.max_context);
  ASSIGN_OR_RETURN(
      workspace,
      Buffer::Allocate(Transformer::WorkspaceBytes(config, *ops, formats, limits), place));
  const int64_t logits_bytes = limits.max_logit_rows * config.vocab_size * int64_t{sizeof(float)};
  ASSIGN_OR_RETURN(logits, Buffer::Allocate(logits_bytes, place));
  transformer = std::make_unique<Transformer>(config, weights, *ops, formats);
  batch = std::make_unique<Batch>(limits.max_tokens, options.max_sequences);
  int64_t batch_bytes = 0;
  if (!options.device.is_host()) {
    ASSIGN_OR_RETURN(host_logits, Buffer::Allocate(logits_bytes, SharedMemory(options.device)));
    RETURN_IF_ERROR(batch->MoveTo(&stream, plan.max_context));
    batch_bytes = Batch::DeviceBytes(limits.max_tokens, options.max_sequences, plan.max_context);
  }
  Ledger& ledger = cache->ledger();
  ledger.SetUsed(MemoryPool::kWeights, weights.memory.size());
  ledger.SetUsed(MemoryPool::kScratch, workspace.size() + logits.size() + batch_bytes);
  ledger.SetUsed(MemoryPool::kStaging, options.staging_bytes);
  ledger.SetUsed(MemoryPool::kTransport, options.transport_bytes);
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Engine>> Engine::Create(const EngineOptions& options) {
  return CatchOutOfMemory("for an engine", [&options] { return TryCreate(options); });
}

absl::StatusOr<std::unique_ptr<Engine>> Engine::TryCreate(const EngineOptions& options) {
  ASSIGN_OR_RETURN(Backend backend, MakeBackend(options));
  ASSIGN_OR_RETURN(const Checkpoint checkpoint,
                   Checkpoint::Open(options.model_dir, {.overlay = options.overlay,
                                                        .verify_weights = options.verify_weights}));
  ASSIGN_OR_RETURN(const FormatChoice formats, ChooseFormats(checkpoint.config(), options.numerics,
                                                             options.kv, options.index_key));
  RETURN_IF_ERROR(CheckFormats(options.device, formats));
  auto impl =
      std::make_unique<Impl>(options, checkpoint.config(), formats, std::move(backend));
  RETURN_IF_ERROR(impl->Load(checkpoint));
  return std::unique_ptr<Engine>(new Engine(std::move(impl)));
}

Engine::Engine(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Engine::~Engine() = default;

const ModelConfig& Engine::config() const { return impl_->config; }
const EngineOptions& Engine::options() const { return impl_->options; }
const FormatChoice& Engine::formats() const { return impl_->formats; }
const MemoryPlan& Engine::plan() const { return impl_->cache->plan(); }
const LayoutDescriptor& Engine::layout() const { return impl_->layout; }
const std::string& Engine::model_id() const { return impl_->model_id; }
CachePool& Engine::cache() { return *impl_->cache; }
const Ops& Engine::ops() const { return *impl_->ops; }
Stream& Engine::stream() { return impl_->stream; }

absl::Status Engine::CheckRequest(std::span<const int32_t> tokens, int32_t num_generated,
                                  const SamplingParams& sampling) const {
  return CheckRequest(tokens, num_generated, sampling,
                      WorstCaseTokens(std::ssize(tokens), num_generated, sampling));
}

absl::Status Engine::CheckRequest(std::span<const int32_t> tokens, int32_t num_generated,
                                  const SamplingParams& sampling, int64_t cache_tokens) const {
  if (tokens.empty()) return absl::InvalidArgumentError("the prompt is empty");
  if (num_generated < 0 || num_generated >= std::ssize(tokens)) {
    return absl::InvalidArgumentError(std::to_string(num_generated) + " generated tokens of " +
                                      std::to_string(tokens.size()) + " leave no prompt");
  }
  RETURN_IF_ERROR(CheckSamplingParams(sampling, config().vocab_size));
  if (num_generated >= sampling.max_new_tokens) {
    return absl::InvalidArgumentError(std::to_string(num_generated) + " tokens are generated, " +
                                      "max_new_tokens is " +
                                      std::to_string(sampling.max_new_tokens));
  }
  for (int32_t token : tokens) {
    if (token < 0 || token >= config().vocab_size) {
      return absl::InvalidArgumentError("token id " + std::to_string(token) +
                                        " is outside the vocabulary of " +
                                        std::to_string(config().vocab_size));
    }
  }
  if (cache_tokens > plan().max_context) {
    const std::string what =
        cache_tokens > std::ssize(tokens) ? "prompt and answer have " : "the prompt has ";
    return absl::InvalidArgumentError(what + std::to_string(cache_tokens) +
                                      " tokens, the context is " +
                                      std::to_string(plan().max_context));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Sequence>> Engine::NewSequence(std::vector<int32_t> tokens,
                                                              int32_t num_generated,
                                                              const SamplingParams& sampling,
                                                              int64_t cache_tokens) {
  RETURN_IF_ERROR(CheckRequest(tokens, num_generated, sampling, cache_tokens));
  ASSIGN_OR_RETURN(std::unique_ptr<SequenceCache> cache,
                   impl_->cache->MakeSequenceFor(cache_tokens));
  return CatchOutOfMemory("for a sequence", [&]() -> absl::StatusOr<std::unique_ptr<Sequence>> {
    return std::make_unique<Sequence>(std::move(cache), std::move(tokens), num_generated, sampling);
  });
}

absl::Status Engine::Impl::CheckParts(std::span<const StepPart> parts) const {
  int64_t num_tokens = 0;
  int64_t num_rows = 0;
  for (const StepPart& part : parts) {
    CHECK(part.num_tokens > 0 && part.num_tokens <= part.sequence->num_pending())
        << part.num_tokens << " tokens of a sequence with " << part.sequence->num_pending();
    num_tokens += part.num_tokens;
    num_rows += part.sequence->wants_prompt_logprobs() ? part.num_tokens : 1;
    RETURN_IF_ERROR(
        part.sequence->cache().Reserve(part.sequence->cache().length() + part.num_tokens));
  }
  CHECK_LE(num_tokens, std::max(options.max_batch_tokens, options.max_sequences));
  CHECK_LE(num_rows, options.max_sequences);
  return absl::OkStatus();
}

// Whether this is a decode step on a CUDA device: every part has one token, the last of its
// sequence. A probe waits for the stream, which a graph cannot.
bool Engine::Impl::UsesGraph(std::span<const StepPart> parts) const {
  return options.cuda_graphs && !options.device.is_host() && options.probe == nullptr &&
         std::ranges::all_of(parts, [](const StepPart& part) {
           return part.num_tokens == 1 && part.sequence->num_pending() == 1;
         });
}

// The pass over what the batch was filled with.
ForwardArgs Engine::Impl::PassArgs() const {
  const TensorView rows = batch->logit_rows();
  return {.ids = batch->ids(),
          .batch = batch->index(),
          .num_visible_indexed = batch->num_visible_indexed(),
          .max_visible_indexed = batch->max_visible_indexed(),
          .max_position = batch->max_position(),
          .caches = cache->layers(),
          .logit_rows = rows,
          .logits = TensorView(logits.data(), DType::kF32, {rows.shape[0], config.vocab_size}),
          .probe = options.probe,
          .layer_done = options.step_progress};
}

void Engine::Impl::RunPlain(std::span<const StepPart> parts) {
  batch->Fill(parts);
  QueuePass();
}

void Engine::Impl::QueuePass() {
  transformer->Forward(PassArgs(), {workspace.data(), static_cast<size_t>(workspace.size())},
                       stream);
}

// Without a graph, for lack of memory say, the same pass runs kernel by kernel.
void Engine::Impl::RunGraph(std::span<const StepPart> parts) {
  const StepBucket bucket = batch->FillUp(parts);
  if (const auto found = graphs.find(bucket); found != graphs.end()) return found->second.Replay();
  if (no_more_graphs) return QueuePass();
  absl::StatusOr<Graph> graph = Graph::Capture(stream, [this] { QueuePass(); });
  if (!graph.ok()) {
    LOG(WARNING) << "no graph of the decode step of " << bucket.num_seqs << " sequences, "
                 << bucket.num_columns << " pages each; it and other new ones run kernel by kernel "
                 << "from here on: " << graph.status().ToString();
    no_more_graphs = true;
    return QueuePass();
  }
  VLOG(1) << "captured the decode step of " << bucket.num_seqs << " sequences, "
          << bucket.num_columns << " pages each";
  graphs.emplace(bucket, *std::move(graph)).first->second.Replay();
}

absl::StatusOr<std::vector<StepResult>> Engine::Step(std::span<const StepPart> parts) {
  return CatchOutOfMemory("for a step", [&] { return TryStep(parts); });
}

absl::StatusOr<std::vector<StepResult>> Engine::TryStep(std::span<const StepPart> parts) {
  std::vector<StepResult> results;
  if (parts.empty()) return results;
  RETURN_IF_ERROR(impl_->CheckParts(parts));
  impl_->UsesGraph(parts) ? impl_->RunGraph(parts) : impl_->RunPlain(parts);
  const Batch& batch = *impl_->batch;
  const int64_t vocab = config().vocab_size;
  const int64_t num_rows = std::ssize(batch.logits());
  auto* logits = reinterpret_cast<float*>(impl_->logits.data());
  if (impl_->host_logits.size() > 0) {
    logits = reinterpret_cast<float*>(impl_->host_logits.data());
    impl_->stream.Copy(logits, impl_->logits.data(),
                       num_rows * vocab * static_cast<int64_t>(sizeof(float)));
  }
  RETURN_IF_ERROR(impl_->stream.Synchronize());
  for (const StepPart& part : parts) {
    part.sequence->cache().SetLength(part.sequence->cache().length() + part.num_tokens);
  }
  std::vector<SampleTask> tasks;
  for (int64_t i = 0; i < num_rows; ++i) {
    const Batch::LogitRow& wanted = batch.logits()[static_cast<size_t>(i)];
    Sequence& sequence = *parts[wanted.part].sequence;
    const std::span<float> row(logits + i * vocab, static_cast<size_t>(vocab));
    if (wanted.next >= sequence.num_tokens()) {
      tasks.push_back({&sequence, row});
      continue;
    }
    const int32_t token = sequence.tokens()[static_cast<size_t>(wanted.next)];
    RETURN_IF_ERROR(AppendPromptLogprob(row, token, sequence.sampling().top_logprobs,
                                        sequence.prompt_logprobs()));
  }
  return impl_->SampleAll(tasks);
}

// Each of another sequence, so that any thread may do any of them.
absl::StatusOr<std::vector<StepResult>> Engine::Impl::SampleAll(
    std::span<const SampleTask> tasks) const {
  std::vector<absl::StatusOr<StepResult>> sampled(tasks.size(), absl::UnknownError("not sampled"));
  pool->ParallelFor(std::ssize(tasks), [&](int64_t i) {
    const SampleTask& task = tasks[static_cast<size_t>(i)];
    sampled[static_cast<size_t>(i)] = CatchOutOfMemory(
        "for a token", [&] { return Sample(*task.sequence, task.logits); });
  });
  std::vector<StepResult> results;
  for (absl::StatusOr<StepResult>& result : sampled) {
    RETURN_IF_ERROR(result.status());
    results.push_back(*std::move(result));
  }
  return results;
}

absl::StatusOr<StepResult> Engine::Impl::Sample(Sequence& sequence, std::span<float> row) const {
  ASSIGN_OR_RETURN(std::vector<ForkResult> forks, SampleForks(sequence, row));
  ASSIGN_OR_RETURN(GeneratedToken token, SampleToken(row, sequence.sampling(),
                                                     {.prompt = sequence.prompt(),
                                                      .generated = sequence.generated(),
                                                      .eos_ids = config.eos_ids}));
  sequence.AppendGenerated(token.id);
  const FinishReason finish =
      FinishAfter(token.id, sequence.num_generated(), sequence.sampling(), config.eos_ids);
  return StepResult{&sequence, std::move(token), finish, std::move(forks)};
}

absl::StatusOr<std::vector<ForkResult>> Engine::Impl::SampleForks(
    Sequence& sequence, std::span<const float> row) const {
  std::vector<ForkResult> forks;
  SamplingParams sampling = sequence.sampling();
  for (const uint64_t seed : sequence.TakeForkSeeds()) {
    sampling.seed = seed;
    std::vector<float> changed(row.begin(), row.end());
    ASSIGN_OR_RETURN(GeneratedToken token, SampleToken(changed, sampling,
                                                       {.prompt = sequence.prompt(),
                                                        .generated = sequence.generated(),
                                                        .eos_ids = config.eos_ids}));
    const FinishReason finish =
        FinishAfter(token.id, sequence.num_generated() + 1, sampling, config.eos_ids);
    forks.push_back({std::move(token), finish});
  }
  return forks;
}

}  // namespace lodestone
