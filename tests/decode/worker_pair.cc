#include "tests/decode/worker_pair.h"

#include <random>
#include <utility>

#include "proto/convert.h"
#include "proto/grpc_status.h"

namespace lodestone {
namespace {

std::chrono::system_clock::time_point Deadline() {
  return std::chrono::system_clock::now() + kTestDeadline;
}

}  // namespace

WorkerConfig SmallWorkerConfig() {
  WorkerConfig config;
  config.model = std::string(LODESTONE_SOURCE_DIR) + "/models/needle-tiny";
  config.threads = 1;
  config.memory = {int64_t{160} << 20};
  config.max_sequences = 8;
  config.max_context = 4096;
  config.staging_slot = {int64_t{256} << 10};
  return config;
}

EngineOptions SmallEngineOptions(const WorkerConfig& config) {
  EngineOptions options = ToEngineOptions(config, 512).value();
  options.freed_pages = FreedPages::kPoison;
  return options;
}

bool Eventually(const std::function<bool()>& done) {
  const auto deadline = std::chrono::steady_clock::now() + kTestDeadline;
  while (!done()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return true;
}

std::vector<int32_t> SomePrompt(int64_t length, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::uniform_int_distribution<int32_t> id(16, 1023);
  std::vector<int32_t> prompt(static_cast<size_t>(length));
  for (int32_t& token : prompt) token = id(random);
  return prompt;
}

ScriptedRequest::ScriptedRequest(const RunningPrefill& prefill, const RunningDecode& decode,
                                 std::vector<int32_t> tokens, const SamplingParams& sampling)
    : decode_instance_(decode.instance()),
      decode_address_(decode.address()),
      prefill_(v1::PrefillService::NewStub(prefill.channel())),
      decode_(v1::DecodeService::NewStub(decode.channel())),
      prompt_(std::move(tokens)),
      sampling_(sampling) {
  run_context_.set_deadline(Deadline());
  stream_context_.set_deadline(Deadline());
}

ScriptedRequest::~ScriptedRequest() {
  {
    const std::lock_guard lock(naming_mutex_);
    naming_over_ = true;
  }
  naming_changed_.notify_all();
  if (naming_.joinable()) naming_.join();
  if (stream_ == nullptr) return;
  stream_context_.TryCancel();
  stream_->Finish();
}

absl::Status ScriptedRequest::Reserve() {
  v1::ReserveRequest request;
  request.set_request_id("test");
  request.set_prompt_tokens(static_cast<int32_t>(prompt_.size()));
  request.set_max_new_tokens(sampling_.max_new_tokens);
  grpc::ClientContext context;
  context.set_deadline(Deadline());
  v1::ReserveReply reply;
  const grpc::Status status = decode_->Reserve(&context, request, &reply);
  lease_ = reply.lease_id();
  reserved_bytes_ = reply.reserved_bytes();
  return FromGrpc(status);
}

void ScriptedRequest::Subscribe() {
  stream_ = decode_->Stream(&stream_context_);
  v1::StreamRequest request;
  request.add_subscribe(lease_);
  stream_->Write(request);
  naming_ = std::thread([this] { KeepNaming(); });
}

void ScriptedRequest::KeepNaming() {
  v1::StreamRequest request;
  request.add_leases(lease_);
  std::unique_lock lock(naming_mutex_);
  while (
      !naming_changed_.wait_for(lock, naming_period_, [this] { return naming_over_; })) {
    if (!stream_->Write(request)) return;
  }
}

absl::Status ScriptedRequest::Run() {
  v1::RunRequest request;
  request.set_request_id("test");
  request.set_lease_id(lease_);
  request.set_decode_instance_id(decode_instance_);
  request.set_decode_address(decode_address_);
  request.mutable_tokens()->Add(prompt_.begin(), prompt_.end());
  *request.mutable_sampling() = ToProto(sampling_);
  v1::RunReply reply;
  const grpc::Status status = prefill_->Run(&run_context_, request, &reply);
  if (!status.ok()) return FromGrpc(status);
  finish_ = FromProto(reply.finish_reason());
  answer_.push_back(FromProto(reply.first_token()));
  return absl::OkStatus();
}

void ScriptedRequest::CancelRun() { run_context_.TryCancel(); }

bool ScriptedRequest::ReadEvent() {
  v1::StreamReply reply;
  if (!stream_->Read(&reply)) return false;
  for (const v1::LeaseEvent& event : reply.events()) {
    if (event.lease_id() != lease_) continue;
    for (const v1::Token& token : event.tokens()) answer_.push_back(FromProto(token));
    if (event.finish_reason() == v1::FINISH_REASON_UNSPECIFIED) continue;
    ++num_terminal_events_;
    finish_ = FromProto(event.finish_reason());
    if (event.has_error()) error_ = FromProto(event.error());
  }
  return true;
}

void ScriptedRequest::ReadToEnd() {
  while (num_terminal_events_ == 0 && ReadEvent()) {
  }
}

int64_t ScriptedRequest::Cancel() {
  v1::CancelRequest request;
  request.set_lease_id(lease_);
  grpc::ClientContext context;
  context.set_deadline(Deadline());
  v1::CancelReply reply;
  decode_->Cancel(&context, request, &reply);
  return reply.released_bytes();
}

absl::Status ScriptedRequest::Answer() {
  if (const absl::Status status = Reserve(); !status.ok()) return status;
  Subscribe();
  if (const absl::Status status = Run(); !status.ok()) return status;
  if (finish_ == FinishReason::kNone) ReadToEnd();
  return error_;
}

}  // namespace lodestone
