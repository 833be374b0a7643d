#include "cli/what_if_flags.h"

#include <fmt/format.h>

namespace plimsoll {
namespace {

/// What the driver can give to PyTorch on a card that has nothing else to do.
void AssumeCard(const Gpu& gpu, WhatIfOptions& options) {
  options.capacity = gpu.memory - gpu.context.bytes;
  const char* memory = gpu.assumed              ? "as given"
                       : gpu.memory_is_measured ? "as a driver reported it"
                                                : "estimated";
  options.assumed.push_back(
      fmt::format("{}: {} in all ({}), less {} for the CUDA context ({}), leaves {} for PyTorch",
                  gpu.name, FormatBytes(gpu.memory), memory, FormatBytes(gpu.context.bytes),
                  gpu.context.measured ? "measured" : "estimated", FormatBytes(*options.capacity)));
  options.assumed.push_back("no other process uses the card");
}

std::optional<Error> NotPositive(const char* flag, const std::optional<Bytes>& size) {
  if (!size || *size > 0) return std::nullopt;
  return Error{.message = fmt::format("{} takes a size above 0", flag),
               .hint = "for example 22GiB"};
}

}  // namespace

void WhatIfFlags::AddTo(Flags& flags) {
  flags.Argument("FILE", file, "a memory snapshot; - is standard input");
  flags.Value("--gpu", "GPU",
              "on this card: a name that `plimsoll gpus` lists, or its memory (24GiB)",
              [this](const std::string& text) -> std::optional<Error> {
                Result<Gpu> found = FindGpu(text);
                if (!found) return found.error();
                gpu = std::move(*found);
                return std::nullopt;
              });
  flags.Size("--capacity", capacity,
             "what the driver can give to PyTorch: the card less all else on it (22GiB)");
  flags.Size("--limit", limit,
             "what set_per_process_memory_fraction allows, as a size (20GiB); garbage collection "
             "measures against it");
  flags.Value("--torch", "RELEASE", "the rules of another release (2.15)",
              [this](const std::string& text) -> std::optional<Error> {
                const Result<TorchVersion> release = ParseKnownRelease(text);
                if (!release) return release.error();
                torch = *release;
                return std::nullopt;
              });
  flags.Count("--device", "N", device, "the device, where the snapshot has several", 0, 255);
  flags.Switch("--json", json, "one JSON document (docs/json.md)");
}

Result<WhatIfOptions> WhatIfFlags::Options() const {
  if (const auto error = NotPositive("--capacity", capacity)) return *error;
  if (const auto error = NotPositive("--limit", limit)) return *error;
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
