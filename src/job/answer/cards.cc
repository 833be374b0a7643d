#include "job/answer/cards.h"

namespace plimsoll {

Result<std::vector<CardNeeds>> TryEveryCard(const std::shared_ptr<const Job>& job,
                                            const PredictOptions& options,
                                            const std::function<void()>& tell) {
  std::vector<CardNeeds> found;
  for (const Gpu& gpu : Gpus()) {
    Result<Setting> setting = MakeSetting(job, gpu, options);
    if (!setting) return setting.error();
    const Result<Trial> trial = Trial::Of(std::move(*setting));
    if (!trial) return trial.error();
    const TrialResult result = trial->Best();
    found.push_back({.gpu = gpu,
                     .device = result.needs.device.best,
                     .fits = result.fits,
                     // Most of the work, and of no interest where it does not fit at all.
                     .surely_fits = result.fits && trial->surely_fits(),
                     .step_us = result.step_us});
    if (tell) tell();
  }
  return found;
}

}  // namespace plimsoll
