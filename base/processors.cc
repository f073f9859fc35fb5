#include "base/processors.h"

#include <sched.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <limits>
#include <sstream>
#include <thread>

namespace lodestone {
namespace {

constexpr double kNoQuota = std::numeric_limits<double>::infinity();

double Processors(double quota_us, double period_us) {
  return quota_us > 0 && period_us > 0 ? quota_us / period_us : kNoQuota;
}

// Those that the calling thread may run on (cpuset, taskset): hardware_concurrency counts all.
int AllowedProcessors() {
  cpu_set_t allowed;
  if (sched_getaffinity(0, sizeof(allowed), &allowed) == 0) return CPU_COUNT(&allowed);
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

// Both versions; a file that is missing or says "max" or -1 limits nothing.
double QuotaOf(const std::filesystem::path& group) {
  double quota = 0;
  double period = 0;
  std::ifstream max(group / "cpu.max");
  if (max >> quota >> period) return Processors(quota, period);
  std::ifstream quota_us(group / "cpu.cfs_quota_us");
  std::ifstream period_us(group / "cpu.cfs_period_us");
  if (quota_us >> quota && period_us >> period) return Processors(quota, period);
  return kNoQuota;
}

// A container may see its own group as the root, under a path that is not there.
double SmallestQuota(std::filesystem::path group, const std::string& path) {
  double smallest = QuotaOf(group);
  for (const std::filesystem::path& name : std::filesystem::path(path).relative_path()) {
    group /= name;
    smallest = std::min(smallest, QuotaOf(group));
  }
  return smallest;
}

}  // namespace

double CpuQuota(const std::string& proc_cgroup, const std::string& root) {
  double smallest = kNoQuota;
  std::istringstream lines(proc_cgroup);
  for (std::string line; std::getline(lines, line);) {  // "id:controllers:path"
    const size_t first = line.find(':');
    const size_t second = first == line.npos ? line.npos : line.find(':', first + 1);
    if (second == line.npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    const std::string path = line.substr(second + 1);
    if (controllers == ",,") smallest = std::min(smallest, SmallestQuota(root, path));
    if (controllers.find(",cpu,") != controllers.npos) {
      smallest = std::min(smallest, SmallestQuota(root + "/cpu", path));
    }
  }
  return smallest;
}

int UsableProcessors() {
  std::ostringstream groups;
  groups << std::ifstream("/proc/self/cgroup").rdbuf();
  const double usable =
      std::min<double>(AllowedProcessors(), CpuQuota(groups.str(), "/sys/fs/cgroup"));
  return std::max(1, static_cast<int>(usable));
}

}  // namespace lodestone
