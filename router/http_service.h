#pragma once

#include <string>
#include <vector>

#include "router/config.h"
#include "router/http_server.h"
#include "router/model_info.h"
#include "router/openai_schema.h"
#include "router/readiness.h"
#include "router/request_builder.h"
#include "router/request_flow.h"

namespace lodestone {

// What the public services share. Nothing is owned; all of it outlives them.
struct ServiceContext {
  asio::io_context* loop = nullptr;
  asio::thread_pool* pool = nullptr;  // parses and tokenises what is large
  const RouterConfig* config = nullptr;
  const ModelInfo* model = nullptr;
  WorkerRegistry* registry = nullptr;
  RequestFlow* flow = nullptr;
  Readiness* readiness = nullptr;
  RouterMetrics* router_metrics = nullptr;
  Metrics* metrics = nullptr;
  bool draining = false;

  BuildRules ToBuildRules() const;
};

// Of a request: the client's x-request-id if it is sane, else a new one.
std::string RequestIdOf(const HttpRequest& request);
bool IsJson(const HttpRequest& request);
ApiError WrongMediaType(const HttpRequest& request);
ApiError DrainingError();

// The HTTP routes: OpenAI's API, probes, metrics. Translates; what a request does is RequestFlow's.
class HttpService final : public HttpHandler {
 public:
  explicit HttpService(const ServiceContext* context);

  Task<void> Handle(const HttpRequest& request, HttpExchange& exchange) override;
  HttpResponse Refusal(int status, std::string message) override;

 private:
  enum class Route {
    kChat,
    kCompletions,
    kModels,
    kModel,
    kHealth,
    kLive,
    kReady,
    kMetrics,
    kVersion
  };
  struct RouteEntry {
    const char* path;
    const char* method;
    Route route;
  };
  static const std::vector<RouteEntry>& Routes();

  HttpResponse Answer(Route route, const HttpRequest& request) const;
  HttpResponse ModelList() const;
  HttpResponse OneModel(const std::string& name) const;
  HttpResponse UnknownPath(const std::string& path) const;
  Task<void> Generate(ApiKind api, const HttpRequest& request, HttpExchange& exchange);
  struct Prepared {
    ApiRequest api;
    std::vector<Request> requests;
  };
  Task<ApiOr<Prepared>> Prepare(ApiKind api, const HttpRequest& request);
  Task<ApiOr<ApiRequest>> Parse(ApiKind api, const HttpRequest& request);
  Task<ApiOr<std::vector<Request>>> Build(const ApiRequest& api, TimePoint received_at);

  const ServiceContext& context_;
  const SchemaRules schema_rules_;
};

}  // namespace lodestone
