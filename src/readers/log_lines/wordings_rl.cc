// What trainers by reinforcement print: often a line for each phase.
#include <array>

#include "base/text.h"
#include "readers/log_lines/log_wordings.h"

namespace plimsoll {
namespace {

using enum FigureKind;
using enum FigureSpan;

/// The words of a phase in front of `end`: from the last "Before " or "After " on, else behind the
/// logger's own words.
std::string_view PhaseBefore(std::string_view text, std::size_t end) {
  std::string_view head = text.substr(0, end);
  std::size_t begin = kNowhere;
  for (std::string_view word : {"Before ", "After ", "before ", "after "}) {
    const std::size_t at = head.find(word);
    if (at != kNowhere && (begin == kNowhere || at < begin)) begin = at;
  }
  if (begin == kNowhere) {
    for (std::string_view mark : {"] ", " - ", "INFO:", "DEBUG:"}) {
      const std::size_t at = head.rfind(mark);
      if (at == kNowhere) continue;
      const std::size_t behind = at + mark.size();
      begin = begin == kNowhere ? behind : std::max(begin, behind);
    }
  }
  if (begin != kNowhere) head.remove_prefix(begin);
  while (head.ends_with(' ') || head.ends_with(',') || head.ends_with(':')) head.remove_suffix(1);
  return head;
}

std::optional<int> RankBehind(const FigureLine& line, std::string_view key) {
  const auto rank = CountBefore(line, key);
  return rank && *rank < 1'000'000 ? std::optional(static_cast<int>(*rank)) : std::nullopt;
}

}  // namespace

/// "After update_actor, memory allocated (GB): 12.34, memory reserved (GB): 40.02, device memory
/// used/total (GB): 46.90/79.11".
void ReadVerlPhase(const FigureLine& line, FigureSink& sink) {
  static constexpr auto kFields = std::to_array<FieldWording>({
      {"memory allocated (GB):", ",", kGibi, {"memory allocated", kTensors, kNow}},
      {"memory reserved (GB):", "", kGibi, {"memory reserved", kReserved, kNow}},
      {"device memory used/total (GB):", "/", kGibi, {"device memory used", kDeviceUsed, kNow}},
  });
  const std::size_t at = line.text.find("memory allocated (GB):");
  if (at == kNowhere) return;
  std::optional<std::int64_t> step;
  const std::string phase = PhaseName(PhaseBefore(line.text, at), step);
  ReadFields(line, kFields, sink, {.step = step, .phase = phase}, at);
  const std::size_t device = line.text.find("used/total (GB):", at);
  const std::size_t slash = device == kNowhere ? kNowhere : line.text.find('/', device + 16);
  if (slash == kNowhere) return;
  if (const auto total = SizedAt(line, slash + 1, "")) {
    sink.Put({"device memory total", kDeviceTotal}, *total, kGibi);
  }
}

/// "step:12 - … - perf/max_memory_allocated_gb:41.2 - perf/max_memory_reserved_gb:52.1 - …".
void ReadVerlStep(const FigureLine& line, FigureSink& sink) {
  struct Key {
    std::string_view words;
    FigureField field;
  };
  static constexpr auto kKeys = std::to_array<Key>({
      {"perf/max_memory_allocated_gb:", {"max_memory_allocated", kTensors, kSinceStart}},
      {"perf/max_memory_reserved_gb:", {"max_memory_reserved", kReserved, kSinceStart}},
      {"perf/cpu_memory_used_gb:", {"cpu_memory_used", kHostUsed, kNow}},
  });
  const auto step = CountBefore(line, "step:", line.text.find(" - "));
  for (const Key& key : kKeys) {
    const std::size_t at = line.text.find(key.words);
    if (at == kNowhere) continue;
    std::size_t value = at + key.words.size();
    constexpr std::string_view kNumpy = "np.float64(";
    if (line.text.substr(value).starts_with(kNumpy)) value += kNumpy.size();
    if (const auto size = SizedAt(line, value, "")) {
      sink.Put(key.field, *size, kGibi, {.step = step});
    }
  }
}

/// "Memory usage [before cleanup]: Total: 79.11 GB, Allocated: 12.1 GB, Reserved: 30.2 GB, …".
void ReadVerlUsage(const FigureLine& line, FigureSink& sink) {
  static constexpr auto kFields = std::to_array<FieldWording>({
      {"Total:", "GB", kGibi, {"Total", kDeviceTotal}},
      {"Allocated:", "GB", kGibi, {"Allocated", kTensors, kNow}},
      {"Reserved:", "GB", kGibi, {"Reserved", kReserved, kNow}},
  });
  constexpr std::string_view kHead = "Memory usage [";
  const std::size_t at = line.text.find(kHead);
  const std::size_t close = line.text.find(']', at == kNowhere ? 0 : at);
  if (at == kNowhere || close == kNowhere) return;
  std::optional<std::int64_t> step;
  const std::string_view inside = line.text.substr(at + kHead.size(), close - at - kHead.size());
  const std::string phase = PhaseName(inside, step);
  ReadFields(line, std::span(kFields).first(1), sink, {}, close);
  ReadFields(line, std::span(kFields).subspan(1), sink, {.step = step, .phase = phase}, close);
}

/// "After vllm init: 45.10 GB / 79.11 GB.".
void ReadEasyR1(const FigureLine& line, FigureSink& sink) {
  const std::size_t at = line.text.find(" GB / ");
  if (at == kNowhere) return;
  const auto used = NumberBefore(line, at);
  const auto total = SizedAt(line, at + 6, "GB.");
  const std::size_t colon = line.text.rfind(": ", at);
  if (!used || !total || colon == kNowhere) return;
  const std::string_view phase_text = PhaseBefore(line.text, colon);
  const bool told = phase_text.starts_with("After ") || phase_text.starts_with("Before ");
  if (!told) return;
  std::optional<std::int64_t> step;
  const std::string phase = PhaseName(phase_text, step);
  sink.Put({"device memory used", kDeviceUsed, kNow}, *used, kGibi, {.step = step, .phase = phase});
  sink.Put({"device memory total", kDeviceTotal}, *total, kGibi);
}

/// "GPU Memory before optimizer offload: 30.10GB allocated, 41.20GB reserved".
void ReadNemoRlOffload(const FigureLine& line, FigureSink& sink) {
  constexpr std::string_view kHead = "GPU Memory ";
  const std::size_t head = line.text.find(kHead);
  const std::size_t at = line.text.find("GB allocated, ");
  if (head == kNowhere || at == kNowhere || head > at) return;
  const std::size_t colon = line.text.rfind(':', at);
  const auto tensors = NumberBefore(line, at);
  if (!tensors || colon == kNowhere || colon < head) return;
  std::optional<std::int64_t> step;
  const std::string_view words = line.text.substr(head + kHead.size(), colon - head - kHead.size());
  const std::string phase = PhaseName(words, step);
  const FigurePlace place{.step = step, .phase = phase};
  sink.Put({"allocated", kTensors, kNow}, *tensors, kGibi, place);
  if (const auto reserved = SizedAt(line, at + 14, "GB reserved")) {
    sink.Put({"reserved", kReserved, kNow}, *reserved, kGibi, place);
  }
}

/// "[gpumem] tag=refit rank=3 alloc=1.20 max_alloc=40.1 reserved=… driver_used=… total=79.1".
void ReadNemoRlGpumem(const FigureLine& line, FigureSink& sink) {
  static constexpr auto kFields = std::to_array<FieldWording>({
      {"alloc=", "", kGibi, {"alloc", kTensors, kNow}, true},
      {"max_alloc=", "", kGibi, {"max_alloc", kTensors, kSinceLine}, true},
      {"reserved=", "", kGibi, {"reserved", kReserved, kNow}, true},
      {"max_reserved=", "", kGibi, {"max_reserved", kReserved, kSinceLine}, true},
      {"driver_used=", "", kGibi, {"driver_used", kDeviceUsed, kNow}, true},
  });
  constexpr std::string_view kTag = "tag=";
  const std::size_t at = line.text.find("[gpumem]");
  const std::size_t tag = line.text.find(kTag, at == kNowhere ? 0 : at);
  if (at == kNowhere || tag == kNowhere) return;
  std::string_view name = line.text.substr(tag + kTag.size());
  name = name.substr(0, name.find(" rank="));
  std::optional<std::int64_t> step;
  const std::string phase = PhaseName(name, step);
  const auto rank = RankBehind(line, "rank=");
  ReadFields(line, kFields, sink, {.step = step, .phase = phase, .rank = rank}, tag);
  const std::size_t total = FindKey(line.text, "total=", tag);
  if (total == kNowhere) return;
  if (const auto size = SizedAt(line, total + 6, "")) {
    sink.Put({"total", kDeviceTotal}, *size, kGibi, {.rank = rank});
  }
}

/// "[Rank 3] Memory-Usage after wake up: {'gpu': '0', 'total_GB': 79.1, 'free_GB': 3.2, …}".
void ReadSlime(const FigureLine& line, FigureSink& sink) {
  static constexpr auto kFields = std::to_array<FieldWording>({
      {"'total_GB':", "", kGibi, {"total", kDeviceTotal}, true},
      {"'free_GB':", "", kGibi, {"free", kDeviceFree, kNow}, true},
      {"'used_GB':", "", kGibi, {"used", kDeviceUsed, kNow}, true},
      {"'allocated_GB':", "", kGibi, {"allocated", kTensors, kNow}, true},
      {"'reserved_GB':", "", kGibi, {"reserved", kReserved, kNow}, true},
      {"'host_used_GB':", "", kGibi, {"host_used", kHostUsed, kNow}, true},
  });
  constexpr std::string_view kHead = "Memory-Usage ";
  const std::size_t at = line.text.find(kHead);
  const std::size_t open = line.text.find('{', at == kNowhere ? 0 : at);
  if (at == kNowhere || open == kNowhere) return;
  std::optional<std::int64_t> step;
  const std::string phase =
      PhaseName(line.text.substr(at + kHead.size(), open - at - kHead.size()), step);
  auto rank = RankBehind(line, "[Rank ");
  if (!rank) rank = line.rank;
  ReadFields(line, std::span(kFields).first(1), sink, {.rank = rank}, open);
  ReadFields(line, std::span(kFields).subspan(1), sink,
             {.step = step, .phase = phase, .rank = rank}, open);
}

}  // namespace plimsoll
