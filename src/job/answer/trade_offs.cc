#include "job/answer/trade_offs.h"

#include <algorithm>
#include <mutex>
#include <optional>
#include <set>

#include "allocator/settings/settings.h"
#include "base/parallel.h"
#include "job/answer/max_batch.h"
#include "job/file/at_length.h"

namespace plimsoll {
namespace {

/// With one that does not fit and the chosen batch there are ten.
constexpr int kMostPowers = 8;
constexpr std::size_t kMostTradeOffs = 10;
constexpr int kLargestPower = 24;

/// The settings as given, and the same with expandable segments.
std::vector<std::string> Settings(const Job& job, const PredictOptions& chosen) {
  std::vector<std::string> confs = {chosen.conf};
  const TorchVersion torch = TorchFor(job, chosen);
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
std::set<std::int64_t> Batches(std::int64_t largest, std::int64_t chosen, int most_powers) {
  std::set<std::int64_t> batches = {chosen};
  int top = 0;
  while (top < kLargestPower && (std::int64_t{2} << top) <= largest) ++top;
  if (most_powers > 1 || top == 0) batches.insert(1);
  const int stride = std::max(1, (top + most_powers - 2) / std::max(1, most_powers - 1));
  for (int power = top; power > 0 && most_powers > 0; power -= stride) {
    batches.insert(std::int64_t{1} << power);
    if (most_powers == 1) break;
  }
  if (largest >= 1 && top < kLargestPower) batches.insert(std::int64_t{2} << top);
  return batches;
}

/// One to be tried.
struct TradeOffCandidate {
  RankSet ranks;
  bool chosen = false;
};

/// Every precision with every setting of the allocator, by precision.
Result<std::vector<RankSet>> SettingsToTry(const JobForms& job, const Gpu& gpu,
                                           const PredictOptions& chosen,
                                           const std::vector<std::string>& confs) {
  std::vector<RankSet> settings;
  for (const Variant& variant : job.first().variants) {
    for (const std::string& conf : confs) {
      PredictOptions options = chosen;
      options.precision = variant.precision;
      options.conf = conf;
      Result<RankSet> ranks = RankSet::Of(job, gpu, options);
      if (!ranks) return ranks.error();
      settings.push_back(std::move(*ranks));
    }
  }
  return settings;
}

/// What all trials may take, as Trial counts it.
constexpr std::int64_t kWorkForTradeOffs = 60'000'000;

/// With each setting; where fewer can be afforded, the chosen one alone is tried.
constexpr std::int64_t kFewestTrials = 2;

/// How many powers of two can be afforded with each setting: fewer of a long step, 0 of one for
/// which not even kFewestTrials can.
int PowersToTry(const RankSet& ranks, std::size_t settings) {
  // With ranges, a trial is about twice what it takes to be sure.
  const std::int64_t work = std::max<std::int64_t>(1, 2 * RankTrials(ranks).WorkToBeSure());
  const std::int64_t trials = kWorkForTradeOffs / work / static_cast<std::int64_t>(settings);
  if (trials < kFewestTrials) return 0;
  return static_cast<int>(std::clamp<std::int64_t>(trials - 2, 1, kMostPowers));
}

Result<std::vector<TradeOffCandidate>> Candidates(const JobForms& forms, const Gpu& gpu,
                                                  const PredictOptions& chosen,
                                                  std::size_t& left_out) {
  const Job& job = forms.first();
  const Result<const Variant*> chosen_variant = ChooseVariant(job, chosen);
  if (!chosen_variant) return chosen_variant.error();
  const std::vector<std::string> confs = Settings(job, chosen);
  const Result<std::vector<RankSet>> settings = SettingsToTry(forms, gpu, chosen, confs);
  if (!settings) return settings.error();
  const int powers = PowersToTry(settings->front().WithBatch(chosen.batch), settings->size());
  if (powers == 0) {
    left_out = settings->size() * kMostTradeOffs - 1;
    const auto at = static_cast<std::size_t>(*chosen_variant - job.variants.data());
    return std::vector<TradeOffCandidate>{
        {.ranks = (*settings)[at * confs.size()].WithBatch(chosen.batch), .chosen = true}};
  }
  std::vector<std::int64_t> largest(settings->size());
  const bool varies = !OnlyBatch(job);
  ParallelFor(largest.size(), [&](std::size_t i) {
    if (varies) largest[i] = LargestThatMayFit((*settings)[i]);
  });
  std::vector<TradeOffCandidate> candidates;
  for (std::size_t p = 0; p < job.variants.size(); ++p) {
    const auto first = largest.begin() + static_cast<std::ptrdiff_t>(p * confs.size());
    const std::int64_t fits =
        *std::max_element(first, first + static_cast<std::ptrdiff_t>(confs.size()));
    std::set<std::int64_t> batches = {chosen.batch};
    if (varies) {
      batches = Batches(fits, chosen.batch, powers);
      left_out += confs.size() * (Batches(fits, chosen.batch, kMostPowers).size() - batches.size());
    }
    for (std::size_t c = 0; c < confs.size(); ++c) {
      for (const std::int64_t batch : batches) {
        candidates.push_back(
            {.ranks = (*settings)[p * confs.size() + c].WithBatch(batch),
             .chosen = &job.variants[p] == *chosen_variant && c == 0 && batch == chosen.batch});
      }
    }
  }
  return candidates;
}

TradeOff Try(const RankTrials& trials, const Setting& setting, bool chosen) {
  TradeOff tried{.precision = setting.variant().precision,
                 .batch = setting.batch,
                 .settings = FormatSettings(setting.rules.settings),
                 .trial = trials.WithRanges(),
                 .chosen = chosen};
  tried.fits = tried.trial.fits && trials.Last();
  return tried;
}

void MarkFrontier(std::vector<TradeOff>& all) {
  const auto beats = [](const TradeOff& a, const TradeOff& b) {
    const double a_us = a.MicrosecondsPerSample();
    const double b_us = b.MicrosecondsPerSample();
    const Bytes a_high = a.trial.needs.device.high;
    const Bytes b_high = b.trial.needs.device.high;
    return a.fits && a_high <= b_high && a_us <= b_us && (a_high < b_high || a_us < b_us);
  };
  for (TradeOff& one : all) {
    one.on_frontier = one.fits && std::none_of(all.begin(), all.end(), [&](const TradeOff& other) {
                        return beats(other, one);
                      });
  }
}

}  // namespace

Result<TradeOffTable> TradeOffs(const JobForms& job, const Gpu& gpu, const PredictOptions& chosen,
                                const TradeOffProgress& progress) {
  TradeOffTable table;
  const Result<std::vector<TradeOffCandidate>> candidates =
      Candidates(job, gpu, chosen, table.left_out);
  if (!candidates) return candidates.error();
  table.points.resize(candidates->size());
  std::optional<Error> failure;
  std::size_t done = 0;
  std::mutex mutex;
  ParallelFor(table.points.size(), [&](std::size_t i) {
    const TradeOffCandidate& candidate = (*candidates)[i];
    const Result<RankTrials> trials = RankTrials::Of(candidate.ranks);
    if (trials) table.points[i] = Try(*trials, candidate.ranks.first(), candidate.chosen);
    const std::lock_guard lock(mutex);
    if (!trials) failure = trials.error();
    if (progress) progress(++done, table.points.size());
  });
  if (failure) return *failure;
  MarkFrontier(table.points);
  return table;
}

}  // namespace plimsoll
