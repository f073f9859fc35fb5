#include "router/grpc_service.h"

#include <new>
#include <optional>
#include <utility>

#include <absl/strings/str_cat.h>
#include <boost/asio/executor_work_guard.hpp>
#include <grpcpp/grpcpp.h>

#include "proto/convert.h"
#include "proto/lodestone/v1/inference.grpc.pb.h"
#include "router/openai_schema.h"
#include "router/request_log.h"
#include "router/text_output.h"
#include "text/utf8.h"

namespace lodestone {
namespace {

constexpr std::chrono::milliseconds kWriteTimeout{60'000};

std::optional<ApiError> CheckNumber(const char* name, double value, double low, double high) {
  if (value >= low && value <= high) return std::nullopt;
  return InvalidValue(
      absl::StrCat("sampling.", name),
      absl::StrCat("sampling.", name, " is ", value, ", expected ", low, " to ", high));
}

std::optional<ApiError> CheckCount(const char* name, size_t count, size_t limit) {
  if (count <= limit) return std::nullopt;
  return InvalidValue(
      absl::StrCat("sampling.", name),
      absl::StrCat("sampling.", name, " has ", count, " entries, limit is ", limit));
}

std::optional<ApiError> CheckSampling(const SamplingParams& sampling, int32_t vocab_size) {
  using Check = std::optional<ApiError>;
  if (Check e = CheckNumber("temperature", sampling.temperature, 0, 2)) return e;
  if (Check e = CheckNumber("top_p", sampling.top_p, 0, 1)) return e;
  if (Check e = CheckNumber("top_k", sampling.top_k, 0, 1e9)) return e;
  if (Check e = CheckNumber("min_p", sampling.min_p, 0, 1)) return e;
  if (Check e = CheckNumber("top_logprobs", sampling.top_logprobs, 0, kMaxTopLogprobs)) return e;
  if (Check e = CheckNumber("min_new_tokens", sampling.min_new_tokens, 0, 1e9)) return e;
  if (Check e = CheckNumber("repetition_penalty", sampling.repetition_penalty, 0.01, 100)) return e;
  if (Check e = CheckNumber("presence_penalty", sampling.presence_penalty, -2, 2)) return e;
  if (Check e = CheckNumber("frequency_penalty", sampling.frequency_penalty, -2, 2)) return e;
  if (Check e = CheckCount("stop_token_ids", sampling.stop_token_ids.size(), kMaxStopTokenIds)) {
    return e;
  }
  if (Check e = CheckCount("logit_bias", sampling.logit_bias.size(), kMaxLogitBias)) return e;
  if (Check e = CheckTokenIds(sampling.stop_token_ids, vocab_size, "sampling.stop_token_ids"))
    return e;
  for (const auto& [token, bias] : sampling.logit_bias) {
    if (Check e = CheckTokenIds({token}, vocab_size, "sampling.logit_bias")) return e;
    if (Check e = CheckNumber("logit_bias", bias, -100, 100)) return e;
  }
  return std::nullopt;
}

std::optional<ApiError> CheckStops(const v1::GenerateRequest& proto) {
  const std::vector<std::string> stops(proto.stop().begin(), proto.stop().end());
  if (!stops.empty() && !proto.return_text()) {
    return InvalidValue("stop", "stop needs return_text to be true");
  }
  const absl::StatusOr<StopMatcher> matcher = StopMatcher::Create(stops);
  if (matcher.ok()) return std::nullopt;
  return InvalidValue("stop", std::string(matcher.status().message()));
}

ApiOr<ApiRequest> ParseRequest(const v1::GenerateRequest& proto, const ModelInfo& model) {
  ApiRequest api;
  api.api = ApiKind::kGrpc;
  api.model = proto.model().empty() ? model.names.front() : proto.model();
  if (std::find(model.names.begin(), model.names.end(), api.model) == model.names.end()) {
    return ModelNotFound(api.model, model.names);
  }
  if (proto.prompt_case() == v1::GenerateRequest::kText) {
    api.prompts.emplace_back(proto.text());
  } else {
    const auto& ids = proto.tokens().ids();
    std::vector<TokenId> tokens(ids.begin(), ids.end());
    if (std::optional<ApiError> error = CheckTokenIds(tokens, model.vocab_size, "tokens.ids")) {
      return *error;
    }
    api.prompts.emplace_back(std::move(tokens));
  }
  const v1::SamplingParams& sampling = proto.sampling();
  if (sampling.max_new_tokens() < 0) {
    return InvalidValue("sampling.max_new_tokens",
                        absl::StrCat("sampling.max_new_tokens is ", sampling.max_new_tokens(),
                                     ", expected at least 1, or 0 for the default"));
  }
  if (sampling.max_new_tokens() > 0) api.max_tokens = sampling.max_new_tokens();
  if (sampling.seed() != 0) api.seed = static_cast<int64_t>(sampling.seed());
  api.sampling = FromProto(sampling);
  api.sampling.seed = 0;  // both are set with the defaults
  api.sampling.max_new_tokens = SamplingParams().max_new_tokens;
  api.logprobs = api.sampling.logprobs;
  api.top_logprobs = api.sampling.top_logprobs;
  if (std::optional<ApiError> error = CheckSampling(api.sampling, model.vocab_size)) return *error;
  if (std::optional<ApiError> error = CheckStops(proto)) return *error;
  api.stop.assign(proto.stop().begin(), proto.stop().end());
  return api;
}

// One Generate call: the reactor of gRPC and the sink of the flow. Lives until gRPC has reported
// the end and the task has ended.
class Generation final : public grpc::ServerWriteReactor<v1::GenerateReply>,
                         public TokenSink,
                         public std::enable_shared_from_this<Generation> {
 public:
  Generation(const ServiceContext& context, grpc::CallbackServerContext* server,
             const v1::GenerateRequest& proto, TimePoint deadline)
      : context_(context),
        server_(server),
        proto_(proto),
        deadline_(deadline),
        received_at_(RealClock()->Now()),
        guard_(asio::make_work_guard(*context.loop)),
        written_(*context.loop) {}

  void Start() {
    self_ = shared_from_this();
    asio::post(*context_.loop, [self = self_]() { Spawn(*self->context_.loop, Serve(self)); });
  }

  void OnWriteDone(bool ok) override {
    asio::post(*context_.loop, [self = self_, ok]() {
      self->writing_ = false;
      if (!ok) self->client_.Cancel(absl::CancelledError("the client is gone"));
      self->written_.Notify();
    });
  }
  void OnCancel() override {
    asio::post(*context_.loop, [self = self_]() {
      self->client_.Cancel(absl::CancelledError("the client cancelled the call"));
      self->written_.Notify();
    });
  }
  void OnDone() override {
    asio::post(*context_.loop, [self = self_]() { self->self_ = nullptr; });
  }

  Task<absl::StatusOr<Written>> Write(std::span<const GeneratedToken> tokens) override {
    reply_ = v1::GenerateReply();
    Written written;
    for (const GeneratedToken& token : tokens) {
      if (text_.has_value() && text_->stopped()) break;
      *reply_.add_tokens() = ToProto(token);
      ++written.num_tokens;
      if (text_.has_value()) reply_.mutable_text()->append(text_->Push(token.id).content);
    }
    const absl::Status status = co_await SendReply();
    if (!status.ok()) co_return status;
    Measure(static_cast<int64_t>(written.num_tokens));
    written.stopped = text_.has_value() && text_->stopped();
    co_return written;
  }

 private:
  static Task<void> Serve(std::shared_ptr<Generation> self) {
    RequestEnd end;
    end.api = "grpc";
    end.request_id = self->proto_.request_id().substr(0, 128);
    end.received_at = self->received_at_;
    RouterMetrics& metrics = *self->context_.router_metrics;
    metrics.RequestStarted();
    metrics.StreamsOpen(1);
    end.error = co_await self->GenerateOrRefuse(end);
    const absl::Status status =
        end.error.has_value() ? end.error->ToStatus() : absl::OkStatus();
    // A write that the client never took must have ended before Finish.
    while (self->writing_) {
      const bool woken = co_await self->written_.WaitUntil(RealClock()->Now() + kWriteTimeout);
      if (!woken) self->server_->TryCancel();
    }
    self->Finish(grpc::Status(static_cast<grpc::StatusCode>(status.code()),
                              std::string(status.message())));
    metrics.StreamsOpen(-1);
    RecordEnd(end, metrics);
  }

  // The first token has no gap before it.
  void Measure(int64_t num_tokens) {
    if (num_tokens == 0) return;
    const TimePoint now = RealClock()->Now();
    const auto seconds_since = [now](TimePoint then) {
      return std::chrono::duration<double>(now - then).count();
    };
    const bool is_first = !last_written_.has_value();
    const TimePoint before = std::exchange(last_written_, now).value_or(now);
    if (is_first) context_.router_metrics->FirstTokenWritten(seconds_since(received_at_));
    const int64_t num_gaps = num_tokens - (is_first ? 1 : 0);
    if (num_gaps == 0) return;
    context_.router_metrics->TokensWritten(num_gaps,
                                           seconds_since(before) / static_cast<double>(num_gaps));
  }

  // What there is no memory for is refused, the last reply included.
  Task<std::optional<ApiError>> GenerateOrRefuse(RequestEnd& end) {
    try {
      const ApiOr<Outcome> outcome = co_await Generate(end);
      if (!outcome.ok()) co_return outcome.error();
      end.outcome = outcome.value();
      const absl::Status written = co_await SendLast(outcome.value());
      if (!written.ok()) co_return FromStatus(written, "write");
      co_return std::nullopt;
    } catch (const std::bad_alloc&) {
    }
    co_return OutOfMemoryError();
  }

  Task<ApiOr<Outcome>> Generate(RequestEnd& end) {
    if (context_.draining) co_return DrainingError();
    const ApiOr<ApiRequest> api = ParseRequest(proto_, *context_.model);
    if (!api.ok()) co_return api.error();
    BuildRules rules = context_.ToBuildRules();
    const auto build = [&]() {
      return BuildRequests(api.value(), *context_.model, rules, received_at_);
    };
    ApiOr<std::vector<Request>> requests = co_await RunOn(*context_.pool, *context_.loop, build);
    if (!requests.ok()) co_return requests.error();
    Request request = std::move(requests.value().front());
    request.deadline = std::min(request.deadline, deadline_);
    end.internal_id = request.id.ToString();
    if (proto_.return_text()) text_.emplace(*context_.model, api.value());
    co_return co_await context_.flow->Run(request, *this, client_);
  }

  Task<absl::Status> SendLast(const Outcome& outcome) {
    reply_ = v1::GenerateReply();
    FinishReason reason = outcome.finish_reason;
    if (text_.has_value()) {
      reply_.set_text(text_->Finish(outcome.finish_reason).content);
      if (text_->stopped()) reason = FinishReason::kStop;
    }
    reply_.set_finish_reason(ToProto(reason));
    reply_.mutable_usage()->set_prompt_tokens(static_cast<int32_t>(outcome.usage.prompt_tokens));
    reply_.mutable_usage()->set_completion_tokens(
        static_cast<int32_t>(outcome.usage.completion_tokens));
    reply_.mutable_usage()->set_cached_tokens(static_cast<int32_t>(outcome.usage.cached_tokens));
    reply_.set_prefill_worker(outcome.prefill_worker);
    reply_.set_decode_worker(outcome.decode_worker);
    co_return co_await SendReply();
  }

  Task<absl::Status> SendReply() {
    if (client_.cancelled()) co_return client_.reason();
    writing_ = true;
    StartWrite(&reply_);
    const TimePoint deadline = RealClock()->Now() + kWriteTimeout;
    while (writing_ && !client_.cancelled()) {
      const bool woken = co_await written_.WaitUntil(deadline);
      if (!woken) client_.Cancel(absl::CancelledError("the client does not read"));
    }
    co_return client_.reason();
  }

  const ServiceContext& context_;
  grpc::CallbackServerContext* const server_;  // lives until Finish
  const v1::GenerateRequest proto_;
  const TimePoint deadline_;
  const TimePoint received_at_;
  asio::executor_work_guard<asio::io_context::executor_type> guard_;
  Event written_;
  CancelSource client_;
  std::optional<TextOutput> text_;
  v1::GenerateReply reply_;
  bool writing_ = false;
  std::optional<TimePoint> last_written_{};
  std::shared_ptr<Generation> self_;  // gRPC's share
};

class GrpcService final : public v1::InferenceService::CallbackService {
 public:
  explicit GrpcService(const ServiceContext& context) : context_(context) {}

  grpc::ServerWriteReactor<v1::GenerateReply>* Generate(grpc::CallbackServerContext* server,
                                                        const v1::GenerateRequest* proto) override {
    const auto left = server->deadline() - std::chrono::system_clock::now();
    const auto longest = std::chrono::duration_cast<std::chrono::system_clock::duration>(
        context_.config->request_timeout);
    const TimePoint deadline = RealClock()->Now() + std::min(left, longest);
    const auto generation = std::make_shared<Generation>(context_, server, *proto, deadline);
    generation->Start();
    return generation.get();
  }

 private:
  const ServiceContext& context_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeInferenceService(const ServiceContext* context) {
  return std::make_unique<GrpcService>(*context);
}

}  // namespace lodestone
