// The part of NCCL that links use, loaded at run time: one binary runs on machines with NCCL, with
// another NCCL, and with none. The types repeat what NVIDIA's nccl.h fixes as its ABI; the floor is
// NCCL 2.28.3.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <climits>
#include <cstddef>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace lodestone::nccl {

inline constexpr int kOldestVersion = 22803;

using Comm = struct ncclComm*;

enum class Result : int { kSuccess = 0, kInProgress = 7 };  // everything else is an error

inline constexpr size_t kUniqueIdBytes = 128;
struct UniqueId {
  std::array<char, kUniqueIdBytes> bytes;
};

// The fields that ncclConfig_t has had since 2.18; `version` says that later ones are absent.
struct Config {
  size_t size = sizeof(Config);
  unsigned int magic = 0xcafebeef;
  unsigned int version = 21800;
  int blocking = INT_MIN;  // INT_MIN: NCCL's default, here and below
  int cga_cluster_size = INT_MIN;
  int min_ctas = INT_MIN;
  int max_ctas = INT_MIN;
  const char* net_name = nullptr;
  int split_share = INT_MIN;
};

inline constexpr int kUint8 = 1;  // ncclUint8

// Filled by Load, then constant. Threads: NCCL wants the operations of one device issued from one
// thread (kvtransfer/nccl/endpoint.h); CommAbort may come from another.
struct Api {
  Result (*GetVersion)(int* version) = nullptr;
  Result (*GetUniqueId)(UniqueId* id) = nullptr;
  Result (*CommInitRankConfig)(Comm* comm, int ranks, UniqueId id, int rank,
                               Config* config) = nullptr;
  Result (*CommGetAsyncError)(Comm comm, Result* error) = nullptr;
  Result (*CommAbort)(Comm comm) = nullptr;
  Result (*GroupStart)() = nullptr;
  Result (*GroupEnd)() = nullptr;
  Result (*Send)(const void* from, size_t count, int type, int peer, Comm comm,
                 cudaStream_t stream) = nullptr;
  Result (*Recv)(void* to, size_t count, int type, int peer, Comm comm,
                 cudaStream_t stream) = nullptr;
  const char* (*GetErrorString)(Result result) = nullptr;
  int version = 0;  // as 22803 for 2.28.3

  // `library` is a path or a name for the dynamic linker; "" means libnccl.so.2. NOT_FOUND if there
  // is none, FAILED_PRECONDITION if it lacks a function or is older than kOldestVersion. The
  // library stays loaded. `this` of the result lives as long as the process.
  static absl::StatusOr<const Api*> Load(const std::string& library);

  // UNAVAILABLE saying `what` failed and how, unless `result` is kSuccess or kInProgress.
  absl::Status ToStatus(Result result, const char* what) const;
};

}  // namespace lodestone::nccl
