#pragma once

namespace lodestone {

// Largest message between our processes, in bytes: a prompt of a million token ids, with room.
inline constexpr int kMaxMessageBytes = 64 << 20;

}  // namespace lodestone
