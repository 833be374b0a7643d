#include "step/fit.h"

#include "step/trial.h"

namespace plimsoll {

Result<Fit> FitOf(const Step& step, const Gpu& gpu, const PredictOptions& options) {
  const Result<Setting> setting = MakeSetting(step, gpu, options);
  if (!setting) return setting.error();
  const Lowered lowered = LowerFor(*setting, options.batch, Estimate::kLikely);
  if (lowered.workload.requests.empty()) {
    return Error{.message = "the step allocates nothing", .file = step.file};
  }
  const Peaks unlimited = Run(lowered, *setting, kUnlimitedDevice);
  const Peaks within = Decide(unlimited, lowered, *setting);
  Fit fit{.unlimited = unlimited.reserved,
          .in_use = unlimited.allocated,
          .reserved = (within.fits ? within : unlimited).reserved,
          .room = setting->Room(),
          .fits = within.fits};
  if (within.fits) {
    fit.surely_fits =
        SurelyFits(within, LowerFor(*setting, options.batch, Estimate::kUpper), *setting);
  }
  const StepDuration duration =
      StepTime(step, setting->variant, gpu, options.batch,
               (within.fits ? within : unlimited).refused_calls, MeasuredHost(), options.cluster);
  fit.step_us = duration.us;
  fit.gpu_busy_us = duration.gpu.us;
  return fit;
}

}  // namespace plimsoll
