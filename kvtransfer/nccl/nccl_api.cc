#include "kvtransfer/nccl/nccl_api.h"

#include <dlfcn.h>

#include <memory>

#include "absl/strings/str_cat.h"

namespace lodestone::nccl {
namespace {

template <typename Function>
bool Find(void* library, const char* name, Function*& function) {
  function = reinterpret_cast<Function*>(dlsym(library, name));
  return function != nullptr;
}

}  // namespace

absl::StatusOr<const Api*> Api::Load(const std::string& library) {
  const std::string name = library.empty() ? "libnccl.so.2" : library;
  void* handle = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    return absl::NotFoundError(absl::StrCat("NCCL cannot be loaded: ", dlerror()));
  }
  auto api = std::make_unique<Api>();
  const bool complete = Find(handle, "ncclGetVersion", api->GetVersion) &&
                        Find(handle, "ncclGetUniqueId", api->GetUniqueId) &&
                        Find(handle, "ncclCommInitRankConfig", api->CommInitRankConfig) &&
                        Find(handle, "ncclCommGetAsyncError", api->CommGetAsyncError) &&
                        Find(handle, "ncclCommAbort", api->CommAbort) &&
                        Find(handle, "ncclGroupStart", api->GroupStart) &&
                        Find(handle, "ncclGroupEnd", api->GroupEnd) &&
                        Find(handle, "ncclSend", api->Send) &&
                        Find(handle, "ncclRecv", api->Recv) &&
                        Find(handle, "ncclGetErrorString", api->GetErrorString);
  if (!complete) {
    return absl::FailedPreconditionError(absl::StrCat(name, " is not a whole NCCL: ", dlerror()));
  }
  if (api->GetVersion(&api->version) != Result::kSuccess || api->version < kOldestVersion) {
    return absl::FailedPreconditionError(absl::StrCat(
        name, " is NCCL ", api->version, ", the oldest that is supported is ", kOldestVersion));
  }
  return api.release();
}

absl::Status Api::ToStatus(Result result, const char* what) const {
  if (result == Result::kSuccess || result == Result::kInProgress) return absl::OkStatus();
  return absl::UnavailableError(
      absl::StrCat(what, " failed: ", GetErrorString(result), " (", static_cast<int>(result), ")"));
}

}  // namespace lodestone::nccl
