#include "plan/lever.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/suggest.h"
#include "base/text.h"

namespace plimsoll {

extern const PlanLever kOffloadLever;
extern const PlanLever kTf32Lever;
extern const PlanLever kEvaluationLever;

std::span<const PlanLever* const> Levers() {
  // Blocks are checkpointed before anything is sharded, so that what is computed again is gathered
  // again; what the loss does not keep is not taken to the host; another optimizer is one of
  // shards; and whatever a pass does, the next one does too.
  static const PlanLever* const kLevers[] = {
      &kPrecisionLever, &kTf32Lever,      &kCheckpointingLever, &kLossLever,       &kOffloadLever,
      &kParallelLever,  &kOptimizerLever, &kAccumulationLever,  &kEvaluationLever, &kAllocatorLever,
  };
  return kLevers;
}

std::string_view NumericsName(Numerics numerics) {
  switch (numerics) {
    case Numerics::kSame:
      return "same";
    case Numerics::kRounding:
      return "rounding";
    case Numerics::kOther:
      return "other";
  }
  return "";
}

Result<const PlanLever*> FindLever(std::string_view name) {
  std::vector<std::string_view> names;
  for (const PlanLever* lever : Levers()) {
    if (lever->name == name) return lever;
    names.push_back(lever->name);
  }
  return Error{.message = fmt::format("'{}' is no lever", name),
               .hint = SuggestOr(name, names, "one of " + Joined(names, ", "))};
}

std::vector<LeverSetting> LeversOf(const Choice& choice) {
  std::vector<LeverSetting> used;
  for (const PlanLever* lever : Levers()) {
    if (const LeverValue* value = choice.Find(lever->name)) used.push_back({lever, value});
  }
  return used;
}

Numerics NumericsOf(const Job& job, const Choice& choice) {
  Numerics most = Numerics::kSame;
  for (const auto& [lever, value] : LeversOf(choice)) {
    most = std::max(most, lever->numerics(job, *value));
  }
  return most;
}

namespace {

bool Suits(const Job& job, const Variant& variant, const Choice& choice) {
  const std::vector<LeverSetting> levers = LeversOf(choice);
  return std::all_of(levers.begin(), levers.end(), [&](const LeverSetting& set) {
    if (variant.compiled && !set.lever->of_compiled) return false;
    return set.lever->suits == nullptr || set.lever->suits(job, variant, *set.value);
  });
}

}  // namespace

Result<std::size_t> VariantFor(const Job& job, const Choice& choice) {
  PredictOptions options;
  if (std::optional<Error> error = Configure(options, choice)) return *error;
  if (options.precision) {
    const Result<const Variant*> named = ChooseVariant(job, options);
    if (!named) return named.error();
    return static_cast<std::size_t>(*named - job.variants.data());
  }
  for (std::size_t i = 0; i < job.variants.size(); ++i) {
    if (Suits(job, job.variants[i], choice)) return i;
  }
  return std::size_t{0};
}

const Variant& VariantOf(const Job& job, const Choice& choice) {
  const Result<std::size_t> variant = VariantFor(job, choice);
  return job.variants[variant ? *variant : 0];
}

void KeepSuited(Job& job, const Choice& choice) {
  const auto unfit = [&](const Variant& variant) { return !Suits(job, variant, choice); };
  if (std::all_of(job.variants.begin(), job.variants.end(), unfit)) return;
  const bool was_compiled = job.variants.front().compiled;
  std::erase_if(job.variants, unfit);
  if (was_compiled && !job.variants.front().compiled) {
    job.notes.push_back(
        "what is changed goes into the forward or the backward, which a compiler would write "
        "anew: this is the job in eager mode");
  }
}

namespace {

/// Two levers that cannot be set as they are at the same time.
struct Conflict {
  const PlanLever* one;
  const PlanLever* other;
  bool (*clashes)(const Choice& choice);
  std::string_view why;
};

/// What does not go together, all of it; and what a chunked loss and checkpointing have to do with
/// each other, which depends on the step (NotCheckpointed).
const Conflict kConflicts[] = {
    {&kAccumulationLever, &kOptimizerLever,
     [](const Choice& choice) { return SetsAccumulation(choice) && StepsInBackward(choice); },
     "a gradient that is let go when it is complete cannot be added to"},
    {&kLossLever, &kParallelLever, SplitsTheModel,
     "FSDP and pipelines hand a weight to its own layer alone"},
    {&kOffloadLever, &kParallelLever, DividesTensors,
     "parts of tensors are not followed to the host and back"},
    {&kParallelLever, &kPrecisionLever,
     [](const Choice& choice) { return ComputesUnderAPolicy(choice) && !HasWeightsInBf16(choice); },
     "under a MixedPrecisionPolicy the job has to be captured with its weights in bf16"},
};

}  // namespace

std::optional<Error> Contradiction(const Choice& choice) {
  for (const Conflict& conflict : kConflicts) {
    const LeverValue* const one = choice.Find(conflict.one->name);
    const LeverValue* const other = choice.Find(conflict.other->name);
    if (one == nullptr || other == nullptr || !conflict.clashes(choice)) continue;
    return Error{
        .message = fmt::format("{}={} does not go with {}={}: {}", conflict.one->name, one->text(),
                               conflict.other->name, other->text(), conflict.why),
        .hint = "leave one of them out"};
  }
  return std::nullopt;
}

std::optional<Error> Rewrite(Job& job, const Choice& choice) {
  if (std::optional<Error> error = Contradiction(choice)) return error;
  for (const auto& [lever, value] : LeversOf(choice)) {
    if (lever->rewrite == nullptr) continue;
    for (Variant& variant : job.variants) {
      if (std::optional<Error> error = lever->rewrite(job, variant, *value)) return error;
    }
  }
  return std::nullopt;
}

std::optional<Error> Configure(PredictOptions& options, const Choice& choice) {
  for (const auto& [lever, value] : LeversOf(choice)) {
    if (lever->configure == nullptr) continue;
    if (std::optional<Error> error = lever->configure(options, *value)) return error;
  }
  return std::nullopt;
}

std::optional<Error> ReadSetting(std::string_view text, Choice& choice) {
  const std::size_t equals = text.find('=');
  const Result<const PlanLever*> lever = FindLever(text.substr(0, equals));
  if (!lever) return lever.error();
  if (equals == std::string_view::npos || equals + 1 == text.size()) {
    return Error{.message = fmt::format("{} is set to what?", (*lever)->name),
                 .hint = fmt::format("{}=VALUE: {}", (*lever)->name, (*lever)->values)};
  }
  Result<LeverValue> value = (*lever)->parse(text.substr(equals + 1));
  if (!value) return value.error();
  choice = choice.With((*lever)->name, std::move(*value));
  return std::nullopt;
}

void Note(Job& job, std::string text) {
  if (std::find(job.notes.begin(), job.notes.end(), text) == job.notes.end()) {
    job.notes.push_back(std::move(text));
  }
}

}  // namespace plimsoll
