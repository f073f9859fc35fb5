// The generating routes of HttpService: a request from its bytes to the end of its answer.
#include <new>

#include "base/logging.h"
#include "router/http_reply.h"
#include "router/http_service.h"
#include "router/request_log.h"

namespace lodestone {
namespace {

// The prompts one after the other. The outcome is of all together.
Task<ApiOr<Outcome>> TryRunPrompts(const std::vector<Request>& requests, RequestFlow& flow,
                                HttpReply& reply, CancelSource& client) {
  Outcome total;
  total.attempts = 0;
  for (const Request& request : requests) {
    const std::vector<TokenSink*> choices = reply.AddPrompt(request);
    Outcome outcome;
    outcome.finish_reason = FinishReason::kLength;
    if (request.sampling.max_new_tokens > 0) {
      const ApiOr<Outcome> result = co_await flow.Run(request, choices, client);
      if (!result.ok()) co_return result.error();
      outcome = result.value();
    } else {
      for (TokenSink* choice : choices) co_await choice->End(outcome);
    }
    reply.EndPrompt(outcome);
    total.finish_reason = outcome.finish_reason;
    total.attempts += outcome.attempts;
    total.timings = outcome.timings;
  }
  total.usage = reply.usage();
  co_return total;
}

// The same, also where memory does not suffice for an answer.
Task<ApiOr<Outcome>> RunPrompts(const std::vector<Request>& requests, RequestFlow& flow,
                                HttpReply& reply, CancelSource& client) {
  try {
    co_return co_await TryRunPrompts(requests, flow, reply, client);
  } catch (const std::bad_alloc&) {
  }
  co_return OutOfMemoryError();
}

// Sends the end of the answer, which is `error` if there is one: also if memory does not suffice
// for a good end. If not for an error either, `client` is cut.
Task<void> EndReply(HttpReply& reply, CancelSource& client, std::optional<ApiError>& error) {
  if (!error.has_value()) {
    try {
      co_await reply.Finish();
    } catch (const std::bad_alloc&) {
      error = OutOfMemoryError();
    }
  }
  if (!error.has_value()) co_return;
  try {
    co_await reply.Fail(*error);
  } catch (const std::bad_alloc&) {
    client.Cancel(absl::ResourceExhaustedError(error->message));
  }
}

}  // namespace

// From the bytes to requests: nothing has been sent yet, so every error has its HTTP status.
Task<ApiOr<HttpService::Prepared>> HttpService::Prepare(ApiKind api, const HttpRequest& request) {
  if (context_.draining) co_return DrainingError();
  if (!IsJson(request)) co_return WrongMediaType(request);
  ApiOr<ApiRequest> parsed = co_await Parse(api, request);
  if (!parsed.ok()) co_return parsed.error();
  for (const std::string& field : parsed.value().unknown_fields) {
    context_.router_metrics->UnknownField(field);
  }
  ApiOr<std::vector<Request>> requests = co_await Build(parsed.value(), request.received_at);
  if (!requests.ok()) co_return requests.error();
  Prepared prepared;
  prepared.api = std::move(parsed).value();
  prepared.requests = std::move(requests).value();
  co_return prepared;
}

Task<void> HttpService::Generate(ApiKind api, const HttpRequest& request, HttpExchange& exchange) {
  RequestEnd end;
  end.api = api == ApiKind::kChat ? "chat" : "completions";
  end.request_id = RequestIdOf(request);
  end.received_at = request.received_at;
  context_.router_metrics->RequestStarted();
  const ApiOr<Prepared> prepared = co_await Prepare(api, request);
  exchange.ReleaseBody();
  if (!prepared.ok()) {
    end.error = prepared.error();
    HttpResponse response = ErrorResponse(prepared.error(), end.request_id);
    co_await exchange.Send(std::move(response));
    RecordEnd(end, *context_.router_metrics);
    co_return;
  }
  const std::vector<Request>& requests = prepared.value().requests;
  end.internal_id = requests.front().id.ToString();
  ReplyContext reply_context;
  reply_context.service = &context_;
  reply_context.api = &prepared.value().api;
  reply_context.exchange = &exchange;
  reply_context.received_at = request.received_at;
  reply_context.request_id = end.request_id;
  reply_context.debug = prepared.value().api.timings || request.Header("x-lodestone-debug") == "1";
  const std::unique_ptr<HttpReply> reply = HttpReply::Create(std::move(reply_context));
  context_.router_metrics->StreamsOpen(1);
  const ApiOr<Outcome> outcome =
      co_await RunPrompts(requests, *context_.flow, *reply, exchange.client());
  if (outcome.ok()) {
    end.outcome = outcome.value();
  } else {
    end.error = outcome.error();
  }
  co_await EndReply(*reply, exchange.client(), end.error);
  context_.router_metrics->StreamsOpen(-1);
  RecordEnd(end, *context_.router_metrics);
}

}  // namespace lodestone
