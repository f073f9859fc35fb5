#pragma once

namespace lodestone {

// Largest message between our processes, in bytes: a prompt of a million token ids, with room.
inline constexpr int kMaxMessageBytes = 64 << 20;

// What a peer may send of one stream before the reader takes it, in bytes: the token ids of a
// prompt of two million. With gRPC's 64 KiB a long prompt waits for the reader again and again.
inline constexpr int kStreamWindowBytes = 8 << 20;

}  // namespace lodestone
