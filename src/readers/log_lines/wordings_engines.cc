// What inference engines print when they start, and when they go to sleep.
#include <algorithm>
#include <array>

#include "base/text.h"
#include "readers/log_lines/log_wordings.h"

namespace plimsoll {
namespace {

using enum FigureKind;
using enum FigureSpan;

}  // namespace

/// "Loading model weights took 14.9888 GB", "Model loading took 14.99 GiB memory and 3.1 seconds".
void ReadVllmWeights(const FigureLine& line, FigureSink& sink) {
  static constexpr auto kFields = std::to_array<FieldWording>({
      {"Loading model weights took", "GB", kGibi, {"model weights", kWeights}},
      {"Model loading took", "GiB", kGibi, {"model weights", kWeights}},
      {"Model loading took", "GB", kGibi, {"model weights", kWeights}},
  });
  ReadFields(line, kFields, sink);
}

/// "Memory profiling results: total_gpu_memory=79.11GiB initial_memory_usage=… kv_cache_size=…".
void ReadVllmProfile(const FigureLine& line, FigureSink& sink) {
  static constexpr auto kFields = std::to_array<FieldWording>({
      {"total_gpu_memory=", "GiB", kGibi, {"total_gpu_memory", kDeviceTotal}},
      {"initial_memory_usage=", "GiB", kGibi, {"initial_memory_usage", kDeviceUsed}},
      {"peak_torch_memory=", "GiB", kGibi, {"peak_torch_memory", kTensors, kSinceLine}},
      {"memory_usage_post_profile=", "Gib", kGibi, {"memory_usage_post_profile", kDeviceUsed}},
      {"non_torch_memory=", "GiB", kGibi, {"non_torch_memory", kOutside}},
      {"kv_cache_size=", "GiB", kGibi, {"kv_cache_size", kKvCache}},
  });
  ReadFields(line, kFields, sink);
}

/// "… can use total_gpu_memory (79.11GiB) x gpu_memory_utilization (0.90) = 71.20GiB".
void ReadVllmShare(const FigureLine& line, FigureSink& sink) {
  static constexpr auto kFields = std::to_array<FieldWording>({
      {"total_gpu_memory (", "GiB)", kGibi, {"total_gpu_memory", kDeviceTotal}},
      {") =", "GiB", kGibi, {"allowed", kAllowed}},
  });
  ReadFields(line, kFields, sink);
}

/// "model weights take 14.99GiB; non_torch_memory takes 0.15GiB; PyTorch activation peak memory
/// takes 1.23GiB; the rest of the memory reserved for KV Cache is 54.83GiB."
void ReadVllmAccount(const FigureLine& line, FigureSink& sink) {
  static constexpr auto kFields = std::to_array<FieldWording>({
      {"model weights take", "GiB", kGibi, {"model weights", kWeights}},
      {"non_torch_memory takes", "GiB", kGibi, {"non_torch_memory", kOutside}},
      {"activation peak memory takes", "GiB", kGibi, {"activation peak", kActivations}},
      {"reserved for KV Cache is", "GiB", kGibi, {"KV cache", kKvCache}},
  });
  ReadFields(line, kFields, sink);
}

/// "Available KV cache memory: 54.83 GiB".
void ReadVllmCache(const FigureLine& line, FigureSink& sink) {
  static constexpr auto kFields = std::to_array<FieldWording>({
      {"Available KV cache memory:", "GiB", kGibi, {"KV cache", kKvCache}},
  });
  ReadFields(line, kFields, sink);
}

/// "GPU KV cache size: 449,104 tokens".
void ReadVllmTokens(const FigureLine& line, FigureSink& sink) {
  static constexpr auto kFields = std::to_array<FieldWording>({
      {"GPU KV cache size:", "tokens", kOnes, {"KV cache size", kKvTokens}},
  });
  ReadFields(line, kFields, sink);
}

/// "Graph capturing finished in 21 secs, took 0.52 GiB".
void ReadVllmGraphs(const FigureLine& line, FigureSink& sink) {
  const std::size_t at = line.text.find("Graph capturing finished");
  if (at == kNowhere) return;
  static constexpr auto kFields = std::to_array<FieldWording>({
      {"took", "GiB", kGibi, {"graphs", kGraphs}},
  });
  ReadFields(line, kFields, sink, {}, at);
}

/// "CUDA graph pool memory: 1.20 GiB (actual), 1.05 GiB (estimated), difference: …".
void ReadVllmGraphPool(const FigureLine& line, FigureSink& sink) {
  static constexpr auto kFields = std::to_array<FieldWording>({
      {"CUDA graph pool memory:", "GiB (actual)", kGibi, {"graph pool", kGraphs}},
  });
  ReadFields(line, kFields, sink);
}

/// "Initial free memory: 78.60 GiB; Requested memory: 0.90 (util), 71.20 GiB".
void ReadVllmInitial(const FigureLine& line, FigureSink& sink) {
  static constexpr auto kFields = std::to_array<FieldWording>({
      {"Initial free memory:", "GiB", kGibi, {"initial free memory", kDeviceFree}},
      {"(util),", "GiB", kGibi, {"allowed", kAllowed}},
  });
  const std::size_t at = line.text.find("Initial free memory");
  if (at == kNowhere) return;
  ReadFields(line, kFields, sink, {}, at);
  constexpr std::string_view kRequested = "Requested memory:";
  const std::size_t requested = line.text.find(kRequested, at);
  if (requested == kNowhere) return;
  const auto share = SizedAt(line, requested + kRequested.size(), "(util),");
  if (!share || share->value <= 0 || share->value > 1) return;
  if (const auto allowed = SizedAt(line, share->end, "GiB")) {
    // The share is what was typed: exact.
    const Printed percent{.value = 100 * share->value, .half = 0, .end = share->end};
    sink.PutWhole(*allowed, kGibi, percent, {});
  }
}

/// "Free memory after profiling: 60.12 GiB (total), 52.71 GiB (within requested)".
void ReadVllmFreeAfter(const FigureLine& line, FigureSink& sink) {
  static constexpr auto kFields = std::to_array<FieldWording>({
      {"Free memory after profiling:", "GiB", kGibi, {"free memory after profiling", kDeviceFree}},
  });
  ReadFields(line, kFields, sink);
}

/// "Total non KV cache memory: 18.02GiB; torch peak memory increase: 1.25GiB; non-torch forward
/// increase memory: 0.20GiB; weights memory: 14.99GiB."
void ReadVllmNonCache(const FigureLine& line, FigureSink& sink) {
  static constexpr auto kFields = std::to_array<FieldWording>({
      {"torch peak memory increase:", "GiB", kGibi, {"activation peak", kActivations}},
      {"non-torch forward increase memory:", "GiB", kGibi, {"non_torch_memory", kOutside}},
      {"weights memory:", "GiB", kGibi, {"model weights", kWeights}},
  });
  ReadFields(line, kFields, sink);
}

/// "Sleep mode freed 61.47 GiB memory, 7.93 GiB memory is still in use."
void ReadVllmSleep(const FigureLine& line, FigureSink& sink) {
  constexpr std::string_view kFreed = "Sleep mode freed";
  const std::size_t at = line.text.find(kFreed);
  if (at == kNowhere) return;
  const auto freed = SizedAt(line, at + kFreed.size(), "GiB memory,");
  if (!freed) return;
  const auto kept = SizedAt(line, freed->end, "GiB memory is still in use");
  if (!kept) return;
  sink.Put({"freed", kEngineFreed}, *freed, kGibi);
  sink.Put({"still in use", kEngineKept}, *kept, kGibi);
}

/// "CuMemAllocator: sleep freed 61.40 GiB memory in total, of which 14.99 GiB is backed up …".
void ReadVllmAllocatorSleep(const FigureLine& line, FigureSink& sink) {
  static constexpr auto kFields = std::to_array<FieldWording>({
      {"sleep freed", "GiB memory in total", kGibi, {"freed by its allocator", kEngineFreed}},
      {"of which", "GiB is backed up", kGibi, {"backed up on the host", kHostUsed}},
  });
  ReadFields(line, kFields, sink);
}

/// "Load weight end. type=…, avail mem=62.01 GB, mem usage=14.99 GB."
void ReadSglangMemory(const FigureLine& line, FigureSink& sink) {
  static constexpr auto kFields = std::to_array<FieldWording>({
      {"avail mem=", "GB", kGibi, {"avail mem", kDeviceFree, kNow}},
  });
  std::string_view phase = line.text.substr(0, line.text.find(". "));
  if (phase.size() > 60) phase = {};
  while (phase.ends_with('.')) phase.remove_suffix(1);
  ReadFields(line, kFields, sink, {.phase = phase});
  constexpr std::string_view kUsage = "mem usage=";
  const std::size_t at = FindKey(line.text, kUsage);
  const auto size = at == kNowhere ? std::nullopt : SizedAt(line, at + kUsage.size(), "GB");
  if (!size) return;
  const FigureKind counts = Contains(phase, "weight")        ? kWeights
                            : Contains(phase, "graph")       ? kGraphs
                            : Contains(phase, "distributed") ? kOutside
                                                             : kDeviceUsed;
  sink.Put({"mem usage", counts, kChange}, *size, kGibi, {.phase = phase});
}

/// "KV Cache is allocated. #tokens: 449104, K size: 27.41 GB, V size: 27.41 GB".
void ReadSglangCache(const FigureLine& line, FigureSink& sink) {
  static constexpr auto kFields = std::to_array<FieldWording>({
      {"#tokens:", ",", kOnes, {"tokens", kKvTokens}},
      {"K size:", "GB", kGibi, {"K size", kKvCache}},
      {"V size:", "GB", kGibi, {"V size", kKvCache}},
  });
  if (Contains(line.text, "KV Cache is allocated")) ReadFields(line, kFields, sink);
}

/// "max_total_num_tokens=449104, …, available_gpu_mem=5.21 GB".
void ReadSglangLast(const FigureLine& line, FigureSink& sink) {
  static constexpr auto kFields = std::to_array<FieldWording>({
      {"max_total_num_tokens=", ",", kOnes, {"max_total_num_tokens", kKvTokens}},
      {"available_gpu_mem=", "GB", kGibi, {"available_gpu_mem", kDeviceFree, kNow}},
  });
  ReadFields(line, kFields, sink);
}

}  // namespace plimsoll
