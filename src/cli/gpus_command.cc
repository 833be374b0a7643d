#include <memory>
#include <string>
#include <vector>

#include "cli/command/command.h"
#include "cli/terminal/terminal.h"
#include "hardware/gpu.h"
#include "report/json.h"
#include "report/text.h"

namespace plimsoll {
namespace {

struct GpusFlags {
  std::vector<std::string> names;
  bool json = false;
};

int RunGpus(const GpusFlags& flags) {
  if (flags.names.empty()) {
    return Print(flags.json ? GpusJson(Gpus()) : GpusText(Gpus(), StyleOfStdout()));
  }
  std::vector<Gpu> asked;
  for (const std::string& name : flags.names) {
    Result<Gpu> gpu = FindGpu(name);
    if (!gpu) return Complain(gpu.error());
    asked.push_back(std::move(*gpu));
  }
  if (flags.json) return Print(GpusJson(asked));
  std::string text;
  for (const Gpu& gpu : asked) {
    if (!text.empty()) text += '\n';
    text += GpuText(gpu, StyleOfStdout());
  }
  return Print(text);
}

}  // namespace

Command AddGpus(Flags& declare) {
  auto flags = std::make_shared<GpusFlags>();
  declare.Arguments("NAME", flags->names,
                    "a card, however spelled (4090, \"RTX 4090\", a100-80gb), or a size (22GiB); "
                    "without one, all cards in a table",
                    false);
  declare.Switch("--json", flags->json, "one JSON document (docs/json.md)");
  declare.Examples(
      "  plimsoll gpus             the catalogue\n"
      "  plimsoll gpus 4090 h100   two cards in full\n"
      "  plimsoll gpus 22GiB       what is assumed of a card of which only the memory is known");
  return [flags] { return RunGpus(*flags); };
}

}  // namespace plimsoll
