#include "cli/what_if_flags.h"

#include <fmt/format.h>

#include "cli/command/shared_flags.h"
#include "cli/next_steps.h"

namespace plimsoll {
namespace {

/// Where calls to the driver were timed (docs/allocator.md).
constexpr std::string_view kTimedCard = "H200";

/// What the driver can give to PyTorch on a card that has nothing else to do.
void AssumeCard(const Gpu& gpu, WhatIfOptions& options) {
  options.capacity = gpu.memory - gpu.context.bytes;
  const char* memory = gpu.assumed              ? "as given"
                       : gpu.memory_is_measured ? "as a driver reported it"
                                                : "estimated";
  const std::string system =
      gpu.system > 0 ? fmt::format(", less {} of the system", FormatBytes(gpu.system)) : "";
  options.assumed.push_back(fmt::format(
      "{}: {} in all ({}){}, less {} for the CUDA context ({}), leaves {} for PyTorch", gpu.name,
      FormatBytes(gpu.Total()), memory, system, FormatBytes(gpu.context.bytes),
      gpu.context.basis == FigureBasis::kMeasured ? "measured" : "estimated",
      FormatBytes(*options.capacity)));
  options.assumed.push_back("no other process uses the card");
  if (gpu.name != kTimedCard) {
    options.assumed.push_back(
        fmt::format("calls to the driver take as long as on an {}; {} they were not timed",
                    kTimedCard, gpu.assumed ? "elsewhere" : "on " + gpu.name));
  }
}

}  // namespace

void WhatIfFlags::AddTo(Flags& flags) {
  flags.Argument("FILE", file, "a memory snapshot; - is standard input");
  AddGpuFlag(flags, gpu, "on this card: a name that `plimsoll gpus` lists, or its memory (24GiB)");
  AddRoomFlag(flags, "--capacity", capacity,
              "what the driver can give to PyTorch: the card less all else on it (22GiB)");
  AddRoomFlag(flags, "--limit", limit,
              "what set_per_process_memory_fraction allows, as a size (20GiB); garbage collection "
              "measures against it");
  AddTorchFlag(flags, torch, "the rules of another release (2.15)");
  flags.Count("--device", "N", device, "the device, where the snapshot has several", 0, 255);
  flags.Switch("--json", json, "one JSON document (docs/json.md)");
}

std::optional<Error> WhatIfFlags::AddSettings(const std::string& text) {
  conf = conf.value_or("").empty() ? text : *conf + (text.empty() ? "" : "," + text);
  return std::nullopt;
}

std::vector<std::string> WhatIfFlags::LimitWords() const {
  std::vector<std::string> words;
  const auto add = [&](const char* name, const std::optional<Bytes>& size) {
    if (size) words.insert(words.end(), {name, SizeWord(*size)});
  };
  if (gpu) words.insert(words.end(), {"--gpu", GpuWord(*gpu)});
  add("--capacity", capacity);
  add("--limit", limit);
  return words;
}

Result<WhatIfOptions> WhatIfFlags::Options() const {
  if (gpu && capacity) {
    return Error{.message = "--gpu and --capacity both say how much memory there is",
                 .hint = "give one of them"};
  }
  WhatIfOptions options{.conf = conf, .capacity = capacity, .limit = limit, .torch = torch};
  if (device) options.device = static_cast<int>(*device);
  if (gpu) AssumeCard(*gpu, options);
  return options;
}

}  // namespace plimsoll
