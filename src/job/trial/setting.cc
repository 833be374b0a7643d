#include "job/trial/setting.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "base/suggest.h"
#include "base/text.h"
#include "hardware/nccl.h"
#include "job/calls/call.h"
#include "job/file/at_length.h"
#include "job/parallel/collective.h"

namespace plimsoll {
namespace {

/// How the allocator will be set. Settings that there is no model of are refused.
Result<AllocatorRules> AllocatorRulesFor(const Job& job, const PredictOptions& options) {
  const TorchVersion torch = TorchFor(job, options);
  const Result<AllocatorSettings> settings = ParseAllocatorSettings(options.conf, torch);
  if (!settings) return settings.error();
  if (!settings->native) {
    return Error{.message =
                     "backend:cudaMallocAsync is the driver's own allocator, of which there "
                     "is no model",
                 .hint = "leave backend out"};
  }
  return AllocatorRules{.settings = *settings, .version = RulesOf(torch)};
}

DeviceLimits LimitsFor(const AllocatorRules& rules, const Gpu& gpu, const ContextSize& nccl,
                       const PredictOptions& options) {
  DeviceLimits limits{.limit = options.limit,
                      .capacity = std::max<Bytes>(0, gpu.memory - gpu.context.bytes - nccl.bytes),
                      .total = gpu.Total()};
  const std::optional<double> fraction = rules.settings.per_process_memory_fraction;
  if (fraction && !limits.limit) {
    limits.limit = static_cast<Bytes>(*fraction * static_cast<double>(gpu.Total()));
  }
  return limits;
}

/// Precisions, by the names that captures give them.
constexpr std::string_view kAutocast = "amp_bf16";
constexpr std::string_view kEager = "eager";

/// Of a job whose steps differ.
constexpr std::size_t kTimedSteps = 15;
/// After so many steps the allocator has what each further one takes.
constexpr int kSettled = 5;
/// What comes after the steps finds the cache as the last of them left it, and that may change from
/// step to step: so few are all run.
constexpr int kMostCounted = 12;
/// What keeps so many steps' tensors, or fewer, is filled.
constexpr std::int64_t kMostFilled = 64;

/// In the step behind the last that it has room for, what keeps the tensors of steps is full.
int StepsToFill(const Job& job) {
  if (!job.keeper || job.keeper->most > kMostFilled) return 0;
  return static_cast<int>(job.keeper->most) + 1;
}

int StepsOf(const Job& job, const Variant& variant, std::int64_t batch) {
  if (!job.sequence.empty()) return static_cast<int>(kBeforeSequence + job.sequence.size());
  if (variant.later.empty()) return kSettled;
  const auto captured = static_cast<int>(std::ranges::count_if(
      variant.events, [](const JobEvent& event) { return event.kind == JobEvent::Kind::kStep; }));
  // Further steps are among the parts.
  if (!job.epoch) return captured;
  const std::int64_t steps = BatchesAt(job, *job.epoch, batch) / std::max(1, variant.passes);
  if (steps > kMostCounted) return std::max(captured, kSettled);
  return std::max(captured, static_cast<int>(steps));
}

int StepsAt(const Job& job, const Variant& variant, std::int64_t batch) {
  return std::max(StepsOf(job, variant, batch), StepsToFill(job));
}

/// What to do about a precision that is not there.
std::string HowToCapture(std::string_view precision, const std::vector<std::string_view>& known) {
  if (std::string near = DidYouMean(precision, known); !near.empty()) return near;
  if (precision == kEager) return "it is captured beside a job that is compiled";
  const std::string asked = fmt::format("capture with precisions=[\"{}\"]", precision);
  if (precision != kAutocast) return asked;
  return asked + ", or the script with predict --run --precision amp_bf16";
}

}  // namespace

Result<const Variant*> ChooseVariant(const Job& job, const PredictOptions& options) {
  if (!options.precision) return &job.variants.front();
  const std::string& asked = *options.precision;
  std::vector<std::string_view> known;
  for (const Variant& variant : job.variants) {
    if (variant.precision == asked) return &variant;
    known.push_back(variant.precision);
  }
  if (asked == kAutocast && !job.no_autocast.empty()) {
    return Error{
        .message = fmt::format("precision {} was not captured: {}", asked, job.no_autocast),
        .file = job.file,
        .hint = "leave --precision out, and the script is predicted as it is written"};
  }
  return Error{.message = fmt::format("precision {} was not captured (there is: {})", asked,
                                      Joined(known, ", ")),
               .file = job.file,
               .hint = HowToCapture(asked, known)};
}

TorchVersion TorchFor(const Job& job, const PredictOptions& options) {
  return options.torch.value_or(ParseTorchVersion(job.torch).value_or(TorchVersion{}));
}

Setting Setting::WithBatch(std::int64_t other) const {
  Setting setting = *this;
  setting.batch = other;
  if (!steps_are_given) setting.steps = StepsAt(*job, variant(), other);
  return setting;
}

Setting Setting::WithStep(std::shared_ptr<const Job> other) const {
  Setting setting = *this;
  setting.job = std::move(other);
  return setting;
}

Bytes Setting::Room() const {
  return std::min(limits.capacity.value_or(gpu.memory), limits.limit.value_or(gpu.memory));
}

Bytes Setting::Most() const {
  const bool by_pages = limits.limit && rules.settings.expandable_segments;
  return std::min(limits.capacity.value_or(gpu.memory),
                  Room() + (by_pages ? rules.settings.large_segment_size : 0));
}

ContextSize Setting::Outside() const {
  return {.bytes = gpu.context.bytes + nccl.bytes,
          .low = gpu.context.low + nccl.low,
          .high = gpu.context.high + nccl.high};
}

namespace {

/// Each dimension of a mesh has a communicator of its own.
ContextSize NcclOf(const Job& job, const Variant& variant, const Gpu& gpu) {
  if (job.backend != Backend::kNccl) return {};
  ContextSize sum;
  for (const Communicator& one : CommunicatorsOf(job, variant)) {
    const ContextSize takes = NcclTakes(one.ranks, gpu);
    sum = {.bytes = sum.bytes + takes.bytes,
           .low = sum.low + takes.low,
           .high = sum.high + takes.high,
           .basis = takes.basis};
  }
  return sum;
}

}  // namespace

Result<Setting> MakeSetting(std::shared_ptr<const Job> job, const Gpu& gpu,
                            const PredictOptions& options) {
  const Result<const Variant*> variant = ChooseVariant(*job, options);
  if (!variant) return variant.error();
  const Result<AllocatorRules> rules = AllocatorRulesFor(*job, options);
  if (!rules) return rules.error();
  const ContextSize nccl = NcclOf(*job, **variant, gpu);
  const auto precision = static_cast<std::size_t>(*variant - job->variants.data());
  const TorchVersion torch = TorchFor(*job, options);
  const std::int64_t steps = options.steps.value_or(StepsAt(*job, **variant, options.batch));
  return Setting{.job = std::move(job),
                 .precision = precision,
                 .batch = options.batch,
                 .micro_batches = options.micro_batches,
                 .steps = static_cast<int>(steps),
                 .steps_are_given = options.steps.has_value(),
                 .gpu = gpu,
                 .rules = *rules,
                 .torch = torch,
                 .calibration = options.calibration,
                 .limits = LimitsFor(*rules, gpu, nccl, options),
                 .nccl = nccl,
                 .cluster = options.cluster,
                 .host = options.host,
                 .host_room = options.host_room};
}

Result<Setting> MakeSetting(const Job& job, const Gpu& gpu, const PredictOptions& options) {
  const Result<const Variant*> variant = ChooseVariant(job, options);
  if (!variant) return variant.error();
  const auto precision = static_cast<std::size_t>(*variant - job.variants.data());
  return MakeSetting(std::make_shared<const Job>(CopyOf(job, precision)), gpu, options);
}

StepDuration DurationOf(const Setting& setting, const RefusedCalls& refused) {
  // What evaluates or generates was not timed.
  if (!Trains(setting.variant())) return {};
  const std::vector<SequenceStep>& steps = setting.job->sequence;
  if (!steps.empty()) {
    // One that takes the middle of the times of some, evenly spread.
    std::vector<StepDuration> times;
    const std::size_t apart = std::max<std::size_t>(1, steps.size() / kTimedSteps);
    for (std::size_t i = 0; i < steps.size(); i += apart) {
      const Job at = AtStep(*setting.job, steps[i]);
      times.push_back(StepTime(at, at.variants[setting.precision], setting.gpu, setting.batch,
                               refused, setting.host, setting.cluster));
    }
    const auto middle = times.begin() + std::ptrdiff_t(times.size() / 2);
    std::ranges::nth_element(times, middle, {}, &StepDuration::us);
    return *middle;
  }
  return StepTime(*setting.job, setting.variant(), setting.gpu, setting.batch, refused,
                  setting.host, setting.cluster);
}

}  // namespace plimsoll
