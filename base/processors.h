#pragma once

#include <string>

namespace lodestone {

// How many processors this process can keep busy, at least 1: those the calling thread may run on,
// or fewer where a cgroup (the CPU limit of a container) has less time for it. Beyond that time the
// kernel stops all its threads for a while. Reads files; any thread.
int UsableProcessors();

// The smallest CPU quota of the cgroups that `proc_cgroup` (the text of /proc/self/cgroup) names
// and of those around them, in processors; infinite if none has one. `root` is where cgroups are
// mounted. Formats: Linux admin guide, cgroup-v2 "cpu.max" and cgroup-v1 "cpu.cfs_quota_us".
double CpuQuota(const std::string& proc_cgroup, const std::string& root);

}  // namespace lodestone
