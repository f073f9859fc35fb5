#pragma once

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/sampling_params.h"
#include "decode/process.h"
#include "engine/generate.h"
#include "prefill/process.h"
#include "proto/lodestone/v1/admin.grpc.pb.h"
#include "proto/lodestone/v1/worker.grpc.pb.h"

namespace lodestone {

inline constexpr std::chrono::seconds kTestDeadline{120};

// needle-tiny with little memory, on any free ports of loopback.
WorkerConfig SmallWorkerConfig();
// The engine options of a single process that must give the same answers.
EngineOptions SmallEngineOptions(const WorkerConfig& config);

// Calls `done` until it is true; false after kTestDeadline.
bool Eventually(const std::function<bool()>& done);

// `length` ids without control tokens; the same for the same seed.
std::vector<int32_t> SomePrompt(int64_t length, uint64_t seed);

// A prefill or decode process of this test, with its loop on a thread.
template <typename Process>
class Running {
 public:
  template <typename Config>
  explicit Running(const Config& config)
      : process_(Process::Start(config).value()),
        thread_([this] { status_ = process_->Run([this] { return stop_.load(); }); }),
        channel_(grpc::CreateCustomChannel(address(), grpc::InsecureChannelCredentials(),
                                           FixedWindow())) {}
  ~Running() { Stop().IgnoreError(); }

  void RequestStop() { stop_ = true; }
  // What Run returned.
  absl::Status Stop() {
    RequestStop();
    if (thread_.joinable()) thread_.join();
    return status_;
  }
  std::string address() const {
    return "127.0.0.1:" + std::to_string(process_->host().grpc_port());
  }
  std::string instance() const { return process_->host().instance().ToString(); }
  const std::shared_ptr<grpc::Channel>& channel() const { return channel_; }
  v1::GetStatusReply GetStatus() const;
  // Until no lease, no sequence and no byte of cache is left.
  bool BecomesIdle() const;
  WorkerHost& host() { return process_->host(); }
  const Process& process() const { return *process_; }

 private:
  // 64 KiB may be under way to a client that does not read, however fast it was before.
  static grpc::ChannelArguments FixedWindow() {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
    return arguments;
  }

  std::atomic<bool> stop_{false};
  absl::Status status_;
  const std::unique_ptr<Process> process_;
  std::thread thread_;
  const std::shared_ptr<grpc::Channel> channel_;
};

using RunningPrefill = Running<PrefillProcess>;
using RunningDecode = Running<DecodeProcess>;

// What a router does for one request, without a router: reserve, subscribe, prefill, read tokens.
// Has a token stream of its own and names its lease until it is destroyed.
class ScriptedRequest {
 public:
  ScriptedRequest(const RunningPrefill& prefill, const RunningDecode& decode,
                  std::vector<int32_t> tokens, const SamplingParams& sampling);
  ~ScriptedRequest();

  // The address of the decode worker that prefill is told, if it is not the worker's own.
  void RouteToDecodeVia(const std::string& address) { decode_address_ = address; }

  // How often it names its lease: every second at first. Before Subscribe.
  void NameEvery(std::chrono::milliseconds period) { naming_period_ = period; }

  absl::Status Reserve();
  void Subscribe();    // after Reserve
  absl::Status Run();  // the first token, if all goes well
  void CancelRun();    // from another thread
  bool ReadEvent();    // one message of the stream; false at its end
  void ReadToEnd();    // until the terminal event or the end of the stream
  int64_t Cancel();    // on decode; bytes released
  // All of it. OK with the whole answer, else the first error.
  absl::Status Answer();

  uint64_t lease() const { return lease_; }
  int64_t reserved_bytes() const { return reserved_bytes_; }
  const std::vector<GeneratedToken>& tokens() const { return answer_; }
  FinishReason finish() const { return finish_; }
  const absl::Status& error() const { return error_; }
  int num_terminal_events() const { return num_terminal_events_; }

 private:
  void KeepNaming();

  const std::string decode_instance_;
  std::string decode_address_;
  const std::unique_ptr<v1::PrefillService::Stub> prefill_;
  const std::unique_ptr<v1::DecodeService::Stub> decode_;
  const std::vector<int32_t> prompt_;
  const SamplingParams sampling_;

  grpc::ClientContext run_context_, stream_context_;
  std::unique_ptr<grpc::ClientReaderWriter<v1::StreamRequest, v1::StreamReply>> stream_;
  uint64_t lease_ = 0;
  int64_t reserved_bytes_ = 0;
  std::vector<GeneratedToken> answer_;
  FinishReason finish_ = FinishReason::kNone;
  absl::Status error_;
  int num_terminal_events_ = 0;

  std::chrono::milliseconds naming_period_{1'000};
  std::mutex naming_mutex_;
  std::condition_variable naming_changed_;
  bool naming_over_ = false;
  std::thread naming_;
};

template <typename Process>
v1::GetStatusReply Running<Process>::GetStatus() const {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + kTestDeadline);
  v1::GetStatusReply reply;
  v1::AdminService::NewStub(channel_)->GetStatus(&context, {}, &reply);
  return reply;
}

template <typename Process>
bool Running<Process>::BecomesIdle() const {
  return Eventually([this] {
    return process_->host().engine().cache().ledger().CheckIdle().ok() &&
           GetStatus().orphan_bytes() == 0;
  });
}

}  // namespace lodestone
