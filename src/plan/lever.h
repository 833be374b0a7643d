// A lever: something about a job that can be set otherwise. One file each in src/plan/levers, one
// line in the table of lever.cc: the search, `predict`, the texts and JSON know levers by this
// alone.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "plan/choice.h"

namespace plimsoll {

/// What becomes of the results.
enum class Numerics : std::uint8_t {
  kSame,
  /// The same computation, rounded otherwise.
  kRounding,
  /// Another computation: other results are to be expected.
  kOther,
};
std::string_view NumericsName(Numerics numerics);

/// A part of what a lever is set to, for programs: {"chunks", 8}.
struct LeverField {
  std::string_view name;
  std::variant<bool, std::int64_t, std::string, std::vector<std::string>> is;
};
using LeverFields = std::vector<LeverField>;

/// Functions that a lever has no need of are null.
struct PlanLever {
  /// "checkpointing", as --set, JSON and plimsoll.apply have it.
  std::string_view name;
  /// What a value may be, in words: "all, every:2, sqrt, or names of blocks".
  std::string_view values;
  /// What was typed, read once. What cannot be known without the job (names of blocks) is seen
  /// when the value is used. Every other function gets values of its own lever alone.
  Result<LeverValue> (*parse)(std::string_view text);
  Numerics (*numerics)(const Job& job, const LeverValue& value);
  /// The values that the search should try beside that of the capture. Null for what the search
  /// sets by itself: passes and blocks.
  std::vector<LeverValue> (*worth_trying)(const PlanRequest& request,
                                          const Variant& variant) = nullptr;
  /// Why a value that would be worth trying cannot be set in this precision; nothing where it can,
  /// or where it would gain nothing.
  std::optional<std::string> (*why_not)(const PlanRequest& request,
                                        const Variant& variant) = nullptr;
  /// It changes time alone: where it does not, it need not be tried.
  bool time_alone = false;
  /// It changes what torch.compile wrote, too: all but what goes into a forward or a backward.
  bool of_compiled = false;
  /// Whether this precision of the job can be changed so. Null: any can.
  bool (*suits)(const Job& job, const Variant& variant, const LeverValue& value) = nullptr;
  /// A few words for a table: "fused optimizer". The choice is the whole that the value is part of.
  std::string (*describe)(const Job& job, const Choice& choice, const LeverValue& value);
  /// What it is set to, in its parts: what plimsoll.apply and the trainer go by.
  LeverFields (*fields)(const Job& job, const LeverValue& value);
  /// The lines to type.
  std::vector<std::string> (*code)(const Job& job, const Choice& choice, const LeverValue& value);
  /// How the step becomes another. What it assumes goes to the step's notes.
  std::optional<Error> (*rewrite)(Job& job, Variant& variant, const LeverValue& value) = nullptr;
  /// How it is predicted otherwise.
  std::optional<Error> (*configure)(PredictOptions& options, const LeverValue& value) = nullptr;
};

/// In the order in which they rewrite a step, and are told.
std::span<const PlanLever* const> Levers();
Result<const PlanLever*> FindLever(std::string_view name);

// Those that the search, or a flag of its own, asks for by name.
extern const PlanLever kPrecisionLever;
extern const PlanLever kOptimizerLever;
extern const PlanLever kAccumulationLever;
extern const PlanLever kCheckpointingLever;
extern const PlanLever kParallelLever;
extern const PlanLever kAllocatorLever;
extern const PlanLever kLossLever;

// Values that the search, or a flag of its own, sets; each made by its lever.

LeverValue MicroBatchesValue(int micro_batches);
LeverValue ModulesValue(const std::vector<std::string>& modules);
/// DistributedDataParallel on so many GPUs.
LeverValue DataParallelValue(std::int64_t ranks);
/// The same as the script has it.
LeverValue DataParallelAsWritten();

// What levers, and those who set them, need to know of one another; each answered by the lever that
// is asked about.

/// Micro-batches in each step of the optimizer: what the choice sets, else what was captured.
int MicroBatchesOf(const Job& job, const Choice& choice);
/// The same choice with another number of them; that of the capture sets nothing.
Choice WithMicroBatches(const Job& job, const Choice& choice, int micro_batches);
/// Why the job cannot be run with another number of micro-batches; nothing where it can.
std::optional<Error> CannotAccumulate(const Job& job);
/// Whether results are the same for any number of micro-batches, and what decides it.
bool AccumulationKeepsResults(const Job& job);
const MicroBatchNumerics& NumericsOfAccumulation(const Job& job);
/// Whether the choice itself sets more than one micro-batch.
bool SetsAccumulation(const Choice& choice);
/// In each step of the optimizer, on all GPUs together.
std::int64_t SamplesOf(const Job& job, const Choice& choice);
/// How many GPUs share the job; 0 where that is not told, and of pipelines.
std::int64_t RanksOf(const Choice& choice);
/// The same job as each of its ranks runs it, where they differ: a choice for each stage of a
/// pipeline. Empty where all are alike, or one stage is asked about.
std::vector<Choice> ChoicesOfRanks(const Choice& choice);
/// How long the stages of a pipeline wait for one another, as a share of the step without that.
double ShareOfWaiting(const Choice& choice);
/// How many ranks run each of them.
std::int64_t RanksOfAStage(const Choice& choice);
/// Whether each parameter is stepped when its gradient is there.
bool StepsInBackward(const Choice& choice);
/// Whether FSDP or a pipeline hands a weight to its own layer alone.
bool SplitsTheModel(const Choice& choice);
/// Whether tensors are divided by features or by positions.
bool DividesTensors(const Choice& choice);
/// Whether FSDP computes in the type of a MixedPrecisionPolicy.
bool ComputesUnderAPolicy(const Choice& choice);
/// Whether the precision is that of weights in bf16.
bool HasWeightsInBf16(const Choice& choice);

/// A lever, and what a choice sets it to. Refers to the choice.
struct LeverSetting {
  const PlanLever* lever = nullptr;
  const LeverValue* value = nullptr;
};
/// Those that the choice sets, in the order of Levers().
std::vector<LeverSetting> LeversOf(const Choice& choice);
std::vector<LeverSetting> LeversOf(Choice&& choice) = delete;
/// The worst of them.
Numerics NumericsOf(const Job& job, const Choice& choice);

/// The precision that the choice is about, an index into the step's variants: the one it names, or
/// the first that suits its levers.
Result<std::size_t> VariantFor(const Job& job, const Choice& choice);
/// The same, or the first where the choice names none that there is.
const Variant& VariantOf(const Job& job, const Choice& choice);
/// Leaves the precisions that suit the choice's levers; all where none does.
void KeepSuited(Job& job, const Choice& choice);

/// Why levers of the choice cannot be set together.
std::optional<Error> Contradiction(const Choice& choice);
/// The modules that cannot be checkpointed beside the rest of the choice.
std::vector<std::string> NotCheckpointed(const Job& job, const Variant& variant,
                                         const Choice& choice);
/// Every variant of the step, as the choice has it.
std::optional<Error> Rewrite(Job& job, const Choice& choice);
std::optional<Error> Configure(PredictOptions& options, const Choice& choice);

/// "optimizer=adamw:fused" into the choice.
std::optional<Error> ReadSetting(std::string_view text, Choice& choice);

/// Micro-batches of the captured step.
inline int CapturedPasses(const Job& job) { return job.variants.front().passes; }

inline Numerics SameResults(const Job&, const LeverValue&) { return Numerics::kSame; }
inline Numerics OtherRounding(const Job&, const LeverValue&) { return Numerics::kRounding; }

/// Says it once.
void Note(Job& job, std::string text);

}  // namespace plimsoll
