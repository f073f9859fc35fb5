#include <algorithm>
#include <cctype>

#include <absl/strings/str_cat.h>

#include "router/json_slices.h"
#include "router/openai_fields.h"

namespace lodestone {
namespace {

bool IsToolName(std::string_view name) {
  return !name.empty() && name.size() <= kMaxToolNameBytes &&
         std::ranges::all_of(name, [](char c) {
           return std::isalnum(static_cast<unsigned char>(c)) ||
                  std::string_view("_-.").find(c) != std::string_view::npos;
         });
}

void CheckFunction(FieldReader& function) {
  const std::string name = function.String("name").value_or("");
  const std::string path = function.PathOf("name");
  if (!IsToolName(name)) {
    function.Fail(InvalidValue(path, absl::StrCat(path, " is \"", name.substr(0, 128),
                                                  "\", expected 1 to ", kMaxToolNameBytes,
                                                  " letters, digits, '_', '-' or '.'")));
  }
  function.String("description");
  function.Object("parameters");
  if (function.Bool("strict").value_or(false)) {
    function.Fail(Unsupported(function.PathOf("strict"),
                              "strict tools are not supported: arguments are not constrained"));
  }
}

// The text of the tool's function object.
std::string ReadTool(FieldReader& reader, const json::value& value, std::string_view text,
                     const std::string& path) {
  if (!value.is_object()) {
    reader.Fail(InvalidType(path, absl::StrCat(path, " is ", std::string(TypeName(value)),
                                               ", expected an object")));
    return {};
  }
  std::optional<ApiError> error;
  FieldReader tool(value.get_object(), path, &error);
  if (const std::string type = tool.String("type").value_or(""); type != "function") {
    tool.Fail(Unsupported(tool.PathOf("type"), absl::StrCat(tool.PathOf("type"), " is \"",
                                                            type.substr(0, 64),
                                                            "\", expected \"function\"")));
  }
  if (const json::object* object = tool.Object("function")) {
    FieldReader function(*object, tool.PathOf("function"), &error);
    CheckFunction(function);
  } else {
    tool.Fail(InvalidValue(tool.PathOf("function"),
                           absl::StrCat(tool.PathOf("function"), " is required")));
  }
  const std::string function(MemberText(text, "function").value_or(""));
  if (function.size() > kMaxToolBytes) {
    tool.Fail(InvalidValue(tool.PathOf("function"),
                           absl::StrCat(tool.PathOf("function"), " has ", function.size(),
                                        " bytes, limit is ", kMaxToolBytes)));
  }
  if (error.has_value()) reader.Fail(*error);
  return function;
}

// Whether the model may call tools.
bool ReadToolChoice(FieldReader& reader) {
  const json::value* choice = reader.Find("tool_choice");
  if (choice == nullptr) return true;
  const std::string text = json::serialize(*choice).substr(0, 64);
  if (choice->is_string() && choice->get_string() == "none") return false;
  if (choice->is_string() && choice->get_string() == "auto") return true;
  if (choice->is_object() || (choice->is_string() && choice->get_string() == "required")) {
    reader.Fail(Unsupported("tool_choice",
                            absl::StrCat("tool_choice is ", text,
                                         ": the model cannot be made to call a tool, use \"auto\" "
                                         "or \"none\"")));
  } else {
    reader.Fail(InvalidValue("tool_choice", absl::StrCat("tool_choice is ", text,
                                                         ", expected \"auto\" or \"none\"")));
  }
  return false;
}

}  // namespace

// With tool_choice none the tools are checked but not declared: a model that knows of none calls
// none.
void ReadTools(FieldReader& reader, std::string_view body, ApiRequest& request) {
  const bool may_call = ReadToolChoice(reader);
  request.parallel_tool_calls = reader.Bool("parallel_tool_calls").value_or(true);
  const json::array* tools = reader.Array("tools");
  if (tools == nullptr || tools->empty()) return;
  if (tools->size() > kMaxTools) {
    return reader.Fail(InvalidValue("tools", absl::StrCat("tools has ", tools->size(),
                                                          " entries, limit is ", kMaxTools)));
  }
  const std::vector<std::string_view> texts = ElementTexts(MemberText(body, "tools").value_or(""));
  std::vector<std::string> functions;
  for (size_t i = 0; i < tools->size() && !reader.failed(); ++i) {
    functions.push_back(ReadTool(reader, (*tools)[i], texts[i], absl::StrCat("tools[", i, "]")));
  }
  if (reader.failed() || !may_call) return;
  DeclareTools(std::move(functions), request.messages);
  request.calls_tools = true;
}

void ReadResponseFormat(FieldReader& reader, std::string_view body, ApiRequest& request) {
  const json::object* format = reader.Object("response_format");
  if (format == nullptr) return;
  std::optional<ApiError> error;
  FieldReader nested(*format, "response_format", &error);
  const std::string type = nested.String("type").value_or("");
  if (type == "json_schema") {
    const json::object* schema = nested.Object("json_schema");
    if (schema == nullptr) {
      nested.Fail(InvalidValue("response_format.json_schema",
                               "response_format.json_schema is required"));
    } else if (FieldReader(*schema, "response_format.json_schema", &error)
                   .Bool("strict")
                   .value_or(false)) {
      nested.Fail(Unsupported("response_format.json_schema.strict",
                              "strict schemas are not supported: the model is told the schema, its "
                              "answer is not constrained"));
    }
  } else if (type != "text" && type != "json_object") {
    nested.Fail(InvalidValue("response_format.type",
                             absl::StrCat("response_format.type is \"", type.substr(0, 64),
                                          "\", expected text, json_object or json_schema")));
  }
  if (error.has_value()) return reader.Fail(*error);
  if (type == "text") return;
  SetResponseFormat(std::string(MemberText(body, "response_format").value_or("")),
                    request.messages);
  request.has_response_format = true;
}

}  // namespace lodestone
