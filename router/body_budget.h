#pragma once

#include <cstdint>
#include <utility>

namespace lodestone {

// Bytes of request bodies that are held, of all connections together. On the thread of their loop.
class BodyBudget {
 public:
  explicit BodyBudget(int64_t limit) : limit_(limit) {}

  // What one request holds; gives it back when destroyed.
  class Share {
   public:
    explicit Share(BodyBudget* budget) : budget_(*budget) {}
    Share(const Share&) = delete;
    Share& operator=(const Share&) = delete;
    ~Share() { Release(); }
    // Is there room now for `bytes` in all?
    bool Fits(int64_t bytes) const { return budget_.held_ + bytes - bytes_ <= budget_.limit_; }
    // Holds `bytes` in all from now on. False, with nothing changed, if that is over the limit.
    bool GrowTo(int64_t bytes) {
      if (bytes <= bytes_) return true;
      if (!Fits(bytes)) return false;
      budget_.held_ += bytes - bytes_;
      bytes_ = bytes;
      return true;
    }
    int64_t bytes() const { return bytes_; }
    void Release() { budget_.held_ -= std::exchange(bytes_, 0); }

   private:
    BodyBudget& budget_;
    int64_t bytes_ = 0;
  };

  int64_t held() const { return held_; }
  int64_t limit() const { return limit_; }

 private:
  const int64_t limit_;
  int64_t held_ = 0;
};

}  // namespace lodestone
