#include "tests/tools/scripted_workers.h"

#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include <grpcpp/grpcpp.h>

#include "base/ids.h"
#include "proto/lodestone/v1/worker.grpc.pb.h"

namespace lodestone {
namespace {

using Milliseconds = std::chrono::milliseconds;
constexpr Milliseconds kHeartbeat{100};
constexpr Milliseconds kTick{5};

// The registration of one worker, on a thread of its own.
class Registrar {
 public:
  Registrar(const std::string& router_address, v1::WorkerHello hello, v1::WorkerLoad load)
      : stub_(v1::WorkerRegistry::NewStub(
            grpc::CreateChannel(router_address, grpc::InsecureChannelCredentials()))),
        hello_(std::move(hello)),
        load_(std::move(load)),
        thread_([this]() { Run(); }) {}
  ~Registrar() { Stop(); }

  void Stop() {
    {
      std::lock_guard lock(mutex_);
      stopping_ = true;
      context_.TryCancel();
    }
    wake_.notify_all();
    if (thread_.joinable() && thread_.get_id() != std::this_thread::get_id()) thread_.join();
  }
  void Cancel() {
    std::lock_guard lock(mutex_);
    stopping_ = true;
    context_.TryCancel();
    wake_.notify_all();
  }
  void FallSilent() { silent_ = true; }
  void SetLoad(v1::WorkerLoad load) {
    std::lock_guard lock(mutex_);
    load_ = std::move(load);
  }
  v1::WorkerLoad load() const {
    std::lock_guard lock(mutex_);
    return load_;
  }
  std::string refusal() const {
    std::lock_guard lock(mutex_);
    return refusal_;
  }

 private:
  void Run() {
    const auto stream = stub_->Register(&context_);
    v1::WorkerReport report;
    *report.mutable_hello() = hello_;
    *report.mutable_load() = load();
    bool open = stream->Write(report);
    v1::RegistryReply reply;
    if (open && stream->Read(&reply) && !reply.accepted()) SetRefusal(reply.error().message());
    std::thread reader([&]() {  // notices the end of the stream
      v1::RegistryReply later;
      while (stream->Read(&later)) continue;
      std::lock_guard lock(mutex_);
      stopping_ = true;
      wake_.notify_all();
    });
    while (open && !WaitToStop()) {
      if (silent_) continue;
      v1::WorkerReport heartbeat;
      *heartbeat.mutable_load() = load();
      open = stream->Write(heartbeat);
    }
    reader.join();
    const grpc::Status status = stream->Finish();
    if (refusal().empty()) SetRefusal(status.error_message());
  }
  bool WaitToStop() {
    std::unique_lock lock(mutex_);
    return wake_.wait_for(lock, kHeartbeat, [this]() { return stopping_; });
  }
  void SetRefusal(const std::string& why) {
    std::lock_guard lock(mutex_);
    refusal_ = why;
  }

  std::unique_ptr<v1::WorkerRegistry::Stub> stub_;
  const v1::WorkerHello hello_;
  grpc::ClientContext context_;
  mutable std::mutex mutex_;
  std::condition_variable wake_;
  v1::WorkerLoad load_;
  std::string refusal_;
  bool stopping_ = false;
  std::atomic<bool> silent_ = false;
  std::thread thread_;
};

v1::WorkerHello MakeHello(const ScriptedModel& model, v1::WorkerRole role, const std::string& id,
                          const std::string& address) {
  v1::WorkerHello hello;
  hello.set_role(role);
  hello.set_instance_id(id);
  hello.set_address(address);
  const auto add_field = [&](const char* name, const std::string& value) {
    v1::LayoutField* field = hello.mutable_layout()->add_fields();
    field->set_name(name);
    field->set_value(value);
  };
  add_field("index_k", model.index_k);
  if (!model.tokenizer.empty()) add_field("tokenizer", model.tokenizer);
  hello.mutable_layout()->set_fingerprint(std::hash<std::string>()(model.index_k));
  hello.set_model_name(model.model_name);
  hello.set_model_id(model.model_id);
  hello.set_vocab_size(model.vocab_size);
  hello.set_max_context_tokens(model.max_context_tokens);
  hello.set_cache_capacity_bytes(model.cache_capacity_bytes);
  hello.set_max_sequences(256);
  hello.set_bytes_per_sequence(model.bytes_per_sequence);
  hello.set_bytes_per_page(model.bytes_per_page);
  hello.set_page_tokens(model.page_tokens);
  hello.set_version("scripted");
  hello.set_eos_token_id(model.eos_token_id);
  return hello;
}

v1::WorkerLoad ReadyLoad(int64_t free_bytes) {
  v1::WorkerLoad load;
  load.set_state(v1::WORKER_STATE_READY);
  load.set_free_bytes(free_bytes);
  load.set_free_sequences(256);
  return load;
}

// A server that can break all its connections at once.
class KillableServer {
 public:
  void Start(grpc::Service* service) {
    grpc::ServerBuilder builder;
    builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
    builder.RegisterService(service);
    server_ = builder.BuildAndStart();
  }
  std::string address() const { return "127.0.0.1:" + std::to_string(port_); }
  void Kill() {
    if (server_ != nullptr) server_->Shutdown(std::chrono::system_clock::now());
  }

 private:
  std::unique_ptr<grpc::Server> server_;
  int port_ = 0;
};

class ScriptedDecodeImpl final : public ScriptedDecode, public v1::DecodeService::Service {
 public:
  ScriptedDecodeImpl(const ScriptedModel& model, const std::string& router_address)
      : model_(model), free_bytes_(model.cache_capacity_bytes) {
    server_.Start(this);
    std::lock_guard lock(mutex_);  // a call that comes at once waits for the registrar
    registrar_ = std::make_unique<Registrar>(
        router_address, MakeHello(model, v1::WORKER_ROLE_DECODE, id_, server_.address()),
        ReadyLoad(free_bytes_));
    generator_ = std::thread([this]() { Generate(); });
  }
  ~ScriptedDecodeImpl() override {
    Kill();
    generator_.join();
    registrar_->Stop();
  }

  const std::string& instance_id() const override { return id_; }
  std::string address() const override { return server_.address(); }
  void Kill() override {
    {
      std::lock_guard lock(mutex_);
      dead_ = true;
      changed_.notify_all();
    }
    registrar_->Cancel();
    server_.Kill();
  }
  void FallSilent() override { registrar_->FallSilent(); }
  void DieAtToken(int64_t n) override { die_at_ = n; }
  void SetTokenPause(Milliseconds pause) override { pause_ms_ = pause.count(); }
  void SetTokensPerStep(int count) override { tokens_per_step_ = count; }
  void FailStreams(int count, int code) override {
    fail_code_ = code;
    fail_count_ = count;
  }
  void FailHandOffs(int count, int code) override {
    fail_code_ = code;
    fail_handoffs_ = count;
  }
  void RepeatTokens(bool repeat) override { repeat_ = repeat; }
  void SkipToken(int index) override { skip_ = index; }
  void SetState(int state, const std::string& reason) override {
    v1::WorkerLoad load = registrar_->load();
    load.set_state(static_cast<v1::WorkerState>(state));
    load.set_state_reason(reason);
    registrar_->SetLoad(load);
  }
  int64_t num_reserved() const override { return num_reserved_; }
  int64_t num_cancelled() const override { return num_cancelled_; }
  int64_t num_tokens_sent() const override { return num_sent_; }
  int64_t num_live() const override {
    std::lock_guard lock(mutex_);
    return static_cast<int64_t>(leases_.size());
  }
  std::string refusal() const override { return registrar_->refusal(); }
  bool WaitIdle() const override {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::seconds(5), [this]() { return leases_.empty(); });
  }

  void Adopt(uint64_t lease, const Adoption& adoption) override {
    std::lock_guard lock(mutex_);
    const auto found = leases_.find(lease);
    if (found == leases_.end()) return;
    found->second.adopted = true;
    found->second.script = adoption;
    changed_.notify_all();
  }

  grpc::Status Reserve(grpc::ServerContext*, const v1::ReserveRequest* request,
                       v1::ReserveReply* reply) override {
    std::lock_guard lock(mutex_);
    const int64_t tokens = request->prompt_tokens() + request->max_new_tokens();
    const int64_t pages = (tokens + model_.page_tokens - 1) / model_.page_tokens;
    const int64_t bytes = model_.bytes_per_sequence + pages * model_.bytes_per_page;
    const int64_t needed = bytes * (1 + request->num_forks());
    if (needed > free_bytes_) {
      return grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED,
                          "needs " + std::to_string(needed) + " bytes, free are " +
                              std::to_string(free_bytes_));
    }
    free_bytes_ -= needed;
    reply->set_lease_id(AddLease(bytes));
    for (int i = 0; i < request->num_forks(); ++i) reply->add_fork_lease_ids(AddLease(bytes));
    ++num_reserved_;
    UpdateLoad();
    reply->set_reserved_bytes(needed);
    reply->set_free_bytes(free_bytes_);
    return grpc::Status::OK;
  }

  grpc::Status Cancel(grpc::ServerContext*, const v1::CancelRequest* request,
                      v1::CancelReply* reply) override {
    std::lock_guard lock(mutex_);
    const auto found = leases_.find(request->lease_id());
    if (found == leases_.end()) return grpc::Status::OK;
    reply->set_released_bytes(found->second.bytes);
    ++num_cancelled_;
    Release(request->lease_id());
    return grpc::Status::OK;
  }

  grpc::Status Stream(grpc::ServerContext*,
                      grpc::ServerReaderWriter<v1::StreamReply, v1::StreamRequest>* stream) override {
    std::thread reader([&]() {
      v1::StreamRequest request;
      while (stream->Read(&request)) {
        std::lock_guard lock(mutex_);
        for (const uint64_t lease : request.subscribe()) {
          const auto found = leases_.find(lease);
          if (found != leases_.end()) found->second.subscribed = true;
        }
        changed_.notify_all();
      }
      std::lock_guard lock(mutex_);
      stream_ended_ = true;
      changed_.notify_all();
    });
    {
      std::lock_guard lock(mutex_);
      stream_ended_ = false;
    }
    while (std::optional<v1::StreamReply> reply = TakeReply()) {
      if (!stream->Write(*reply)) break;
    }
    reader.join();
    return grpc::Status::OK;
  }

 private:
  struct Lease {
    int64_t bytes = 0;
    bool subscribed = false;
    bool adopted = false;
    bool is_new = true;  // has sent nothing
    Adoption script;
  };

  uint64_t AddLease(int64_t bytes) {
    const uint64_t lease = RandomLeaseId().value();
    leases_[lease].bytes = bytes;
    return lease;
  }

  void UpdateLoad() {
    v1::WorkerLoad load = registrar_->load();
    load.set_free_bytes(free_bytes_);
    registrar_->SetLoad(load);
  }
  void Release(uint64_t lease) {
    free_bytes_ += leases_[lease].bytes;
    leases_.erase(lease);
    UpdateLoad();
    changed_.notify_all();
  }

  std::optional<v1::StreamReply> TakeReply() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this]() { return dead_ || stream_ended_ || !replies_.empty(); });
    if (dead_ || stream_ended_) return std::nullopt;
    v1::StreamReply reply = replies_.front();
    replies_.pop_front();
    return reply;
  }

  // One step: the next token of every adopted lease.
  void Generate() {
    while (true) {
      std::this_thread::sleep_for(Milliseconds(std::max<int64_t>(pause_ms_, kTick.count())));
      std::unique_lock lock(mutex_);
      if (dead_) return;
      v1::StreamReply reply;
      std::vector<uint64_t> ended;
      for (auto& [id, lease] : leases_) {
        if (!lease.adopted || !lease.subscribed) continue;
        if (die_at_ > 0 && num_sent_ + 1 >= die_at_) {
          lock.unlock();
          return Kill();
        }
        v1::LeaseEvent& event = *reply.add_events();
        event.set_lease_id(id);
        bool has_ended = false;
        for (int i = 0; i < tokens_per_step_ && !has_ended; ++i) has_ended = Step(lease, event);
        if (has_ended) ended.push_back(id);
      }
      if (reply.events_size() > 0) replies_.push_back(reply);
      for (const uint64_t id : ended) Release(id);
      changed_.notify_all();
    }
  }

  // True if the lease has ended.
  bool Step(Lease& lease, v1::LeaseEvent& event) {
    Adoption& script = lease.script;
    std::atomic<int>& failures = std::exchange(lease.is_new, false) ? fail_handoffs_ : fail_count_;
    if ((&failures == &fail_handoffs_ || script.next >= 2) && failures > 0) {
      --failures;
      event.set_finish_reason(v1::FINISH_REASON_ERROR);
      event.mutable_error()->set_code(fail_code_);
      event.mutable_error()->set_message("scripted failure");
      return true;
    }
    const bool at_end = script.next >= static_cast<int32_t>(script.output.size());
    if (at_end && !script.ignore_eos) {
      event.set_finish_reason(v1::FINISH_REASON_STOP);
      return true;
    }
    for (int copy = 0; copy < (repeat_ ? 2 : 1); ++copy) {
      if (script.next == skip_) break;
      v1::Token* token = event.add_tokens();
      token->set_index(script.next);
      token->set_id(at_end ? model_.eos_token_id
                           : script.output[static_cast<size_t>(script.next)]);
      if (script.logprobs) token->set_logprob(-0.5F);
    }
    ++script.next;
    ++num_sent_;
    if (script.next < script.max_new_tokens) return false;
    event.set_finish_reason(v1::FINISH_REASON_LENGTH);
    return true;
  }

  const ScriptedModel model_;
  const std::string id_ = InstanceId::Random().ToString();
  KillableServer server_;
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  int64_t free_bytes_;
  std::map<uint64_t, Lease> leases_;
  std::deque<v1::StreamReply> replies_;
  bool dead_ = false;
  bool stream_ended_ = false;
  std::atomic<int64_t> die_at_ = 0;
  std::atomic<int64_t> pause_ms_ = 0;
  std::atomic<int> tokens_per_step_ = 1;
  std::atomic<int> fail_count_ = 0;
  std::atomic<int> fail_handoffs_ = 0;
  std::atomic<int> fail_code_ = 0;
  std::atomic<bool> repeat_ = false;
  std::atomic<int> skip_ = -1;
  std::atomic<int64_t> num_reserved_ = 0;
  std::atomic<int64_t> num_cancelled_ = 0;
  std::atomic<int64_t> num_sent_ = 0;
  std::unique_ptr<Registrar> registrar_;
  std::thread generator_;
};

class ScriptedPrefillImpl final : public ScriptedPrefill, public v1::PrefillService::Service {
 public:
  ScriptedPrefillImpl(const ScriptedModel& model, const std::string& router_address)
      : model_(model) {
    server_.Start(this);
    registrar_ = std::make_unique<Registrar>(
        router_address, MakeHello(model, v1::WORKER_ROLE_PREFILL, id_, server_.address()),
        ReadyLoad(model.cache_capacity_bytes));
  }
  ~ScriptedPrefillImpl() override {
    Kill();
    if (killer_.joinable()) killer_.join();
    registrar_->Stop();
  }

  void AddDecode(ScriptedDecode* decode) override {
    std::lock_guard lock(mutex_);
    decodes_[decode->instance_id()] = decode;
  }
  const std::string& instance_id() const override { return id_; }
  void Kill() override {
    dead_ = true;
    registrar_->Cancel();
    server_.Kill();
  }
  void DieAtRun(int64_t n) override { die_in_ = n; }
  void SetRunPause(Milliseconds pause) override { pause_ms_ = pause.count(); }
  void FailRuns(int count, int code) override {
    fail_code_ = code;
    fail_count_ = count;
  }
  void LoseHandOffs(int count) override { lose_handoffs_ = count; }
  int64_t num_runs() const override { return num_runs_; }
  int64_t num_cancelled() const override { return num_cancelled_; }
  std::vector<int32_t> last_tokens() const override {
    std::lock_guard lock(mutex_);
    return {last_.tokens().begin(), last_.tokens().end()};
  }
  int32_t last_num_generated() const override {
    std::lock_guard lock(mutex_);
    return last_.num_generated();
  }
  uint64_t last_seed() const override {
    std::lock_guard lock(mutex_);
    return last_.sampling().seed();
  }
  int32_t last_num_forks() const override {
    std::lock_guard lock(mutex_);
    return last_.forks_size();
  }
  std::string refusal() const override { return registrar_->refusal(); }

  grpc::Status Run(grpc::ServerContext* context, const v1::RunRequest* request,
                   v1::RunReply* reply) override {
    ++num_runs_;
    ScriptedDecode* decode = nullptr;
    {
      std::lock_guard lock(mutex_);
      last_ = *request;
      const auto found = decodes_.find(request->decode_instance_id());
      if (found != decodes_.end()) decode = found->second;
    }
    if (fail_count_ > 0) {
      --fail_count_;
      return grpc::Status(static_cast<grpc::StatusCode>(fail_code_.load()), "scripted failure");
    }
    if (die_in_ > 0 && --die_in_ == 0) {
      killer_ = std::thread([this]() { Kill(); });
      while (!context->IsCancelled()) std::this_thread::sleep_for(kTick);
      return grpc::Status(grpc::StatusCode::UNAVAILABLE, "dead");
    }
    const auto until = std::chrono::steady_clock::now() + Milliseconds(pause_ms_);
    while (std::chrono::steady_clock::now() < until && !dead_) {
      if (context->IsCancelled()) {
        ++num_cancelled_;
        return grpc::Status::CANCELLED;
      }
      std::this_thread::sleep_for(kTick);
    }
    if (decode == nullptr) return grpc::Status(grpc::StatusCode::UNAVAILABLE, "no such decode worker");
    return Answer(*request, *decode, reply);
  }

 private:
  grpc::Status Answer(const v1::RunRequest& request, ScriptedDecode& decode, v1::RunReply* reply) {
    reply->set_handoff_bytes(4096);
    reply->set_prefill_seconds(0.001);
    if (request.prompt_logprobs()) Score(request, reply->mutable_prompt_logprobs());
    v1::Token* token = reply->mutable_first_token();
    const bool lost = lose_handoffs_ > 0;
    if (lost) --lose_handoffs_;
    std::vector<std::pair<uint64_t, ScriptedDecode::Adoption>> goes_on;
    const auto begin = [&](uint64_t lease, const std::vector<int32_t>& output, v1::Token* first) {
      ScriptedDecode::Adoption adoption = AdoptionOf(request, output);
      const v1::FinishReason reason = Begin(adoption, first);
      if (reason == v1::FINISH_REASON_UNSPECIFIED) goes_on.emplace_back(lease, adoption);
      return reason;
    };
    reply->set_finish_reason(begin(request.lease_id(), OutputOf(request.sampling().seed()), token));
    for (int i = 0; i < request.forks_size(); ++i) {
      SetFork(request.forks(i).seed(), static_cast<size_t>(i));
      v1::ForkStart* start = reply->add_forks();
      start->set_finish_reason(begin(request.forks(i).lease_id(), OutputOf(request.forks(i).seed()),
                                     start->mutable_first_token()));
    }
    if (lost) return grpc::Status::OK;
    for (const auto& [lease, adoption] : goes_on) decode.Adopt(lease, adoption);
    return grpc::Status::OK;
  }

  static ScriptedDecode::Adoption AdoptionOf(const v1::RunRequest& request,
                                             const std::vector<int32_t>& output) {
    const v1::SamplingParams& sampling = request.sampling();
    return {.output = output,
            .next = request.num_generated(),
            .max_new_tokens = sampling.max_new_tokens(),
            .ignore_eos = sampling.ignore_eos(),
            .logprobs = sampling.logprobs()};
  }

  // The next token of the script; why the answer ends with it.
  v1::FinishReason Begin(ScriptedDecode::Adoption& script, v1::Token* token) const {
    const bool at_end = script.next >= static_cast<int32_t>(script.output.size());
    if (at_end && !script.ignore_eos) return v1::FINISH_REASON_STOP;
    token->set_index(script.next);
    token->set_id(at_end ? model_.eos_token_id : script.output[static_cast<size_t>(script.next)]);
    if (script.logprobs) token->set_logprob(-0.25F);
    ++script.next;
    return script.next >= script.max_new_tokens ? v1::FINISH_REASON_LENGTH
                                                : v1::FINISH_REASON_UNSPECIFIED;
  }

  // Token i of the prompt has -i / 8; the alternatives at each place are the tokens 0, 1, ...
  static void Score(const v1::RunRequest& request, v1::PromptLogprobs* logprobs) {
    for (int i = 1; i < request.tokens_size(); ++i) {
      logprobs->add_logprobs(-0.125F * static_cast<float>(i));
      for (int top = 0; top < request.sampling().top_logprobs(); ++top) {
        logprobs->add_top_tokens(top);
        logprobs->add_top_logprobs(-1.0F - static_cast<float>(top));
      }
    }
  }

  // A choice is known again by its seed, which may come to another worker when it is replayed.
  struct KnownForks {
    std::mutex mutex;
    std::map<uint64_t, size_t> by_seed;
  };
  static KnownForks& Forks() {
    static KnownForks* const forks = new KnownForks();
    return *forks;
  }
  static void SetFork(uint64_t seed, size_t number) {
    std::lock_guard lock(Forks().mutex);
    Forks().by_seed[seed] = number;
  }
  const std::vector<int32_t>& OutputOf(uint64_t seed) const {
    std::lock_guard lock(Forks().mutex);
    const auto found = Forks().by_seed.find(seed);
    if (found == Forks().by_seed.end() || found->second >= model_.fork_outputs.size()) {
      return model_.output;
    }
    return model_.fork_outputs[found->second];
  }

  const ScriptedModel model_;
  const std::string id_ = InstanceId::Random().ToString();
  KillableServer server_;
  mutable std::mutex mutex_;
  std::map<std::string, ScriptedDecode*> decodes_;
  v1::RunRequest last_;
  std::atomic<bool> dead_ = false;
  std::atomic<int64_t> die_in_ = 0;
  std::atomic<int64_t> pause_ms_ = 0;
  std::atomic<int> fail_count_ = 0;
  std::atomic<int> fail_code_ = 0;
  std::atomic<int> lose_handoffs_ = 0;
  std::atomic<int64_t> num_runs_ = 0;
  std::atomic<int64_t> num_cancelled_ = 0;
  std::unique_ptr<Registrar> registrar_;
  std::thread killer_;
};

}  // namespace

std::unique_ptr<ScriptedDecode> ScriptedDecode::Start(const ScriptedModel& model,
                                                      const std::string& router_address) {
  return std::make_unique<ScriptedDecodeImpl>(model, router_address);
}

std::unique_ptr<ScriptedPrefill> ScriptedPrefill::Start(const ScriptedModel& model,
                                                        const std::string& router_address) {
  return std::make_unique<ScriptedPrefillImpl>(model, router_address);
}

}  // namespace lodestone
