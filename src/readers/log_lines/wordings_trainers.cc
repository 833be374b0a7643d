// What trainers of PyTorch models print.
#include <array>

#include "base/text.h"
#include "readers/log_lines/log_wordings.h"

namespace plimsoll {
namespace {

using enum FigureKind;
using enum FigureSpan;

/// The line with the step stands above those of all other metrics.
constexpr std::size_t kNearOlmo = 4096;
/// torchtitan's throughput stands so near behind its memory, blanks included.
constexpr std::size_t kNearMemory = 64;

/// A rank that stands in the line itself: "[rank3]" where several lines were joined into one.
std::optional<int> RankInside(const FigureLine& line) {
  const std::optional<std::int64_t> rank = CountBefore(line, "[rank");
  return rank && *rank < 1'000'000 ? std::optional(static_cast<int>(*rank)) : std::nullopt;
}

std::optional<int> SmallCount(const FigureLine& line, std::string_view key) {
  const std::optional<std::int64_t> count = CountBefore(line, key);
  return count && *count < 1'000'000 ? std::optional(static_cast<int>(*count)) : std::nullopt;
}

/// "71.90GiB(90.80%)" at `at`; tells the card's memory too.
bool PutWithPercent(const FigureLine& line, std::size_t at, const FigureField& field,
                    const FigurePlace& place, FigureSink& sink) {
  const std::optional<Printed> size = SizedAt(line, at, "GiB(");
  if (!size) return false;
  const std::optional<Printed> percent = SizedAt(line, size->end, "%)");
  if (!percent) return false;
  sink.Put(field, *size, kGibi, place);
  sink.PutWhole(*size, kGibi, *percent, place);
  return true;
}

/// "tps: 4,310", until November 2024 "wps: 4,310", behind the memory of the same step.
void PutThroughput(const FigureLine& line, std::size_t from, const FigurePlace& place,
                   FigureSink& sink) {
  for (std::string_view key : {"tps:", "wps:"}) {
    const std::size_t at = FindKey(line.text.substr(0, from + kNearMemory), key, from);
    if (at == kNowhere) continue;
    if (const std::optional<Printed> tokens = SizedAt(line, at + key.size(), "")) {
      sink.Put({"tps", kThroughput}, *tokens, kOnes, place);
    }
    return;
  }
}

}  // namespace

void ReadFields(const FigureLine& line, std::span<const FieldWording> fields, FigureSink& sink,
                const FigurePlace& place, std::size_t from) {
  for (const FieldWording& wording : fields) {
    const std::size_t key = FindKey(line.text, wording.key, from);
    if (key == kNowhere) continue;
    const std::optional<Printed> size = SizedAt(line, key + wording.key.size(), wording.unit);
    if (!size) continue;
    from = size->end;
    if (wording.more && size->end == line.text.size()) continue;
    sink.Put(wording.field, *size, wording.factor, place);
  }
}

/// "step: 40  loss:  6.21734  grad_norm:  1.1043  memory: 71.90GiB(90.80%)  tps: 4,310".
void ReadTitan(const FigureLine& line, FigureSink& sink) {
  constexpr std::string_view kKey = "memory:";
  FigurePlace place;
  std::size_t from = 0;
  for (std::size_t at = FindKey(line.text, kKey); at != kNowhere;
       at = FindKey(line.text, kKey, at + kKey.size())) {
    // Two lines that were joined have the second one's prefix and step between them.
    const FigureLine own{.text = line.text.substr(from, at - from)};
    if (const std::size_t word = LastBefore(own.text, "step:"); word != kNowhere) {
      place.step = CountBefore(own, "step:");
      place.phase = own.text.substr(0, word).ends_with("validate ") ? "validate" : "";
    }
    if (from > 0) {
      if (const auto rank = RankInside(own)) place.rank = rank;
    }
    if (place.step &&
        PutWithPercent(line, at + kKey.size(), {"memory", kReserved, kSinceLine}, place, sink)) {
      PutThroughput(line, at + kKey.size(), place, sink);
    }
    from = at;
  }
}

/// "CUDA memory usage for model: 0.41GiB(0.51%)".
void ReadTitanModel(const FigureLine& line, FigureSink& sink) {
  constexpr std::string_view kKey = "memory usage for model:";
  const std::size_t at = line.text.find(kKey);
  if (at == kNowhere) return;
  PutWithPercent(line, at + kKey.size(), {"memory", kReserved, kSinceLine}, {.phase = "model"},
                 sink);
}

/// "CUDA capacity: NVIDIA H100 80GB HBM3 with 79.11GiB memory".
void ReadTitanCapacity(const FigureLine& line, FigureSink& sink) {
  const std::size_t with = line.text.rfind(" with ");
  if (!Contains(line.text, " capacity: ") || with == kNowhere) return;
  if (const auto size = SizedAt(line, with + 6, "GiB memory")) {
    sink.Put({"capacity", kDeviceTotal}, *size, kGibi);
  }
}

/// "4 CUDA memory allocation retries.", just above the step that it belongs to.
void ReadTitanRetries(const FigureLine& line, FigureSink& sink) {
  const std::size_t at = line.text.find(" memory allocation retries");
  if (at == kNowhere) return;
  const std::size_t word = line.text.rfind(' ', at - 1);
  if (word == kNowhere) return;
  const std::optional<Printed> count = NumberBefore(line, word);
  if (count) sink.PutBeforeStep({"retries", kRetries, kSinceStart}, *count, kOnes);
}

/// "1 CUDA OOM errors thrown.".
void ReadTitanOoms(const FigureLine& line, FigureSink& sink) {
  const std::size_t at = line.text.find(" OOM errors thrown");
  if (at == kNowhere || at == 0) return;
  const std::size_t word = line.text.rfind(' ', at - 1);
  if (word == kNowhere) return;
  const std::optional<Printed> count = NumberBefore(line, word);
  if (count) sink.PutBeforeStep({"OOMs", kOoms, kSinceStart}, *count, kOnes);
}

/// "with local batch size 8, global batch size 64, …, sequence length 8192".
void ReadTitanBatch(const FigureLine& line, FigureSink& sink) {
  static constexpr auto kFields = std::to_array<FieldWording>({
      {"local batch size ", "", kOnes, {"local batch size", kBatch}, true},
      {"sequence length ", "", kOnes, {"sequence length", kLength}, true},
  });
  ReadFields(line, kFields, sink);
}

/// "MA 11.21 GB         Max_MA 14.03 GB         CA 15.5 GB         Max_CA 16 GB", below the words
/// that the caller gave.
void ReadDeepSpeedMemory(const FigureLine& line, FigureSink& sink) {
  static constexpr auto kFields = std::to_array<FieldWording>({
      {"MA ", "GB", kGibi, {"MA", kTensors, kNow}},
      {"Max_MA ", "GB", kGibi, {"Max_MA", kTensors, kSinceLine}},
      {"CA ", "GB", kGibi, {"CA", kReserved, kNow}},
      {"Max_CA ", "GB", kGibi, {"Max_CA", kReserved, kSinceLine}},
  });
  const std::vector<std::string> lines = LinesAbove(line, 1);
  std::string_view above = lines.empty() ? std::string_view() : lines.front();
  constexpr std::string_view kLogger = "see_memory_usage]";
  if (const std::size_t at = above.find(kLogger); at != kNowhere) {
    above.remove_prefix(at + kLogger.size());
    above.remove_prefix(std::min(above.size(), above.find_first_not_of(' ')));
  }
  // A progress bar or a table is no phase.
  if (Contains(above, "%|") || above.starts_with('{')) above = {};
  std::optional<std::int64_t> step;
  const std::string phase = PhaseName(above, step);
  ReadFields(line, kFields, sink, {.step = step, .phase = phase});
}

/// "epoch=0/micro_step=64/global_step=16, …, MemAllocated=21.4GB, MaxMemAllocated=55.02GB".
void ReadDeepSpeedThroughput(const FigureLine& line, FigureSink& sink) {
  static constexpr auto kFields = std::to_array<FieldWording>({
      {"MemAllocated=", "GB", kGibi, {"MemAllocated", kTensors, kNow}},
      {"MaxMemAllocated=", "GB", kGibi, {"MaxMemAllocated", kTensors, kSinceStart}},
  });
  ReadFields(line, kFields, sink, {.step = CountBefore(line, "global_step=")});
}

/// " | mem_allocated: 1.2345 GB | max_mem_allocated: … | cache_allocated: … ".
void ReadDeepSpeedTimer(const FigureLine& line, FigureSink& sink) {
  static constexpr auto kFields = std::to_array<FieldWording>({
      {"mem_allocated:", "GB", kGibi, {"mem_allocated", kTensors, kNow}},
      {"max_mem_allocated:", "GB", kGibi, {"max_mem_allocated", kTensors, kSinceStart}},
      {"cache_allocated:", "GB", kGibi, {"cache_allocated", kReserved, kNow}},
      {"max_cache_allocated:", "GB", kGibi, {"max_cache_allocated", kReserved, kSinceStart}},
  });
  ReadFields(line, kFields, sink, {.step = AnyStep(line)});
}

/// "CPU Virtual Memory:  used = 489.03 GB, percent = 97.1%".
void ReadDeepSpeedHost(const FigureLine& line, FigureSink& sink) {
  static constexpr auto kFields = std::to_array<FieldWording>({
      {"used =", "GB,", kGibi, {"CPU Virtual Memory", kHostUsed, kNow}},
  });
  ReadFields(line, kFields, sink);
}

/// "[Rank 24] (after 2 iterations) memory (MB) | allocated: 40112.06 | max allocated: …".
void ReadMegatron(const FigureLine& line, FigureSink& sink) {
  static constexpr auto kFields = std::to_array<FieldWording>({
      {"| allocated:", "", kMebi, {"allocated", kTensors, kNow}, true},
      {"| max allocated:", "", kMebi, {"max allocated", kTensors, kSinceStart}, true},
      {"| reserved:", "", kMebi, {"reserved", kReserved, kNow}, true},
      {"| max reserved:", "", kMebi, {"max reserved", kReserved, kSinceStart}},
      {"| total device memory used:", "", kMebi, {"total device memory used", kDeviceUsed, kNow}},
  });
  const std::size_t memory = line.text.find("memory (MB)");
  const std::size_t open = line.text.rfind('(', memory == kNowhere || memory == 0 ? 0 : memory - 1);
  if (memory == kNowhere || open == kNowhere) return;
  FigurePlace place{.step = CountBefore(line, "(after ", memory),
                    .rank = SmallCount(line, "[Rank ")};
  std::string phase;
  if (!place.step) {
    place.step = CountBefore(line, "iteration ", memory);
    const std::size_t close = line.text.find_first_of(")", open);
    std::string_view head = line.text.substr(open + 1, close - open - 1);
    head = head.substr(0, head.find(" for iteration"));
    phase = head;
    place.phase = phase;
  }
  ReadFields(line, kFields, sink, place, memory);
}

/// "Theoretical memory footprints: weight and optimizer=14025.12 MB, activation=…, total=…".
void ReadMegatronTheory(const FigureLine& line, FigureSink& sink) {
  static constexpr auto kFields = std::to_array<FieldWording>({
      {"weight and optimizer=", "MB", kMebi, {"weight and optimizer", kFormula}},
      {"activation=", "MB", kMebi, {"activation", kFormula}},
      {"total=", "MB", kMebi, {"total", kFormula}},
  });
  ReadFields(line, kFields, sink);
}

/// "alloc=812MiB private=12MiB resv-alloc=120MiB resv=932MiB dev_mem=2210MiB".
void ReadMegatronSaver(const FigureLine& line, FigureSink& sink) {
  static constexpr auto kFields = std::to_array<FieldWording>({
      {"alloc=", "MiB", kMebi, {"alloc", kTensors, kNow}},
      {"resv-alloc=", "MiB", kMebi, {"resv-alloc", kCached, kNow}},
      {"resv=", "MiB", kMebi, {"resv", kReserved, kNow}},
      {"dev_mem=", "MiB", kMebi, {"dev_mem", kDeviceUsed, kNow}},
  });
  ReadFields(line, kFields, sink, {.step = AnyStep(line)});
}

/// "[Rank 0] (after 2 iterations) memory (GB) | mem-allocated-gigabytes: 31.204 | …", GB of 10^9.
void ReadBridge(const FigureLine& line, FigureSink& sink) {
  struct Key {
    std::string_view key;
    FigureField field;
    double factor = kGiga;
  };
  static constexpr auto kKeys = std::to_array<Key>({
      {"mem-allocated-gigabytes", {"mem-allocated", kTensors, kNow}},
      {"mem-active-gigabytes", {"mem-active", kActive, kNow}},
      {"mem-reserved-gigabytes", {"mem-reserved", kReserved, kNow}},
      {"mem-max-allocated-gigabytes", {"mem-max-allocated", kTensors, kSinceStart}},
      {"mem-max-active-gigabytes", {"mem-max-active", kActive, kSinceStart}},
      {"mem-max-reserved-gigabytes", {"mem-max-reserved", kReserved, kSinceStart}},
      {"mem-alloc-retires", {"mem-alloc-retires", kRetries, kSinceStart}, kOnes},
      {"mem-alloc-retries", {"mem-alloc-retries", kRetries, kSinceStart}, kOnes},
  });
  const FigurePlace place{.step = CountBefore(line, "(after "), .rank = SmallCount(line, "[Rank ")};
  for (std::size_t at = line.text.find("| "); at != kNowhere; at = line.text.find("| ", at + 1)) {
    const std::string_view rest = line.text.substr(at + 2);
    for (const Key& key : kKeys) {
      if (!rest.starts_with(key.key) || !rest.substr(key.key.size()).starts_with(":")) continue;
      const auto size = SizedAt(line, at + 2 + key.key.size() + 1, "");
      if (size) sink.Put(key.field, *size, key.factor, place);
    }
  }
}

/// "on_train_batch_end rank: 3 mem: 12.5 / 40.25": tensors now, the most reserved; in GiB.
void ReadNemoCallback(const FigureLine& line, FigureSink& sink) {
  constexpr std::string_view kKey = " mem: ";
  const std::size_t at = line.text.find(kKey);
  const std::size_t rank = line.text.find(" rank: ");
  if (at == kNowhere || rank == kNowhere || rank > at) return;
  const std::size_t head = line.text.rfind("on_", rank);
  const std::string_view phase = head == kNowhere ? "" : line.text.substr(head, rank - head);
  const FigurePlace place{.phase = phase, .rank = SmallCount(line, " rank:")};
  const auto tensors = SizedAt(line, at + kKey.size(), "/");
  if (!tensors) return;
  sink.Put({"mem", kTensors, kNow}, *tensors, kGibi, place);
  if (const auto reserved = SizedAt(line, tensors->end, "")) {
    sink.Put({"peak reserved", kReserved, kSinceStart}, *reserved, kGibi, place);
  }
}

/// "GPU peak memory active: 15.20 GiB", below a line that names the phase.
void ReadTorchtunePhase(const FigureLine& line, FigureSink& sink) {
  static constexpr auto kFields = std::to_array<FieldWording>({
      {"peak memory active:", "GiB", kGibi, {"peak memory active", kActive, kSinceLine}},
      {"peak memory alloc:", "GiB", kGibi, {"peak memory alloc", kTensors, kSinceLine}},
      {"peak memory reserved:", "GiB", kGibi, {"peak memory reserved", kReserved, kSinceLine}},
  });
  std::string phase;
  std::optional<std::int64_t> step;
  for (std::string_view above : LinesAbove(line, 3)) {
    if (Contains(above, "peak memory ")) continue;
    if (!above.ends_with(':')) break;
    // Behind the logger's own prefix: "INFO:torchtune.utils._logging:Memory stats after …".
    above.remove_suffix(1);
    const std::size_t logger = above.find("_logging:");
    if (logger != kNowhere) above.remove_prefix(logger + 9);
    phase = PhaseName(above, step);
    break;
  }
  ReadFields(line, kFields, sink, {.step = step, .phase = phase});
}

/// "Step 12 | loss:1.204 … peak_memory_active:21.93 peak_memory_alloc:21.70 …", in GiB.
void ReadTorchtuneStep(const FigureLine& line, FigureSink& sink) {
  static constexpr auto kFields = std::to_array<FieldWording>({
      {"peak_memory_active:", "", kGibi, {"peak_memory_active", kActive, kSinceLine}},
      {"peak_memory_alloc:", "", kGibi, {"peak_memory_alloc", kTensors, kSinceLine}},
      {"peak_memory_reserved:", "", kGibi, {"peak_memory_reserved", kReserved, kSinceLine}},
  });
  ReadFields(line, kFields, sink, {.step = CountBefore(line, "Step ")});
}

/// "GPU Total Peak Memory consumed during the train (max): 12345", in MiB without saying so; lines
/// that begin with CPU are of the host.
void ReadAcceleratePeak(const FigureLine& line, FigureSink& sink) {
  struct Head {
    std::string_view words;
    FigureSpan span;
  };
  static constexpr auto kHeads = std::to_array<Head>({
      {"Total Peak Memory consumed during the ", kSinceLine},
      {"Peak Memory consumed during the ", kChange},
      {"Memory consumed at the end of the ", kChange},
      {"Memory before entering the ", kNow},
  });
  for (const Head& head : kHeads) {
    const std::size_t at = line.text.find(head.words);
    if (at == kNowhere) continue;
    const std::size_t colon = line.text.find(':', at);
    if (colon == kNowhere) return;
    const std::string_view rest = line.text.substr(at + head.words.size());
    const std::string_view phase = rest.substr(0, rest.find_first_of(" :("));
    const auto size = SizedAt(line, colon + 1, "");
    const bool host = Contains(line.text.substr(0, at), "CPU");
    const std::string_view name = head.words.substr(0, head.words.rfind(" the "));
    if (size)
      sink.Put({name, host ? kHostUsed : kTensors, head.span}, *size, kMebi, {.phase = phase});
    return;
  }
}

/// "… max_memory: 41.20 GB reserved_memory: 48.55 GB tgs: …".
void ReadXtuner(const FigureLine& line, FigureSink& sink) {
  static constexpr auto kFields = std::to_array<FieldWording>({
      {"max_memory:", "GB", kGibi, {"max_memory", kTensors, kSinceStart}},
      {"reserved_memory:", "GB", kGibi, {"reserved_memory", kReserved, kSinceStart}},
  });
  ReadFields(line, kFields, sink, {.step = AnyStep(line)});
}

/// "Step 12 | … | Peak Mem. 61.2/79.1 GiB (77.4%)", "Peak Mem. 61.2 GiB".
void ReadPrimeRl(const FigureLine& line, FigureSink& sink) {
  const std::size_t at = line.text.find("Peak Mem.");
  if (at == kNowhere) return;
  std::size_t from = at + 9;
  if (line.text.substr(from).starts_with(":")) ++from;
  const FigurePlace place{.step = CountBefore(line, "Step ", at)};
  constexpr FigureField kPeak{"Peak Mem.", kReserved, kSinceStart};
  if (const auto of = SizedAt(line, from, "/")) {
    const auto total = SizedAt(line, of->end, "GiB");
    if (!total) return;
    sink.Put(kPeak, *of, kGibi, place);
    sink.Put({"total", kDeviceTotal}, *total, kGibi, {});
  } else if (const auto size = SizedAt(line, from, "GiB")) {
    sink.Put(kPeak, *size, kGibi, place);
  }
}

/// "    gpu_memory/GPU active mem (GiB)=41.02", some lines below "[step=12/500,epoch=1,eta=…]".
void ReadOlmo(const FigureLine& line, FigureSink& sink) {
  static constexpr auto kFields = std::to_array<FieldWording>({
      {"GPU active mem (GiB)=", "", kGibi, {"GPU active mem", kActive, kSinceLine}},
      {"GPU reserved mem (GiB)=", "", kGibi, {"GPU reserved mem", kReserved, kSinceLine}},
  });
  constexpr std::string_view kStep = "[step=";
  const std::size_t from = line.begin > kNearOlmo ? line.begin - kNearOlmo : 0;
  FigureLine above{.text = line.part.substr(from, line.begin - from)};
  const std::optional<std::int64_t> step = CountBefore(above, kStep);
  ReadFields(line, kFields, sink, {.step = step});
}

/// "Memory used: 31.20 GB", GB of 10^9.
void ReadLitgpt(const FigureLine& line, FigureSink& sink) {
  static constexpr auto kFields = std::to_array<FieldWording>({
      {"Memory used:", "GB", kGiga, {"Memory used", kTensors, kSinceStart}},
  });
  ReadFields(line, kFields, sink, {.step = AnyStep(line)});
}

/// "Peak memory usage: 61234.50MiB".
void ReadNanochat(const FigureLine& line, FigureSink& sink) {
  static constexpr auto kFields = std::to_array<FieldWording>({
      {"Peak memory usage:", "MiB", kMebi, {"Peak memory usage", kTensors, kSinceStart}},
  });
  ReadFields(line, kFields, sink);
}

/// "peak memory allocated: 31234 MiB reserved: 40112 MiB".
void ReadModdedNanogpt(const FigureLine& line, FigureSink& sink) {
  static constexpr auto kFields = std::to_array<FieldWording>({
      {"peak memory allocated:", "MiB", kMebi, {"peak memory allocated", kTensors, kSinceStart}},
      {"reserved:", "MiB", kMebi, {"reserved", kReserved, kSinceStart}},
  });
  ReadFields(line, kFields, sink);
}

/// "Iter 10: Train loss 1.203, …, Trained Tokens 20480, Peak mem 14.310 GB", GB of 10^9.
void ReadMlx(const FigureLine& line, FigureSink& sink) {
  static constexpr auto kFields = std::to_array<FieldWording>({
      {"Peak mem ", "GB", kGiga, {"Peak mem", kTensors, kSinceStart}},
  });
  if (Contains(line.text, "Iter "))
    ReadFields(line, kFields, sink, {.step = CountBefore(line, "Iter ")});
}

/// "GPUMemoryStats: Rank 3: retries=0, allocated= 812mb, reserved= 1024mb, free= …, used= …".
void ReadTorchRec(const FigureLine& line, FigureSink& sink) {
  static constexpr auto kFields = std::to_array<FieldWording>({
      {"retries=", ",", kOnes, {"retries", kRetries, kSinceStart}},
      {"allocated=", "mb", kMebi, {"allocated", kTensors, kNow}},
      {"reserved=", "mb", kMebi, {"reserved", kReserved, kNow}},
      {"free=", "mb", kMebi, {"free", kDeviceFree, kNow}},
      {"total=", "mb", kMebi, {"total", kDeviceTotal, kNow}},
      {"used=", "mb", kMebi, {"used", kDeviceUsed, kNow}},
  });
  ReadFields(line, kFields, sink, {.rank = SmallCount(line, "Rank ")});
}

namespace {

/// A fact that trainers print once: the number behind signs that set it apart from its name.
void PutFact(const FigureLine& line, std::string_view name, FigureKind counts, FigureSink& sink) {
  const std::string lower = Lower(line.text);
  const std::size_t at = FindKey(lower, name);
  if (at == kNowhere) return;
  const std::size_t value = line.text.find_first_not_of(" .:='", at + name.size());
  if (value == kNowhere || value - at > 60 || !IsDigit(line.text[value])) return;
  const auto number = SizedAt(line, value, "");
  if (number && number->value >= 1 && number->value < 1e9) {
    sink.Put({name, counts}, *number, kOnes);
  }
}

}  // namespace

/// "Instantaneous batch size per device = 4", "train_micro_batch_size_per_gpu ....... 4".
void ReadBatchFact(const FigureLine& line, FigureSink& sink) {
  for (std::string_view name :
       {"instantaneous batch size per device", "train_micro_batch_size_per_gpu",
        "per_device_train_batch_size", "micro_batch_size"}) {
    PutFact(line, name, kBatch, sink);
  }
}

/// "max_seq_len=8192", "--max_length 4096", "seq_length ...... 4096".
void ReadLengthFact(const FigureLine& line, FigureSink& sink) {
  for (std::string_view name : {"max_seq_len", "max_seq_length", "max_model_len", "seq_length",
                                "cutoff_len", "sequence_len"}) {
    PutFact(line, name, kLength, sink);
  }
}

}  // namespace plimsoll
