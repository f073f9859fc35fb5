#include "router/worker_client.h"

#include <map>
#include <utility>
#include <vector>

#include <absl/strings/str_cat.h>
#include <grpcpp/grpcpp.h>
#include <boost/asio/executor_work_guard.hpp>

#include "base/logging.h"
#include "base/status_macros.h"
#include "proto/convert.h"
#include "proto/grpc_limits.h"
#include "proto/lodestone/v1/worker.grpc.pb.h"

namespace lodestone {
namespace {

constexpr std::chrono::seconds kNamingPeriod{1};
constexpr std::chrono::seconds kCancelDeadline{5};

std::shared_ptr<grpc::Channel> MakeChannel(const std::string& address) {
  grpc::ChannelArguments args;
  args.SetMaxReceiveMessageSize(kMaxMessageBytes);
  args.SetMaxSendMessageSize(kMaxMessageBytes);
  args.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  args.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 100);
  args.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1000);
  args.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);  // the flow decides what runs again
  args.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  // A worker that restarts at its old address gets a connection of its own.
  args.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  return grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), args);
}

std::chrono::system_clock::time_point ToWallTime(TimePoint deadline) {
  return std::chrono::system_clock::now() +
         std::chrono::duration_cast<std::chrono::system_clock::duration>(deadline -
                                                                         RealClock()->Now());
}

// What a worker said. CANCELLED is a client's wish everywhere else: a worker that gives up by
// itself is one that fails.
absl::Status FromWorker(int code, const std::string& message, const std::string& address) {
  if (code == grpc::StatusCode::OK) return absl::OkStatus();
  if (code == grpc::StatusCode::CANCELLED) code = grpc::StatusCode::UNAVAILABLE;
  return absl::Status(static_cast<absl::StatusCode>(code),
                      absl::StrCat(message, " (worker at ", address, ")"));
}

v1::RunRequest ToRunRequest(const RunArgs& args) {
  v1::RunRequest proto;
  proto.set_request_id(args.request_id);
  proto.set_attempt(args.attempt);
  proto.set_lease_id(args.lease.value());
  proto.set_decode_instance_id(args.decode_instance_id);
  proto.set_decode_address(args.decode_address);
  proto.mutable_tokens()->Assign(args.tokens.begin(), args.tokens.end());
  proto.set_num_generated(static_cast<int32_t>(args.num_generated));
  *proto.mutable_sampling() = ToProto(args.sampling);
  for (const RunArgs::Fork& fork : args.forks) {
    v1::Fork* entry = proto.add_forks();
    entry->set_lease_id(fork.lease.value());
    entry->set_seed(fork.seed);
  }
  proto.set_prompt_logprobs(args.prompt_logprobs);
  return proto;
}

// One of each token but the first, with all alternatives; nothing if not asked for.
absl::StatusOr<PromptLogprobs> CheckedLogprobs(const v1::RunReply& reply, const RunArgs& args) {
  if (!args.prompt_logprobs) return PromptLogprobs();
  ASSIGN_OR_RETURN(PromptLogprobs logprobs, FromProto(reply.prompt_logprobs()));
  if (logprobs.logprobs.size() + 1 == args.tokens.size()) return logprobs;
  return absl::InternalError(absl::StrCat("the prefill worker reported ", logprobs.logprobs.size(),
                                          " log-probabilities of a prompt of ",
                                          args.tokens.size(), " tokens"));
}

// The loop stays alive while a callback of gRPC may still post into it.
using WorkGuard = asio::executor_work_guard<asio::io_context::executor_type>;

// One unary call in flight. The context must stay until gRPC has called back.
template <typename Ask, typename Answer>
struct UnaryCall {
  explicit UnaryCall(asio::io_context& loop) : ended(loop), guard(asio::make_work_guard(loop)) {}
  grpc::ClientContext context;
  Ask ask;
  Answer answer;
  grpc::Status status;
  bool done = false;
  Event ended;
  WorkGuard guard;
};

// `start(context, ask, answer, callback)` begins the call. The returned status names `address`.
template <typename Answer, typename Ask, typename Start>
Task<absl::StatusOr<Answer>> CallUnary(asio::io_context& loop, const std::string& address, Ask ask,
                                       Start start, TimePoint deadline, CancelSource& cancel) {
  if (cancel.cancelled()) co_return cancel.reason();
  auto call = std::make_shared<UnaryCall<Ask, Answer>>(loop);
  call->ask = std::move(ask);
  call->context.set_deadline(ToWallTime(deadline));
  start(&call->context, &call->ask, &call->answer, [call, &loop](grpc::Status status) {
    asio::post(loop, [call, status = std::move(status)]() {
      call->status = status;
      call->done = true;
      call->guard.reset();
      call->ended.Notify();
    });
  });
  const CancelSource::Registration registration = cancel.OnCancel([call](const absl::Status&) {
    call->context.TryCancel();
    call->ended.Notify();
  });
  while (!call->done && !cancel.cancelled()) {
    co_await call->ended.WaitUntil(deadline + std::chrono::seconds(1));
  }
  if (cancel.cancelled()) co_return cancel.reason();
  if (!call->status.ok()) {
    co_return FromWorker(call->status.error_code(), call->status.error_message(), address);
  }
  co_return std::move(call->answer);
}

class GrpcPrefillClient final : public PrefillClient {
 public:
  GrpcPrefillClient(asio::io_context& loop, const std::string& address)
      : loop_(loop), address_(address), stub_(v1::PrefillService::NewStub(MakeChannel(address))) {}

  Task<absl::StatusOr<RunResult>> Run(const RunArgs& args, TimePoint deadline,
                                      CancelSource& cancel) override {
    auto start = [stub = stub_](auto* context, auto* ask, auto* answer, auto callback) {
      stub->async()->Run(context, ask, answer, std::move(callback));
    };
    v1::RunRequest ask = ToRunRequest(args);
    absl::StatusOr<v1::RunReply> reply = co_await CallUnary<v1::RunReply>(
        loop_, address_, std::move(ask), std::move(start), deadline, cancel);
    if (!reply.ok()) co_return reply.status();
    if (reply->forks_size() != static_cast<int>(args.forks.size())) {
      co_return absl::InternalError(absl::StrCat("the prefill worker at ", address_, " began ",
                                                 reply->forks_size(), " further choices of ",
                                                 args.forks.size()));
    }
    RunResult result;
    result.choices.push_back({FromProto(reply->first_token()), FromProto(reply->finish_reason())});
    for (const v1::ForkStart& fork : reply->forks()) {
      result.choices.push_back({FromProto(fork.first_token()), FromProto(fork.finish_reason())});
    }
    CO_ASSIGN_OR_RETURN(result.prompt_logprobs, CheckedLogprobs(*reply, args));
    result.cached_tokens = reply->cached_tokens();
    result.queue_seconds = reply->queue_seconds();
    result.prefill_seconds = reply->prefill_seconds();
    result.handoff_bytes = reply->handoff_bytes();
    co_return result;
  }

 private:
  asio::io_context& loop_;
  const std::string address_;
  const std::shared_ptr<v1::PrefillService::Stub> stub_;
};

class GrpcDecodeClient;

// The bidirectional stream. Lives until gRPC has reported its end, which deletes it, on the loop.
class StreamReactor final : public grpc::ClientBidiReactor<v1::StreamRequest, v1::StreamReply> {
 public:
  StreamReactor(asio::io_context& loop, std::weak_ptr<GrpcDecodeClient> client)
      : loop_(loop), client_(std::move(client)), guard_(asio::make_work_guard(loop)) {}

  void Start(v1::DecodeService::Stub* stub) {
    stub->async()->Stream(&context_, this);
    AddHold();  // operations start outside of the reactions, on the loop
    StartRead(&reply_);
    StartCall();
  }
  bool writing() const { return writing_; }
  // REQUIRES: !writing().
  void Send(v1::StreamRequest request) {
    if (closed_) return;
    writing_ = true;
    request_ = std::move(request);
    StartWrite(&request_);
  }
  void Cancel() {
    context_.TryCancel();
    Close();
  }

  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnDone(const grpc::Status& status) override;

 private:
  void Close() {
    if (std::exchange(closed_, true)) return;
    RemoveHold();
  }

  asio::io_context& loop_;
  const std::weak_ptr<GrpcDecodeClient> client_;
  WorkGuard guard_;
  grpc::ClientContext context_;
  v1::StreamRequest request_;
  v1::StreamReply reply_;
  bool writing_ = false;
  bool closed_ = false;
};

// The receiving end of one lease.
class LeaseStream final : public LeaseTokens {
 public:
  LeaseStream(asio::io_context& loop, std::shared_ptr<GrpcDecodeClient> client,
              const std::string& address, LeaseId lease)
      : client_(std::move(client)), address_(address), lease_(lease), arrived_(loop) {}
  ~LeaseStream() override;

  Task<absl::StatusOr<Batch>> Next(TimePoint deadline, CancelSource& cancel) override {
    const CancelSource::Registration registration =
        cancel.OnCancel([this](const absl::Status&) { arrived_.Notify(); });
    while (true) {
      if (cancel.cancelled()) co_return cancel.reason();
      if (out_of_memory_) throw std::bad_alloc();
      if (has_news()) co_return std::exchange(pending_, Batch{});
      if (failure_.cancelled()) co_return failure_.reason();
      const bool woken = co_await arrived_.WaitUntil(deadline);
      if (!woken) co_return absl::DeadlineExceededError("no token from the decode worker");
    }
  }
  CancelSource& failure() override { return failure_; }
  bool stream_ended() const override { return stream_ended_; }

  void Push(const v1::LeaseEvent& event) {
    if (ended_) return;
    if (out_of_memory_) return;
    try {
      for (const v1::Token& token : event.tokens()) pending_.tokens.push_back(FromProto(token));
    } catch (const std::bad_alloc&) {
      out_of_memory_ = true;
      pending_ = Batch{};
      arrived_.Notify();
      return;
    }
    const FinishReason reason = FromProto(event.finish_reason());
    if (event.error().code() != 0 || reason == FinishReason::kError) {
      const int code =
          event.error().code() == 0 ? grpc::StatusCode::INTERNAL : event.error().code();
      return Fail(FromWorker(code, event.error().message(), address_));
    }
    if (reason == FinishReason::kCancelled) {
      return Fail(absl::UnavailableError("the decode worker dropped the request"));
    }
    pending_.finish_reason = reason;
    ended_ = reason != FinishReason::kNone;
    arrived_.Notify();
  }
  void StreamEnded(const absl::Status& status) {
    stream_ended_ = !ended_;
    Fail(status);
  }
  void Fail(absl::Status status) {
    if (ended_) return;
    ended_ = true;
    failure_.Cancel(std::move(status));
    arrived_.Notify();
  }
  LeaseId lease() const { return lease_; }

 private:
  bool has_news() const {
    return !pending_.tokens.empty() || pending_.finish_reason != FinishReason::kNone;
  }

  const std::shared_ptr<GrpcDecodeClient> client_;
  const std::string address_;
  const LeaseId lease_;
  Event arrived_;
  Batch pending_;
  CancelSource failure_;
  bool ended_ = false;
  bool stream_ended_ = false;
  bool out_of_memory_ = false;  // for what the worker sent: its reader hears of it
};

class GrpcDecodeClient final : public DecodeClient,
                               public std::enable_shared_from_this<GrpcDecodeClient> {
 public:
  GrpcDecodeClient(asio::io_context& loop, const std::string& address)
      : loop_(loop),
        address_(address),
        stub_(v1::DecodeService::NewStub(MakeChannel(address))),
        wake_(loop) {}

  void Open() { Spawn(loop_, NameLeases(weak_from_this())); }

  Task<absl::StatusOr<GrantedLease>> Reserve(const ReserveArgs& args, TimePoint deadline,
                                             CancelSource& cancel) override {
    v1::ReserveRequest ask;
    ask.set_request_id(args.request_id);
    ask.set_attempt(args.attempt);
    ask.set_prompt_tokens(static_cast<int32_t>(args.prompt_tokens));
    ask.set_max_new_tokens(static_cast<int32_t>(args.max_new_tokens));
    ask.set_prefill_instance_id(args.prefill_instance_id);
    ask.set_num_forks(static_cast<int32_t>(args.num_forks));
    auto start = [stub = stub_](auto* context, auto* request, auto* answer, auto callback) {
      stub->async()->Reserve(context, request, answer, std::move(callback));
    };
    absl::StatusOr<v1::ReserveReply> reply = co_await CallUnary<v1::ReserveReply>(
        loop_, address_, std::move(ask), std::move(start), deadline, cancel);
    if (!reply.ok()) co_return reply.status();
    GrantedLease reservation;
    reservation.lease = LeaseId(reply->lease_id());
    reservation.reserved_bytes = reply->reserved_bytes();
    reservation.free_bytes = reply->free_bytes();
    for (const uint64_t fork : reply->fork_lease_ids()) reservation.forks.push_back(LeaseId(fork));
    if (std::ssize(reservation.forks) != args.num_forks) {
      CancelLease(reservation.lease);
      co_return absl::InternalError(absl::StrCat("the decode worker at ", address_, " reserved ",
                                                 reservation.forks.size(), " further choices of ",
                                                 args.num_forks));
    }
    co_return reservation;
  }

  std::unique_ptr<LeaseTokens> Subscribe(LeaseId lease) override {
    auto stream = std::make_unique<LeaseStream>(loop_, shared_from_this(), address_, lease);
    if (!shutdown_.ok()) {
      stream->StreamEnded(shutdown_);
      return stream;
    }
    leases_[lease.value()] = stream.get();
    to_subscribe_.push_back(lease.value());
    SendNames();
    return stream;
  }

  void Shutdown(absl::Status status) override {
    if (!shutdown_.ok()) return;
    shutdown_ = std::move(status);
    if (reactor_ != nullptr) reactor_->Cancel();
    reactor_ = nullptr;
    FailAll(shutdown_);
    wake_.Notify();
  }
  int64_t num_leases() const override { return static_cast<int64_t>(leases_.size()); }

  // From the reactor.
  void Deliver(const v1::StreamReply& reply) {
    for (const v1::LeaseEvent& event : reply.events()) {
      const auto found = leases_.find(event.lease_id());
      if (found != leases_.end()) found->second->Push(event);
    }
  }
  void WriteDone() {
    if (dirty_) SendNames();
  }
  void StreamEnded(const StreamReactor* reactor, const grpc::Status& status) {
    if (reactor != reactor_) return;
    reactor_ = nullptr;
    FailAll(absl::UnavailableError(absl::StrCat("the token stream of the decode worker at ",
                                                address_, " ended: ", status.error_message())));
  }

  // From a stream that dies. An ended lease needs no call.
  void Release(LeaseId lease, bool ended) {
    leases_.erase(lease.value());
    if (ended || !shutdown_.ok()) return;
    try {
      CancelLease(lease);
    } catch (const std::bad_alloc&) {
      LOG_EVERY_SECONDS(WARNING, 5) << "no memory to cancel a lease; it dies for want of a name";
    }
  }

 private:
  struct CancelCall {
    grpc::ClientContext context;
    v1::CancelRequest ask;
    v1::CancelReply answer;
  };

  void CancelLease(LeaseId lease) {
    auto call = std::make_shared<CancelCall>();
    call->ask.set_lease_id(lease.value());
    call->context.set_deadline(std::chrono::system_clock::now() + kCancelDeadline);
    // Best effort: a lease that is not named any more dies by itself.
    stub_->async()->Cancel(&call->context, &call->ask, &call->answer, [call](grpc::Status) {});
  }

  void SendNames() {
    if (!shutdown_.ok()) return;
    if (reactor_ == nullptr) {
      reactor_ = new StreamReactor(loop_, weak_from_this());  // deletes itself in OnDone
      reactor_->Start(stub_.get());
    }
    dirty_ = reactor_->writing();
    if (dirty_) return;
    v1::StreamRequest request;
    for (const auto& [lease, stream] : leases_) request.add_leases(lease);
    for (const uint64_t lease : std::exchange(to_subscribe_, {})) {
      if (leases_.contains(lease)) request.add_subscribe(lease);
    }
    reactor_->Send(std::move(request));
  }

  void FailAll(const absl::Status& status) {
    to_subscribe_.clear();
    const std::map<uint64_t, LeaseStream*> leases = std::exchange(leases_, {});
    for (const auto& [lease, stream] : leases) stream->StreamEnded(status);
  }

  static Task<void> NameLeases(std::weak_ptr<GrpcDecodeClient> weak) {
    while (true) {
      const std::shared_ptr<GrpcDecodeClient> client = weak.lock();
      if (client == nullptr || !client->shutdown_.ok()) co_return;
      if (!client->leases_.empty()) client->SendNames();
      co_await client->wake_.WaitUntil(RealClock()->Now() + kNamingPeriod);
    }
  }

  asio::io_context& loop_;
  const std::string address_;
  const std::shared_ptr<v1::DecodeService::Stub> stub_;
  StreamReactor* reactor_ = nullptr;
  std::map<uint64_t, LeaseStream*> leases_;  // live ones
  std::vector<uint64_t> to_subscribe_;
  bool dirty_ = false;  // names changed while a write was under way
  absl::Status shutdown_;
  Event wake_;
};

void StreamReactor::OnReadDone(bool ok) {
  asio::post(loop_, [this, ok]() {
    if (!ok) return Close();
    if (const std::shared_ptr<GrpcDecodeClient> client = client_.lock()) client->Deliver(reply_);
    if (!closed_) StartRead(&reply_);
  });
}

void StreamReactor::OnWriteDone(bool ok) {
  asio::post(loop_, [this, ok]() {
    writing_ = false;
    if (!ok) return Close();
    if (const std::shared_ptr<GrpcDecodeClient> client = client_.lock()) client->WriteDone();
  });
}

void StreamReactor::OnDone(const grpc::Status& status) {
  asio::post(loop_, [this, status]() {
    if (const std::shared_ptr<GrpcDecodeClient> client = client_.lock()) {
      client->StreamEnded(this, status);
    }
    delete this;
  });
}

LeaseStream::~LeaseStream() { client_->Release(lease_, ended_); }

}  // namespace

std::shared_ptr<PrefillClient> PrefillClient::Connect(asio::io_context& loop,
                                                      const std::string& address) {
  return std::make_shared<GrpcPrefillClient>(loop, address);
}

std::shared_ptr<DecodeClient> DecodeClient::Connect(asio::io_context& loop,
                                                    const std::string& address) {
  auto client = std::make_shared<GrpcDecodeClient>(loop, address);
  client->Open();
  return client;
}

}  // namespace lodestone
