#include "diagnose/logged/log_study.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "base/text.h"
#include "diagnose/logged/growth.h"
#include "diagnose/logged/log_findings.h"

namespace plimsoll {
namespace {

constexpr std::size_t kMostGrowths = 64;
/// A log has more ranks than this only if it is made up.
constexpr std::size_t kMostRanks = 4096;

/// How near a figure comes to what decides whether a card is full; more is nearer.
int Weight(const LoggedSeries& series) {
  if (series.span == FigureSpan::kChange || series.span == FigureSpan::kAboveEnd) return 0;
  const int peak = IsPeak(series.span) ? 1 : 0;
  switch (series.counts) {
    case FigureKind::kReserved:
      return 8 + peak;
    case FigureKind::kActive:
      return 6 + peak;
    case FigureKind::kTensors:
      return 4 + peak;
    case FigureKind::kDeviceUsed:
      return 3;
    case FigureKind::kDeviceShare:
    case FigureKind::kProcess:
      return 2;
    case FigureKind::kEngineKept:
    case FigureKind::kHostUsed:
      return 1;
    default:
      return 0;
  }
}

/// What is in use on a whole card is more than what PyTorch reserved on it.
std::optional<std::size_t> FindHighest(const std::vector<LoggedSeries>& series) {
  std::optional<std::size_t> best;
  const auto key = [&](std::size_t i) {
    return std::pair(Weight(series[i]), series[i].highest.value);
  };
  for (std::size_t i = 0; i < series.size(); ++i) {
    if (Weight(series[i]) == 0 || series[i].highest.value <= 0) continue;
    if (!best || key(i) > key(*best)) best = i;
  }
  return best;
}

/// transformers prints what each phase added and how far its peak lay above its end: the peak of a
/// phase is what all before it left, and these two.
void AddPeaksOfPhases(std::vector<LoggedSeries>& all) {
  constexpr std::string_view kPhases[] = {"init", "train", "eval", "test"};
  const auto find = [&](const std::string& field) -> const LoggedSeries* {
    const auto same = [&](const LoggedSeries& series) {
      return series.source.program == "transformers" && series.source.field == field;
    };
    const auto found = std::ranges::find_if(all, same);
    return found == all.end() ? nullptr : &*found;
  };
  const LoggedSeries* const before = find("before_init_mem_gpu");
  Bytes held = before == nullptr ? 0 : before->last.value;
  std::optional<LoggedSeries> highest;
  for (const std::string_view phase : kPhases) {
    const LoggedSeries* const added = find(fmt::format("{}_mem_gpu_alloc_delta", phase));
    const LoggedSeries* const above = find(fmt::format("{}_mem_gpu_peaked_delta", phase));
    if (added != nullptr) held += added->last.value;
    if (above == nullptr) continue;
    LoggedPoint peak = above->last;
    peak.value += held;
    if (highest && peak.value <= highest->last.value) continue;
    highest = *above;
    highest->source.field = fmt::format("peak of {}", phase);
    highest->span = FigureSpan::kSinceStart;
    highest->inferred = true;
    highest->points = {peak};
    highest->first = highest->last = highest->lowest = highest->highest = peak;
  }
  if (highest) all.push_back(std::move(*highest));
}

/// The card's memory where `whose` is: as printed, else by a percentage; of a rank before that of
/// any.
void FindCapacity(const FigureSource& whose, LogReport& report) {
  const LoggedSeries* best = nullptr;
  const auto key = [&](const LoggedSeries& total) {
    const bool own = total.source.rank == whose.rank && total.source.device == whose.device &&
                     total.source.process == whose.process;
    // The driver's tool counts what CUDA does not give.
    const bool driver = total.source.program.starts_with("nvidia-smi");
    return std::tuple(!driver, own, !total.inferred, -total.half_unit);
  };
  for (const LoggedSeries& series : report.series) {
    if (series.counts != FigureKind::kDeviceTotal || series.highest.value <= 0) continue;
    if (best == nullptr || key(series) > key(*best)) best = &series;
  }
  if (best == nullptr) return;
  report.capacity = best->last.value;
  report.capacity_inferred = best->inferred;
}

void FindLeft(LogReport& report) {
  if (!report.highest || !report.capacity) return;
  const LoggedSeries& highest = report.series[*report.highest];
  if (Weight(highest) < 3) return;
  if (highest.counts != FigureKind::kDeviceUsed) {
    report.outside = OutsideIn(report, highest.source);
    // The phase with the highest figure may not tell what the card has in use.
    for (const LoggedSeries& series : report.series) {
      if (report.outside || series.counts != FigureKind::kDeviceUsed) continue;
      if (series.source.rank == highest.source.rank &&
          series.source.process == highest.source.process) {
        report.outside = OutsideIn(report, series.source);
      }
    }
  }
  report.left = *report.capacity - report.outside.value_or(0) - highest.highest.value;
}

void CountSteps(LogReport& report) {
  for (const LoggedSeries& series : report.series) {
    if (series.stepped == 0) continue;
    report.first_step = std::min(report.first_step.value_or(series.first_step), series.first_step);
    report.last_step = std::max(report.last_step.value_or(series.last_step), series.last_step);
    report.steps = std::max(report.steps, series.stepped);
  }
}

/// The most that a rank held when it was last told, of what may fill a card.
Bytes LastHeld(const LogReport& report, const FigureSource& source) {
  Bytes most = 0;
  for (const LoggedSeries& series : report.series) {
    const bool same = series.source.rank == source.rank && series.source.device == source.device &&
                      series.source.process == source.process;
    if (same && Weight(series) >= 4) most = std::max(most, series.last.value);
  }
  return most;
}

void FindGrowth(LogReport& report) {
  for (std::size_t i = 0; i < report.series.size(); ++i) {
    const LoggedSeries& series = report.series[i];
    if (!MayGrow(series)) continue;
    const std::optional<Rise> rise = FindRise(series.points, series.half_unit);
    if (!rise) continue;
    LoggedGrowth growth{.series = i,
                        .rate = rise->rate,
                        .by_step = rise->by_step,
                        .from = series.points[rise->begin],
                        .to = series.points.back()};
    growth.points = static_cast<std::int64_t>(series.points.size() - rise->begin);
    if (report.capacity && rise->rate > 0 && series.counts != FigureKind::kDeviceShare) {
      const Bytes beside =
          series.counts == FigureKind::kDeviceUsed ? 0 : report.outside.value_or(0);
      // What is held at the end of a step is less than at its peak, which grows with it.
      const Bytes held = series.counts == FigureKind::kDeviceUsed
                             ? growth.to.value
                             : std::max(growth.to.value, LastHeld(report, series.source));
      const double room = double(*report.capacity - beside - held);
      const double more = std::max(0.0, room / rise->rate);
      const std::int64_t last = rise->by_step ? growth.to.step : 0;
      if (more < 1e12) growth.full_at = last + static_cast<std::int64_t>(more) + 1;
    }
    report.growth.push_back(growth);
  }
  // What tensors hold says more than what is reserved for them, and the same rank's fields say the
  // same.
  std::ranges::stable_sort(report.growth, [&](const LoggedGrowth& a, const LoggedGrowth& b) {
    const auto key = [&](const LoggedGrowth& g) {
      const LoggedSeries& series = report.series[g.series];
      const bool tensors =
          series.counts == FigureKind::kTensors || series.counts == FigureKind::kActive;
      // A peak tells how much only where it is higher than before.
      return std::tuple(!tensors, series.counts != FigureKind::kReserved,
                        series.span == FigureSpan::kSinceStart, -g.rate);
    };
    return key(a) < key(b);
  });
  if (report.growth.size() > kMostGrowths) report.growth.resize(kMostGrowths);
}

/// Peaks that are reset and vary: the batches do.
void NoteVarying(LogReport& report) {
  for (const LoggedSeries& series : report.series) {
    if (series.span != FigureSpan::kSinceLine || series.count < 8 || Weight(series) == 0) continue;
    const bool grows = std::ranges::any_of(report.growth, [&](const LoggedGrowth& growth) {
      return &report.series[growth.series] == &series;
    });
    std::vector<LoggedPoint> later(series.points.begin() + 2, series.points.end());
    const auto [low, high] = std::ranges::minmax(later, {}, &LoggedPoint::value);
    if (grows || double(high.value - low.value) < 0.05 * double(high.value)) continue;
    report.notes.push_back(fmt::format(
        "{}{}{} varies between {} and {} without growing: batches differ, and the largest decides",
        series.source.field, series.source.phase.empty() ? "" : ", ", series.source.phase,
        FigureText(series, low.value), FigureText(series, high.value)));
    return;
  }
}

void NoteFolded(LogReport& report) {
  std::int64_t folded = 0;
  for (const LoggedSeries& series : report.series) folded = std::max(folded, series.folded);
  if (folded == 0) return;
  report.notes.push_back(fmt::format(
      "Ray left out {} lines of other processes (\"repeated … across cluster\"): their figures may "
      "differ; RAY_DEDUP_LOGS=0 keeps them",
      folded));
}

void NoteNeverReset(LogReport& report) {
  if (!report.highest) return;
  const LoggedSeries& series = report.series[*report.highest];
  if (series.span != FigureSpan::kSinceStart || series.count < 2) return;
  if (series.highest.value <= series.first.value) return;
  const bool grows = std::ranges::any_of(
      report.growth, [&](const LoggedGrowth& growth) { return growth.series == *report.highest; });
  if (grows) return;
  report.notes.push_back(
      fmt::format("{} is the most since the start and is never reset: that it rises is no leak",
                  series.source.field));
}

void NoteThinned(LogReport& report) {
  for (const LoggedSeries& series : report.series) {
    if (series.count <= static_cast<std::int64_t>(series.points.size())) continue;
    if (series.inferred || series.points.size() < 512) continue;
    report.notes.push_back(
        "of long series, of each few neighbouring figures the lowest and the highest are kept");
    return;
  }
}

std::vector<LoggedSeries> WithRanks(std::vector<LoggedSeries> series, std::optional<int> rank) {
  for (LoggedSeries& each : series) {
    if (!each.source.rank) each.source.rank = rank;
  }
  return series;
}

/// Which of the ranks of an answer a series is of.
struct RankKey {
  std::optional<int> rank;
  std::optional<int> device;
  std::string process;
  auto operator<=>(const RankKey&) const = default;
};

void TakePeaks(const LoggedSeries& series, RankReport& rank) {
  const auto raise = [&](std::optional<Bytes>& peak) {
    peak = std::max(peak.value_or(0), series.highest.value);
  };
  if (series.span == FigureSpan::kChange || series.span == FigureSpan::kAboveEnd) return;
  if (series.counts == FigureKind::kTensors) raise(rank.peak_allocated);
  if (series.counts == FigureKind::kReserved) raise(rank.peak_reserved);
}

std::vector<RankReport> RanksOf(const Recording& recording, const LogReport& report) {
  std::map<RankKey, RankReport> ranks;
  for (const LoggedSeries& series : report.series) {
    if (Weight(series) < 3 || ranks.size() >= kMostRanks) continue;
    RankReport& rank = ranks[{series.source.rank, series.source.device, series.source.process}];
    TakePeaks(series, rank);
    if (series.stepped > 0) rank.steps = std::max(rank.steps.value_or(0), series.stepped);
  }
  if (ranks.empty()) ranks[{}];
  std::vector<RankReport> list;
  for (auto& [key, rank] : ranks) {
    rank.file = recording.file;
    rank.format = recording.format;
    rank.rank = key.rank;
    rank.device = key.device;
    rank.process = key.rank ? "" : key.process;
    rank.capacity = report.capacity;
    // Figures of several lines need not be of one moment.
    if (rank.peak_allocated && rank.peak_reserved) {
      rank.peak_reserved = std::max(*rank.peak_reserved, *rank.peak_allocated);
    }
    list.push_back(std::move(rank));
  }
  return list;
}

/// Of a log that tells only what is free.
std::string LeastFreeText(const LogReport& report) {
  const LoggedSeries* least = nullptr;
  for (const LoggedSeries& series : report.series) {
    if (series.counts != FigureKind::kDeviceFree && series.counts != FigureKind::kNotTensors)
      continue;
    if (least == nullptr || series.lowest.value < least->lowest.value) least = &series;
  }
  if (least == nullptr) return "";
  std::string text =
      fmt::format(" The least that it tells to be {} is {} {}", FigureKindLabel(least->counts),
                  FormatBytes(least->lowest.value), PointText(least->lowest));
  if (const std::string source = SourceText(least->source); !source.empty()) text += ", " + source;
  return text + ".";
}

/// "71.90 GiB of 79.18 GiB reserved by PyTorch at step 40 (line 812), rank 3; 7.28 GiB left".
std::string HighestText(const LogReport& report) {
  if (!report.highest) return "";
  const LoggedSeries& series = report.series[*report.highest];
  std::string text = FigureText(series, series.highest.value);
  if (report.capacity && IsBytes(series.counts) && series.counts != FigureKind::kHostUsed) {
    text += fmt::format(" of {}{}", report.capacity_inferred ? "about " : "",
                        FormatBytes(*report.capacity));
  }
  text += fmt::format(" {} {}", FigureKindLabel(series.counts), PointText(series.highest));
  if (const std::string source = SourceText(series.source); !source.empty()) text += ", " + source;
  if (report.left && *report.left >= 0) text += fmt::format("; {} left", FormatBytes(*report.left));
  return text;
}

std::string StepsText(const LogReport& report) {
  if (!report.first_step) return "";
  if (report.steps == 1) return fmt::format("1 step ({})", *report.first_step);
  return fmt::format("{} steps ({} to {})", report.steps, *report.first_step, *report.last_step);
}

std::string LogVerdict(const LogReport& report, const std::vector<Finding>& findings) {
  std::string text = "No out-of-memory in this log.";
  const std::string highest = HighestText(report);
  const std::string steps = StepsText(report);
  if (!highest.empty()) {
    text += fmt::format(" {}he most {} {}.", steps.empty() ? "T" : steps + ": t",
                        steps.empty() ? "that it tells is" : "is", highest);
  } else {
    text += LeastFreeText(report);
  }
  if (!findings.empty() && findings.front().severity <= Severity::kMedium) {
    text += " " + Capitalised(findings.front().title) + ".";
  }
  return text;
}

void RaisePeaks(const LogReport& report, std::vector<RankReport>& ranks) {
  for (RankReport& rank : ranks) {
    for (const LoggedSeries& series : report.series) {
      const bool same = series.source.rank == rank.rank ||
                        (ranks.size() == 1 && !series.source.rank && series.source.process.empty());
      if (same) TakePeaks(series, rank);
    }
    if (rank.peak_allocated) {
      rank.peak_allocated = std::max(*rank.peak_allocated, rank.instant.allocated.value_or(0));
    }
    if (rank.peak_reserved) {
      rank.peak_reserved = std::max(*rank.peak_reserved, rank.instant.reserved.value_or(0));
    }
  }
}

/// What the job could fill: the card, or the limit of the program's own that it met.
std::optional<Bytes> RoomOf(const RankReport& rank) {
  const bool met_limit = std::ranges::any_of(
      rank.ooms, [](const OomReport& oom) { return oom.why == OomCause::kLimit; });
  return met_limit && rank.limit ? rank.limit : rank.capacity;
}

/// What a message of the same log says better, or what its figures exclude.
void DropTold(std::vector<Finding>& findings, const Explanation& explanation) {
  std::erase_if(findings, [&](const Finding& finding) {
    // The card was full: it ran out.
    if (finding.id == FindingId::kNearlyFull) return true;
    if (finding.id == FindingId::kLeak) return false;
    const auto same = [&](const auto& told) { return told.id == finding.id; };
    return std::ranges::any_of(explanation.findings, same) ||
           std::ranges::any_of(explanation.ruled_out, same);
  });
  for (Finding& finding : findings) {
    // Only what grew may be graver than what the message tells.
    if (finding.id != FindingId::kLeak)
      finding.severity = std::max(finding.severity, Severity::kLow);
  }
}

}  // namespace

LogStudy StudyLog(std::vector<LoggedSeries> series, std::optional<Bytes> capacity) {
  LogStudy study;
  LogReport& report = study.report;
  report.series = std::move(series);
  // Of several logs that were studied before, it is there already.
  std::erase_if(report.series, [](const LoggedSeries& each) {
    return each.inferred && each.source.program == "transformers";
  });
  AddPeaksOfPhases(report.series);
  CountSteps(report);
  report.highest = FindHighest(report.series);
  if (capacity) {
    report.capacity = capacity;
  } else if (report.highest) {
    FindCapacity(report.series[*report.highest].source, report);
  }
  FindLeft(report);
  FindGrowth(report);
  NoteVarying(report);
  NoteNeverReset(report);
  NoteFolded(report);
  NoteThinned(report);
  study.findings = InOrder(FindInLog(report));
  return study;
}

Explanation ExplainLog(const Recording& recording, std::optional<int> file_rank) {
  LogStudy study = StudyLog(WithRanks(recording.logged, file_rank), std::nullopt);
  Explanation explanation;
  explanation.ranks = RanksOf(recording, study.report);
  explanation.verdict = LogVerdict(study.report, study.findings);
  for (const auto& [what, count] : recording.skipped) {
    explanation.ranks.front().notes.push_back(fmt::format("{}: {}", what, count));
  }
  explanation.findings = std::move(study.findings);
  if (study.report.highest) {
    const FigureSource& source = study.report.series[*study.report.highest].source;
    for (std::size_t i = 0; i < explanation.ranks.size(); ++i) {
      const RankReport& rank = explanation.ranks[i];
      if (rank.rank == source.rank && rank.device == source.device) explanation.shown = i;
    }
  }
  explanation.log = std::move(study.report);
  return explanation;
}

void AddLog(const Recording& recording, std::optional<int> file_rank, Explanation& explanation) {
  const auto tells = [](const LoggedSeries& series) { return TellsUse(series.counts); };
  if (std::ranges::none_of(recording.logged, tells)) return;
  std::optional<Bytes> capacity;
  for (const RankReport& rank : explanation.ranks) {
    if (!capacity) capacity = RoomOf(rank);
  }
  LogStudy study = StudyLog(WithRanks(recording.logged, file_rank), capacity);
  // It is known when it was full.
  const bool ran_out = std::ranges::any_of(explanation.ranks, &RankReport::RanOut);
  if (ran_out) {
    for (LoggedGrowth& growth : study.report.growth) growth.full_at.reset();
    study.findings = InOrder(FindInLog(study.report));
  }
  DropTold(study.findings, explanation);
  RaisePeaks(study.report, explanation.ranks);
  for (const Finding& finding : study.findings) {
    if (finding.id != FindingId::kLeak) continue;
    explanation.verdict += " " + Capitalised(finding.title) + ".";
  }
  // What grew stands first of what is as grave.
  study.findings.insert(study.findings.end(), explanation.findings.begin(),
                        explanation.findings.end());
  explanation.findings = InOrder(std::move(study.findings));
  explanation.log = std::move(study.report);
}

void JoinLogs(const std::vector<Explanation>& parts, Explanation& joined) {
  std::vector<LoggedSeries> series;
  std::size_t logs = 0;
  std::optional<Bytes> capacity;
  for (const Explanation& part : parts) {
    if (!part.log) continue;
    ++logs;
    series.insert(series.end(), part.log->series.begin(), part.log->series.end());
    for (const RankReport& rank : part.ranks) {
      if (!capacity && rank.RanOut()) capacity = RoomOf(rank);
    }
  }
  if (logs == 0) return;
  LogStudy study = StudyLog(std::move(series), capacity);
  joined.log = std::move(study.report);
  if (logs < 2) return;
  // Only all of them together tell which rank is the odd one.
  std::erase_if(study.findings, [&](const Finding& finding) {
    return finding.id != FindingId::kRankImbalance ||
           std::ranges::any_of(joined.findings, [](const Finding& told) {
             return told.id == FindingId::kRankImbalance;
           });
  });
  joined.findings.insert(joined.findings.end(), study.findings.begin(), study.findings.end());
  joined.findings = InOrder(std::move(joined.findings));
}

}  // namespace plimsoll
