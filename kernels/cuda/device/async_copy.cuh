#pragma once

#include <cuda.h>

#include <cstdint>

#include "kernels/cuda/device/shared_memory.cuh"

// Copies into shared memory that complete on their own, and the barriers that say when. One wrapper
// per instruction; section numbers are those of the PTX manual, version 9.0.
namespace lodestone::cuda {

// mbarrier.init (9.7.13.15.9): a phase completes after `arrivals` arrivals and all expected bytes.
__device__ inline void BarrierInit(uint64_t* barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(SharedAddress(barrier)),
               "r"(arrivals)
               : "memory");
}

// fence.mbarrier_init: what BarrierInit wrote is visible to the copy engine.
__device__ inline void BarrierInitFence() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

// mbarrier.arrive (9.7.13.15.13).
__device__ inline void BarrierArrive(uint32_t barrier_address) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier_address) : "memory");
}
__device__ inline void BarrierArrive(uint64_t* barrier) { BarrierArrive(SharedAddress(barrier)); }

// The same, `times` times.
__device__ inline void BarrierArrive(uint64_t* barrier, int times) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0], %1;" ::"r"(SharedAddress(barrier)),
               "r"(times)
               : "memory");
}

// mbarrier.arrive.expect_tx: one arrival, and `bytes` more to wait for.
__device__ inline void BarrierArriveExpect(uint64_t* barrier, uint32_t bytes) {
  asm volatile(
      "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(SharedAddress(barrier)),
      "r"(bytes)
      : "memory");
}

// mbarrier.try_wait.parity (9.7.13.15.16): returns once the phase of this parity is complete. A
// fresh barrier counts as having completed a phase of parity 1.
__device__ inline void BarrierWait(uint32_t barrier_address, uint32_t parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "WAIT:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@done bra DONE;\n"
      "bra WAIT;\n"
      "DONE:\n"
      "}\n" ::"r"(barrier_address),
      "r"(parity)
      : "memory");
}
__device__ inline void BarrierWait(uint64_t* barrier, uint32_t parity) {
  BarrierWait(SharedAddress(barrier), parity);
}

// The same without waiting: whether that phase is complete.
__device__ inline bool BarrierTest(uint64_t* barrier, uint32_t parity) {
  uint32_t done;
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "mbarrier.test_wait.parity.shared::cta.b64 done, [%1], %2;\n"
      "selp.u32 %0, 1, 0, done;\n"
      "}\n"
      : "=r"(done)
      : "r"(SharedAddress(barrier)), "r"(parity)
      : "memory");
  return done != 0;
}

// What the L2 cache does with a line (createpolicy, 9.7.9.18): gives it up in turn, first or last.
inline constexpr uint64_t kEvictNormal = 0x1000000000000000;
inline constexpr uint64_t kEvictFirst = 0x12f0000000000000;
inline constexpr uint64_t kEvictLast = 0x14f0000000000000;

// cp.async.bulk.tensor.2d / 3d (9.7.9.25.5.2): one box of a tensor map.
__device__ inline void CopyBox2(void* shared, const CUtensorMap* map, uint64_t* barrier, int x,
                                int y) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%3, %4}], [%2];" ::"r"(SharedAddress(shared)),
      "l"(map), "r"(SharedAddress(barrier)), "r"(x), "r"(y)
      : "memory");
}
// prefetch.tensormap (9.7.9.26): the first copy does not wait for the map.
__device__ inline void PrefetchMap(const CUtensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}
// CopyBox3 with what the L2 cache is to do with the data; and of data that is read once.
__device__ inline void CopyBox3With(uint64_t policy, void* shared, const CUtensorMap* map,
                                    uint64_t* barrier, int x, int y, int z) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1, {%3, %4, %5}], [%2], %6;" ::"r"(SharedAddress(shared)),
      "l"(map), "r"(SharedAddress(barrier)), "r"(x), "r"(y), "r"(z), "l"(policy)
      : "memory");
}
__device__ inline void CopyBox3Once(void* shared, const CUtensorMap* map, uint64_t* barrier, int x,
                                    int y, int z) {
  CopyBox3With(kEvictFirst, shared, map, barrier, x, y, z);
}
__device__ inline void CopyBox3(void* shared, const CUtensorMap* map, uint64_t* barrier, int x,
                                int y, int z) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%3, %4, %5}], [%2];" ::"r"(SharedAddress(shared)),
      "l"(map), "r"(SharedAddress(barrier)), "r"(x), "r"(y), "r"(z)
      : "memory");
}

// cp.async.bulk.tensor.3d (9.7.9.25.5.2) the other way: a box of shared memory, as the engine sees
// it after SharedProxyFence, to its place; what lies outside the map is left out.
__device__ inline void StoreBox3(const CUtensorMap* map, const void* shared, int x, int y, int z) {
  asm volatile(
      "cp.async.bulk.tensor.3d.global.shared::cta.bulk_group [%0, {%2, %3, %4}], [%1];" ::"l"(map),
      "r"(SharedAddress(shared)), "r"(x), "r"(y), "r"(z)
      : "memory");
}
// cp.async.bulk.commit_group / wait_group (9.7.9.25.6): this thread's stores since the last commit
// are a group; waits until all groups have read shared memory, or are complete.
__device__ inline void StoresCommit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
__device__ inline void StoresWaitRead() {
  asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}
__device__ inline void StoresWait() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }

// cp.async.bulk.tensor.4d, with what the L2 cache is to do with the data.
__device__ inline void CopyBox4With(uint64_t policy, void* shared, const CUtensorMap* map,
                                    uint64_t* barrier, int x, int y, int z, int w) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1, {%3, %4, %5, %6}], [%2], %7;" ::"r"(SharedAddress(shared)),
      "l"(map), "r"(SharedAddress(barrier)), "r"(x), "r"(y), "r"(z), "r"(w), "l"(policy)
      : "memory");
}

// The stages of a ring of kStages buffers in the order of use. Who fills waits on the empty barrier
// with parity ^ 1, who uses on the full barrier with parity.
template <int kStages>
struct RingStage {
  int index = 0;
  uint32_t parity = 0;
  __device__ void Advance() {
    if (++index < kStages) return;
    index = 0;
    parity ^= 1;
  }
};

// elect.sync (9.7.13.16): true in one lane of a warp, all of whose lanes call it.
__device__ inline bool ElectLane() {
  uint32_t elected = 0;
  asm volatile(
      "{\n"
      ".reg .pred elected;\n"
      "elect.sync _|elected, 0xffffffff;\n"
      "@elected mov.u32 %0, 1;\n"
      "}\n"
      : "+r"(elected));
  return elected != 0;
}

// cp.async.bulk (9.7.9.25.4.1): contiguous bytes; all three arguments are multiples of 16.
__device__ inline void CopyBulk(void* shared, const void* global, uint32_t bytes,
                                uint64_t* barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, "
      "[%3];" ::"r"(SharedAddress(shared)),
      "l"(global), "r"(bytes), "r"(SharedAddress(barrier))
      : "memory");
}

// cp.async.bulk.prefetch.L2 (9.7.9.25.4.3): contiguous bytes to the L2 cache; both are multiples
// of 16.
__device__ inline void PrefetchBulk(const void* global, uint32_t bytes) {
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(global), "r"(bytes) : "memory");
}

// cp.async (9.7.9.25.3.1): 16 bytes by this thread; zeros if `bytes` is 0.
__device__ inline void CopyAsync16(uint32_t shared_address, const void* global, uint32_t bytes) {
  asm volatile("cp.async.cg.shared.global.L2::256B [%0], [%1], 16, %2;" ::"r"(shared_address),
               "l"(global), "r"(bytes)
               : "memory");
}

// The same without asking the L2 cache for what is next to them.
__device__ inline void CopyAsyncOnce16(uint32_t shared_address, const void* global,
                                       uint32_t bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address), "l"(global),
               "r"(bytes)
               : "memory");
}
// cp.async.commit_group / wait_group (9.7.9.25.3): this thread's copies since the last commit are a
// group; waits until all groups but the last kLater are complete.
__device__ inline void CopyAsyncCommit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int kLater>
__device__ inline void CopyAsyncWait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kLater) : "memory");
}

// The same of 4, 8 or 16 bytes.
template <int kBytes>
__device__ inline void CopyAsync(uint32_t shared_address, const void* global, uint32_t bytes) {
  if constexpr (kBytes == 16) {
    CopyAsync16(shared_address, global, bytes);
  } else {
    asm volatile("cp.async.ca.shared.global.L2::128B [%0], [%1], %2, %3;" ::"r"(shared_address),
                 "l"(global), "n"(kBytes), "r"(bytes)
                 : "memory");
  }
}

// cp.async: 16 bytes by this thread, both addresses with a constant number of bytes added.
template <int kSharedOffset, int kGlobalOffset>
__device__ inline void CopyAsync16(uint32_t shared_address, const void* global, uint64_t policy) {
  asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0 + %2], [%1 + %3], 16, %4;" ::"r"(
                   shared_address),
               "l"(global), "n"(kSharedOffset), "n"(kGlobalOffset), "l"(policy)
               : "memory");
}

// cp.async.mbarrier.arrive.noinc (9.7.13.15.14): this thread arrives when its copies so far are
// complete.
__device__ inline void CopyAsyncArrive(uint64_t* barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(SharedAddress(barrier))
               : "memory");
}

// fence.proxy.async (9.7.13.4): ordinary writes to shared memory, seen by this thread, are visible
// to the copy engine and the tensor cores.
__device__ inline void SharedProxyFence() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// bar.sync / bar.arrive (9.7.13.1) on a numbered barrier of `threads` threads. Barrier 0 is
// __syncthreads.
__device__ inline void NamedBarrierSync(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
__device__ inline void NamedBarrierArrive(int id, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// bar.red.and: NamedBarrierSync; whether `condition` holds for all its threads.
__device__ inline bool NamedBarrierAll(int id, int threads, bool condition) {
  uint32_t all;
  asm volatile(
      "{\n"
      ".reg .pred mine;\n"
      ".reg .pred all;\n"
      "setp.ne.u32 mine, %3, 0;\n"
      "bar.red.and.pred all, %1, %2, mine;\n"
      "selp.u32 %0, 1, 0, all;\n"
      "}\n"
      : "=r"(all)
      : "r"(id), "r"(threads), "r"(static_cast<uint32_t>(condition))
      : "memory");
  return all != 0;
}

// griddepcontrol (9.7.13.14): the next kernel of the stream may start; and wait for the one before.
__device__ inline void AllowNextKernel() {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}
__device__ inline void WaitForPreviousKernel() {
  asm volatile("griddepcontrol.wait;" ::: "memory");
}

}  // namespace lodestone::cuda
