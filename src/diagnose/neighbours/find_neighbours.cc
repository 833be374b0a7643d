#include "diagnose/neighbours/find_neighbours.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "allocator/settings/rules.h"
#include "diagnose/attribution/account.h"
#include "diagnose/findings/findings.h"
#include "diagnose/neighbours/release.h"
#include "diagnose/neighbours/turns.h"

namespace plimsoll {
namespace {

/// Less is not worth a line.
constexpr Bytes kWorthAWord = 64 * kMiB;

/// Everything that is known of a card when its findings are made.
struct CardEvidence {
  const std::vector<CardTrace>& traces;
  const CardReport& card;

  const std::string& Name(std::size_t process) const { return card.processes[process].name; }
  const AnalysedTrace& Trace(std::size_t process) const { return traces[process].trace; }
};

/// "trainer (after train)"
std::string Named(const std::string& name, const std::string& doing) {
  return doing.empty() ? name : fmt::format("{} ({})", name, doing);
}

std::string HandOverText(const CardEvidence& e, const HandOver& h) {
  return fmt::format("the hand-over from {} to {}, {:.2f} s after the records begin",
                     Named(e.Name(h.from), h.after), Named(e.Name(h.to), h.before),
                     e.card.Seconds(h.time_us));
}

/// The hand-over that began the turn in which it happened.
const HandOver* HandOverBefore(const CardReport& card, std::size_t to, TimeUs time) {
  const HandOver* last = nullptr;
  for (const HandOver& h : card.hand_overs) {
    if (h.time_us <= time) last = &h;
  }
  return last != nullptr && last->to == to ? last : nullptr;
}

Bytes ReservedByOthers(const Failure& f) {
  Bytes sum = 0;
  for (std::size_t p = 0; p < f.held.size(); ++p) {
    if (p != f.process) sum += f.held[p].reserved;
  }
  return sum;
}

/// What is missing for the process to get through its turn; negative where there is room to spare.
Bytes Missing(const Failure& f, Bytes saved = 0) {
  return f.needs + ReservedByOthers(f) - saved - f.room;
}

/// "trainer would then hold 6.62 GiB; engine needs 90.11 GiB, as in its turn before: …, it fits".
void TellFit(const CardEvidence& e, const Failure& f, std::size_t saver, Bytes saved,
             Remedy& remedy) {
  const std::string then =
      fmt::format("{} would then hold {} in place of {}", e.Name(saver),
                  FormatBytes(f.held[saver].reserved - saved), FormatBytes(f.held[saver].reserved));
  const Bytes missing = Missing(f, saved);
  if (!f.known_from_earlier_turn) {
    remedy.effect = missing <= 0 ? Effect::kGetsPast : Effect::kUnknown;
    remedy.remark = fmt::format(
        "{}; {}", then,
        missing <= 0
            ? "with it this request succeeds; what comes after it is not recorded"
            : fmt::format("{} would still be missing for this request", FormatBytes(missing)));
    return;
  }
  remedy.effect = missing <= 0 ? Effect::kFits : Effect::kUnknown;
  remedy.remark = fmt::format(
      "{}; {} needs {}, as in its turn before: {} of the {} that there are for all, so it {}", then,
      e.Name(f.process), FormatBytes(f.needs), FormatBytes(f.needs + ReservedByOthers(f) - saved),
      FormatBytes(f.room),
      missing <= 0 ? "fits" : fmt::format("still lacks {}", FormatBytes(missing)));
}

/// "at the end of its turn (after train)"
std::string AtTheEnd(const CardEvidence& e, std::size_t process, TimeUs time) {
  return Named("at the end of its turn", DoneBefore(e.Trace(process), time));
}

Remedy EmptyCacheThere(const CardEvidence& e, std::size_t process, TimeUs time,
                       const CardShare& held) {
  Remedy remedy{
      .change = fmt::format("torch.cuda.empty_cache() in {} {}", e.Name(process),
                            AtTheEnd(e, process, time)),
      .saves = held.cached,
      .costs = "the driver is asked again in its next turn",
      .basis = Basis::kRecorded,
      .code = {"torch.cuda.empty_cache()  # when nothing of the turn is in use any more"}};
  const Position at = PositionAt(e.Trace(process), time);
  if (const std::optional<Bytes> after = HeldAfter(e.Trace(process), at, {})) {
    remedy.saves = held.reserved - *after;
    remedy.basis = Basis::kReplayed;
  }
  return remedy;
}

/// Segments that grow page by page give back what lies free between tensors, too.
std::optional<Remedy> ExpandableThere(const CardEvidence& e, std::size_t process, TimeUs time,
                                      const CardShare& held, Bytes without) {
  const AnalysedTrace& trace = e.Trace(process);
  if (trace.timeline.settings.expandable_segments.value_or(false)) return std::nullopt;
  const std::optional<Bytes> after =
      HeldAfter(trace, PositionAt(trace, time), {.expandable = true});
  if (!after || held.reserved - *after < without + kWorthAWord) return std::nullopt;
  return Remedy{.change = fmt::format("the same with expandable segments in {}", e.Name(process)),
                .saves = held.reserved - *after,
                .basis = Basis::kReplayed,
                .code = {"export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
                         "torch.cuda.empty_cache()  # there, as above"}};
}

/// The others keep it; or the process that ran out makes do with less itself.
std::optional<Remedy> SmallerPool(const CardEvidence& e, const Failure& f) {
  const AnalysedTrace& trace = e.Trace(f.process);
  const Bytes missing = Missing(f);
  if (!f.known_from_earlier_turn || missing <= 0) return std::nullopt;
  // The turn before, at its own peak: the pool is complete there.
  const Position until = PositionAt(trace, f.time_us);
  const Position full = trace.ledger.peak_allocated_at;
  const LargestLine pool = LargestLineAt(trace, full);
  if (full >= until || pool.bytes <= missing || 2 * pool.bytes < f.needs) return std::nullopt;
  // Without stacks nothing tells a pool from the rest.
  if (!pool.has_line) return std::nullopt;
  std::vector<AllocationIndex> left_out;
  Bytes less = 0;
  for (auto a = pool.allocations.rbegin(); a != pool.allocations.rend() && less < missing; ++a) {
    left_out.push_back(*a);
    less += trace.ledger.allocations[*a].block;
  }
  Remedy remedy{
      .change = fmt::format("a smaller pool in {}: {} at {}, in place of {}", e.Name(f.process),
                            FormatBytes(pool.bytes - less), pool.where, FormatBytes(pool.bytes)),
      .saves = less,
      .costs = "less room in the pool",
      .basis = Basis::kEstimated};
  const HandOver* const before = HandOverBefore(e.card, f.process, f.time_us);
  const Position turn = before == nullptr ? until : PositionAt(trace, before->time_us - 1);
  const Bytes beside = f.room - ReservedByOthers(f);
  if (const std::optional<Bytes> peak = PeakWithout(trace, turn, left_out);
      peak && *peak <= beside) {
    remedy.basis = Basis::kReplayed;
    remedy.effect = Effect::kFits;
    remedy.remark = fmt::format("its turn would need {} of the {} that the others leave",
                                FormatBytes(*peak), FormatBytes(beside));
  }
  if (e.card.capacity) {
    const double share = std::floor(100 * double(beside) / double(*e.card.capacity)) / 100;
    remedy.remark += fmt::format("{}in vLLM or SGLang, {:.2f} as the share of the card's memory",
                                 remedy.remark.empty() ? "" : "; ", share);
  }
  return remedy;
}

/// The tensors of the line that holds most are let go of before the other's turn.
std::optional<Remedy> LetGoThere(const CardEvidence& e, const Failure& f, std::size_t process) {
  const AnalysedTrace& trace = e.Trace(process);
  const Position at = PositionAt(trace, f.time_us);
  const LargestLine line = LargestLineAt(trace, at);
  if (!line.has_line || line.bytes < kWorthAWord) return std::nullopt;
  Remedy remedy{.change = fmt::format("let go of the {} at {} in {} {}, and empty its cache",
                                      FormatBytes(line.bytes), line.where, e.Name(process),
                                      AtTheEnd(e, process, f.time_us)),
                .saves = line.bytes,
                .costs = "it has to be made again in its next turn",
                .basis = Basis::kRecorded};
  const std::optional<Bytes> after = HeldAfter(trace, at, {.allocations = line.allocations});
  if (after) {
    remedy.saves = f.held[process].reserved - *after;
    remedy.basis = Basis::kReplayed;
  }
  TellFit(e, f, process, *remedy.saves, remedy);
  return remedy;
}

std::string HeldText(const CardShare& held) {
  return fmt::format("{} for {} of tensors", FormatBytes(held.reserved),
                     FormatBytes(held.allocated));
}

/// What the card had, and who had it, when the request failed.
void AddFigures(const CardEvidence& e, const Failure& f, Finding& finding) {
  std::string sum;
  for (std::size_t p = 0; p < f.held.size(); ++p) {
    sum += fmt::format("{} {} + ", FormatBytes(f.held[p].reserved), e.Name(p));
  }
  finding.evidence.push_back(fmt::format(
      "{} was refused {}, for which the driver was asked for {}: {} were free", e.Name(f.process),
      FormatBytes(f.requested), FormatBytes(f.segment), FormatBytes(f.free)));
  finding.evidence.push_back(fmt::format(
      "{}{} free = {}, which is for all of them{}", sum, FormatBytes(f.free), FormatBytes(f.room),
      e.card.capacity ? fmt::format(" of the card's {}; the rest is outside "
                                    "PyTorch",
                                    FormatBytes(*e.card.capacity))
                      : ""));
  finding.evidence.push_back("one card: " + e.card.known_by);
}

/// Which of the others is in the way most: by what no tensor uses, else by what it holds.
std::size_t Culprit(const Failure& f, bool by_cache) {
  std::size_t most = f.process;
  Bytes bytes = 0;
  for (std::size_t p = 0; p < f.held.size(); ++p) {
    const Bytes own = by_cache ? f.held[p].cached : f.held[p].reserved;
    if (p == f.process || own <= bytes) continue;
    most = p;
    bytes = own;
  }
  return most;
}

Finding KeptCache(const CardEvidence& e, const Failure& f, std::size_t who) {
  const CardShare& held = f.held[who];
  const HandOver* const before = HandOverBefore(e.card, f.process, f.time_us);
  Finding finding{.id = FindingId::kNeighbours, .severity = Severity::kHigh};
  finding.explains = held.cached;
  finding.title = before != nullptr
                      ? fmt::format("at {}, {} did not give back {}", HandOverText(e, *before),
                                    e.Name(who), FormatBytes(held.cached))
                      : fmt::format("while {} asked for memory, {} kept {} that no tensor used",
                                    e.Name(f.process), e.Name(who), FormatBytes(held.cached));
  const Bytes pieces = held.reserved - held.allocated - held.cached;
  finding.evidence.push_back(
      fmt::format("it held {}: {} in whole free segments, which empty_cache() gives back{}",
                  HeldText(held), FormatBytes(held.cached),
                  pieces >= kWorthAWord
                      ? fmt::format(", and {} free inside segments in use", FormatBytes(pieces))
                      : ""));
  AddFigures(e, f, finding);
  Remedy empty = EmptyCacheThere(e, who, f.time_us, held);
  const Bytes saved = empty.saves.value_or(0);
  TellFit(e, f, who, saved, empty);
  finding.remedies.push_back(std::move(empty));
  if (auto remedy = ExpandableThere(e, who, f.time_us, held, saved)) {
    TellFit(e, f, who, remedy->saves.value_or(0), *remedy);
    finding.remedies.push_back(std::move(*remedy));
  }
  if (auto remedy = SmallerPool(e, f)) finding.remedies.push_back(std::move(*remedy));
  return finding;
}

Finding KeptTensors(const CardEvidence& e, const Failure& f, std::size_t who) {
  const CardShare& held = f.held[who];
  const HandOver* const before = HandOverBefore(e.card, f.process, f.time_us);
  const AnalysedTrace& trace = e.Trace(who);
  const LargestLine line = LargestLineAt(trace, PositionAt(trace, f.time_us));
  Finding finding{.id = FindingId::kNeighbours, .severity = Severity::kHigh};
  finding.explains = held.reserved;
  finding.title = before != nullptr
                      ? fmt::format("at {}, {} kept {} of tensors", HandOverText(e, *before),
                                    e.Name(who), FormatBytes(held.allocated))
                      : fmt::format("{} held {} of tensors while {} asked for memory", e.Name(who),
                                    FormatBytes(held.allocated), e.Name(f.process));
  finding.evidence.push_back(fmt::format("it held {}; the most of it, {}, was made at {}",
                                         HeldText(held), FormatBytes(line.bytes), line.where));
  AddFigures(e, f, finding);
  if (auto remedy = LetGoThere(e, f, who)) finding.remedies.push_back(std::move(*remedy));
  const Bytes missing = Missing(f);
  if (line.has_line && line.bytes > missing && 2 * line.bytes >= held.reserved) {
    Remedy remedy{.change = fmt::format("a smaller pool in {}: at most {} at {}, in place of {}",
                                        e.Name(who), FormatBytes(line.bytes - missing), line.where,
                                        FormatBytes(line.bytes)),
                  .saves = missing,
                  .costs = "less room in the pool",
                  .basis = Basis::kEstimated};
    TellFit(e, f, who, missing, remedy);
    finding.remedies.push_back(std::move(remedy));
  }
  return finding;
}

/// Nothing ran out; but what was kept is missing to whoever comes next.
std::vector<Finding> KeptForNothing(const CardEvidence& e) {
  const HandOver* most = nullptr;
  std::size_t times = 0;
  for (const HandOver& h : e.card.hand_overs) {
    if (!Notable(h.not_given_back, e.card.peak)) continue;
    ++times;
    if (most == nullptr || h.not_given_back > most->not_given_back) most = &h;
  }
  if (most == nullptr) return {};
  std::size_t who = most->from;
  for (std::size_t p = 0; p < most->held.size(); ++p) {
    if (p != most->to && most->held[p].cached > most->held[who].cached) who = p;
  }
  const CardShare& held = most->held[who];
  Finding finding{.id = FindingId::kNeighbours, .severity = Severity::kLow};
  finding.explains = held.cached;
  finding.title = fmt::format("at {}, {} did not give back {}", HandOverText(e, *most), e.Name(who),
                              FormatBytes(held.cached));
  finding.evidence.push_back(
      fmt::format("it held {}; nothing ran out of memory in these records", HeldText(held)));
  finding.evidence.push_back(
      fmt::format("so at {} of {} hand-overs", times, e.card.hand_overs.size()));
  finding.evidence.push_back("one card: " + e.card.known_by);
  Remedy empty = EmptyCacheThere(e, who, most->time_us - 1, held);
  empty.remark =
      fmt::format("{} would then hold {} in place of {}", e.Name(who),
                  FormatBytes(held.reserved - empty.saves.value_or(0)), FormatBytes(held.reserved));
  const Bytes saved = empty.saves.value_or(0);
  finding.remedies.push_back(std::move(empty));
  if (auto remedy = ExpandableThere(e, who, most->time_us - 1, held, saved)) {
    finding.remedies.push_back(std::move(*remedy));
  }
  return {std::move(finding)};
}

/// The most that the process held in the turns before this one.
Bytes MostInEarlierTurns(const CardTrace& trace, const CardReport& card, const Failure& f) {
  const HeldCurve curve = CurveOf(trace.trace);
  const HandOver* const began = HandOverBefore(card, f.process, f.time_us);
  if (began == nullptr) return 0;
  Bytes most = 0;
  for (const HeldCurve::Change& change : curve.changes) {
    if (change.time < began->time_us) most = std::max(most, change.reserved);
  }
  return most;
}

}  // namespace

std::optional<Failure> FindFailure(const std::vector<CardTrace>& traces, const CardReport& card) {
  std::optional<Failure> first;
  for (std::size_t p = 0; p < traces.size(); ++p) {
    const AnalysedTrace& trace = traces[p].trace;
    if (!trace.phases.fatal || !trace.ledger.has_segments) continue;
    const Event& event = trace.timeline.events[static_cast<std::size_t>(*trace.phases.fatal)];
    const AllocatorRules rules = AllocatorRules::From(trace.timeline.settings);
    const Failure failure{.process = p,
                          .at = *trace.phases.fatal,
                          .time_us = event.time_us,
                          .requested = event.size,
                          .segment = rules.SegmentFor(rules.Round(event.size)),
                          .free = static_cast<Bytes>(std::min(event.address, Address{1} << 50)),
                          .held = {}};
    // A limit of its own, or a budget, stopped it: the others are not in its way.
    const bool limited = failure.free >= failure.segment || trace.timeline.settings.budget;
    if (limited || (first && first->time_us <= failure.time_us)) continue;
    first = failure;
  }
  if (!first) return std::nullopt;
  first->room = first->free;
  for (std::size_t p = 0; p < traces.size(); ++p) {
    const AnalysedTrace& trace = traces[p].trace;
    const Position at = p == first->process ? first->at : PositionAt(trace, first->time_us);
    const Account account = AccountAt(trace.phases, trace.attribution, at);
    first->held.push_back({account.reserved, account.allocated, account.cached});
    first->room += account.reserved;
  }
  const Bytes least = first->held[first->process].reserved + first->segment;
  const Bytes earlier = MostInEarlierTurns(traces[first->process], card, *first);
  first->known_from_earlier_turn = earlier >= least;
  first->needs = std::max(least, earlier);
  return first;
}

std::vector<Finding> FindNeighbours(const std::vector<CardTrace>& traces, const CardReport& card,
                                    const std::optional<Failure>& failure) {
  const CardEvidence evidence{traces, card};
  if (!failure) return KeptForNothing(evidence);
  if (!Notable(ReservedByOthers(*failure), failure->room)) return {};
  const std::size_t keeps_cache = Culprit(*failure, true);
  const Bytes cached = failure->held[keeps_cache].cached;
  const bool by_cache = keeps_cache != failure->process && cached >= kWorthAWord &&
                        (cached >= Missing(*failure) || Notable(cached, failure->room));
  if (by_cache) return {KeptCache(evidence, *failure, keeps_cache)};
  return {KeptTensors(evidence, *failure, Culprit(*failure, false))};
}

}  // namespace plimsoll
