#pragma once

#include <cstdint>

#include "kernels/cuda/device/async_copy.cuh"

// What the thread blocks of a cluster say to each other: barriers, and stores and copies into each
// other's shared memory. One wrapper per instruction; section numbers are those of the PTX manual,
// version 9.0.
namespace lodestone::cuda {

// %cluster_ctarank (10.16): this block's number in its cluster.
__device__ inline uint32_t RankInCluster() {
  uint32_t rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

// barrier.cluster (9.7.13.3): what any thread of the cluster wrote before it arrived, shared memory
// of other blocks included, is seen after the wait.
__device__ inline void ClusterArrive() {
  asm volatile("barrier.cluster.arrive.release;" ::: "memory");
}
// Without the order of writes: what this thread has read so far may be overwritten.
__device__ inline void ClusterArriveRelaxed() {
  asm volatile("barrier.cluster.arrive.relaxed;" ::: "memory");
}
__device__ inline void ClusterWait() { asm volatile("barrier.cluster.wait.acquire;" ::: "memory"); }

// mapa (9.7.9.24): where a place of this block's shared memory is in block `rank` of the cluster.
__device__ inline uint32_t ClusterAddress(const void* shared, int rank) {
  uint32_t address;
  asm("mapa.shared::cluster.u32 %0, %1, %2;"
      : "=r"(address)
      : "r"(SharedAddress(shared)), "r"(rank));
  return address;
}

// cp.async.bulk from this block's shared memory to a peer's, where it completes on the peer's
// barrier; both addresses are ClusterAddress.
__device__ inline void CopyToPeer(uint32_t peer_address, const void* shared, uint32_t bytes,
                                  uint32_t peer_barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], %2, "
      "[%3];" ::"r"(peer_address),
      "r"(SharedAddress(shared)), "r"(bytes), "r"(peer_barrier)
      : "memory");
}

// st.async (9.7.9.12): 16, 8 or 4 bytes to shared memory of the cluster, which count for the
// barrier of the same block that is at `barrier` there.
__device__ inline void StoreAsync(uint32_t to, const float4& value, uint32_t barrier) {
  asm volatile(
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, "
      "[%5];" ::"r"(to),
      "f"(value.x), "f"(value.y), "f"(value.z), "f"(value.w), "r"(barrier)
      : "memory");
}
__device__ inline void StoreAsync(uint32_t to, const uint32_t (&value)[4], uint32_t barrier) {
  asm volatile(
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1, %2, %3, %4}, "
      "[%5];" ::"r"(to),
      "r"(value[0]), "r"(value[1]), "r"(value[2]), "r"(value[3]), "r"(barrier)
      : "memory");
}
__device__ inline void StoreAsync(uint32_t to, float value, uint32_t barrier) {
  asm volatile(
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.f32 [%0], %1, [%2];" ::"r"(to),
      "f"(value), "r"(barrier)
      : "memory");
}
__device__ inline void StoreAsync(uint32_t to, uint2 value, uint32_t barrier) {
  asm volatile(
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.u32 [%0], {%1, %2}, [%3];" ::"r"(
          to),
      "r"(value.x), "r"(value.y), "r"(barrier)
      : "memory");
}
// The same where `stores`, without a branch.
__device__ inline void StoreAsyncIf(bool stores, uint32_t to, uint2 value, uint32_t barrier) {
  asm volatile(
      "{\n"
      ".reg .pred stores;\n"
      "setp.ne.u32 stores, %4, 0;\n"
      "@stores st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.u32 [%0], {%1, %2}, [%3];\n"
      "}\n" ::"r"(to),
      "r"(value.x), "r"(value.y), "r"(barrier), "r"(uint32_t{stores})
      : "memory");
}

// mbarrier.arrive.expect_tx (9.7.13.15.13) on a barrier of a block of the cluster (ClusterAddress).
// It says nothing of earlier stores of this thread, unlike those that count for the barrier.
__device__ inline void BarrierArriveExpectAt(uint32_t barrier, uint32_t bytes) {
  asm volatile(
      "mbarrier.arrive.expect_tx.relaxed.cluster.shared::cluster.b64 _, [%0], %1;" ::"r"(barrier),
      "r"(bytes)
      : "memory");
}

// BarrierWait that also sees what other blocks of the cluster stored by StoreAsync.
__device__ inline void BarrierWaitCluster(uint64_t* barrier, uint32_t parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "WAIT:\n"
      "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], %1;\n"
      "@done bra DONE;\n"
      "bra WAIT;\n"
      "DONE:\n"
      "}\n" ::"r"(SharedAddress(barrier)),
      "r"(parity)
      : "memory");
}

}  // namespace lodestone::cuda
