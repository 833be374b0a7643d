// What a release makes of PYTORCH_CUDA_ALLOC_CONF: conf [SETTINGS]
//
// Prints the settings in force as JSON, after calling setAllocatorSettings(SETTINGS) where given. A
// string that is refused gives {"error": …, "at": …}; "at" is where: the first use, or the call. An
// error while the library is loaded ends the program with the text on stderr, as it ends Python.
#include <unistd.h>
#include <iostream>
#include <nlohmann/json.hpp>

#include "release.h"

namespace {

using nlohmann::json;
using Config = c10::cuda::CUDACachingAllocator::CUDAAllocatorConfig;

json Settings() {
  const auto info = release::native::snapshot().config_metadata;
  json values = {
      {"backend", release::native::name()},
      {"expandable_segments", info.expandable_segments},
      {"garbage_collection_threshold", info.garbage_collection_threshold},
      {"last_allocator_settings", info.last_allocator_settings},
      {"max_split_size", info.max_split_size},
      {"pinned_num_register_threads", info.pinned_num_register_threads},
      {"pinned_use_cuda_host_register", info.pinned_use_host_register},
      {"release_lock_on_cudamalloc", info.release_lock_on_malloc},
      {"roundup_power2_divisions", info.roundup_power2_divisions},
  };
#if TORCH_MINOR >= 6
  values["max_non_split_rounding_size"] = Config::max_non_split_rounding_size();
#endif
#if TORCH_MINOR >= 10
  values["pinned_use_background_threads"] =
      c10::CachingAllocator::AcceleratorAllocatorConfig::pinned_use_background_threads();
#elif TORCH_MINOR >= 6
  values["pinned_use_background_threads"] = Config::pinned_use_background_threads();
#endif
#if TORCH_MINOR >= 9
  values["graph_capture_record_stream_reuse"] = info.graph_capture_record_stream_reuse;
#endif
#if TORCH_MINOR >= 10
  values["per_process_memory_fraction"] = Config::per_process_memory_fraction();
  values["pinned_reserve_segment_size_mb"] = Config::pinned_reserve_segment_size_mb();
#endif
#if TORCH_MINOR >= 11
  values["large_segment_size"] =
      c10::CachingAllocator::AcceleratorAllocatorConfig::large_segment_size();
#endif
#if TORCH_MINOR >= 12
  values["throw_on_cudamalloc_oom"] = Config::throw_on_cudamalloc_oom();
#endif
  return values;
}

json Try(const char* stage, void (*action)(const char*), const char* argument) {
  try {
    action(argument);
  } catch (const c10::Error& error) {
    return {{"error", error.what_without_backtrace()}, {"at", stage}};
  } catch (const std::exception& error) {
    return {{"error", error.what()}, {"at", stage}};
  }
  return nullptr;
}

json Report(const char* settings) {
  json failure = Try(
      "first use",
      [](const char*) {
        release::Init();
        // The asynchronous backend has no snapshot; its name is all there is to say.
        if (release::native::name() == "native") Settings();
      },
      nullptr);
  if (!failure.is_null()) return failure;
  if (settings != nullptr) {
    failure = Try(
        "call", [](const char* text) { release::SetSettings(text); }, settings);
    if (!failure.is_null()) return failure;
  }
  if (release::native::name() != "native") return {{"backend", release::native::name()}};
  return Settings();
}

}  // namespace

int main(int argc, char** argv) {
  std::cout << Report(argc > 1 ? argv[1] : nullptr).dump() << "\n";
  std::cout.flush();
  _exit(0);  // there is no device to shut down
}
