// Messages of a link, manifests included. First byte: 'q' a LinkRequest, 'r' a LinkReply as bytes
// of the wire; 'Q' and 'R' the same as protobuf text, for seeds that can be read. Properties: what
// is accepted has counts of at least 0 and known kinds, and goes over the wire again unchanged.
#include <google/protobuf/io/tokenizer.h>
#include <google/protobuf/stubs/logging.h>
#include <google/protobuf/text_format.h>

#include "kvtransfer/proto_convert.h"
#include "tests/fuzz/fuzz_input.h"

namespace lodestone {
namespace {

class NoErrors : public google::protobuf::io::ErrorCollector {
 public:
  void AddError(int, google::protobuf::io::ColumnNumber, const std::string&) override {}
};

template <typename Proto>
bool Read(std::string_view bytes, bool is_text, Proto* proto) {
  if (!is_text) return proto->ParseFromArray(bytes.data(), static_cast<int>(bytes.size()));
  NoErrors errors;
  google::protobuf::TextFormat::Parser parser;
  parser.RecordErrorsTo(&errors);
  parser.SetRecursionLimit(16);
  // Over the wire, which refuses strings that are not UTF-8.
  Proto written;
  return parser.ParseFromString(std::string(bytes), &written) &&
         proto->ParseFromString(written.SerializeAsString());
}

// Maps have no order of their own.
template <typename Proto>
std::string Wire(const Proto& proto) {
  std::string bytes;
  {
    google::protobuf::io::StringOutputStream stream(&bytes);
    google::protobuf::io::CodedOutputStream coded(&stream);
    coded.SetSerializationDeterministic(true);
    proto.SerializeToCodedStream(&coded);
  }
  return bytes;
}

void CheckManifest(const Manifest& manifest) {
  for (const KindRows& rows : manifest) {
    CHECK_LE(0, rows.rows);
    CHECK_LE(0, rows.bytes);
  }
}

void CheckMessage(const ToDecode& message) {
  if (message.open) CHECK_LE(1, message.open->max_slot_bytes);
  for (const Offer& offer : message.offers) {
    CHECK(offer.from_tokens >= 0 && offer.to_tokens >= 0 && offer.first_row >= 0);
    CHECK(offer.num_rows >= 0 && offer.bytes >= 0);
    CheckManifest(offer.kinds);
  }
  for (const Handoff& handoff : message.handoffs) {
    CHECK(handoff.num_generated >= 0);
    CHECK_LE(static_cast<size_t>(handoff.num_generated), handoff.tokens.size());
    CheckManifest(handoff.totals);
  }
}

void CheckMessage(const ToPrefill& message) {
  if (message.accept) {
    CHECK(message.accept->data_port >= 0 && message.accept->data_port <= 65535);
  }
}

template <typename Proto>
void Check(std::string_view bytes, bool is_text) {
  Proto proto;
  if (!Read(bytes, is_text, &proto)) return;
  const auto message = FromProto(proto);
  if (!message.ok()) {
    CHECK(message.status().code() == absl::StatusCode::kInvalidArgument) << message.status();
    return;
  }
  CheckMessage(*message);
  const std::string wire = Wire(ToProto(*message));
  Proto second;
  CHECK(second.ParseFromString(wire));
  const auto again = FromProto(second);
  CHECK(again.ok()) << again.status();
  CHECK(Wire(ToProto(*again)) == wire);
}

void Run(FuzzInput input) {
  const char kind = static_cast<char>(input.Byte());
  const bool is_text = kind == 'Q' || kind == 'R';
  if (kind == 'q' || kind == 'Q') {
    Check<v1::LinkRequest>(input.Rest(), is_text);
  } else {
    Check<v1::LinkReply>(input.Rest(), is_text);
  }
}

}  // namespace
}  // namespace lodestone

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  google::protobuf::SetLogHandler(nullptr);  // a line for each string that is not UTF-8
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  lodestone::Run(lodestone::FuzzInput(data, size));
  return 0;
}
