#include "step/trade_offs.h"

#include <algorithm>
#include <mutex>
#include <optional>
#include <set>

#include "allocator/settings.h"
#include "base/parallel.h"
#include "step/max_batch.h"

namespace plimsoll {
namespace {

/// With one that does not fit and the chosen batch there are ten.
constexpr int kMostPowers = 8;
constexpr int kLargestPower = 24;

/// The settings as given, and the same with expandable segments.
std::vector<std::string> Settings(const Step& step, const PredictOptions& chosen) {
  std::vector<std::string> confs = {chosen.conf};
  const TorchVersion torch = TorchFor(step, chosen);
  Result<AllocatorSettings> settings = ParseAllocatorSettings(chosen.conf, torch);
  // Predicting what is chosen will say what is wrong with it.
  if (!settings || settings->expandable_segments) return confs;
  settings->expandable_segments = true;
  const std::string with = FormatSettings(*settings);
  if (ParseAllocatorSettings(with, torch)) confs.push_back(with);
  return confs;
}

/// Powers of two up to `largest`, which fits: the first, the last, and between them every second or
/// third where there are too many. Then the next one, and the chosen batch.
std::set<std::int64_t> Batches(std::int64_t largest, std::int64_t chosen) {
  std::set<std::int64_t> batches = {1, chosen};
  int top = 0;
  while (top < kLargestPower && (std::int64_t{2} << top) <= largest) ++top;
  const int stride = std::max(1, (top + kMostPowers - 2) / (kMostPowers - 1));
  for (int power = top; power > 0; power -= stride) batches.insert(std::int64_t{1} << power);
  if (largest >= 1 && top < kLargestPower) batches.insert(std::int64_t{2} << top);
  return batches;
}

/// One to be predicted.
struct TradeOffCandidate {
  PredictOptions options;
  bool chosen = false;
};

Result<std::vector<TradeOffCandidate>> Candidates(const Step& step, const Gpu& gpu,
                                                  const PredictOptions& chosen) {
  const Result<const Variant*> chosen_variant = ChooseVariant(step, chosen);
  if (!chosen_variant) return chosen_variant.error();
  const std::vector<std::string> confs = Settings(step, chosen);
  const auto options_of = [&](std::size_t precision, std::size_t conf) {
    PredictOptions options = chosen;
    options.precision = step.variants[precision].precision;
    options.conf = confs[conf];
    return options;
  };
  std::vector<std::optional<Result<std::int64_t>>> largest(step.variants.size() * confs.size());
  ParallelFor(largest.size(), [&](std::size_t i) {
    largest[i] = LargestThatMayFit(step, gpu, options_of(i / confs.size(), i % confs.size()));
  });
  std::vector<TradeOffCandidate> candidates;
  for (std::size_t p = 0; p < step.variants.size(); ++p) {
    std::int64_t fits = 0;
    for (std::size_t c = 0; c < confs.size(); ++c) {
      const Result<std::int64_t>& found = *largest[p * confs.size() + c];
      if (!found) return found.error();
      fits = std::max(fits, *found);
    }
    for (std::size_t c = 0; c < confs.size(); ++c) {
      for (const std::int64_t batch : Batches(fits, chosen.batch)) {
        candidates.push_back(
            {.options = options_of(p, c),
             .chosen = &step.variants[p] == *chosen_variant && c == 0 && batch == chosen.batch});
        candidates.back().options.batch = batch;
      }
    }
  }
  return candidates;
}

TradeOff FiguresOf(const Prediction& prediction, bool chosen) {
  return {.precision = prediction.precision,
          .batch = prediction.batch,
          .settings = prediction.settings,
          .allocated = prediction.allocated.best,
          .reserved = prediction.reserved.best,
          .device = prediction.device.best,
          .high = prediction.device.high,
          .step_us = prediction.step_us,
          .fits = prediction.fits,
          .surely_fits = prediction.surely_fits,
          .chosen = chosen};
}

void MarkFrontier(std::vector<TradeOff>& all) {
  const auto beats = [](const TradeOff& a, const TradeOff& b) {
    const double a_us = a.MicrosecondsPerSample();
    const double b_us = b.MicrosecondsPerSample();
    return a.fits && a.high <= b.high && a_us <= b_us && (a.high < b.high || a_us < b_us);
  };
  for (TradeOff& one : all) {
    one.on_frontier = one.fits && std::none_of(all.begin(), all.end(), [&](const TradeOff& other) {
                        return beats(other, one);
                      });
  }
}

}  // namespace

Result<std::vector<TradeOff>> TradeOffs(const Step& step, const Gpu& gpu,
                                        const PredictOptions& chosen,
                                        const TradeOffProgress& progress) {
  const Result<std::vector<TradeOffCandidate>> candidates = Candidates(step, gpu, chosen);
  if (!candidates) return candidates.error();
  std::vector<TradeOff> all(candidates->size());
  std::optional<Error> failure;
  std::size_t done = 0;
  std::mutex mutex;
  ParallelFor(all.size(), [&](std::size_t i) {
    const TradeOffCandidate& candidate = (*candidates)[i];
    const Result<Prediction> prediction = Predict(step, gpu, candidate.options);
    const std::lock_guard lock(mutex);
    if (prediction) {
      all[i] = FiguresOf(*prediction, candidate.chosen);
    } else {
      failure = prediction.error();
    }
    if (progress) progress(++done, all.size());
  });
  if (failure) return *failure;
  MarkFrontier(all);
  return all;
}

}  // namespace plimsoll
