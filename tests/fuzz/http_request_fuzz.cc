// HTTP head and body, fed as a connection does. First byte: how the rest is cut up.
// Properties: an accepted request is within the limits and its length is told in one way only (two
// ways are how requests are smuggled); what is accepted does not depend on how the bytes arrive. (A
// refusal may: a head in pieces is looked at once it is whole or too long, a chunk line sooner.)
#include <boost/asio/buffer.hpp>

#include "router/http_request_parser.h"
#include "tests/fuzz/fuzz_input.h"

namespace lodestone {
namespace {

// Small, so that short inputs reach them.
const HttpLimits kLimits = {.max_target_bytes = 256,
                            .max_header_bytes = 1024,
                            .max_headers = 16,
                            .max_body_bytes = 512,
                            .max_chunks = 16,
                            .max_chunk_extension_bytes = 32};

struct Outcome {
  bool accepted = false;
  int status = 0;
  HttpRequest request;
};

// The bytes of `unread` that the parser takes are removed. True while it can go on without more.
bool Put(HttpRequestParser& parser, std::string& unread, HttpRequestParser::Error& error) {
  const boost::asio::const_buffer bytes(unread.data(), unread.size());
  const bool in_body = parser.parser().is_header_done();
  const size_t used = in_body ? parser.PutBody(bytes, error) : parser.parser().put(bytes, error);
  unread.erase(0, used);
  const bool wants_more = error == boost::beast::http::error::need_more;
  if (wants_more) error = {};
  if (wants_more) CHECK_LE(unread.size(), static_cast<size_t>(kLimits.max_header_bytes));
  return !wants_more && !error;
}

Outcome Refused(const HttpRequestParser& parser, const HttpRequestParser::Error& error) {
  const HttpRefusal refusal = parser.RefusalOf(error);
  CHECK_EQ(refusal.status == 0, refusal.message.empty());
  return {.status = refusal.status};
}

Outcome Parse(std::string_view bytes, const std::vector<std::string_view>& pieces) {
  HttpRequestParser parser(kLimits);
  std::string unread;
  bool head_checked = false;
  size_t fed = 0;
  for (const std::string_view piece : pieces) {
    unread += piece;
    fed += piece.size();
    HttpRequestParser::Error error;
    while (!parser.parser().is_done()) {
      const bool went_on = Put(parser, unread, error);
      if (error) return Refused(parser, error);
      if (parser.parser().is_header_done() && !head_checked) {
        head_checked = true;
        if (const auto bad = parser.CheckHead()) return {.status = bad->status};
      }
      if (!went_on) break;
    }
    if (parser.parser().is_done()) break;
  }
  CHECK_LE(fed, bytes.size());
  if (!parser.parser().is_done()) return {};  // wants more
  if (const auto bad = parser.CheckHead()) return {.status = bad->status};
  return {.accepted = true, .request = parser.Take()};
}

void CheckAccepted(const HttpRequest& request) {
  CHECK_LE(request.headers.size(), static_cast<size_t>(kLimits.max_headers));
  CHECK_LE(request.path.size() + request.query.size(),
           static_cast<size_t>(kLimits.max_target_bytes));
  CHECK_LE(request.body.size(), static_cast<size_t>(kLimits.max_body_bytes));
  int64_t header_bytes = 0;
  int lengths = 0;
  int encodings = 0;
  for (const auto& [name, value] : request.headers) {
    header_bytes += static_cast<int64_t>(name.size() + value.size());
    CHECK(!name.empty());
    CHECK(name.find_first_of(" \t\r\n:") == std::string::npos) << name;
    CHECK(value.find_first_of("\r\n") == std::string::npos) << value;
    lengths += name == "content-length" ? 1 : 0;
    encodings += name == "transfer-encoding" ? 1 : 0;
  }
  CHECK_LE(header_bytes, kLimits.max_header_bytes);
  CHECK(lengths == 0 || encodings == 0) << "a length and an encoding";
  if (lengths > 0) {
    CHECK_EQ(std::string(request.Header("content-length")).empty(), false);
  }
  CHECK(!request.method.empty());
  CHECK(request.path.find_first_of(" \r\n?") == std::string::npos) << request.path;
}

void Run(FuzzInput input) {
  const uint8_t seed = input.Byte();
  const std::string_view bytes = input.Rest();
  const Outcome whole = Parse(bytes, {bytes});
  if (whole.accepted) CheckAccepted(whole.request);
  const Outcome pieces = Parse(bytes, RandomPieces(bytes, seed, seed % 2 == 0 ? 1 : 40));
  CHECK_EQ(whole.accepted, pieces.accepted);
  CHECK(whole.request.method == pieces.request.method);
  CHECK(whole.request.path == pieces.request.path);
  CHECK(whole.request.query == pieces.request.query);
  CHECK(whole.request.headers == pieces.request.headers);
  CHECK(whole.request.body == pieces.request.body);
}

}  // namespace
}  // namespace lodestone

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  lodestone::Run(lodestone::FuzzInput(data, size));
  return 0;
}
