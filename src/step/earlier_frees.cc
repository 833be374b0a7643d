#include "step/earlier_frees.h"

#include <algorithm>
#include <map>

#include "step/rules/call.h"
#include "step/transforms/release.h"
#include "step/trial.h"

namespace plimsoll {
namespace {

/// Of the peak: what is less is no reason to change anything.
constexpr double kWorthTelling = 0.001;

/// A capture tries no more; whatever a file holds, these are looked at.
constexpr std::size_t kMostReleases = 4;

using Releases = std::vector<const Release*>;

class Finder {
 public:
  Finder(const Setting& setting, std::int64_t batch) : setting_(setting), batch_(batch) {}

  std::optional<EarlierFrees> Run() {
    before_ = PeaksOf(setting_.variant, setting_.steps);
    Releases all;
    for (const Release& release : setting_.variant.releases) {
      if (all.size() < kMostReleases) all.push_back(&release);
    }
    const PeakSaving together = SavedBy(all);
    if (!WorthTelling(together)) return std::nullopt;
    // The last ones are worth the least.
    for (std::size_t i = all.size(); i-- > 0;) {
      Releases others = all;
      others.erase(others.begin() + std::ptrdiff_t(i));
      const PeakSaving without = SavedBy(others);
      if (without.allocated >= together.allocated && without.device >= together.device) {
        all = std::move(others);
      }
    }
    EarlierFrees found{.together = SavedBy(all), .fits = FitsWith(all)};
    for (const Release* release : all) found.changes.push_back(Tell(*release));
    return found;
  }

 private:
  /// The same setting for another form of the job.
  Setting With(const Variant& variant, int steps) const {
    return {.step = setting_.step,
            .variant = variant,
            .gpu = setting_.gpu,
            .rules = setting_.rules,
            .torch = setting_.torch,
            .calibration = setting_.calibration,
            .limits = setting_.limits,
            .steps = steps};
  }
  Peaks PeaksOf(const Variant& variant, int steps) const {
    const Setting setting = With(variant, steps);
    return plimsoll::Run(LowerFor(setting, batch_, Estimate::kLikely), setting, kUnlimitedDevice);
  }
  PeakSaving SavedBy(const Releases& releases) const {
    if (releases.empty()) return {};
    const Peaks after = PeaksOf(FreeEarlier(setting_.variant, releases), setting_.steps);
    return {before_.allocated - after.allocated, before_.reserved - after.reserved};
  }
  bool FitsWith(const Releases& releases) const {
    const Variant variant = FreeEarlier(setting_.variant, releases);
    const Setting setting = With(variant, setting_.steps);
    return Decide(LowerFor(setting, batch_, Estimate::kLikely), setting).fits;
  }
  /// What raises one of the peaks is not offered for the other's sake.
  bool WorthTelling(const PeakSaving& saving) const {
    const auto least = static_cast<Bytes>(kWorthTelling * double(before_.allocated));
    return saving.allocated >= 0 && saving.device >= 0 &&
           std::max(saving.allocated, saving.device) > least;
  }

  EarlierFree Tell(const Release& release) const {
    const StringTable& strings = setting_.step.strings;
    EarlierFree change{.saved = SavedBy({&release})};
    SayWhereMade(release, change);
    for (const ReleaseEdit& edit : release.edits) {
      change.edits.push_back({.kind = edit.kind,
                              .name = std::string(strings[edit.name]),
                              .where = std::string(strings[edit.where])});
    }
    const int more = setting_.steps + 1;
    const Bytes then = PeaksOf(setting_.variant, more).allocated -
                       PeaksOf(FreeEarlier(setting_.variant, {&release}), more).allocated;
    change.by_step = std::max<Bytes>(0, then - change.saved.allocated);
    return change;
  }

  void SayWhereMade(const Release& release, EarlierFree& change) const {
    std::vector<char> released(setting_.variant.storages, 0);
    for (const Release::Free& free : release.frees) released[free.storage] = 1;
    const AtBatch at(setting_.step, batch_);
    std::map<StringId, Bytes> lines;
    for (const CallRecord& call : setting_.variant.calls) {
      for (const NewStorage& fresh : call.fresh) {
        if (released[fresh.storage]) lines[call.where] += at.BytesOf(call, fresh);
      }
    }
    const auto most =
        std::max_element(lines.begin(), lines.end(),
                         [](const auto& a, const auto& b) { return a.second < b.second; });
    if (most == lines.end()) return;
    change.made_at = setting_.step.strings[most->first];
    change.made_there_alone = lines.size() == 1;
  }

  const Setting& setting_;
  const std::int64_t batch_;
  Peaks before_;
};

}  // namespace

Result<std::optional<EarlierFrees>> FindEarlierFrees(const Step& step, const Gpu& gpu,
                                                     const PredictOptions& options) {
  const Result<Setting> setting = MakeSetting(step, gpu, options);
  if (!setting) return setting.error();
  if (setting->variant.releases.empty()) return std::optional<EarlierFrees>();
  return Finder(*setting, options.batch).Run();
}

}  // namespace plimsoll
