#include "router/http_service.h"

#include <algorithm>
#include <set>

#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>

#include "base/build_info.h"
#include "base/logging.h"
#include "router/http_reply.h"
#include "router/json_text.h"

namespace lodestone {
namespace {

constexpr size_t kInlineBodyBytes = 64 << 10;  // larger ones are parsed off the loop
constexpr size_t kMaxRequestIdBytes = 128;

size_t EditDistance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = std::exchange(row[0], i);
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t change = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, change});
    }
  }
  return row[b.size()];
}

ApiError WrongMethod(const std::string& method, const std::string& path, std::string allow) {
  ApiError error;
  error.http_status = 405;
  error.type = "invalid_request_error";
  error.code = "method_not_allowed";
  error.message = absl::StrCat(path, " does not take ", method.substr(0, 32), ", use ", allow);
  error.allow = std::move(allow);
  return error;
}

}  // namespace

// A client's id is echoed if it is sane, else ours is used.
std::string RequestIdOf(const HttpRequest& request) {
  const std::string_view id = request.Header("x-request-id");
  const bool sane = !id.empty() && id.size() <= kMaxRequestIdBytes &&
                    std::all_of(id.begin(), id.end(), [](char c) {
                      return std::isalnum(static_cast<unsigned char>(c)) ||
                             std::string_view("-_.:").find(c) != std::string_view::npos;
                    });
  return sane ? std::string(id) : RequestId::Random().ToString();
}

bool IsJson(const HttpRequest& request) {
  const std::string_view type = request.Header("content-type");
  return type.empty() || type.find("json") != std::string_view::npos;
}

ApiError WrongMediaType(const HttpRequest& request) {
  ApiError error;
  error.http_status = 415;
  error.type = "invalid_request_error";
  error.code = "unsupported_media_type";
  error.message = absl::StrCat("Content-Type is ", std::string(request.Header("content-type")),
                               ", expected application/json");
  return error;
}

ApiError DrainingError() {
  ApiError error;
  error.http_status = 503;
  error.code = "draining";
  error.message = "this router is stopping";
  error.retry_after = std::chrono::seconds(1);
  return error;
}

BuildRules ServiceContext::ToBuildRules() const {
  BuildRules rules;
  rules.default_max_new_tokens = config->default_max_new_tokens;
  rules.request_timeout = config->request_timeout;
  for (const std::shared_ptr<Worker>& worker : registry->workers()) {
    if (worker->hello.role != WorkerRole::kDecode) continue;
    rules.largest_request_tokens =
        std::max(rules.largest_request_tokens, LargestRequestTokens(worker->hello));
  }
  return rules;
}

HttpService::HttpService(const ServiceContext* context)
    : context_(*context),
      schema_rules_{.model_names = context->model->names,
                    .vocab_size = context->model->vocab_size,
                    .default_temperature = context->model->default_temperature,
                    .default_top_p = context->model->default_top_p,
                    .strict = context->config->strict_api} {}

const std::vector<HttpService::RouteEntry>& HttpService::Routes() {
  static const std::vector<RouteEntry> kRoutes = {
      {"/v1/chat/completions", "POST", Route::kChat},
      {"/v1/completions", "POST", Route::kCompletions},
      {"/v1/models", "GET", Route::kModels},
      {"/health", "GET", Route::kHealth},
      {"/livez", "GET", Route::kLive},
      {"/liveness", "GET", Route::kLive},
      {"/readyz", "GET", Route::kReady},
      {"/readiness", "GET", Route::kReady},
      {"/metrics", "GET", Route::kMetrics},
      {"/version", "GET", Route::kVersion},
  };
  return kRoutes;
}

Task<void> HttpService::Handle(const HttpRequest& request, HttpExchange& exchange) {
  constexpr std::string_view kModelPrefix = "/v1/models/";
  std::string method = "GET";
  Route route = Route::kModel;
  bool known = request.path.starts_with(kModelPrefix) && request.path.size() > kModelPrefix.size();
  for (const RouteEntry& entry : Routes()) {
    if (entry.path != request.path) continue;
    known = true;
    route = entry.route;
    method = entry.method;
  }
  HttpResponse response;
  const bool head_for_get = request.method == "HEAD" && method == "GET";
  if (!known) {
    response = UnknownPath(request.path);
  } else if (request.method != method && !head_for_get) {
    const std::string allow = method == "GET" ? "GET, HEAD" : method;
    response =
        ErrorResponse(WrongMethod(request.method, request.path, allow), RequestIdOf(request));
  } else if (route == Route::kChat || route == Route::kCompletions) {
    co_await Generate(route == Route::kChat ? ApiKind::kChat : ApiKind::kCompletions, request,
                      exchange);
    co_return;
  } else {
    response = Answer(route, request);
  }
  co_await exchange.Send(std::move(response));
}

HttpResponse HttpService::Answer(Route route, const HttpRequest& request) const {
  HttpResponse response;
  const bool ready = context_.readiness->ready();
  switch (route) {
    case Route::kModels:
      return ModelList();
    case Route::kModel:
      return OneModel(request.path.substr(std::string_view("/v1/models/").size()));
    case Route::kLive:
      response.body = R"({"status":"ok"})";
      return response;
    case Route::kHealth:
    case Route::kReady:
      response.status = ready ? 200 : 503;
      if (!ready) response.headers.emplace_back("Retry-After", "1");
      response.body = context_.readiness->Describe();
      return response;
    case Route::kMetrics:
      response.content_type = kMetricsContentType;
      response.body = context_.metrics->RenderText();
      return response;
    default:
      response.body = JsonText()
                          .Open("{")
                          .Key("version")
                          .String(BuildVersion())
                          .Key("compiler")
                          .String(BuildCompiler())
                          .Key("build_type")
                          .String(BuildType())
                          .Close("}")
                          .Take();
      return response;
  }
}

HttpResponse HttpService::ModelList() const {
  JsonText json;
  json.Open("{").Key("object").String("list").Key("data").Open("[");
  for (const std::string& name : context_.model->names) json.Raw(OneModel(name).body);
  HttpResponse response;
  response.body = json.Close("]").Close("}").Take();
  return response;
}

HttpResponse HttpService::OneModel(const std::string& name) const {
  const ModelInfo& model = *context_.model;
  if (std::find(model.names.begin(), model.names.end(), name) == model.names.end()) {
    return ErrorResponse(ModelNotFound(name, model.names), RequestId::Random().ToString());
  }
  JsonText json;
  json.Open("{").Key("id").String(name).Key("object").String("model");
  json.Key("created").Int(model.created).Key("owned_by").String("lodestone");
  json.Key("root").String(model.directory_name).Key("parent").Null();
  // What no decode worker holds is refused, however long the model's context is.
  const int64_t held = context_.ToBuildRules().largest_request_tokens;
  json.Key("max_model_len")
      .Int(held > 0 ? std::min(held, model.max_context_tokens) : model.max_context_tokens)
      .Key("permission")
      .Open("[")
      .Close("]");
  HttpResponse response;
  response.body = json.Close("}").Take();
  return response;
}

HttpResponse HttpService::UnknownPath(const std::string& path) const {
  const std::string shown = path.substr(0, 128);
  std::vector<std::pair<size_t, std::string>> near;
  for (const RouteEntry& entry : Routes())
    near.emplace_back(EditDistance(shown, entry.path), entry.path);
  std::sort(near.begin(), near.end());
  ApiError error;
  error.http_status = 404;
  error.type = "not_found_error";
  error.code = "unknown_endpoint";
  error.message = absl::StrCat("there is no ", shown, "; near it: ", near[0].second, ", ",
                               near[1].second, ", ", near[2].second);
  return ErrorResponse(error, RequestId::Random().ToString());
}

HttpResponse HttpService::Refusal(int status, std::string message) {
  ApiError error;
  error.http_status = status;
  error.type = status == 408   ? "timeout_error"
               : status == 503 ? "server_error"
                               : "invalid_request_error";
  error.code = status == 413   ? "request_too_large"
               : status == 408 ? "request_timeout"
               : status == 503 ? "overloaded"
                               : "bad_request";
  error.message = std::move(message);
  if (status == 503) error.retry_after = std::chrono::seconds(1);
  return ErrorResponse(error, RequestId::Random().ToString());
}

Task<ApiOr<ApiRequest>> HttpService::Parse(ApiKind api, const HttpRequest& request) {
  const auto parse = [this, api, &request]() {
    return api == ApiKind::kChat ? ParseChatRequest(request.body, schema_rules_)
                                 : ParseCompletionRequest(request.body, schema_rules_);
  };
  if (request.body.size() <= kInlineBodyBytes) co_return parse();
  co_return co_await RunOn(*context_.pool, *context_.loop, parse);
}

Task<ApiOr<std::vector<Request>>> HttpService::Build(const ApiRequest& api, TimePoint received_at) {
  const BuildRules rules = context_.ToBuildRules();
  const auto build = [this, &api, rules, received_at]() {
    return BuildRequests(api, *context_.model, rules, received_at);
  };
  co_return co_await RunOn(*context_.pool, *context_.loop, build);
}

}  // namespace lodestone
