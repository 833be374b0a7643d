#include "diagnose/logged/log_findings.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <tuple>

#include "answer/severity.h"
#include "base/median.h"
#include "base/text.h"
#include "diagnose/ways/torch_ways.h"

namespace plimsoll {
namespace {

/// From what share of the reserved memory on it is told that much of it is unused.
constexpr double kMuchNotInTensors = 0.2;
/// Less left than this is the edge.
constexpr double kEdge = 0.05;
/// Ranks of one job that differ by less are even.
constexpr double kOddShare = 0.05;
/// Contexts, libraries and NCCL together take so much, as a rule.
constexpr Bytes kUsualBeside = 5 * kGiB / 2;
constexpr std::size_t kMostNamed = 6;
/// Tokens a second vary; by so much less they are told to have fallen.
constexpr double kSlower = 0.05;
/// So many steps before and since show what the middle is.
constexpr std::size_t kFewestSteps = 4;
/// A job compiles and warms up in its first steps.
constexpr std::int64_t kFirstSteps = 2;

/// ", rank 3, after backward" behind what is told of a series.
std::string WhereText(const LoggedSeries& series) {
  std::string text;
  if (const std::string source = SourceText(series.source); !source.empty()) text += ", " + source;
  if (!series.source.phase.empty()) text += ", \"" + series.source.phase + "\"";
  return text;
}

/// "torchtitan's \"memory\"".
std::string FieldText(const LoggedSeries& series) {
  return fmt::format("{}'s \"{}\"", series.source.program, series.source.field);
}

std::string RateText(const LoggedSeries& series, const LoggedGrowth& growth) {
  const auto rate = static_cast<std::int64_t>(std::llround(growth.rate));
  return fmt::format("{} {}", FigureText(series, rate), growth.by_step ? "a step" : "each time");
}

std::string SinceText(const LoggedGrowth& growth) {
  return growth.by_step ? fmt::format("since step {}", growth.from.step)
                        : fmt::format("since line {}", growth.from.line);
}

/// A share of a thousand steps, or of what has been added so far where that is more.
Severity SeverityOfGrowth(const LogReport& report, const LoggedSeries& series,
                          const LoggedGrowth& growth) {
  const double whole = double(report.capacity.value_or(std::max<Bytes>(1, growth.to.value)));
  const double added = double(growth.to.value - growth.from.value);
  // A phase without a step is told about once a step.
  const double thousand = std::max(added, 1000 * growth.rate);
  const Severity severity = LeastLow(SeverityOfShare(std::min(1.0, thousand / whole)));
  // What the allocator or the card holds may rise for other reasons than a leak.
  return series.counts == FigureKind::kTensors || series.counts == FigureKind::kActive
             ? severity
             : std::max(severity, Severity::kMedium);
}

std::vector<Remedy> AgainstGrowth(const LoggedSeries& series) {
  if (series.counts == FigureKind::kHostUsed) return {};
  std::vector<Remedy> remedies = {
      Rule("keep numbers of a step, not its tensors: a loss that is added up or put into a list "
           "keeps its whole graph",
           Lever::kReleaseTensors, {"total += loss.item()", "outputs.append(out.detach().cpu())"})};
  return remedies;
}

/// One finding for what grows fastest; other ranks and phases are named in it.
std::vector<Finding> Growing(const LogReport& report) {
  if (report.growth.empty()) return {};
  const LoggedGrowth& growth = report.growth.front();
  const LoggedSeries& series = report.series[growth.series];
  Finding finding{.id = FindingId::kLeak, .rank = series.source.rank};
  finding.severity = SeverityOfGrowth(report, series, growth);
  const bool tensors =
      series.counts == FigureKind::kTensors || series.counts == FigureKind::kActive;
  // Of a program's own line nobody knows whether it means the card or what PyTorch holds.
  const bool unclear =
      series.counts == FigureKind::kDeviceUsed && series.source.program == kOwnProgram;
  const std::string what = unclear   ? fmt::format("\"{}\"", series.source.field)
                           : tensors ? "what tensors hold"
                           : series.counts == FigureKind::kReserved ? "what PyTorch reserves"
                                                                    : "what the card has in use";
  const std::string_view peak = series.span == FigureSpan::kSinceStart ? "the peak of " : "";
  finding.title = Capitalised(fmt::format(
      "{}{} grows by {} {}: from {} to {} {}", peak, what, RateText(series, growth),
      SinceText(growth), FigureText(series, growth.from.value), FigureText(series, growth.to.value),
      growth.to.has_step() ? fmt::format("at step {}", growth.to.step)
                           : fmt::format("in line {}", growth.to.line)));
  finding.evidence.push_back(fmt::format("{} figures of {}{}, lines {} to {}", growth.points,
                                         FieldText(series), WhereText(series), growth.from.line,
                                         growth.to.line));
  if (growth.full_at && report.capacity) {
    finding.evidence.push_back(
        fmt::format("at that rate the {} of the card are full {}", FormatBytes(*report.capacity),
                    growth.by_step ? fmt::format("at step {}", *growth.full_at)
                                   : fmt::format("{} times later", *growth.full_at)));
  }
  if (!tensors) {
    finding.evidence.push_back(
        "this log does not tell what tensors hold: growing batches or fragmentation look alike");
  }
  std::vector<std::string> others;
  for (const LoggedGrowth& other : report.growth) {
    if (other.series == growth.series || others.size() >= kMostNamed) continue;
    const LoggedSeries& its = report.series[other.series];
    others.push_back(
        fmt::format("{}{} by {}", its.source.field, WhereText(its), RateText(its, other)));
  }
  if (!others.empty()) finding.evidence.push_back("so do " + Joined(others, "; "));
  finding.remedies = AgainstGrowth(series);
  return {finding};
}

/// Tokens a second before the allocator had to retry and since.
struct Slowdown {
  std::int64_t before = 0;
  std::int64_t since = 0;
  double share = 0;
};
/// Only where the middle since then lies below nearly all of what was before.
std::optional<Slowdown> SlowedBy(const LogReport& report, const LoggedSeries& retries,
                                 const LoggedPoint& first) {
  const auto beside = [&](const LoggedSeries& series) {
    return series.counts == FigureKind::kThroughput && series.source.phase.empty() &&
           series.source.program == retries.source.program &&
           series.source.rank == retries.source.rank &&
           series.source.process == retries.source.process;
  };
  const auto throughput = std::ranges::find_if(report.series, beside);
  if (throughput == report.series.end() || !first.has_step()) return {};
  std::vector<std::int64_t> before;
  std::vector<std::int64_t> since;
  for (const LoggedPoint& point : throughput->points) {
    if (point.step < throughput->first_step + kFirstSteps) continue;
    (point.step < first.step ? before : since).push_back(point.value);
  }
  if (std::min(before.size(), since.size()) < kFewestSteps) return {};
  const Slowdown slow{.before = LowerMedian(before), .since = LowerMedian(since)};
  const double share = 1 - double(slow.since) / double(std::max<std::int64_t>(1, slow.before));
  if (share < kSlower || slow.since >= Ranked(before, before.size() / 10)) return {};
  return Slowdown{.before = slow.before, .since = slow.since, .share = share};
}

/// Each time the allocator had to let go of its cache to go on.
std::vector<Finding> Retrying(const LogReport& report) {
  const LoggedSeries* most = nullptr;
  for (const LoggedSeries& series : report.series) {
    if (series.counts != FigureKind::kRetries || series.last.value <= 0) continue;
    if (most == nullptr || series.last.value > most->last.value) most = &series;
  }
  if (most == nullptr) return {};
  const std::int64_t risen = most->last.value - (most->count > 1 ? most->first.value : 0);
  const auto some =
      std::ranges::find_if(most->points, [](const LoggedPoint& p) { return p.value > 0; });
  const LoggedPoint& first = some == most->points.end() ? most->last : *some;
  Finding finding{.id = FindingId::kAllocatorRetries,
                  .severity = risen > 0 ? Severity::kMedium : Severity::kLow,
                  .rank = most->source.rank};
  finding.title = fmt::format(
      "The card is full already: PyTorch emptied its cache {} times to go on, first told {}",
      most->last.value, PointText(first));
  const std::optional<Slowdown> slow = SlowedBy(report, *most, first);
  if (slow) finding.title += fmt::format("; it is {:.0f} % slower since", 100 * slow->share);
  finding.evidence = {
      fmt::format("{}{}: {} {}, {} {}", FieldText(*most), WhereText(*most), first.value,
                  PointText(first), most->last.value, PointText(most->last)),
      "each time is a stall, and the next request that is larger by a little fails"};
  if (slow) {
    finding.evidence.push_back(
        fmt::format("tokens a second: {} in the middle of the steps before, {} since then",
                    slow->before, slow->since));
  }
  return {finding};
}

/// The highest figure of what PyTorch reserved, or that stands for it, near the end of the card.
std::vector<Finding> AtTheEdge(const LogReport& report) {
  if (!report.highest || !report.capacity || !report.left || *report.capacity <= 0) return {};
  const double share = double(*report.left) / double(*report.capacity);
  if (share > kEdge) return {};
  const LoggedSeries& series = report.series[*report.highest];
  Finding finding{
      .id = FindingId::kNearlyFull, .severity = Severity::kMedium, .rank = series.source.rank};
  finding.title = fmt::format("The card is nearly full: {} of its {} are left at the highest",
                              FormatBytes(*report.left), FormatBytes(*report.capacity));
  finding.evidence = {fmt::format("{} {} {}, {}{}", FigureText(series, series.highest.value),
                                  FigureKindLabel(series.counts), PointText(series.highest),
                                  FieldText(series), WhereText(series))};
  if (report.outside) {
    finding.evidence.push_back(FormatBytes(*report.outside) + " of the card are outside PyTorch");
  }
  if (series.counts == FigureKind::kReserved) {
    finding.evidence.push_back("what PyTorch caches it can let go of: tensors may hold less");
  }
  return {finding};
}

/// Series that only the rank or the card tells apart.
using SeriesKind = std::tuple<std::string, std::string, std::string>;

std::vector<Finding> OddOnes(const LogReport& report) {
  std::map<SeriesKind, std::vector<const LoggedSeries*>> kinds;
  for (const LoggedSeries& series : report.series) {
    const bool placed = series.source.rank || series.source.device;
    const bool held =
        series.counts == FigureKind::kTensors || series.counts == FigureKind::kActive ||
        series.counts == FigureKind::kReserved || series.counts == FigureKind::kDeviceUsed;
    if (!placed || !held || series.span == FigureSpan::kChange) continue;
    kinds[{series.source.program, series.source.field, series.source.phase}].push_back(&series);
  }
  const LoggedSeries* odd = nullptr;
  Bytes usual = 0;
  std::size_t ranks = 0;
  double most = kOddShare;
  for (const auto& [kind, all] : kinds) {
    if (all.size() < 2) continue;
    std::vector<Bytes> highest;
    for (const LoggedSeries* series : all) highest.push_back(series->highest.value);
    const Bytes median = LowerMedian(highest);
    for (const LoggedSeries* series : all) {
      const Bytes off = std::abs(series->highest.value - median);
      const double share = double(off) / double(std::max<Bytes>(1, median));
      if (share <= most || off < 256 * kMiB || off <= 4 * series->half_unit) continue;
      most = share;
      odd = series;
      usual = median;
      ranks = all.size();
    }
  }
  if (odd == nullptr) return {};
  const bool by_rank = odd->source.rank.has_value();
  Finding finding{.id = by_rank ? FindingId::kRankImbalance : FindingId::kDeviceImbalance,
                  .severity = Severity::kLow,
                  .rank = odd->source.rank};
  const Bytes off = odd->highest.value - usual;
  finding.title = fmt::format("{} is the odd one: {} {}, {} {} than the others",
                              Capitalised(SourceText(odd->source)),
                              FigureText(*odd, odd->highest.value), FigureKindLabel(odd->counts),
                              FormatBytes(std::abs(off)), off > 0 ? "more" : "less");
  finding.evidence = {fmt::format("{} of {} {}, {}; the middle of all is {}", FieldText(*odd),
                                  ranks, by_rank ? "ranks" : "GPUs", PointText(odd->highest),
                                  FormatBytes(usual))};
  finding.evidence.push_back(
      "stages of a pipeline and uneven experts hold different amounts; else look for a rank that "
      "does more than the others");
  return {finding};
}

/// What PyTorch reserved and what of it was in tensors, in one phase of one rank.
std::vector<Finding> MuchUnused(const LogReport& report) {
  const LoggedSeries* best = nullptr;
  const LoggedSeries* beside = nullptr;
  Bytes unused = 0;
  for (const LoggedSeries& reserved : report.series) {
    if (reserved.counts != FigureKind::kReserved || !IsPeak(reserved.span)) continue;
    for (const LoggedSeries& tensors : report.series) {
      const bool same = tensors.counts == FigureKind::kTensors && tensors.span == reserved.span &&
                        tensors.source.program == reserved.source.program &&
                        tensors.source.phase == reserved.source.phase &&
                        tensors.source.rank == reserved.source.rank &&
                        tensors.source.device == reserved.source.device &&
                        tensors.source.process == reserved.source.process;
      if (!same) continue;
      const Bytes gap = reserved.highest.value - tensors.highest.value;
      if (gap <= unused) continue;
      best = &reserved;
      beside = &tensors;
      unused = gap;
    }
  }
  if (best == nullptr || unused < kGiB ||
      double(unused) < kMuchNotInTensors * double(best->highest.value)) {
    return {};
  }
  Finding finding{
      .id = FindingId::kFragmentation, .severity = Severity::kLow, .rank = best->source.rank};
  finding.title =
      fmt::format("PyTorch reserved {} more than tensors ever held", FormatBytes(unused));
  finding.evidence = {
      fmt::format("{} {} {}, {} {} {}{}", FormatBytes(best->highest.value),
                  FigureKindLabel(best->counts), PointText(best->highest),
                  FormatBytes(beside->highest.value), FigureKindLabel(beside->counts),
                  PointText(beside->highest), WhereText(*best)),
      "free pieces between tensors, or what a larger batch left; pools of CUDA graphs look alike"};
  finding.remedies = {Rule("let segments grow instead of cutting new ones",
                           Lever::kAllocatorSetting,
                           {"export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"})};
  return {finding};
}

/// "Available KV cache memory: -3.20 GiB": weights and a trial run take more than the server may
/// use.
std::vector<Finding> NoRoomForCache(const LogReport& report) {
  for (const LoggedSeries& series : report.series) {
    if (series.counts != FigureKind::kKvCache || series.lowest.value >= 0) continue;
    Finding finding{
        .id = FindingId::kKvCache, .severity = Severity::kHigh, .rank = series.source.rank};
    finding.title = fmt::format("Nothing is left for keys and values: {} short of any cache",
                                FormatBytes(-series.lowest.value));
    finding.evidence = {
        fmt::format("{} {}", FigureText(series, series.lowest.value), PointText(series.lowest)),
        "weights, a trial run and what others hold take more than the share of the card"};
    finding.remedies = {Rule("let the server use more of the card, or give it shorter contexts",
                             Lever::kServerSetting,
                             {"--gpu-memory-utilization 0.95 --max-model-len 4096"})};
    return {finding};
  }
  return {};
}

std::vector<Finding> Sleeping(const LogReport& report) {
  const LoggedSeries* kept = nullptr;
  for (const LoggedSeries& series : report.series) {
    if (series.counts == FigureKind::kEngineKept &&
        (kept == nullptr || series.highest.value > kept->highest.value)) {
      kept = &series;
    }
  }
  if (kept == nullptr) return {};
  Finding finding{.id = FindingId::kNeighbours,
                  .severity = kept->highest.value > kUsualBeside ? Severity::kLow : Severity::kInfo,
                  .rank = kept->source.rank};
  finding.title = fmt::format("Beside the sleeping engine {} of the card stay in use",
                              FormatBytes(kept->highest.value));
  finding.evidence = {
      fmt::format("told {}{}; the last time {} {}", PointText(kept->highest), WhereText(*kept),
                  FormatBytes(kept->last.value), PointText(kept->last)),
      "context, graphs and NCCL of the engine, and all that others on the card had then"};
  if (finding.severity == Severity::kLow) {
    finding.remedies = {
        Rule("let the sleeping engine keep less: level 2 gives back the weights too", Lever::kOther,
             {"llm.sleep(level=2)"}, "the weights have to be loaded again")};
  }
  return {finding};
}

/// What the card has in use besides what PyTorch reserved.
std::vector<Finding> MuchOutside(const LogReport& report) {
  const LoggedSeries* of = nullptr;
  Bytes most = kUsualBeside;
  for (const LoggedSeries& series : report.series) {
    const std::optional<Bytes> outside =
        series.counts == FigureKind::kOutside ? std::optional(series.highest.value)
        : series.counts == FigureKind::kDeviceUsed && series.span == FigureSpan::kNow
            ? OutsideIn(report, series.source)
            : std::nullopt;
    if (!outside || *outside <= most) continue;
    most = *outside;
    of = &series;
  }
  if (of == nullptr) return {};
  Finding finding{
      .id = FindingId::kOutsidePytorch, .severity = Severity::kLow, .rank = of->source.rank};
  finding.title =
      fmt::format("{} of the card are in use outside PyTorch's allocator", FormatBytes(most));
  finding.evidence = {fmt::format("by {}{}, what is in use less what PyTorch reserved",
                                  FieldText(*of), WhereText(*of)),
                      "NCCL, CUDA graphs, an engine that sleeps, or another process on the card"};
  return {finding};
}

}  // namespace

bool MayGrow(const LoggedSeries& series) {
  const bool held = series.counts == FigureKind::kTensors || series.counts == FigureKind::kActive ||
                    series.counts == FigureKind::kReserved ||
                    series.counts == FigureKind::kDeviceUsed ||
                    series.counts == FigureKind::kProcess;
  return held && (series.span == FigureSpan::kNow || IsPeak(series.span));
}

std::optional<Bytes> OutsideIn(const LogReport& report, const FigureSource& source) {
  const LoggedSeries* used = nullptr;
  const LoggedSeries* reserved = nullptr;
  for (const LoggedSeries& series : report.series) {
    const FigureSource& its = series.source;
    const bool same = its.program == source.program && its.phase == source.phase &&
                      its.rank == source.rank && its.process == source.process;
    if (!same || series.span != FigureSpan::kNow) continue;
    if (series.counts == FigureKind::kDeviceUsed) used = &series;
    if (series.counts == FigureKind::kReserved) reserved = &series;
  }
  if (used == nullptr || reserved == nullptr || used->last.line != reserved->last.line) return {};
  const Bytes outside = used->last.value - reserved->last.value;
  return outside > 0 ? std::optional(outside) : std::nullopt;
}

std::vector<Finding> FindInLog(const LogReport& report) {
  std::vector<Finding> findings;
  for (const auto sign :
       {Growing, NoRoomForCache, Retrying, AtTheEdge, OddOnes, MuchUnused, Sleeping, MuchOutside}) {
    for (Finding& finding : sign(report)) findings.push_back(std::move(finding));
  }
  return findings;
}

}  // namespace plimsoll
