// What trainers of vision and speech models print.
#include <array>

#include "base/text.h"
#include "readers/log_lines/log_wordings.h"

namespace plimsoll {
namespace {

using enum FigureKind;
using enum FigureSpan;

/// The two numbers of "[ 50/7330]" whose bracket is at `open`.
std::optional<std::pair<std::int64_t, std::int64_t>> Fraction(const FigureLine& line,
                                                              std::size_t open) {
  const auto done = SizedAt(line, open + 1, "/");
  if (!done) return {};
  const auto all = SizedAt(line, done->end, "]");
  constexpr double kMost = 1e9;
  if (!all || done->value < 0 || done->value > kMost || all->value < 1 || all->value > kMost) {
    return {};
  }
  return std::pair(static_cast<std::int64_t>(done->value), static_cast<std::int64_t>(all->value));
}

/// "Epoch(train)  [2][ 50/7330]" counts from the first epoch on; "Iter(train) [ 50/90000]" and
/// "Iter [50/90000]" count themselves.
std::optional<std::int64_t> MmStep(const FigureLine& line, std::size_t before) {
  std::size_t head = FindKey(line.text, "Epoch");
  if (head == kNowhere) head = FindKey(line.text, "Iter");
  if (head == kNowhere || head > before) return {};
  const std::size_t open = line.text.rfind('[', line.text.find('/', head));
  if (open == kNowhere || open >= before || open < head) return {};
  const auto part = Fraction(line, open);
  if (!part) return {};
  if (open == 0 || line.text[open - 1] != ']') return part->first;
  const std::size_t epoch = line.text.rfind('[', open - 1);
  const auto number = epoch == kNowhere ? std::nullopt : SizedAt(line, epoch + 1, "]");
  if (!number || number->value < 1 || number->value > 1e6) return {};
  return (static_cast<std::int64_t>(number->value) - 1) * part->second + part->first;
}

}  // namespace

/// "eta: 1:02:03  iter: 19  total_loss: 1.2  …  max_mem: 10512M".
void ReadDetectron(const FigureLine& line, FigureSink& sink) {
  static constexpr auto kFields = std::to_array<FieldWording>({
      {"max_mem:", "M", kMebi, {"max_mem", kTensors, kSinceStart}},
  });
  ReadFields(line, kFields, sink, {.step = CountBefore(line, "iter:")});
}

/// " iter: 19  max_reserved_mem: 9001MB  reserved_mem: …  max_allocated_mem: …  allocated_mem: …".
void ReadDetectronStats(const FigureLine& line, FigureSink& sink) {
  static constexpr auto kFields = std::to_array<FieldWording>({
      {"max_reserved_mem:", "MB", kMebi, {"max_reserved_mem", kReserved, kSinceLine}},
      {"reserved_mem:", "MB", kMebi, {"reserved_mem", kReserved, kNow}},
      {"max_allocated_mem:", "MB", kMebi, {"max_allocated_mem", kTensors, kSinceLine}},
      {"allocated_mem:", "MB", kMebi, {"allocated_mem", kTensors, kNow}},
  });
  ReadFields(line, kFields, sink, {.step = CountBefore(line, "iter:")});
}

/// "Epoch(train)  [1][ 50/7330]  lr: …  time: …  data_time: 0.01  memory: 8123  loss: 1.2", in MiB.
void ReadMmengine(const FigureLine& line, FigureSink& sink) {
  const std::size_t at = line.text.find("data_time:");
  const std::size_t memory = FindKey(line.text, "memory:", at == kNowhere ? 0 : at);
  if (at == kNowhere || memory == kNowhere) return;
  const auto size = SizedAt(line, memory + 7, "");
  // The last field of a line for validation; anywhere else a number at the end may have been cut.
  if (!size) return;
  const std::size_t open = line.text.find_first_of("(", 0);
  std::string_view phase = "train";
  if (open != kNowhere && open < at) {
    const std::string_view head = line.text.substr(open + 1, 5);
    if (head.starts_with("val")) phase = "val";
    if (head.starts_with("test")) phase = "test";
  }
  if (phase == "train" && size->end == line.text.size()) return;
  const bool old = line.text.substr(0, at).find("(") == kNowhere;
  sink.Put({"memory", kTensors, old ? kSinceStart : kSinceLine}, *size, kMebi,
           {.step = MmStep(line, at), .phase = phase});
}

/// The same as scalars.json has it: {"lr": 0.001, "data_time": 0.01, "memory": 8123, "step": 50}.
/// That of mmcv has no step, and its iterations begin anew with each epoch.
void ReadMmengineJson(const FigureLine& line, FigureSink& sink) {
  constexpr std::string_view kKey = "'memory':";
  const std::size_t at = FindKey(line.text, kKey);
  if (!line.text.starts_with('{') || at == kNowhere) return;
  const auto size = SizedAt(line, at + kKey.size(), "");
  if (!size || size->end == line.text.size()) return;
  const bool validates = Contains(line.text, "'mode': 'val'");
  const std::optional<std::int64_t> step = CountBefore(line, "'step':");
  sink.Put({"memory", kTensors, step ? kSinceLine : kSinceStart}, *size, kMebi,
           {.step = step, .phase = validates ? "val" : "train"});
}

/// "CUDA:0 (NVIDIA A100-SXM4-40GB, 40514MiB)" of ultralytics' first lines.
void ReadYoloCard(const FigureLine& line, FigureSink& sink) {
  const std::size_t at = FindKey(line.text, "CUDA:");
  if (at == kNowhere) return;
  const auto device = SizedAt(line, at + 5, "(");
  const std::size_t comma = line.text.rfind(", ");
  if (!device || comma == kNowhere || comma < at) return;
  const auto size = SizedAt(line, comma + 2, "MiB)");
  if (!size || device->value < 0 || device->value > 1000) return;
  sink.Put({"CUDA", kDeviceTotal}, *size, kMebi, {.device = static_cast<int>(device->value)});
}

/// "gb_free": "9.3", or "| gb_free 9.3 |": the card's memory less the tensors' peak.
void ReadFairseqFree(const FigureLine& line, FigureSink& sink) {
  const std::size_t at = FindKey(line.text, "gb_free");
  if (at == kNowhere) return;
  const std::size_t value = line.text.find_first_not_of(" ':", at + 7);
  if (value == kNowhere) return;
  const auto size = SizedAt(line, value, "");
  if (!size || size->end == line.text.size()) return;
  std::optional<std::int64_t> step;
  for (std::string_view key : {"'num_updates': '", "'num_updates': ", "num_updates "}) {
    if (!step) step = CountBefore(line, key);
  }
  sink.Put({"gb_free", kNotTensors, kSinceLine}, *size, kGibi, {.step = step});
}

/// "rank   0: capabilities =  7.0  ; total memory = 31.749 GB ; name = Tesla V100".
void ReadFairseqTotal(const FigureLine& line, FigureSink& sink) {
  static constexpr auto kFields = std::to_array<FieldWording>({
      {"total memory =", "GB", kGibi, {"total memory", kDeviceTotal}},
  });
  const auto rank = CountBefore(line, "rank ");
  if (!rank || *rank > 1'000'000) return;
  ReadFields(line, kFields, sink, {.rank = static_cast<int>(*rank)});
}

}  // namespace plimsoll
