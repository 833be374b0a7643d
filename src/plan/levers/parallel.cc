// Several GPUs: DistributedDataParallel or FSDP2.
#include <fmt/format.h>

#include <charconv>

#include "plan/lever.h"
#include "step/transforms/data_parallel.h"
#include "step/transforms/fully_sharded.h"

namespace plimsoll {
namespace {

constexpr std::string_view kForms = "ddp, ddp:4, fsdp:4, fsdp:4:keep, fsdp:4:meta";

struct Ranks {
  std::int64_t ranks = 1;
  /// None for DDP.
  std::optional<Sharding> sharding = {};
};

Result<Ranks> ParseRanks(std::string_view value) {
  if (value.starts_with("fsdp:")) {
    const Result<Sharding> sharding = ParseSharding(value.substr(5));
    if (!sharding) return sharding.error();
    return Ranks{.ranks = sharding->ranks, .sharding = *sharding};
  }
  Ranks layout;
  if (value == "ddp") return layout;
  if (value.starts_with("ddp:")) {
    const std::string_view digits = value.substr(4);
    const auto read = std::from_chars(digits.data(), digits.data() + digits.size(), layout.ranks);
    if (read.ec == std::errc() && read.ptr == digits.data() + digits.size() && layout.ranks > 0) {
      return layout;
    }
  }
  return Error{.message = fmt::format("'{}' is no way to train on several GPUs", value),
               .hint = std::string(kForms)};
}

}  // namespace

const PlanLever kParallelLever = {
    .name = "parallel",
    .values = kForms,
    .numerics = SameResults,
    .worth_trying = [](const PlanJob& job, const Variant&) -> std::vector<std::string> {
      if (job.gpus == 1) return {};
      return {fmt::format("ddp:{}", job.gpus), fmt::format("fsdp:{}", job.gpus),
              fmt::format("fsdp:{}:keep", job.gpus)};
    },
    .describe =
        [](const Step&, const Choice& choice) {
          const Result<Ranks> layout = ParseRanks(choice.Get(kParallelLever.name));
          return fmt::format("{} on {} GPUs", layout->sharding ? "FSDP2" : "DDP", layout->ranks);
        },
    .code = [](const Step&, const Choice& choice) -> std::vector<std::string> {
      const Result<Ranks> layout = ParseRanks(choice.Get(kParallelLever.name));
      if (!layout->sharding) return {"model = DistributedDataParallel(model)"};
      const std::string keep = layout->sharding->keep ? ", reshard_after_forward=False" : "";
      return {fmt::format("for block in model.blocks: fully_shard(block{})", keep),
              fmt::format("fully_shard(model{})", keep)};
    },
    .rewrite = [](Step& step, Variant& variant, std::string_view value) -> std::optional<Error> {
      const Result<Ranks> layout = ParseRanks(value);
      if (!layout) return layout.error();
      if (layout->sharding) {
        Note(step, DescribeSharding(step, variant, *layout->sharding));
        variant = AddFullySharded(step, variant, *layout->sharding);
      } else {
        variant = AddDataParallel(step, variant);
      }
      Note(step,
           "what NCCL takes outside of PyTorch is not counted: some hundred MiB, depending on the "
           "number of ranks");
      return std::nullopt;
    },
};

std::int64_t SamplesOf(const Choice& choice) {
  const std::string_view parallel = choice.Get(kParallelLever.name);
  const std::int64_t ranks = parallel.empty() ? 1 : ParseRanks(parallel)->ranks;
  return choice.batch * PassesOf(choice) * ranks;
}

}  // namespace plimsoll
