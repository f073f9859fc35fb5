#include "tests/tools/scripted_server.h"

#include <functional>

namespace lodestone {

void Registrar::Run() {
  const auto stream = stub_->Register(&context_);
  v1::WorkerReport report;
  *report.mutable_hello() = hello_;
  *report.mutable_load() = load();
  bool open = stream->Write(report);
  v1::RegistryReply reply;
  if (open && stream->Read(&reply) && !reply.accepted()) SetRefusal(reply.error().message());
  std::thread reader([&]() {  // notices the end of the stream
    v1::RegistryReply later;
    while (stream->Read(&later)) continue;
    std::lock_guard lock(mutex_);
    stopping_ = true;
    wake_.notify_all();
  });
  while (open && !WaitToStop()) {
    if (silent_) continue;
    v1::WorkerReport heartbeat;
    *heartbeat.mutable_load() = load();
    open = stream->Write(heartbeat);
  }
  reader.join();
  const grpc::Status status = stream->Finish();
  if (refusal().empty()) SetRefusal(status.error_message());
}

v1::WorkerHello MakeHello(const ScriptedModel& model, v1::WorkerRole role, const std::string& id,
                          const std::string& address) {
  v1::WorkerHello hello;
  hello.set_role(role);
  hello.set_instance_id(id);
  hello.set_address(address);
  const auto add_field = [&](const char* name, const std::string& value) {
    v1::LayoutField* field = hello.mutable_layout()->add_fields();
    field->set_name(name);
    field->set_value(value);
  };
  add_field("index_k", model.index_k);
  if (!model.tokenizer.empty()) add_field("tokenizer", model.tokenizer);
  hello.mutable_layout()->set_fingerprint(std::hash<std::string>()(model.index_k));
  hello.set_model_name(model.model_name);
  hello.set_model_id(model.model_id);
  hello.set_vocab_size(model.vocab_size);
  hello.set_max_context_tokens(model.max_context_tokens);
  hello.set_cache_capacity_bytes(model.cache_capacity_bytes);
  hello.set_max_sequences(256);
  hello.set_bytes_per_sequence(model.bytes_per_sequence);
  hello.set_bytes_per_page(model.bytes_per_page);
  hello.set_page_tokens(model.page_tokens);
  hello.set_version("scripted");
  hello.set_eos_token_id(model.eos_token_id);
  return hello;
}

v1::WorkerLoad ReadyLoad(int64_t free_bytes) {
  v1::WorkerLoad load;
  load.set_state(v1::WORKER_STATE_READY);
  load.set_free_bytes(free_bytes);
  load.set_free_sequences(256);
  return load;
}

namespace {

bool IsAtEnd(const ScriptedDecode::Adoption& script) {
  return script.next >= static_cast<int32_t>(script.output.size());
}

}  // namespace

bool IsAtStop(const ScriptedDecode::Adoption& script) {
  return IsAtEnd(script) && !script.ignore_eos;
}

void SetNextToken(const ScriptedModel& model, const ScriptedDecode::Adoption& script, float logprob,
                  v1::Token* token) {
  token->set_index(script.next);
  token->set_id(IsAtEnd(script) ? model.eos_token_id
                                : script.output[static_cast<size_t>(script.next)]);
  if (script.logprobs) token->set_logprob(logprob);
}

}  // namespace lodestone
