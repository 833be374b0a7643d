// The same number of samples a step, in several passes.
#include <fmt/format.h>

#include <charconv>

#include "job/transforms/accumulate.h"
#include "plan/lever.h"

namespace plimsoll {
namespace {

constexpr int kMostAccumulated = 4096;

/// Batch norm sees the samples of one pass.
bool HasBatchNorm(const Job& job) {
  for (const CallRecord& call : job.variants.front().calls) {
    if (job.strings[call.op].find("batch_norm") != std::string_view::npos) return true;
  }
  return false;
}

std::optional<Error> Repeat(Job& job, Variant& variant, std::string_view value) {
  int passes = 0;
  const auto read = std::from_chars(value.data(), value.data() + value.size(), passes);
  if (read.ec != std::errc() || read.ptr != value.data() + value.size() || passes < 1 ||
      passes > kMostAccumulated) {
    return Error{.message = fmt::format("'{}' is no number of passes", value),
                 .hint = fmt::format("from 1 to {}", kMostAccumulated)};
  }
  if (passes == 1) return std::nullopt;
  if (std::optional<Error> error = CannotAccumulate(job, variant)) return error;
  variant = AddAccumulation(job, variant, passes);
  return std::nullopt;
}

}  // namespace

const PlanLever kAccumulationLever = {
    .name = "accumulation",
    .values = "passes of forward and backward before each step of the optimizer",
    .numerics =
        [](const Job& job, std::string_view) {
          return HasBatchNorm(job) ? Numerics::kOther : Numerics::kSame;
        },
    .describe =
        [](const Job&, const Choice& choice) {
          return fmt::format("{} passes of {}", PassesOf(choice), choice.batch);
        },
    .fields = [](const Job&, const Choice& choice) -> LeverFields {
      return {{"passes", std::int64_t{PassesOf(choice)}}};
    },
    .code = [](const Job&, const Choice& choice) -> std::vector<std::string> {
      const int passes = PassesOf(choice);
      return {
          fmt::format("for i, (x, y) in enumerate(loader):  # batch_size={}", choice.batch),
          fmt::format("    (criterion(model(x), y) / {}).backward()", passes),
          fmt::format("    if (i + 1) % {} == 0: optimizer.step(); optimizer.zero_grad()", passes)};
    },
    .rewrite = Repeat,
};

}  // namespace plimsoll
