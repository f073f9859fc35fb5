#include "kvtransfer/link.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kvtransfer/transport.h"

namespace lodestone {

using std::chrono::duration_cast;
using std::chrono::milliseconds;

void Backoff::Failed(TimePoint now, const absl::Status& why) {
  why_ = why.ToString();
  const int doublings = std::min(failures_, 16);
  ++failures_;
  const auto base = std::min(times_.backoff_first * (int64_t{1} << doublings),
                             absl::IsFailedPrecondition(why) ? times_.backoff_refused
                                                             : times_.backoff_unreachable);
  random_ ^= random_ << 13;  // xorshift64
  random_ ^= random_ >> 7;
  random_ ^= random_ << 17;
  next_ = now + base - milliseconds(random_ % static_cast<uint64_t>(base.count() / 4 + 1));
}

void Tombstones::Sweep(TimePoint now) {
  if (now < next_sweep_) return;
  next_sweep_ = now + std::chrono::seconds(1);
  std::erase_if(until_, [now](const auto& entry) { return entry.second <= now; });
}

std::string AgeAndLimit(std::chrono::nanoseconds age, std::chrono::nanoseconds limit) {
  return absl::StrCat("for ", duration_cast<milliseconds>(age).count(), " ms, limit is ",
                      duration_cast<milliseconds>(limit).count(), " ms");
}

absl::StatusOr<std::string> DataListener::NewSessionKey() {
  std::string key(kSessionKeyBytes, '\0');
  FillRandom(key.data(), key.size());
  return key;
}

std::string HostOf(const std::string& address) {
  const size_t colon = address.rfind(':');
  std::string host = colon == std::string::npos ? address : address.substr(0, colon);
  if (host.size() >= 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  }
  return host;
}

}  // namespace lodestone
