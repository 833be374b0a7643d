#include "hardware/gpu.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <limits>
#include <utility>

#include "base/check.h"
#include "base/suggest.h"

namespace plimsoll {
namespace {

/// "NVIDIA GeForce RTX 4090" and "rtx-4090" are "rtx4090".
std::string Key(std::string_view text) {
  std::string key;
  for (const char c : text) {
    if (std::isalnum(static_cast<unsigned char>(c)) != 0) {
      key += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    }
  }
  for (const std::string_view vendor :
       {"nvidia", "geforce", "tesla", "quadro", "amd", "radeon", "instinct"}) {
    if (key.starts_with(vendor) && key.size() > vendor.size()) key.erase(0, vendor.size());
  }
  return key;
}

/// Without the letters that people leave out: "4090", "a6000".
std::string ShortKey(std::string key) {
  for (const std::string_view line : {"rtx", "gtx", "rx"}) {
    if (key.starts_with(line) && key.size() > line.size()) key.erase(0, line.size());
  }
  return key;
}

const Gpu* FindByName(std::string_view text) {
  const std::string key = Key(text);
  if (key.empty()) return nullptr;
  const auto is = [&](const std::string& name) {
    const std::string known = Key(name);
    return key == known || key == ShortKey(known);
  };
  for (const Gpu& gpu : Gpus()) {
    if (is(gpu.name)) return &gpu;
  }
  for (const Gpu& gpu : Gpus()) {
    if (std::ranges::any_of(gpu.aliases, is)) return &gpu;
  }
  return nullptr;
}

/// A card that people with this much memory have.
const Gpu& TypicalOf(Bytes memory) {
  static constexpr std::array<std::pair<Bytes, const char*>, 11> kTypical = {{
      {9 * kGiB, "RTX 3070"},
      {13 * kGiB, "RTX 3060"},
      {17 * kGiB, "RTX 4080"},
      {25 * kGiB, "RTX 4090"},
      {33 * kGiB, "RTX 5090"},
      {41 * kGiB, "A100 40GB SXM"},
      {49 * kGiB, "RTX A6000"},
      {81 * kGiB, "A100 80GB SXM"},
      {97 * kGiB, "H100 NVL"},
      {150 * kGiB, "H200"},
      {std::numeric_limits<Bytes>::max(), "B200"},
  }};
  const auto* found =
      std::ranges::find_if(kTypical, [&](const auto& row) { return memory <= row.first; });
  const Gpu* gpu = FindByName(found->second);
  PLIMSOLL_CHECK(gpu != nullptr);
  return *gpu;
}

Gpu OfSize(Bytes memory) {
  Gpu gpu = TypicalOf(memory);
  gpu.like = gpu.name;
  gpu.name = fmt::format("a GPU with {}", FormatBytes(memory));
  gpu.aliases.clear();
  gpu.memory = memory;
  gpu.memory_is_measured = false;
  gpu.less_elsewhere = 0;
  gpu.more_elsewhere = 0;
  for (ContextSize* size : {&gpu.bare, &gpu.context}) {
    if (size->basis == FigureBasis::kMeasured) size->basis = FigureBasis::kAlike;
  }
  gpu.assumed = true;
  return gpu;
}

/// The GB that are printed on the box of a card with this much usable memory.
int BoxSize(Bytes memory) {
  static constexpr std::array<int, 25> kSizes = {4,   5,   6,   8,   10,  11,  12, 16, 20,
                                                 24,  32,  40,  48,  64,  80,  94, 96, 97,
                                                 128, 141, 180, 186, 192, 256, 288};
  const auto* size = std::ranges::find_if(kSizes, [&](int n) { return memory <= n * kGiB; });
  return size == kSizes.end() ? 0 : *size;
}

/// "12GB" as on a box, not "12GiB": the card sold with this size that has the least usable memory.
const Gpu* LeastOfBoxSize(std::string_view text) {
  const std::string key = Key(text);
  if (!key.ends_with("gb") && !key.ends_with("g")) return nullptr;
  const Result<Bytes> size = ParseBytes(text);
  if (!size || *size % kGiB != 0) return nullptr;
  const Gpu* least = nullptr;
  for (const Gpu& gpu : Gpus()) {
    if (gpu.slice || gpu.unified || BoxSize(gpu.memory) * kGiB != *size) continue;
    if (least == nullptr || gpu.LeastMemory() < least->LeastMemory()) least = &gpu;
  }
  return least;
}

Gpu OfBoxSize(const Gpu& least) {
  Gpu gpu = OfSize(least.LeastMemory());
  gpu.name = fmt::format("a {} GB GPU (least usable: {})", BoxSize(least.memory), least.name);
  return gpu;
}

std::size_t DistanceTo(const Gpu& gpu, std::string_view key) {
  std::size_t least = std::string_view::npos;
  const auto look = [&](const std::string& name) {
    const std::string known = Key(name);
    const std::string brief = ShortKey(known);
    least = std::min({least, EditDistance(key, known), EditDistance(key, brief)});
    // "a100 sxm" is part of a name rather than a misspelt one.
    if (key.size() > 1 && known.find(key) != std::string::npos) {
      least = std::min<std::size_t>(least, 1);
    }
  };
  look(gpu.name);
  for (const std::string& alias : gpu.aliases) look(alias);
  return least;
}

std::string Suggestion(std::string_view text) {
  const std::string key = Key(text);
  std::vector<Candidate> candidates;
  for (const Gpu& gpu : Gpus()) candidates.push_back({gpu.name, DistanceTo(gpu, key)});
  return NameNearest(key, std::move(candidates));
}

}  // namespace

Result<Gpu> Beside(Gpu gpu, Bytes others) {
  if (others >= gpu.memory) {
    return Error{.message = fmt::format("{} of other processes leave nothing of the {} of {}",
                                        FormatBytes(others), FormatBytes(gpu.memory), gpu.name)};
  }
  gpu.memory -= others;
  gpu.taken += others;
  return gpu;
}

Result<Gpu> FindGpu(std::string_view text) {
  if (const Gpu* gpu = FindByName(text)) return *gpu;
  if (const Gpu* gpu = LeastOfBoxSize(text)) return OfBoxSize(*gpu);
  const Result<Bytes> size = ParseBytes(text);
  if (size && *size >= kGiB && *size <= 16 * 1024 * kGiB) return OfSize(*size);
  const std::string near = Suggestion(text);
  const std::string all =
      "plimsoll gpus lists all; a size of 1GiB and more, such as 22GiB, works too";
  return Error{.message = fmt::format("there is no GPU '{}' in the catalogue", text),
               .hint = near.empty() ? all : near + " " + all};
}

}  // namespace plimsoll
