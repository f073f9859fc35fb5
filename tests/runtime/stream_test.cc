#include "runtime/stream.h"

#include <gtest/gtest.h>

#include <utility>

namespace lodestone {
namespace {

TEST(StreamTest, OnTheHostAnEventIsBehindAtOnce) {
  ThreadPool pool(1);
  Stream engine(&pool);
  Stream moves = Stream::Create(kHostDevice, &pool).value();
  Event event = Event::Create(kHostDevice).value();
  event.Record(engine);
  moves.WaitFor(event);
  EXPECT_TRUE(event.Passed().value());
  Event moved = std::move(event);
  EXPECT_TRUE(moved.Passed().value());
}

TEST(StreamTest, NoEventWithoutTheDevice) {
  if (OpenDevice({0}).ok()) GTEST_SKIP() << "this machine has a GPU";
  EXPECT_FALSE(Event::Create({0}).ok());
}

}  // namespace
}  // namespace lodestone
