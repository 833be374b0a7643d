// What trainers on transformers print.
#include <array>

#include "base/text.h"
#include "readers/log_lines/log_wordings.h"

namespace plimsoll {
namespace {

using enum FigureKind;
using enum FigureSpan;

constexpr std::size_t kLongestKey = 64;

/// Of a line that is a dictionary: the step that it names, else that of the progress bar.
std::optional<std::int64_t> StepOfDict(const FigureLine& line) {
  for (std::string_view key :
       {"'global_step/max_steps': '", "'global_step': ", "'step': ", "'current_steps': "}) {
    if (const auto step = CountBefore(line, key)) return step;
  }
  return StepOfBar(line);
}

}  // namespace

/// "  train_mem_gpu_alloc_delta  =     5120MB" of a table, in MiB; bytes in a dictionary.
void ReadHfDelta(const FigureLine& line, FigureSink& sink) {
  for (const std::string_view mark : {"_mem_gpu", "_mem_cpu"}) {
    std::size_t end = 0;
    for (std::size_t at = line.text.find(mark); at != kNowhere; at = line.text.find(mark, end)) {
      std::size_t begin = at;
      while (begin > end && (IsLetter(line.text[begin - 1]) || line.text[begin - 1] == '_')) {
        --begin;
      }
      end = at + mark.size();
      while (end < line.text.size() && (IsLetter(line.text[end]) || line.text[end] == '_')) ++end;
      const std::string_view key = line.text.substr(begin, end - begin);
      const bool peaked = key.ends_with("_peaked_delta");
      const bool before = key == "before_init_mem_gpu" || key == "before_init_mem_cpu";
      if (!peaked && !before && !key.ends_with("_alloc_delta")) continue;
      if (key.size() > kLongestKey) continue;
      const bool dict = end < line.text.size() && line.text[end] == '\'';
      const std::size_t value = line.text.find_first_not_of(" ':=", end);
      if (value == kNowhere) return;
      const auto size = SizedAt(line, value, dict ? "" : "MB");
      if (!size || (dict && size->end == line.text.size())) continue;
      const bool gpu = mark == "_mem_gpu";
      const FigureSpan span = before ? kNow : peaked ? kAboveEnd : kChange;
      const std::string_view phase = before ? "init" : key.substr(0, key.find("_mem_"));
      sink.Put({key, gpu ? kTensors : kHostUsed, span}, *size, dict ? kOnes : kMebi,
               {.phase = phase});
    }
  }
}

/// "'memory_allocated (GB)': 12.5, 'max_memory_allocated (GB)': 30.1, …" on Gaudi.
void ReadHabana(const FigureLine& line, FigureSink& sink) {
  static constexpr auto kFields = std::to_array<FieldWording>({
      {"'memory_allocated (GB)':", "", kGibi, {"memory_allocated", kTensors, kNow}, true},
      {"'max_memory_allocated (GB)':",
       "",
       kGibi,
       {"max_memory_allocated", kTensors, kSinceStart},
       true},
      {"'total_memory_available (GB)':", "", kGibi, {"total_memory_available", kDeviceTotal}, true},
  });
  ReadFields(line, kFields, sink, {.step = StepOfDict(line)});
}

/// "'memory/max_active (GiB)': 21.5, 'memory/max_allocated (GiB)': …" in the line of the loss.
void ReadAxolotlStep(const FigureLine& line, FigureSink& sink) {
  struct Key {
    std::string_view words;
    FigureField field;
  };
  static constexpr auto kKeys = std::to_array<Key>({
      {"max_active", {"max_active", kActive, kSinceLine}},
      {"max_mem_active", {"max_active", kActive, kSinceLine}},
      {"max_allocated", {"max_allocated", kTensors, kSinceLine}},
      {"max_mem_allocated", {"max_allocated", kTensors, kSinceLine}},
      {"device_reserved", {"device_reserved", kReserved, kSinceLine}},
      {"device_mem_reserved", {"device_reserved", kReserved, kSinceLine}},
  });
  constexpr std::string_view kHead = "'memory/";
  std::optional<std::int64_t> step;
  bool asked = false;
  for (std::size_t at = line.text.find(kHead); at != kNowhere;
       at = line.text.find(kHead, at + kHead.size())) {
    const std::string_view rest = line.text.substr(at + kHead.size(), kLongestKey);
    const std::size_t length = rest.find("':");
    if (length == kNowhere) continue;
    const std::size_t end = at + kHead.size() + length;
    const std::string name = Lower(rest.substr(0, length));
    for (const Key& key : kKeys) {
      if (name != std::string(key.words) + " (gib)" && name != std::string(key.words) + "(gib)") {
        continue;
      }
      // Newer releases print every value of the line as a text.
      std::size_t value = end + 2;
      while (value < line.text.size() && (line.text[value] == ' ' || line.text[value] == '\'')) {
        ++value;
      }
      const auto size = SizedAt(line, value, "");
      if (!size || size->end == line.text.size()) continue;
      if (!asked) step = StepOfDict(line);
      asked = true;
      sink.Put(key.field, *size, kGibi, {.step = step});
    }
  }
}

/// "GPU memory usage while training: 9.310GB (+6.004GB cache, +0.744GB misc)"; newer "after model
/// load 15.020GB (+15.020GB allocated, +16.500GB reserved)".
void ReadAxolotlPhase(const FigureLine& line, FigureSink& sink) {
  const std::size_t open = line.text.find("GB (+");
  if (open == kNowhere) return;
  const auto first = NumberBefore(line, open);
  if (!first) return;
  std::size_t begin = open;
  while (begin > 0 && (IsDigit(line.text[begin - 1]) || line.text[begin - 1] == '.')) --begin;
  std::string_view head = line.text.substr(0, begin);
  while (head.ends_with(' ') || head.ends_with(':')) head.remove_suffix(1);
  constexpr std::string_view kUsage = "memory usage ";
  const std::size_t usage = head.find(kUsage);
  const std::size_t bracket = head.rfind("] ");
  if (usage != kNowhere) {
    head.remove_prefix(usage + kUsage.size());
  } else if (bracket != kNowhere) {
    head.remove_prefix(bracket + 2);
  }
  std::optional<std::int64_t> step;
  const std::string phase = PhaseName(head, step);
  const auto rank = CountBefore(line, "[RANK:", open);
  const FigurePlace place{
      .step = step,
      .phase = phase,
      .rank = rank && *rank < 1'000'000 ? std::optional(static_cast<int>(*rank)) : std::nullopt};
  const std::string_view rest = line.text.substr(open);
  if (Contains(rest, "GB allocated")) {
    static constexpr auto kFields = std::to_array<FieldWording>({
        {"+", "GB allocated", kGibi, {"allocated", kTensors, kSinceLine}},
        {"+", "GB reserved", kGibi, {"reserved", kReserved, kSinceLine}},
    });
    sink.Put({"active", kActive, kSinceLine}, *first, kGibi, place);
    ReadFields(line, kFields, sink, place, open);
    return;
  }
  if (!Contains(rest, "GB cache") && !Contains(rest, "GB misc")) return;
  static constexpr auto kFields = std::to_array<FieldWording>({
      {"+", "GB cache", kGibi, {"cache", kCached, kNow}},
      {"+", "GB misc", kGibi, {"misc", kOutside, kNow}},
  });
  sink.Put({"usage", kTensors, kNow}, *first, kGibi, place);
  ReadFields(line, kFields, sink, place, open);
}

/// "'memory(GiB)': 61.25", the largest reserved of all devices of the process.
void ReadSwift(const FigureLine& line, FigureSink& sink) {
  constexpr std::string_view kKey = "'memory(GiB)':";
  const std::size_t at = line.text.find(kKey);
  if (at == kNowhere) return;
  std::size_t value = line.text.find_first_not_of(" '", at + kKey.size());
  if (value == kNowhere) return;
  const auto size = SizedAt(line, value, "");
  if (!size || size->end == line.text.size()) return;
  sink.Put({"memory(GiB)", kReserved, kSinceStart}, *size, kGibi, {.step = StepOfDict(line)});
}

/// "Tesla T4. Num GPUs = 1. Max memory: 14.563 GB. Platform: Linux.", "GPU = Tesla T4. Max memory =
/// 14.563 GB."
void ReadUnslothCard(const FigureLine& line, FigureSink& sink) {
  static constexpr auto kFields = std::to_array<FieldWording>({
      {"Max memory:", "GB.", kGibi, {"Max memory", kDeviceTotal}},
      {"Max memory =", "GB.", kGibi, {"Max memory", kDeviceTotal}},
  });
  ReadFields(line, kFields, sink);
}

/// "5.125 GB of memory reserved.", before training.
void ReadUnslothReserved(const FigureLine& line, FigureSink& sink) {
  const std::size_t at = line.text.find("GB of memory reserved.");
  if (at == kNowhere) return;
  if (const auto size = NumberBefore(line, at)) {
    sink.Put({"memory reserved", kReserved, kSinceStart}, *size, kGibi,
             {.phase = "before training"});
  }
}

/// "Peak reserved memory = 9.887 GB.", "Peak reserved memory for training = 4.762 GB."
void ReadUnslothPeak(const FigureLine& line, FigureSink& sink) {
  static constexpr auto kPeak = std::to_array<FieldWording>({
      {"Peak reserved memory =", "GB.", kGibi, {"Peak reserved memory", kReserved, kSinceStart}},
  });
  static constexpr auto kTraining = std::to_array<FieldWording>({
      {"Peak reserved memory for training =",
       "GB.",
       kGibi,
       {"Peak reserved memory for training", kReserved, kChange}},
  });
  ReadFields(line, kPeak, sink);
  ReadFields(line, kTraining, sink);
}

/// {"current_steps": 20, …, "vram_allocated": 12.5, "vram_reserved": 15.0} of trainer_log.jsonl.
void ReadLlamaFactory(const FigureLine& line, FigureSink& sink) {
  static constexpr auto kFields = std::to_array<FieldWording>({
      {"'vram_allocated':", "", kGibi, {"vram_allocated", kTensors, kSinceStart}, true},
      {"'vram_reserved':", "", kGibi, {"vram_reserved", kReserved, kSinceStart}, true},
  });
  ReadFields(line, kFields, sink, {.step = StepOfDict(line)});
}

}  // namespace plimsoll
