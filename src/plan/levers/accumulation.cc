// The same number of samples a step, in several passes.
#include <fmt/format.h>

#include <charconv>

#include "job/transforms/accumulate.h"
#include "job/transforms/gradient_uses.h"
#include "plan/lever.h"

namespace plimsoll {
namespace {

constexpr int kMostAccumulated = 4096;

struct Accumulation {
  /// Before each step of the optimizer.
  int passes = 1;
};

Result<LeverValue> ParsePasses(std::string_view text) {
  int passes = 0;
  const auto read = std::from_chars(text.data(), text.data() + text.size(), passes);
  if (read.ec != std::errc() || read.ptr != text.data() + text.size() || passes < 1 ||
      passes > kMostAccumulated) {
    return Error{.message = fmt::format("'{}' is no number of passes", text),
                 .hint = fmt::format("from 1 to {}", kMostAccumulated)};
  }
  return PassesValue(passes);
}

/// Batch norm sees the samples of one pass.
bool HasBatchNorm(const Job& job) {
  for (const CallRecord& call : job.variants.front().calls) {
    if (job.strings[call.op].find("batch_norm") != std::string_view::npos) return true;
  }
  return false;
}

std::vector<std::string> AccumulationCode(const Job& job, const Choice& choice,
                                          const LeverValue& value) {
  const int passes = value.As<Accumulation>().passes;
  std::vector<std::string> lines = {
      fmt::format("for i, (x, y) in enumerate(loader):  # batch_size={}", choice.batch),
      fmt::format("    (criterion(model(x), y) / {}).backward()", passes),
      fmt::format("    if (i + 1) % {} == 0: optimizer.step(); optimizer.zero_grad()", passes)};
  if (const std::string line = GradientsUsedAt(job, VariantOf(job, choice)); !line.empty()) {
    lines.push_back(fmt::format("    # {} goes into the `if`, before optimizer.step()", line));
  }
  return lines;
}

std::optional<Error> Repeat(Job& job, Variant& variant, const LeverValue& value) {
  const int passes = value.As<Accumulation>().passes;
  if (passes == 1) return std::nullopt;
  if (std::optional<Error> error = CannotAccumulate(job, variant)) return error;
  variant = AddAccumulation(job, variant, passes);
  return std::nullopt;
}

}  // namespace

LeverValue PassesValue(int passes) {
  return {std::to_string(passes), Accumulation{.passes = passes}};
}

int PassesOf(const Choice& choice) {
  const LeverValue* const value = choice.Find(kAccumulationLever.name);
  return value == nullptr ? 1 : value->As<Accumulation>().passes;
}

bool PassesKeepResults(const Job& job) { return !HasBatchNorm(job); }

const PlanLever kAccumulationLever = {
    .name = "accumulation",
    .values = "passes of forward and backward before each step of the optimizer",
    .parse = ParsePasses,
    .numerics =
        [](const Job& job, const LeverValue&) {
          return PassesKeepResults(job) ? Numerics::kSame : Numerics::kOther;
        },
    .of_compiled = true,
    .describe =
        [](const Job&, const Choice& choice, const LeverValue& value) {
          return fmt::format("{} passes of {}", value.As<Accumulation>().passes, choice.batch);
        },
    .fields = [](const Job&, const LeverValue& value) -> LeverFields {
      return {{"passes", std::int64_t{value.As<Accumulation>().passes}}};
    },
    .code = AccumulationCode,
    .rewrite = Repeat,
};

}  // namespace plimsoll
