// The parts of openai_schema that both routes share.
#pragma once

#include "router/json_reader.h"
#include "router/openai_schema.h"

namespace lodestone {

// Model, sampling, stop and streaming fields.
void ReadCommonFields(FieldReader& reader, const SchemaRules& rules, ApiRequest& request);
void ReadMessages(FieldReader& reader, ApiRequest& request);
// Tools and response format, declared in the messages as their JSON stands in `body`. Call after
// ReadMessages.
void ReadTools(FieldReader& reader, std::string_view body, ApiRequest& request);
void ReadResponseFormat(FieldReader& reader, std::string_view body, ApiRequest& request);
// Integers below vocab_size; `path` is the array's.
std::vector<TokenId> ReadTokenIds(FieldReader& reader, const json::array& array, std::string path,
                                  int32_t vocab_size);
// 400 unless absent, null or equal to one of `allowed` (JSON texts).
void RefuseUnless(FieldReader& reader, std::string_view name,
                  std::initializer_list<std::string_view> allowed);

}  // namespace lodestone
