// A real router in this process with scripted workers around it.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <boost/json/parse.hpp>
#include <boost/json/value.hpp>

#include "router/model_info.h"
#include "router/router.h"
#include "tests/router/http_client.h"
#include "tests/tools/scripted_workers.h"

namespace lodestone {

class RouterFixture : public testing::Test {
 protected:
  static const ModelInfo& Model() {
    static const ModelInfo* const model =
        ModelInfo::Load(ModelDirectory(), "").value().release();
    return *model;
  }
  static std::string ModelDirectory() {
    return std::string(LODESTONE_SOURCE_DIR) + "/models/needle-tiny";
  }

  static RouterConfig Config() {
    RouterConfig config;
    config.model = ModelDirectory();
    config.http_port = 0;
    config.grpc_port = 0;
    config.metrics_port = 0;
    config.replay_wait = std::chrono::milliseconds(1500);
    config.worker_wait = std::chrono::milliseconds(200);
    return config;
  }

  void StartRouter(const RouterConfig& config = Config()) {
    Serve(Router::Start(config));
  }
  void Serve(absl::StatusOr<std::unique_ptr<Router>> router) {
    ASSERT_TRUE(router.ok()) << router.status();
    router_ = *std::move(router);
    http_ = router_->ports().http;
    grpc_address_ = "127.0.0.1:" + std::to_string(router_->ports().grpc);
  }

  // Workers whose every answer is `text`.
  void StartWorkers(const std::string& text, int num_prefill = 1, int num_decode = 1) {
    StartWorkersWith(Model().tokenizer->EncodeText(text), num_prefill, num_decode);
  }
  void StartWorkersWith(std::vector<int32_t> output, int num_prefill = 1, int num_decode = 1) {
    script_.output = std::move(output);
    for (int i = 0; i < num_prefill; ++i) AddPrefill();
    for (int i = 0; i < num_decode; ++i) AddDecode();
    WaitReady();
  }
  ScriptedPrefill& AddPrefill() {
    prefills_.push_back(ScriptedPrefill::Start(script_, grpc_address_));
    for (const auto& decode : decodes_) prefills_.back()->AddDecode(decode.get());
    return *prefills_.back();
  }
  ScriptedDecode& AddDecode() {
    decodes_.push_back(ScriptedDecode::Start(script_, grpc_address_));
    for (const auto& prefill : prefills_) prefill->AddDecode(decodes_.back().get());
    return *decodes_.back();
  }
  // With more room than others, so that requests go to it.
  ScriptedDecode& AddPreferredDecode() {
    script_.cache_capacity_bytes *= 2;
    ScriptedDecode& decode = AddDecode();
    script_.cache_capacity_bytes /= 2;
    return decode;
  }

  static bool Eventually(const std::function<bool()>& condition, double seconds = 10) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
    while (std::chrono::steady_clock::now() < end) {
      if (condition()) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return condition();
  }
  // Until every worker is registered and every pair has passed a probe.
  void WaitReady() {
    const size_t num_workers = prefills_.size() + decodes_.size();
    const double pairs = static_cast<double>(prefills_.size() * decodes_.size());
    ASSERT_TRUE(Eventually([&]() {
      const ClientResponse response = Fetch(http_, "GET", "/readyz");
      if (response.status != 200) return false;
      return Parse(response.body).at("workers").as_array().size() == num_workers &&
             Metric("lodestone_readiness_probes_total{result=\"ok\"}") >= pairs;
    })) << Fetch(http_, "GET", "/readyz").body;
  }

  static boost::json::value Parse(const std::string& text) {
    boost::system::error_code error;
    boost::json::value value = boost::json::parse(text, error);
    EXPECT_FALSE(error) << text;
    return value;
  }
  // The value of one line of /metrics; 0 if it is not there.
  double Metric(const std::string& series) {
    const std::string text = Fetch(http_, "GET", "/metrics").body;
    const size_t at = text.find("\n" + series + " ");
    return at == std::string::npos ? 0 : std::stod(text.substr(at + series.size() + 2));
  }

  static std::string ChatBody(const std::string& extra = "") {
    return R"({"model":"needle-tiny","messages":[{"role":"user","content":"hi"}])" +
           (extra.empty() ? "" : "," + extra) + "}";
  }
  ClientResponse Chat(const std::string& extra = "") {
    return Fetch(http_, "POST", "/v1/chat/completions", ChatBody(extra));
  }
  static std::string ContentOf(const ClientResponse& response) {
    EXPECT_EQ(response.status, 200) << response.body;
    if (response.status != 200) return "";
    return std::string(
        Parse(response.body).at("choices").at(0).at("message").at("content").as_string());
  }
  static std::string ErrorCode(const ClientResponse& response) {
    return std::string(Parse(response.body).at("error").at("code").as_string());
  }

  // A streamed chat: its events up to the end of the body, and its first choice.
  struct Streamed {
    std::vector<std::string> events;
    std::string content;
    std::string reasoning;
    std::vector<ToolCall> tool_calls;
    int num_call_deltas = 0;
    std::string finish_reason;
    bool done = false;
    bool error = false;
  };
  static void AbsorbCalls(const boost::json::value& deltas, Streamed& result) {
    for (const boost::json::value& delta : deltas.as_array()) {
      const auto index = delta.at("index").to_number<size_t>();
      if (index >= result.tool_calls.size()) result.tool_calls.resize(index + 1);
      ToolCall& call = result.tool_calls[index];
      const boost::json::object& function = delta.at("function").as_object();
      if (const auto* id = delta.as_object().if_contains("id")) call.id += id->as_string();
      if (const auto* name = function.if_contains("name")) call.name += name->as_string();
      call.arguments += function.at("arguments").as_string();
      ++result.num_call_deltas;
    }
  }
  static void Absorb(const std::string& event, Streamed& result) {
    result.events.push_back(event);
    if (event == "[DONE]") {
      result.done = true;
      return;
    }
    const boost::json::value chunk = Parse(event);
    if (chunk.as_object().contains("error")) {
      result.error = true;
      return;
    }
    for (const boost::json::value& choice : chunk.at("choices").as_array()) {
      if (choice.at("index").to_number<int>() != 0) continue;
      const boost::json::object& delta = choice.at("delta").as_object();
      if (const auto* content = delta.if_contains("content")) {
        result.content += std::string(content->as_string());
      }
      if (const auto* reasoning = delta.if_contains("reasoning_content")) {
        result.reasoning += std::string(reasoning->as_string());
      }
      if (const auto* calls = delta.if_contains("tool_calls")) AbsorbCalls(*calls, result);
      if (choice.at("finish_reason").is_string()) {
        result.finish_reason = std::string(choice.at("finish_reason").as_string());
      }
    }
  }
  Streamed StreamChat(const std::string& extra = "") {
    HttpClient client(http_);
    client.Send("POST", "/v1/chat/completions",
                ChatBody("\"stream\":true" + (extra.empty() ? "" : "," + extra)));
    Streamed result;
    const ClientResponse head = client.ReceiveHead();
    EXPECT_EQ(head.status, 200);
    while (const std::optional<std::string> event = client.ReadEvent()) Absorb(*event, result);
    return result;
  }

  ScriptedModel script_;
  int http_ = 0;
  std::string grpc_address_;
  // Prefill workers hand over to decode workers, so they go first; the router before both.
  std::vector<std::unique_ptr<ScriptedDecode>> decodes_;
  std::vector<std::unique_ptr<ScriptedPrefill>> prefills_;
  std::unique_ptr<Router> router_;
};

}  // namespace lodestone
