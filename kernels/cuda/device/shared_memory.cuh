#pragma once

#include <cstdint>

// Loads and stores of shared memory by its 32-bit addresses. One wrapper per instruction; section
// numbers are those of the PTX manual, version 9.0.
namespace lodestone::cuda {

__device__ inline uint32_t SharedAddress(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// ld.shared (9.7.9.8) of a word, then of a byte, two and four words; not moved across barriers.
__device__ inline uint32_t LoadShared(uint32_t shared_address) {
  uint32_t word;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(word) : "r"(shared_address));
  return word;
}
__device__ inline uint32_t LoadSharedByte(uint32_t shared_address) {
  uint32_t byte;
  asm volatile("ld.shared.u8 %0, [%1];" : "=r"(byte) : "r"(shared_address));
  return byte;
}
__device__ inline uint2 LoadSharedPair(uint32_t shared_address) {
  uint2 pair;
  asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];"
               : "=r"(pair.x), "=r"(pair.y)
               : "r"(shared_address));
  return pair;
}
__device__ inline uint4 LoadSharedQuad(uint32_t shared_address) {
  uint4 words;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(words.x), "=r"(words.y), "=r"(words.z), "=r"(words.w)
               : "r"(shared_address));
  return words;
}

// The same of four floats, nor moved across other accesses of memory.
__device__ inline float4 LoadSharedFloats(uint32_t shared_address) {
  float4 four;
  asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(four.x), "=f"(four.y), "=f"(four.z), "=f"(four.w)
               : "r"(shared_address)
               : "memory");
  return four;
}

// st.shared (9.7.9.11) where `stores`, without a branch.
__device__ inline void StoreSharedIf(bool stores, uint32_t shared_address, const float4& value) {
  asm volatile(
      "{\n"
      ".reg .pred stores;\n"
      "setp.ne.u32 stores, %5, 0;\n"
      "@stores st.shared.v4.f32 [%0], {%1, %2, %3, %4};\n"
      "}\n" ::"r"(shared_address),
      "f"(value.x), "f"(value.y), "f"(value.z), "f"(value.w), "r"(uint32_t{stores})
      : "memory");
}
__device__ inline void StoreSharedIf(bool stores, uint32_t shared_address, uint2 value) {
  asm volatile(
      "{\n"
      ".reg .pred stores;\n"
      "setp.ne.u32 stores, %3, 0;\n"
      "@stores st.shared.v2.u32 [%0], {%1, %2};\n"
      "}\n" ::"r"(shared_address),
      "r"(value.x), "r"(value.y), "r"(uint32_t{stores})
      : "memory");
}
__device__ inline void StoreSharedIf(bool stores, uint32_t shared_address, int value) {
  asm volatile(
      "{\n"
      ".reg .pred stores;\n"
      "setp.ne.u32 stores, %2, 0;\n"
      "@stores st.shared.u32 [%0], %1;\n"
      "}\n" ::"r"(shared_address),
      "r"(value), "r"(uint32_t{stores})
      : "memory");
}

__device__ inline void StoreSharedIf(bool stores, uint32_t shared_address, uint16_t value) {
  asm volatile(
      "{\n"
      ".reg .pred stores;\n"
      "setp.ne.u32 stores, %2, 0;\n"
      "@stores st.shared.u16 [%0], %1;\n"
      "}\n" ::"r"(shared_address),
      "h"(value), "r"(uint32_t{stores})
      : "memory");
}

// red.shared (9.7.13.7) where `adds`, without a branch.
__device__ inline void AddSharedIf(bool adds, uint32_t shared_address, uint32_t value) {
  asm volatile(
      "{\n"
      ".reg .pred adds;\n"
      "setp.ne.u32 adds, %2, 0;\n"
      "@adds red.shared.add.u32 [%0], %1;\n"
      "}\n" ::"r"(shared_address),
      "r"(value), "r"(uint32_t{adds})
      : "memory");
}

// atom.shared (9.7.13.5): a counter before this thread has added `count`.
__device__ inline int TakeShared(int* counter, int count) {
  int before;
  asm volatile("atom.shared.add.s32 %0, [%1], %2;"
               : "=r"(before)
               : "r"(SharedAddress(counter)), "r"(count)
               : "memory");
  return before;
}

}  // namespace lodestone::cuda
