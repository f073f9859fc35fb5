#pragma once

#include <chrono>

#include <boost/asio/io_context.hpp>

namespace lodestone {

// How long the router's loop looks for more after work, without sleep: 0 unless `processors`
// (UsableProcessors) are some more than the router needs.
std::chrono::nanoseconds SpinTime(int processors);

// As loop.run(), but after work it looks for more for `spin_for` before it sleeps: to wake takes
// longer than most of what a request waits for in the router. Idle, it sleeps.
void RunEventLoop(boost::asio::io_context& loop, std::chrono::nanoseconds spin_for);

}  // namespace lodestone
