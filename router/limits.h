// Every limit on what a client may send, ask for or make the router hold, in the order in which
// they are checked: what exceeds one is refused before anything is allocated for it, with a message
// that has both values. Those that a deployment may want to change are defaults of RouterConfig;
// the rest is fixed. tests/router/limits_test.cc walks this list.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>

namespace lodestone {

// 1. A connection: 503.
inline constexpr int64_t kMaxConnections = 10'000;
inline constexpr std::chrono::milliseconds kIdleTimeout{75'000};  // without a byte: closed

// 2. The head of a request: 414 for its target, 431, 408.
inline constexpr int64_t kMaxTargetBytes = 8 << 10;
inline constexpr int64_t kMaxHeaderBytes = 16 << 10;
inline constexpr int64_t kMaxHeaders = 100;
inline constexpr std::chrono::milliseconds kHeaderTimeout{10'000};

// 3. Its body: 413, 431 for the extension of a chunk, 408; 503 for the bodies of all requests that
// are not parsed yet.
inline constexpr int64_t kMaxBodyBytes = 16 << 20;
inline constexpr int64_t kMaxHeldBodyBytes = 256 << 20;
inline constexpr int64_t kMaxChunks = 65'536;
inline constexpr int64_t kMaxChunkExtensionBytes = 256;
inline constexpr std::chrono::milliseconds kBodyTimeout{30'000};  // plus 1 s per...
inline constexpr int64_t kMinBodyBytesPerSecond = 64 << 10;       // ...so many bytes received

// 4. Its JSON: 400. A key that an object has twice is refused, too.
inline constexpr size_t kMaxBodyJsonDepth = 64;
inline constexpr size_t kMaxBodyJsonNodes = 2'000'000;  // values, containers included

// 5. Its fields: 400. Numbers are finite and in range, integers where integers are meant.
inline constexpr size_t kMaxMessages = 4096;
inline constexpr size_t kMaxTools = 256;
inline constexpr size_t kMaxToolBytes = 256 << 10;  // the schema of one tool
inline constexpr size_t kMaxToolNameBytes = 64;
inline constexpr int64_t kMaxChoices = 8;  // `n`
inline constexpr size_t kMaxPrompts = 64;
inline constexpr size_t kMaxLogitBias = 1024;
inline constexpr size_t kMaxStopTokenIds = 256;
inline constexpr int64_t kMaxTopLogprobs = 20;
inline constexpr int64_t kMaxCompletionLogprobs = 5;
// Stop strings: StopMatcher::kMaxStops (4), kMaxStopBytes (256 each), in text/stop_strings.h.

// 6. What it would cost: 400.
inline constexpr int64_t kMaxLogprobEntries = 4'000'000;  // tokens times alternatives, of an answer

// 7. Its turn: 429, with Retry-After.
inline constexpr int64_t kMaxRunning = 256;
inline constexpr int64_t kMaxQueued = 256;
inline constexpr int64_t kMaxQueuedTokens = 4 << 20;  // of the prompts that wait

// 8. Its answer: a client that does not read is cut.
inline constexpr int64_t kMaxOutputBytes = 256 << 10;  // waiting to be written
inline constexpr int64_t kMaxEventBytes = 64 << 10;    // of one server-sent event
inline constexpr std::chrono::milliseconds kStallTimeout{60'000};  // for 64 KiB to be taken

}  // namespace lodestone
