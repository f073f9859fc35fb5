// What scripted decode and prefill workers have in common: a server and a registration.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include <grpcpp/grpcpp.h>

#include "proto/lodestone/v1/worker.grpc.pb.h"
#include "tests/tools/scripted_workers.h"

namespace lodestone {

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
  static constexpr std::chrono::milliseconds kHeartbeat{100};

  void Run();
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
                          const std::string& address);
v1::WorkerLoad ReadyLoad(int64_t free_bytes);

// Whether an answer ends at a stop token in the place of its next token.
bool IsAtStop(const ScriptedDecode::Adoption& script);
// The next token of an answer, which does not move on; with `logprob`, if that was asked for.
void SetNextToken(const ScriptedModel& model, const ScriptedDecode::Adoption& script, float logprob,
                  v1::Token* token);

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

}  // namespace lodestone
