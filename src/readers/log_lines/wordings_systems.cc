// What the driver's tools and batch systems print, and lines of the user's own program.
#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "base/text.h"
#include "readers/log_lines/log_wordings.h"

namespace plimsoll {
namespace {

using enum FigureKind;
using enum FigureSpan;

/// The cells of a row between bars, whatever characters draw them.
std::vector<std::string_view> Cells(std::string_view row) {
  std::vector<std::string_view> cells;
  while (!row.empty()) {
    std::size_t bar = row.find('|');
    std::size_t width = 1;
    for (std::string_view drawn : {"\xe2\x94\x82", "\xe2\x95\x91"}) {
      const std::size_t at = row.find(drawn);
      if (at < bar) {
        bar = at;
        width = drawn.size();
      }
    }
    cells.push_back(row.substr(0, bar));
    if (bar == kNowhere) break;
    row.remove_prefix(bar + width);
  }
  return cells;
}

std::optional<int> SmallWord(std::string_view word) {
  if (word.empty() || word.size() > 6 || !std::ranges::all_of(word, IsDigit)) return {};
  int value = 0;
  for (char c : word) value = value * 10 + (c - '0');
  return value;
}

/// The number of the card in the row above: "|   0  NVIDIA H100 80GB HBM3    On  | 00000000:…".
std::optional<int> DeviceAbove(const FigureLine& line) {
  for (const std::string& above : LinesAbove(line, 3)) {
    const std::vector<std::string_view> cells = Cells(above);
    if (cells.size() < 3) continue;
    const std::vector<std::string_view> words = WordsIn(cells[1]);
    if (words.size() >= 2) {
      if (const auto device = SmallWord(words[0])) return device;
    }
  }
  return {};
}

}  // namespace

/// "| N/A   34C    P0   112W / 700W |  61234MiB / 81559MiB |     98%      Default |".
void ReadSmiCard(const FigureLine& line, FigureSink& sink) {
  for (const std::string_view cell : Cells(line.text)) {
    FigureLine own = line;
    own.text = cell;
    own.complete = false;
    const auto used = SizedAt(own, 0, "MiB /");
    if (!used) continue;
    const auto total = SizedAt(own, used->end, "MiB");
    if (!total) continue;
    const FigurePlace place{.device = DeviceAbove(line)};
    sink.Put({"Memory-Usage", kDeviceUsed, kNow}, *used, kMebi, place);
    sink.Put({"total", kDeviceTotal}, *total, kMebi, place);
    return;
  }
}

/// "|    0   N/A  N/A      4711      C   python                      61220MiB |", older releases
/// without the two columns of instances.
void ReadSmiProcess(const FigureLine& line, FigureSink& sink) {
  const std::vector<std::string_view> cells = Cells(line.text);
  if (cells.size() < 2 || cells.size() > 3) return;
  const std::vector<std::string_view> words = WordsIn(cells[1]);
  if (words.size() < 5 || !words.back().ends_with("MiB")) return;
  const auto device = SmallWord(words[0]);
  const std::size_t pid = words[1] == "N/A" || !IsNumber(words[1]) ? 3 : 1;
  if (!device || pid + 2 >= words.size() || !IsNumber(words[pid])) return;
  const std::string_view type = words[pid + 1];
  if (type != "C" && type != "G" && type != "C+G" && type != "M+C") return;
  FigureLine own = line;
  own.text = words.back();
  const auto size = SizedAt(own, 0, "MiB");
  const std::string process = "pid=" + std::string(words[pid]);
  if (size)
    sink.Put({"process", kProcess, kNow}, *size, kMebi, {.device = device, .process = process});
}

/// "Memory Utilized: 12.34 GB", "Memory Efficiency: 61.70% of 20.00 GB" of Slurm's seff.
void ReadSeff(const FigureLine& line, FigureSink& sink) {
  struct Unit {
    std::string_view word;
    double factor;
  };
  static constexpr auto kUnits =
      std::to_array<Unit>({{"KB", 1024.0}, {"MB", kMebi}, {"GB", kGibi}, {"TB", 1024 * kGibi}});
  for (const Unit& unit : kUnits) {
    const std::array<FieldWording, 1> used = {FieldWording{
        "Memory Utilized:", unit.word, unit.factor, {"Memory Utilized", kHostUsed, kSinceStart}}};
    const std::array<FieldWording, 1> total = {
        FieldWording{"% of", unit.word, unit.factor, {"Memory requested", kHostTotal}}};
    ReadFields(line, used, sink);
    if (Contains(line.text, "Memory Efficiency:")) ReadFields(line, total, sink);
  }
}

namespace {

/// Of a line that says that memory ran out, the figures are the message's.
bool IsErrorText(std::string_view text) {
  for (std::string_view words :
       {"Tried to allocate", "out of memory", "by PyTorch", "total capacity", "memory in use",
        "allocated memory is", "Of the allocated", "raise ", "Error:", "MAX_SPLIT", "max_split"}) {
    if (Contains(text, words)) return true;
  }
  return false;
}

/// What the words in front of a figure of the user's own say that it counts.
struct OwnField {
  FigureKind counts;
  FigureSpan span;
};

bool IsPeakWord(std::string_view words) {
  return Contains(words, "peak") || Contains(words, "max");
}

std::optional<OwnField> OwnMeaning(std::string_view words) {
  const bool peak = IsPeakWord(words);
  const FigureSpan span = peak ? kSinceStart : kNow;
  if (Contains(words, "cpu") || Contains(words, "ram") || Contains(words, "rss") ||
      Contains(words, "host")) {
    // "vram" is the card's.
    if (!Contains(words, "vram")) return OwnField{kHostUsed, span};
  }
  if (Contains(words, "reserved") || Contains(words, "cached")) return OwnField{kReserved, span};
  if (Contains(words, "alloc")) return OwnField{kTensors, span};
  if (Contains(words, "free")) return OwnField{kDeviceFree, span};
  if (Contains(words, "total")) return OwnField{kDeviceTotal, kNow};
  if (Contains(words, "vram") || Contains(words, "gpu mem") || Contains(words, "gpu_mem")) {
    return OwnField{peak ? kTensors : kDeviceUsed, span};
  }
  for (std::string_view name : {"peak mem", "peak_mem", "max mem", "max_mem"}) {
    if (Contains(words, name)) return OwnField{kTensors, span};
  }
  return {};
}

/// "step 12 loss 3.1 mem 4.39 GiB": memory beside a loss is the card's; whether it is all in use or
/// what PyTorch holds, such a line does not tell.
std::optional<OwnField> MeaningBesideLoss(std::string_view name) {
  const bool memory = name.ends_with("mem") || name.ends_with("memory");
  return memory ? std::optional(OwnField{kDeviceUsed, IsPeakWord(name) ? kSinceStart : kNow})
                : std::nullopt;
}

bool IsNameSign(char c) { return IsLetter(c) || c == '_' || c == '-' || c == '.' || c == '/'; }

/// The name of a figure, of the words in front of it: those behind the last number or sign.
std::string_view OwnName(std::string_view words) {
  while (!words.empty() && !IsLetter(words.back())) words.remove_suffix(1);
  std::size_t begin = words.size();
  while (begin > 0 && (IsNameSign(words[begin - 1]) || words[begin - 1] == ' ')) --begin;
  words.remove_prefix(begin);
  while (!words.empty() && !IsLetter(words.front())) words.remove_prefix(1);
  return words;
}

/// The word behind a figure: "allocated" of "10.20 GB allocated".
std::string_view WordBehind(std::string_view text, std::size_t at) {
  while (at < text.size() && text[at] == ' ') ++at;
  std::size_t end = at;
  while (end < text.size() && (IsLetter(text[end]) || text[end] == '_')) ++end;
  return text.substr(at, end - at);
}

/// Whether the words say more than that memory is meant.
bool SaysWhich(std::string_view words) {
  for (std::string_view word : {"alloc", "reserved", "cached", "free", "total"}) {
    if (Contains(words, word)) return true;
  }
  return false;
}

/// "rank 2", "rank: 2" in the line itself; that of an adapter is another.
std::optional<int> OwnRank(const FigureLine& line) {
  const std::string lower = Lower(line.text);
  const FigureLine own{.text = lower, .complete = line.complete};
  const std::size_t at = FindKey(lower, "rank");
  if (line.rank || at == kNowhere || lower.substr(0, at).ends_with("lora ")) return {};
  const std::size_t digits = lower.find_first_not_of(" :=", at + 4);
  if (digits == kNowhere || digits > at + 6) return {};
  const std::optional<Printed> rank = SizedAt(own, digits, "");
  const bool whole = rank && rank->value == std::floor(rank->value);
  return whole && rank->value >= 0 && rank->value < 1e6 ? std::optional(int(rank->value))
                                                        : std::nullopt;
}

struct OwnUnit {
  std::string_view word;
  double factor;
};
constexpr auto kOwnUnits = std::to_array<OwnUnit>({{"GiB", kGibi},
                                                   {"GB", kGibi},
                                                   {"MiB", kMebi},
                                                   {"MB", kMebi},
                                                   {"gb", kGibi},
                                                   {"mb", kMebi},
                                                   {"Gb", kGibi},
                                                   {"Mb", kMebi},
                                                   {"G", kGibi},
                                                   {"M", kMebi}});

}  // namespace

std::span<const std::string_view> OwnWords() {
  static constexpr auto kWords = std::to_array<std::string_view>(
      {"allocated", "reserved", "peak mem", "vram", "gpu mem", "gpu_mem", "max_mem", "max mem",
       "mem=", "mem:", "mem ", "memory=", "memory: "});
  return kWords;
}

/// "step 12: allocated 10.20 GB, reserved 12.00 GB": words, then a number with a unit near by; or
/// "10.20 GB allocated / 12.00 GB reserved", where the first number shows that the words follow.
void ReadOwnLine(const FigureLine& line, FigureSink& sink) {
  constexpr std::size_t kNear = 40;
  constexpr int kMostFigures = 8;
  if (line.text.size() > 400 || line.text.starts_with('|') || IsErrorText(line.text)) return;
  const FigurePlace place{.step = AnyStep(line), .rank = OwnRank(line)};
  const bool beside_loss = place.step && Contains(Lower(line.text), "loss");
  std::optional<bool> words_follow;
  std::size_t words = 0;
  int figures = 0;
  for (std::size_t at = 0; at < line.text.size() && figures < kMostFigures;) {
    const bool begins = IsDigit(line.text[at]) &&
                        (at == 0 || (!IsLetter(line.text[at - 1]) && line.text[at - 1] != '_'));
    if (!begins) {
      ++at;
      continue;
    }
    const std::optional<Printed> number = NumberAt(line, at);
    if (!number) return;
    std::optional<Printed> sized;
    double factor = 0;
    for (const OwnUnit& unit : kOwnUnits) {
      if ((sized = SizedAt(line, at, unit.word))) {
        factor = unit.factor;
        break;
      }
    }
    const bool rate = sized && sized->end < line.text.size() && line.text[sized->end] == '/';
    if (!sized || rate) {
      at = number->end;
      continue;
    }
    // "10.2/79.1 GB": the second is the whole.
    const std::size_t from = std::max(words, at > kNear ? at - kNear : 0);
    const std::string_view before = line.text.substr(from, at - from);
    const std::string_view behind = WordBehind(line.text, sized->end);
    if (!words_follow) words_follow = SaysWhich(Lower(behind)) && !SaysWhich(Lower(before));
    words = at = sized->end;
    if (*words_follow) words = at = line.text.find(behind, at) + behind.size();
    const std::string_view name = *words_follow ? behind : OwnName(before);
    const std::string head = Lower(before.substr(before.find_last_of("0123456789") + 1));
    std::optional<OwnField> meaning = OwnMeaning(Lower(name));
    if (!meaning) meaning = OwnMeaning(Lower(before));
    if (!meaning && beside_loss) meaning = MeaningBesideLoss(Lower(name));
    if (!meaning) continue;
    // "peak memory: allocated 10.20 GB".
    if (IsPeakWord(head)) meaning->span = kSinceStart;
    sink.Put({name, meaning->counts, meaning->span}, *sized, factor, place);
    ++figures;
  }
}

}  // namespace plimsoll
