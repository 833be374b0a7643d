#include "job/answer/earlier_frees.h"

#include <algorithm>
#include <map>

#include "job/calls/call.h"
#include "job/transforms/release.h"

namespace plimsoll {
namespace {

/// Of the peak: what is less is no reason to change anything.
constexpr double kWorthTelling = 0.001;

/// A capture tries no more; whatever a file holds, these are looked at.
constexpr std::size_t kMostReleases = 4;

using TorchVersions = std::vector<const Release*>;

class FreeFinder {
 public:
  explicit FreeFinder(const Trial& trial)
      : setting_(trial.setting()),
        variant_(trial.setting().variant()),
        before_(trial.unlimited()) {}

  std::optional<EarlierFrees> Run() {
    TorchVersions all;
    for (const Release& release : variant_.releases) {
      if (all.size() < kMostReleases) all.push_back(&release);
    }
    const PeakSaving together = SavedBy(all);
    if (!WorthTelling(together)) return std::nullopt;
    // The last ones are worth the least.
    for (std::size_t i = all.size(); i-- > 0;) {
      TorchVersions others = all;
      others.erase(others.begin() + std::ptrdiff_t(i));
      const PeakSaving without = SavedBy(others);
      if (without.allocated >= together.allocated && without.device >= together.device) {
        all = std::move(others);
      }
    }
    const Trial with_all = With(all, setting_.steps);
    EarlierFrees found{.together = SavedBy(all), .fits = with_all.decided().fits};
    for (const Release* release : all) found.changes.push_back(Tell(*release));
    return found;
  }

 private:
  /// The same job with these releases, over so many steps.
  Trial With(const TorchVersions& releases, int steps) const {
    Job job = CopyOf(*setting_.job, setting_.precision);
    if (!releases.empty()) job.variants.front() = FreeEarlier(variant_, releases);
    Setting setting = setting_.WithStep(std::make_shared<const Job>(std::move(job)));
    setting.precision = 0;
    setting.steps = steps;
    return Trial(std::move(setting));
  }
  PeakSaving SavedBy(const TorchVersions& releases) const {
    if (releases.empty()) return {};
    const Trial trial = With(releases, setting_.steps);
    const Peaks& after = trial.unlimited();
    return {before_.allocated - after.allocated, before_.reserved - after.reserved};
  }
  /// What raises one of the peaks is not offered for the other's sake.
  bool WorthTelling(const PeakSaving& saving) const {
    const auto least = static_cast<Bytes>(kWorthTelling * double(before_.allocated));
    return saving.allocated >= 0 && saving.device >= 0 &&
           std::max(saving.allocated, saving.device) > least;
  }

  EarlierFree Tell(const Release& release) const {
    const StringTable& strings = setting_.job->strings;
    EarlierFree change{.saved = SavedBy({&release})};
    SayWhereMade(release, change);
    for (const ReleaseEdit& edit : release.edits) {
      change.edits.push_back({.kind = edit.kind,
                              .name = std::string(strings[edit.name]),
                              .where = std::string(strings[edit.where])});
    }
    const int more = setting_.steps + 1;
    const Bytes then =
        With({}, more).unlimited().allocated - With({&release}, more).unlimited().allocated;
    change.by_step = std::max<Bytes>(0, then - change.saved.allocated);
    return change;
  }

  void SayWhereMade(const Release& release, EarlierFree& change) const {
    std::vector<char> released(variant_.storages, 0);
    for (const Release::Free& free : release.frees) released[free.storage] = 1;
    const AtBatch at(*setting_.job, setting_.batch);
    std::map<StringId, Bytes> lines;
    for (const CallRecord& call : variant_.calls) {
      for (const NewStorage& fresh : call.fresh) {
        if (released[fresh.storage]) lines[call.where] += at.BytesOf(call, fresh);
      }
    }
    const auto most =
        std::max_element(lines.begin(), lines.end(),
                         [](const auto& a, const auto& b) { return a.second < b.second; });
    if (most == lines.end()) return;
    change.made_at = setting_.job->strings[most->first];
    change.made_there_alone = lines.size() == 1;
  }

  const Setting& setting_;
  const Variant& variant_;
  const Peaks& before_;
};

}  // namespace

std::optional<EarlierFrees> FindEarlierFrees(const Trial& trial) {
  if (trial.setting().variant().releases.empty()) return std::nullopt;
  return FreeFinder(trial).Run();
}

}  // namespace plimsoll
