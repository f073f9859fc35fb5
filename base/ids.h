// Strong id types: ids of different kinds cannot be mixed. All are trivially copyable, comparable,
// hashable (absl and std), printable, and random ones come from the kernel's generator.
#pragma once

#include <compare>
#include <cstdint>
#include <functional>
#include <optional>
#include <ostream>
#include <string>
#include <string_view>

namespace lodestone {

using TokenId = int32_t;

// `bytes` random bytes of the kernel (getrandom); ends the process if it has none.
void FillRandom(void* data, size_t bytes);

// An integer that is only an id. Same size and bytes as T, so arrays of it can be read as T[].
template <typename Tag, typename T>
class IntegerId {
 public:
  using ValueType = T;
  constexpr IntegerId() = default;
  explicit constexpr IntegerId(T value) : value_(value) {}
  constexpr T value() const { return value_; }
  std::string ToString() const { return std::to_string(value_); }

  friend constexpr auto operator<=>(const IntegerId&, const IntegerId&) = default;
  friend std::ostream& operator<<(std::ostream& out, IntegerId id) { return out << id.value_; }
  template <typename H>
  friend H AbslHashValue(H state, IntegerId id) {
    return H::combine(std::move(state), id.value_);
  }

 private:
  T value_ = 0;
};

// 128 random bits, printed as 32 lower-case hex digits. The default value is nil (all zero).
template <typename Tag>
class RandomId128 {
 public:
  constexpr RandomId128() = default;
  constexpr RandomId128(uint64_t high, uint64_t low) : high_(high), low_(low) {}
  static RandomId128 Random() {
    uint64_t words[2];
    do {
      FillRandom(words, sizeof(words));
    } while (words[0] == 0 && words[1] == 0);
    return RandomId128(words[0], words[1]);
  }
  // nullopt unless `hex` is exactly 32 hex digits (upper case is accepted).
  static std::optional<RandomId128> FromString(std::string_view hex);

  std::string ToString() const;
  constexpr uint64_t high() const { return high_; }
  constexpr uint64_t low() const { return low_; }
  constexpr bool is_nil() const { return high_ == 0 && low_ == 0; }

  friend constexpr auto operator<=>(const RandomId128&, const RandomId128&) = default;
  friend std::ostream& operator<<(std::ostream& out, const RandomId128& id) {
    return out << id.ToString();
  }
  template <typename H>
  friend H AbslHashValue(H state, const RandomId128& id) {
    return H::combine(std::move(state), id.high_, id.low_);
  }

 private:
  uint64_t high_ = 0;
  uint64_t low_ = 0;
};

std::string FormatHex128(uint64_t high, uint64_t low);
bool ParseHex128(std::string_view hex, uint64_t* high, uint64_t* low);

template <typename Tag>
std::string RandomId128<Tag>::ToString() const {
  return FormatHex128(high_, low_);
}

template <typename Tag>
std::optional<RandomId128<Tag>> RandomId128<Tag>::FromString(std::string_view hex) {
  RandomId128 id;
  if (!ParseHex128(hex, &id.high_, &id.low_)) return std::nullopt;
  return id;
}

// What a client asked, on every process it touches.
using RequestId = RandomId128<struct RequestIdTag>;
// One start of one process: an address is never an identity.
using InstanceId = RandomId128<struct InstanceIdTag>;
// The token stream and cache of a request on one worker.
using SequenceId = IntegerId<struct SequenceIdTag, uint64_t>;
// A page of a worker's cache; -1 = none.
using PageId = IntegerId<struct PageIdTag, int32_t>;
// A promise of a decode worker to hold bytes. Random, so that a lease of an earlier start of the
// worker never names one of this start; 0 = none.
using LeaseId = IntegerId<struct LeaseIdTag, uint64_t>;

inline constexpr PageId kNoPage{-1};
inline constexpr LeaseId kNoLease{0};

LeaseId RandomLeaseId();

}  // namespace lodestone

template <typename Tag, typename T>
struct std::hash<lodestone::IntegerId<Tag, T>> {
  size_t operator()(lodestone::IntegerId<Tag, T> id) const { return std::hash<T>()(id.value()); }
};

template <typename Tag>
struct std::hash<lodestone::RandomId128<Tag>> {
  // The bits are random already; a nil or hand-made id only costs speed.
  size_t operator()(const lodestone::RandomId128<Tag>& id) const { return id.high() ^ id.low(); }
};
