#include "tests/tools/scripted_server.h"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/ids.h"
#include "tests/tools/scripted_workers.h"

namespace lodestone {
namespace {

using Milliseconds = std::chrono::milliseconds;
constexpr Milliseconds kTick{5};

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

  grpc::Status Stream(
      grpc::ServerContext*,
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
    if (IsAtStop(script)) {
      event.set_finish_reason(v1::FINISH_REASON_STOP);
      return true;
    }
    for (int copy = 0; copy < (repeat_ ? 2 : 1); ++copy) {
      if (script.next == skip_) break;
      SetNextToken(model_, script, -0.5F, event.add_tokens());
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

}  // namespace

std::unique_ptr<ScriptedDecode> ScriptedDecode::Start(const ScriptedModel& model,
                                                      const std::string& router_address) {
  return std::make_unique<ScriptedDecodeImpl>(model, router_address);
}

}  // namespace lodestone
