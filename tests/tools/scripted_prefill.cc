#include "tests/tools/scripted_server.h"

#include <atomic>
#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/ids.h"
#include "tests/tools/scripted_workers.h"

namespace lodestone {
namespace {

using Milliseconds = std::chrono::milliseconds;
constexpr Milliseconds kTick{5};

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
    if (decode == nullptr)
      return grpc::Status(grpc::StatusCode::UNAVAILABLE, "no such decode worker");
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
    if (IsAtStop(script)) return v1::FINISH_REASON_STOP;
    SetNextToken(model_, script, -0.25F, token);
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

std::unique_ptr<ScriptedPrefill> ScriptedPrefill::Start(const ScriptedModel& model,
                                                        const std::string& router_address) {
  return std::make_unique<ScriptedPrefillImpl>(model, router_address);
}

}  // namespace lodestone
