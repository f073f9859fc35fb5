#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <boost/json/serialize.hpp>
#include <boost/json/value.hpp>

#include "router/api_error.h"
#include "router/limits.h"

namespace lodestone {

namespace json = boost::json;

struct JsonLimits {
  size_t max_depth = kMaxBodyJsonDepth;
  size_t max_nodes = kMaxBodyJsonNodes;  // values, containers included
};

// The JSON document of a client. A 400 names what is wrong and, as `param`, the path of the value
// it is wrong in: syntax, nesting or size over the limits, a key that an object has twice, a string
// that is not Unicode (bytes that are not UTF-8, a lone surrogate escape).
ApiOr<json::value> ParseJson(std::string_view text, const JsonLimits& limits = {});

// Reads the fields of one object. The first error sticks: later reads return nothing, so callers
// read everything in a straight line and look once. A null value counts as absent.
class FieldReader {
 public:
  // `path` is the object's own path ("" for the document); `error` is shared by nested readers.
  // The object and the error must outlive this.
  FieldReader(const json::object& object, std::string path, std::optional<ApiError>* error)
      : object_(object), path_(std::move(path)), error_(error) {}

  // Null if absent, null, or after an error. The field counts as known.
  const json::value* Find(std::string_view name);
  std::optional<bool> Bool(std::string_view name);
  // In [low, high]; a number with a fraction or an exponent that leaves int64 is a type error.
  std::optional<int64_t> Int(std::string_view name, int64_t low, int64_t high);
  std::optional<double> Number(std::string_view name, double low, double high);
  std::optional<std::string> String(std::string_view name);
  const json::object* Object(std::string_view name);
  const json::array* Array(std::string_view name);
  // Accepted whatever it is: it changes nothing.
  void Ignore(std::initializer_list<std::string_view> names);

  // The path of a field of this object.
  std::string PathOf(std::string_view name) const;
  // Keeps the first error.
  void Fail(ApiError error);
  bool failed() const { return error_->has_value(); }
  // Fields that nobody asked for.
  std::vector<std::string> Unknown() const;

 private:
  void FailType(std::string_view name, std::string_view expected, const json::value& actual);

  const json::object& object_;
  const std::string path_;
  std::optional<ApiError>* const error_;
  std::vector<std::string> known_;
};

// "a string", "an array", ...: for messages.
std::string_view TypeName(const json::value& value);
// An int64 exactly: an integer literal in range, or a number without a fraction below 2^53.
std::optional<int64_t> AsInteger(const json::value& value);

}  // namespace lodestone
