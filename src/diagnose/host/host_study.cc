#include "diagnose/host/host_study.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/text.h"
#include "diagnose/host/host_kills.h"
#include "diagnose/host/host_remedies.h"
#include "diagnose/host/host_series.h"

namespace plimsoll {
namespace {

/// A rise that is worth a line.
constexpr Bytes kWorthGrowth = 128 * kMiB;
/// Of what all held together.
constexpr double kWorthShare = 0.1;
constexpr std::size_t kMostGrown = 3;
/// A batch of a worker's is no small part of a small /dev/shm: it is full before it is at 100 %.
constexpr double kShmWorthTelling = 0.6;

/// "140 s", "12 min".
std::string Duration(double seconds) {
  if (seconds < 300) return fmt::format("{:.0f} s", seconds);
  if (seconds < 7200) return fmt::format("{:.0f} min", seconds / 60);
  return fmt::format("{:.1f} h", seconds / 3600);
}

class HostStory {
 public:
  HostStory(const HostRecord& record, const std::vector<ReportedEnd>& reported)
      : series_(record), record_(record) {
    report_.kills = KillsIn(series_, reported);
    Describe();
    DescribeProcesses();
  }

  HostStudy Tell() {
    HostStudy study;
    // A job that ended well has lost nothing to a signal.
    const bool well = record_.end && record_.end->code == 0 && !record_.end->signal;
    std::erase_if(report_.kills, [&](const HostKill& kill) {
      return well && kill.certainty == KillCertainty::kUnlikely;
    });
    if (!report_.kills.empty()) {
      study.findings.push_back(Judged(report_.kills.front(), well));
      study.verdict = Verdict(study.findings.front());
    } else {
      study.verdict = Capitalised(HostPeakText(report_)) + ".";
      if (!well && ShmShare() >= kShmWorthTelling) study.findings.push_back(FullShm());
    }
    study.report = std::move(report_);
    return study;
  }

 private:
  void Describe() {
    HostReport& r = report_;
    r.file = record_.file;
    r.host = record_.host;
    r.utc_offset = record_.utc_offset;
    r.samples = record_.samples.size();
    r.began = record_.began;
    r.ended = record_.end               ? record_.end->time
              : record_.samples.empty() ? record_.began
                                        : record_.samples.back().time;
    for (const HostTotal& total : series_.totals()) {
      if (total.together >= r.peak_together) {
        r.peak_together = total.together;
        r.peak_time = total.time;
      }
      if (total.left && (!r.least_left || *total.left < *r.least_left)) r.least_left = total.left;
    }
    const double wanted = r.kills.empty() ? r.peak_time : LastSeen(r.kills.front());
    if (const HostTotal* const total = series_.TotalAt(wanted)) {
      r.instant = total->time;
      r.together = total->together;
      r.counted_twice = total->counted_twice;
      r.left = total->left;
      r.limit_kind = total->kind;
      const auto at = static_cast<std::size_t>(total - series_.totals().data());
      r.shm = record_.samples[at].shm;
    }
    r.limit = series_.LimitOf(r.limit_kind);
    r.shm_size = record_.shm;
    for (const auto& [what, count] : record_.skipped) {
      r.notes.push_back(fmt::format("skipped: {} {}", count, what));
    }
    if (!record_.end && r.kills.empty()) {
      r.notes.push_back("the record has no end: `plimsoll run` was killed itself, or still runs");
    }
  }

  /// When the one that was killed was there for the last time.
  double LastSeen(const HostKill& kill) const {
    const HostPoint* const point = series_.PointAt(kill.process, kill.time);
    return point == nullptr ? kill.time : point->time;
  }

  void DescribeProcesses() {
    const Bytes least =
        std::max<Bytes>(kWorthGrowth, static_cast<Bytes>(kWorthShare * double(report_.together)));
    for (std::size_t i = 0; i < record_.processes.size(); ++i) {
      HostProcessReport process{.process = record_.processes[i]};
      for (const HostPoint& point : series_.of(i)) {
        if (point.share.resident < process.peak_resident) continue;
        process.peak_resident = point.share.resident;
        process.peak_time = point.time;
      }
      const HostPoint* const point = series_.PointAt(i, report_.instant);
      if (point != nullptr && point->time == report_.instant) {
        process.then = point->share;
        process.growth = GrowthOf(series_.of(i), report_.instant, least);
      }
      if (const HostDeath* const death = series_.DeathOf(i)) process.death = *death;
      report_.processes.push_back(std::move(process));
    }
  }

  /// Of /dev/shm, at the end.
  double ShmShare() const {
    if (record_.samples.empty() || !record_.shm || *record_.shm == 0) return 0;
    return double(record_.samples.back().shm.value_or(0)) / double(*record_.shm);
  }

  /// A worker that gets no room there raises an exception in newer releases, which we do not see.
  Finding FullShm() const {
    Finding finding{.id = FindingId::kHostMemory, .severity = Severity::kLow};
    finding.title =
        fmt::format("shared memory (/dev/shm) was {:.0f} % full before the job ended with an error",
                    100 * ShmShare());
    finding.evidence = {fmt::format(
        "/dev/shm held {} of {} at {}; DataLoader workers pass their batches through it",
        FormatBytes(record_.samples.back().shm.value_or(0)), FormatBytes(*record_.shm),
        Time(record_.samples.back().time))};
    finding.remedies = HostRemedies(series_, report_, {.shared_memory = true});
    return finding;
  }

  std::string Time(double time) const { return HostTimeText(time, report_.utc_offset); }

  std::string Who(const HostKill& kill) const {
    return HostProcessText(report_.processes[kill.process].process);
  }

  std::string Title(const HostKill& kill) const {
    const std::string who = Who(kill);
    if (kill.shared_memory && kill.certainty == KillCertainty::kLikely) {
      return fmt::format(
          "{} was ended by a bus error, most likely because shared memory (/dev/shm) was full: "
          "DataLoader workers pass their batches through it",
          Capitalised(who));
    }
    if (kill.shared_memory) {
      return fmt::format(
          "Shared memory (/dev/shm) was full, and {} was ended by a bus error: DataLoader workers "
          "pass their batches through it",
          who);
    }
    switch (kill.certainty) {
      case KillCertainty::kCertain:
        return report_.limit_kind == HostLimitKind::kGroup
                   ? fmt::format("The kernel killed {} at the memory limit of its container or job",
                                 who)
                   : fmt::format("The kernel killed {} because the host's memory was full", who);
      case KillCertainty::kLikely:
        return fmt::format(
            "{} was killed by signal 9, most likely by the kernel because the host's memory was "
            "full",
            Capitalised(who));
      case KillCertainty::kUnlikely:
        break;
    }
    return fmt::format("{} was killed by signal 9, and not by the kernel for lack of memory",
                       Capitalised(who));
  }

  /// "it held 9.80 GiB at 12:05:29, of it 1.00 GiB shared, 2.00 GiB pinned".
  std::optional<std::string> WhatItHeld(const HostKill& kill) const {
    const HostPoint* const point = series_.PointAt(kill.process, kill.time);
    if (point == nullptr) return std::nullopt;
    std::string text =
        fmt::format("it held {} at {}", FormatBytes(point->share.resident), Time(point->time));
    if (point->share.shared >= kMiB) {
      text += fmt::format(", of it {} shared", FormatBytes(point->share.shared));
    }
    if (point->share.pinned.value_or(0) > 0) {
      text += fmt::format(", {} pinned", FormatBytes(*point->share.pinned));
    }
    return text;
  }

  /// ", of it 4 loader workers 1.70 GiB".
  std::string OfItWorkers() const {
    std::string text;
    for (const HostRole role : {HostRole::kLoaderWorker, HostRole::kWorker}) {
      std::int64_t count = 0;
      Bytes own = 0;
      for (std::size_t i = 0; i < report_.processes.size(); ++i) {
        const HostProcessReport& process = report_.processes[i];
        if (!process.then || process.process.role != role) continue;
        ++count;
        own += series_.PointAt(i, report_.instant)->own;
      }
      if (count < 2) continue;
      const std::string_view name = role == HostRole::kWorker ? "workers" : "loader workers";
      text += fmt::format(", of it {} {} {}", count, name, FormatBytes(own));
    }
    return text;
  }

  std::string Together() const {
    const auto there = std::ranges::count_if(
        report_.processes, [](const HostProcessReport& p) { return p.then.has_value(); });
    std::string text =
        there == 1 ? fmt::format("the job's only process held {}", FormatBytes(report_.together))
                   : fmt::format("the job's {} processes held {} together", there,
                                 FormatBytes(report_.together));
    if (report_.counted_twice && there > 1) text += " (what they share is counted for each)";
    text += OfItWorkers();
    if (report_.limit) {
      text += fmt::format(", the {} {}", HostLimitKindName(report_.limit_kind),
                          report_.limit_kind == HostLimitKind::kGroup ? "allows " : "has ") +
              FormatBytes(*report_.limit);
    }
    if (report_.left) text += fmt::format(", {} was left", FormatBytes(*report_.left));
    return text;
  }

  /// "loader worker 3 (pid 812) grew from 0.60 GiB to 9.80 GiB in 140 s, since 12:03:10, 67.29 MiB
  /// a second".
  std::vector<std::string> WhatGrew(const HostKill& kill) const {
    std::vector<const HostProcessReport*> grown;
    for (const HostProcessReport& process : report_.processes) {
      if (process.growth) grown.push_back(&process);
    }
    // The one that was killed before the others, then what grew most.
    const HostProcessReport* const killed = &report_.processes[kill.process];
    std::ranges::sort(grown, std::greater<>(), [&](const HostProcessReport* p) {
      return std::pair(p == killed, p->growth->to - p->growth->from);
    });
    std::vector<std::string> lines;
    for (std::size_t i = 0; i < grown.size() && i < kMostGrown; ++i) {
      const HostGrowth& growth = *grown[i]->growth;
      std::string line =
          fmt::format("{} grew from {} to {} in {}, since {}", HostProcessText(grown[i]->process),
                      FormatBytes(growth.from), FormatBytes(growth.to), Duration(growth.seconds()),
                      Time(growth.since));
      if (growth.rate() > 0) {
        line += fmt::format(", {} a second", FormatBytes(static_cast<Bytes>(growth.rate())));
      }
      const bool goes_on = kill.certainty == KillCertainty::kUnlikely && report_.left && i == 0;
      if (goes_on && growth.rate() > 0) {
        line += fmt::format("; at that rate what was left would have lasted {}",
                            Duration(double(*report_.left) / growth.rate()));
      }
      lines.push_back(std::move(line));
    }
    if (grown.size() > kMostGrown) {
      const std::size_t more = grown.size() - kMostGrown;
      lines.push_back(more == 1 ? "one more process grew as well"
                                : fmt::format("{} more processes grew as well", more));
    }
    return lines;
  }

  Finding Judged(const HostKill& kill, bool well) const {
    Finding finding{.id = FindingId::kHostMemory, .severity = Severity::kHigh};
    if (well || kill.certainty == KillCertainty::kUnlikely) finding.severity = Severity::kMedium;
    finding.title = Title(kill);
    const bool shm = report_.shm && report_.shm_size;
    if (kill.shared_memory && shm) {
      std::string line = fmt::format("/dev/shm held {} of {} at {}", FormatBytes(*report_.shm),
                                     FormatBytes(*report_.shm_size), Time(report_.instant));
      const auto next =
          std::ranges::upper_bound(record_.samples, report_.instant, {}, &HostSample::time);
      if (next != record_.samples.end() && next->shm.value_or(0) > *report_.shm) {
        line += fmt::format(", and {} at {}", FormatBytes(*next->shm), Time(next->time));
      }
      finding.evidence.push_back(std::move(line));
    }
    if (auto held = WhatItHeld(kill)) finding.evidence.push_back(std::move(*held));
    if (report_.together > 0) finding.evidence.push_back(Together());
    for (std::string& line : WhatGrew(kill)) finding.evidence.push_back(std::move(line));
    finding.evidence.push_back(kill.because);
    if (kill.certainty == KillCertainty::kUnlikely) {
      finding.evidence.push_back("a person, a scheduler or a launcher can send that signal");
    }
    AddOthers(finding);
    if (const auto rank = report_.processes[kill.process].process.rank) finding.rank = rank;
    finding.remedies = HostRemedies(series_, report_, kill);
    finding.explains = report_.together;
    return finding;
  }

  void AddOthers(Finding& finding) const {
    const std::size_t others = report_.kills.size() - 1;
    if (others == 0) return;
    finding.evidence.push_back(fmt::format(
        "{} more {} killed afterwards, the first {} at {}: a launcher ends the others so", others,
        others == 1 ? "process was" : "processes were", Who(report_.kills[1]),
        Time(report_.kills[1].time)));
  }

  std::string Verdict(const Finding& finding) const {
    std::string text = finding.title + ".";
    const std::size_t told = std::min<std::size_t>(finding.evidence.size(), 3);
    for (std::size_t i = 0; i < told; ++i) text += " " + Capitalised(finding.evidence[i]) + ".";
    return text;
  }

  HostSeries series_;
  const HostRecord& record_;
  HostReport report_;
};

bool RanOutOfDevice(const Explanation& explanation) {
  return std::ranges::any_of(explanation.ranks, [](const RankReport& rank) {
    return rank.RanOut() && rank.peaks.has_value();
  });
}

void AddSamples(const HostStudy& study, std::vector<Finding>& findings) {
  for (Finding& finding : findings) {
    if (finding.id != FindingId::kHostMemory) continue;
    finding.evidence.push_back(HostPeakText(study.report));
    for (const Finding& sampled : study.findings) {
      finding.evidence.insert(finding.evidence.end(), sampled.evidence.begin(),
                              sampled.evidence.end());
    }
    return;
  }
}

}  // namespace

std::vector<ReportedEnd> ReportedEnds(const std::vector<OomMessage>& messages) {
  std::vector<ReportedEnd> ends;
  for (const OomMessage& message : messages) {
    if (message.source != MessageSource::kHostMemory || message.survived) continue;
    for (const ProcessUse& process : message.processes) {
      if (process.pid) ends.push_back({.event = message.host, .pid = process.pid});
    }
  }
  return ends;
}

HostStudy StudyHost(const HostRecord& record, const std::vector<ReportedEnd>& reported) {
  return HostStory(record, reported).Tell();
}

std::string HostPeakText(const HostReport& r) {
  if (r.samples == 0) return "the host's memory was not sampled: the job was over before that";
  std::string text =
      fmt::format("the job took at most {} of the host's memory, at {}",
                  FormatBytes(r.peak_together), HostTimeText(r.peak_time, r.utc_offset));
  if (r.limit) {
    text += fmt::format("; the {} {} {}", HostLimitKindName(r.limit_kind),
                        r.limit_kind == HostLimitKind::kGroup ? "allows" : "has",
                        FormatBytes(*r.limit));
  }
  if (r.least_left) {
    text += fmt::format("{} {} was left at the least", r.limit ? ", of which" : ";",
                        FormatBytes(*r.least_left));
  }
  return text;
}

void AddHost(HostStudy study, Explanation& explanation) {
  const bool alone = std::ranges::none_of(
      explanation.ranks, [](const RankReport& rank) { return rank.peaks.has_value(); });
  const bool told = std::ranges::any_of(
      explanation.findings, [](const Finding& f) { return f.id == FindingId::kHostMemory; });
  if (study.report.kills.empty() && told) {
    // A text says what happened; the samples, how much there was.
    AddSamples(study, explanation.findings);
  } else if (!study.findings.empty() && study.report.kills.empty()) {
    explanation.findings.push_back(std::move(study.findings.front()));
    explanation.findings = InOrder(std::move(explanation.findings));
    if (explanation.verdict.empty()) explanation.verdict = study.verdict;
  } else if (!study.findings.empty()) {
    // The samples know more than a text that tells the same.
    std::erase_if(explanation.findings,
                  [](const Finding& f) { return f.id == FindingId::kHostMemory; });
    std::vector<Finding> all = std::move(study.findings);
    const bool later = RanOutOfDevice(explanation);
    const auto at = later ? all.begin() : all.end();
    all.insert(at, explanation.findings.begin(), explanation.findings.end());
    explanation.findings = InOrder(std::move(all));
    explanation.verdict = later ? explanation.verdict + " " + study.verdict
                                : study.verdict + (alone && told ? "" : " " + explanation.verdict);
    while (explanation.verdict.ends_with(' ')) explanation.verdict.pop_back();
  } else if (explanation.verdict.empty()) {
    explanation.verdict = study.verdict;
  }
  explanation.host = std::move(study.report);
}

}  // namespace plimsoll
