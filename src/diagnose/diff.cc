#include "diagnose/diff.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <tuple>

#include "allocator/settings/rules.h"
#include "diagnose/explain.h"

namespace plimsoll {
namespace {

/// " (in the backward of step 4, when 192.00 MiB were asked for)"
std::string HowItDied(const RankReport& r) {
  std::string text = r.phase;
  if (!r.ooms.empty() && r.ooms.back().requested) {
    text += fmt::format("{}when {} were asked for", text.empty() ? "" : ", ",
                        FormatBytes(*r.ooms.back().requested));
  }
  return text.empty() ? "" : " (" + text + ")";
}

/// A run that died shows only what it had reached by then: whoever compares peaks must know.
std::string WhoRanOut(const RankReport& before, const RankReport& after) {
  if (before.RanOut() && after.RanOut()) {
    return fmt::format(
        "Both runs ran out of memory: the first{}, the second{}. Their peaks are what they had "
        "reached by then. ",
        HowItDied(before), HowItDied(after));
  }
  if (!before.RanOut() && !after.RanOut()) return "";
  const auto& [dead, other] =
      before.RanOut() ? std::pair("first", "second") : std::pair("second", "first");
  return fmt::format(
      "The {} run ran out of memory{}, so that its peak is what it had reached by then; the {} did "
      "not. ",
      dead, HowItDied(before.RanOut() ? before : after), other);
}

std::string Signed(Bytes n) { return (n > 0 ? "+" : "") + FormatBytes(n); }

Result<std::vector<RankReport>> DevicesOf(const Recording& recording) {
  // Every holder counts here: a small one may be what grew.
  Result<Explanation> explanation = ExplainRecording(
      recording, {.at_event = {}, .most_holders = std::numeric_limits<std::size_t>::max()});
  if (!explanation) return explanation.error();
  return std::move(explanation->ranks);
}

/// The one of the other run that is the same rank and device; where no rank is the same, a run of
/// one process is compared with whatever there is.
const RankReport* Counterpart(const std::vector<RankReport>& reports, const RankReport& of) {
  const auto find = [&](auto is_same) {
    const auto found = std::find_if(reports.begin(), reports.end(), is_same);
    return found == reports.end() ? nullptr : &*found;
  };
  const RankReport* const exact =
      find([&](const RankReport& r) { return r.rank == of.rank && r.device == of.device; });
  if (exact != nullptr) return exact;
  const RankReport* const same_rank = find([&](const RankReport& r) { return r.rank == of.rank; });
  if (same_rank != nullptr) return same_rank;
  const RankReport* const same_device =
      find([&](const RankReport& r) { return r.device == of.device; });
  return reports.size() == 1 ? &reports.front() : of.rank ? nullptr : same_device;
}

bool HaveRanks(const ComparedRun& run) {
  return run.ranks.size() > 1 &&
         std::all_of(run.ranks.begin(), run.ranks.end(),
                     [](const RankReport& r) { return r.rank.has_value(); });
}

std::string PairName(const RankReport& report, bool by_rank) {
  return by_rank ? fmt::format("rank {}", *report.rank)
                 : fmt::format("device {}", report.device.value_or(0));
}

/// What the second run has and the first has not, or the other way round.
void NoteUnmatched(const ComparedRun& run, const ComparedRun& other, std::string_view which,
                   std::vector<std::string>& notes) {
  for (const RankReport& report : run.ranks) {
    if (Counterpart(other.ranks, report) != nullptr) continue;
    notes.push_back(fmt::format("{} is in the {} run alone, and is not compared.",
                                report.rank ? fmt::format("Rank {}", *report.rank) : report.file,
                                which));
  }
}

/// The settings of one process, as PYTORCH_CUDA_ALLOC_CONF has them; nothing where none are
/// recorded.
std::optional<std::string> SettingsOf(const Recording& recording) {
  if (recording.timelines.empty()) return std::nullopt;
  const RecordedSettings& recorded = recording.timelines.front().settings;
  if (recorded.conf.empty() && !recorded.expandable_segments) return std::nullopt;
  return FormatSettings(AllocatorRules::From(recorded).settings);
}

std::vector<std::string> OtherSettings(const ComparedRun& before, const ComparedRun& after) {
  if (!before.settings || !after.settings || *before.settings == *after.settings) return {};
  const auto named = [](const std::string& s) { return s.empty() ? "the defaults" : s; };
  return {fmt::format("The allocator settings differ: {} before, {} after.",
                      named(*before.settings), named(*after.settings))};
}

}  // namespace

std::optional<Error> ComparedRun::Add(const Recording& recording) {
  Result<std::vector<RankReport>> devices = DevicesOf(recording);
  if (!devices) return devices.error();
  for (RankReport& report : *devices) ranks.push_back(std::move(report));
  if (!settings) settings = SettingsOf(recording);
  return std::nullopt;
}

Result<Difference> CompareRuns(const ComparedRun& before, const ComparedRun& after) {
  const bool by_rank = HaveRanks(after);
  std::optional<Difference> most;
  std::tuple<bool, bool, Bytes> weight;
  std::vector<RankDifference> ranks;
  for (const RankReport& report : after.ranks) {
    const RankReport* const then = Counterpart(before.ranks, report);
    if (then == nullptr) continue;
    Result<Difference> difference = Compare(*then, report);
    if (!difference) return difference;
    const RankDifference& rank =
        ranks.emplace_back(RankDifference{.name = PairName(report, by_rank),
                                          .allocated = difference->allocated,
                                          .reserved = difference->reserved,
                                          .ran_out_before = then->RanOut(),
                                          .ran_out_after = report.RanOut()});
    const std::tuple its_weight(rank.RunsOutNow(), rank.ran_out_after, rank.growth());
    if (most && its_weight <= weight) continue;
    weight = its_weight;
    if (after.ranks.size() > 1) {
      difference->verdict = fmt::format("{}{}, of {}: {}", by_rank ? "Rank" : "Device",
                                        rank.name.substr(rank.name.find(' ')), after.ranks.size(),
                                        difference->verdict);
    }
    most = std::move(*difference);
  }
  if (!most) return Error{.message = "no rank of the one run is in the other"};
  most->notes = OtherSettings(before, after);
  NoteUnmatched(before, after, "first", most->notes);
  NoteUnmatched(after, before, "second", most->notes);
  most->ranks = std::move(ranks);
  return *std::move(most);
}

Result<Difference> CompareRecordings(const Recording& before, const Recording& after) {
  ComparedRun then;
  ComparedRun now;
  if (std::optional<Error> error = then.Add(before)) return *error;
  if (std::optional<Error> error = now.Add(after)) return *error;
  return CompareRuns(then, now);
}

Result<Difference> Compare(const RankReport& before, const RankReport& after) {
  for (const RankReport* r : {&before, &after}) {
    if (!r->peak_allocated || !r->peak_reserved) {
      return Error{.message = "only traces can be compared, and this is none",
                   .file = r->file,
                   .hint = "give memory snapshots"};
    }
  }
  Difference d;
  d.file_before = before.file;
  d.file_after = after.file;
  d.allocated = {.before = *before.peak_allocated, .after = *after.peak_allocated};
  d.reserved = {.before = *before.peak_reserved, .after = *after.peak_reserved};
  d.categories = ChangesByCategory(before.account, after.account);
  d.holders = ChangesByLine(before.holders, after.holders);
  d.verdict = WhoRanOut(before, after);
  d.verdict += fmt::format(
      "The peak went from {} to {} allocated ({}) and from {} to {} reserved ({}).",
      FormatBytes(d.allocated.before), FormatBytes(d.allocated.after), Signed(d.allocated.growth()),
      FormatBytes(d.reserved.before), FormatBytes(d.reserved.after), Signed(d.reserved.growth()));
  if (!d.holders.empty()) {
    const Change& most = d.holders.front();
    d.verdict += fmt::format(" Most of the change is {} ({}): {}.", most.where,
                             AccountItemLabel(most.item), Signed(most.growth()));
  }
  return d;
}

}  // namespace plimsoll
