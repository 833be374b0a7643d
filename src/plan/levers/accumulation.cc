// Gradient accumulation: the samples of a step in several micro-batches.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "job/transforms/accumulate.h"
#include "job/transforms/evaluation.h"
#include "job/transforms/gradient_uses.h"
#include "job/transforms/resplit.h"
#include "job/transforms/sample_means.h"
#include "plan/lever.h"

namespace plimsoll {
namespace {

constexpr int kMostAccumulated = 4096;

struct Accumulation {
  /// In each step of the optimizer.
  int micro_batches = 1;
};

int NumberOf(const LeverValue& value) { return value.As<Accumulation>().micro_batches; }

Result<LeverValue> ParseNumber(std::string_view text) {
  int number = 0;
  const auto read = std::from_chars(text.data(), text.data() + text.size(), number);
  if (read.ec != std::errc() || read.ptr != text.data() + text.size() || number < 1 ||
      number > kMostAccumulated) {
    return Error{.message = fmt::format("'{}' is no number of micro-batches", text),
                 .hint = fmt::format("from 1 to {}", kMostAccumulated)};
  }
  return MicroBatchesValue(number);
}

std::vector<std::string> AccumulationCode(const Job& job, const Choice& choice,
                                          const LeverValue& value) {
  const int number = NumberOf(value);
  if (CapturedPasses(job) > 1) {
    return {fmt::format("# in the script: {} accumulation step{}, batch_size={}", number,
                        number == 1 ? "" : "s", choice.batch)};
  }
  const std::vector<GradientUse> uses = GradientUsesOf(job, VariantOf(job, choice));
  const auto by_scaler = [](const GradientUse& use) { return use.by_scaler; };
  const bool scales = std::ranges::any_of(uses, by_scaler);
  const std::string loss = fmt::format("(criterion(model(x), y) / {})", number);
  std::vector<std::string> lines = {
      fmt::format("for i, (x, y) in enumerate(loader):  # batch_size={}", choice.batch),
      fmt::format("    {}.backward()", scales ? "scaler.scale" + loss : loss),
      fmt::format("    if (i + 1) % {} == 0: {}; optimizer.zero_grad()", number,
                  scales ? "scaler.step(optimizer); scaler.update()" : "optimizer.step()")};
  if (EvaluationFollowsBatch(job, VariantOf(job, choice))) {
    lines.push_back(fmt::format("# the loader of training alone: the evaluation keeps {} a batch",
                                choice.batch * number));
  }
  // A scaler that nothing follows unscales inside its own step.
  if (std::ranges::all_of(uses, by_scaler)) return lines;
  for (const GradientUse& use : uses) {
    lines.push_back(fmt::format("    # {} goes into the `if`, before {}", use.at,
                                scales ? "scaler.step(optimizer)" : "optimizer.step()"));
  }
  return lines;
}

/// Of a step that accumulates already the captured micro-batches are taken out or repeated.
std::optional<Error> Repeat(Job& job, Variant& variant, const LeverValue& value) {
  const int number = NumberOf(value);
  if (number == variant.passes) return std::nullopt;
  if (std::max(variant.passes, PassesOf(variant)) > 1) {
    if (std::optional<Error> error = CannotResplit(job, variant)) return error;
    variant = Resplit(job, variant, number);
    return std::nullopt;
  }
  if (std::optional<Error> error = CannotAccumulate(job, variant)) return error;
  variant = EvaluateWholeBatches(AddAccumulation(job, variant, number));
  return std::nullopt;
}

}  // namespace

LeverValue MicroBatchesValue(int micro_batches) {
  return {std::to_string(micro_batches), Accumulation{.micro_batches = micro_batches}};
}

int MicroBatchesOf(const Job& job, const Choice& choice) {
  const LeverValue* const value = choice.Find(kAccumulationLever.name);
  return value == nullptr ? CapturedPasses(job) : NumberOf(*value);
}

Choice WithMicroBatches(const Job& job, const Choice& choice, int micro_batches) {
  if (micro_batches == CapturedPasses(job)) return choice.Without(kAccumulationLever.name);
  return choice.With(kAccumulationLever.name, MicroBatchesValue(micro_batches));
}

std::optional<Error> CannotAccumulate(const Job& job) {
  const Variant& variant = job.variants.front();
  const bool accumulates = std::max(variant.passes, PassesOf(variant)) > 1;
  return accumulates ? CannotResplit(job, variant) : CannotAccumulate(job, variant);
}

bool SetsAccumulation(const Choice& choice) {
  const LeverValue* const value = choice.Find(kAccumulationLever.name);
  return value != nullptr && NumberOf(*value) > 1;
}

const MicroBatchNumerics& NumericsOfAccumulation(const Job& job) {
  JobFacts::OnceNumerics& known = *job.micro_batches;
  std::call_once(known.once, [&] { known.is = NumericsOfMicroBatches(job, job.variants.front()); });

  return known.is;
}

bool AccumulationKeepsResults(const Job& job) { return NumericsOfAccumulation(job).why.empty(); }

const PlanLever kAccumulationLever = {
    .name = "accumulation",
    .values = "micro-batches in each step of the optimizer, the script's own ones included",
    .parse = ParseNumber,
    .numerics =
        [](const Job& job, const LeverValue&) {
          return AccumulationKeepsResults(job) ? Numerics::kSame : Numerics::kOther;
        },
    .of_compiled = true,
    .describe =
        [](const Job&, const Choice& choice, const LeverValue& value) {
          const int number = NumberOf(value);
          return fmt::format("{} micro-batch{} of {}", number, number == 1 ? "" : "es",
                             choice.batch);
        },
    .fields = [](const Job&, const LeverValue& value) -> LeverFields {
      return {{"passes", std::int64_t{NumberOf(value)}}};
    },
    .code = AccumulationCode,
    .rewrite = Repeat,
    .configure = [](PredictOptions& options, const LeverValue& value) -> std::optional<Error> {
      options.micro_batches = NumberOf(value);
      return std::nullopt;
    },
};

}  // namespace plimsoll
