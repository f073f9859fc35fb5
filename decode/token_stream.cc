#include "decode/token_stream.h"

#include <iterator>
#include <string>
#include <utility>

namespace lodestone {

void TokenStream::Add(std::vector<LeaseEvent> events) {
  {
    MutexLock lock(&mutex_);
    if (!status_.ok()) return;
    const size_t waiting = events_.size() + events.size();
    if (waiting > kMaxEvents) {
      status_ =
          absl::ResourceExhaustedError("the router reads too slowly: " + std::to_string(waiting) +
                                       " events wait, the limit is " + std::to_string(kMaxEvents));
      events_.clear();
    } else {
      events_.insert(events_.end(), std::make_move_iterator(events.begin()),
                     std::make_move_iterator(events.end()));
    }
  }
  notify_();
}

void TokenStream::End(const absl::Status& why) {
  {
    MutexLock lock(&mutex_);
    if (status_.ok()) status_ = why;
  }
  notify_();
}

std::vector<LeaseEvent> TokenStream::TakeAll() {
  MutexLock lock(&mutex_);
  return std::exchange(events_, {});
}

absl::Status TokenStream::status() const {
  MutexLock lock(&mutex_);
  return status_;
}

}  // namespace lodestone
