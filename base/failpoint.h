// Named faults that tests and operators of test clusters inject:
//
//   RETURN_IF_ERROR(FAILPOINT("kvtransfer.send"));
//
// FAILPOINT is a constant OK unless the build has -DLODESTONE_FAILPOINTS=ON (default for every
// build type but Release). Test binaries have them in every build (lodestone_failpoints in
// cmake/LodestoneTargets.cmake). A point does nothing until it is armed, by Arm() or by
//   LODESTONE_FAILPOINTS="name=error(UNAVAILABLE);other=delay(200ms);third=2*crash"
// Actions: error(CODE): that status; delay(TIME): sleeps, then OK; crash: SIGKILL to the process.
// In front "N*": only N hits act, later ones pass; "M+": the first M hits pass: "20+1*crash".
#pragma once

#include <cstdint>
#include <string_view>

#include <absl/status/status.h>

namespace lodestone {

// Of this source file: test binaries may have both.
constexpr bool kFailpointsEnabled =
#ifdef LODESTONE_FAILPOINTS_ENABLED
    true;
#else
    false;
#endif

namespace failpoint {

// Replaces what was armed under `name`. INVALID_ARGUMENT if the action cannot be parsed.
absl::Status Arm(std::string_view name, std::string_view action);
// `list` as in LODESTONE_FAILPOINTS. Nothing is armed if a part cannot be parsed.
absl::Status ArmList(std::string_view list);
// Arms what LODESTONE_FAILPOINTS names. FAILED_PRECONDITION if it is set in a build without them.
absl::Status ArmFromEnvironment();
void DisarmAll();
// How often the armed point `name` has acted; 0 if it is not armed.
int64_t NumHits(std::string_view name);
// Acts as armed. Use FAILPOINT instead.
absl::Status Hit(std::string_view name);

}  // namespace failpoint
}  // namespace lodestone

#ifdef LODESTONE_FAILPOINTS_ENABLED
#define FAILPOINT(name) ::lodestone::failpoint::Hit(name)
#else
#define FAILPOINT(name) ::absl::OkStatus()
#endif
