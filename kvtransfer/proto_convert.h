// Messages of a link to and from protobuf. What comes from the wire is checked here for shape
// (known kinds, no negative counts); what it means is checked by the link.
#pragma once

#include "absl/status/statusor.h"
#include "kvtransfer/messages.h"
#include "proto/lodestone/v1/link.pb.h"

namespace lodestone {

v1::LinkRequest ToProto(const ToDecode& message);
v1::LinkReply ToProto(const ToPrefill& message);

// INVALID_ARGUMENT, with the field and its value.
absl::StatusOr<ToDecode> FromProto(const v1::LinkRequest& proto);
absl::StatusOr<ToPrefill> FromProto(const v1::LinkReply& proto);

}  // namespace lodestone
