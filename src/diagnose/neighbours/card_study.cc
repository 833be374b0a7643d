#include "diagnose/neighbours/card_study.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "base/text.h"
#include "diagnose/neighbours/find_neighbours.h"
#include "diagnose/neighbours/turns.h"

namespace plimsoll {
namespace {

/// Each is a pass over every record.
constexpr std::size_t kMostHandOvers = 48;

Bytes SumOfHeld(const std::vector<Bytes>& held) {
  return std::accumulate(held.begin(), held.end(), Bytes{0});
}

/// The most that all held together: at all, and in each turn. A turn lasts until the next begins.
void AddPeaks(const std::vector<HeldCurve>& curves, CardReport& card) {
  std::vector<Bytes> before;
  for (const HeldCurve& curve : curves) before.push_back(curve.initial);
  card.held_at_peak = before;
  card.peak = SumOfHeld(before);
  card.peak_at = card.began;
  std::size_t turn = 0;
  const auto note = [&](const std::vector<Bytes>& held) {
    if (turn >= card.turns.size()) return;
    Turn& now = card.turns[turn];
    if (!now.held.empty() && SumOfHeld(held) <= now.peak) return;
    now.peak = SumOfHeld(held);
    now.held = held;
  };
  note(before);
  WalkTogether(curves, [&](TimeUs time, const std::vector<Bytes>& held) {
    while (turn + 1 < card.turns.size() && card.turns[turn + 1].time.begin <= time) {
      ++turn;
      note(before);
    }
    note(held);
    before = held;
    if (SumOfHeld(held) <= card.peak) return;
    card.peak = SumOfHeld(held);
    card.peak_at = time;
    card.held_at_peak = held;
  });
  while (++turn < card.turns.size()) note(before);
}

CardReport Describe(const std::vector<CardTrace>& traces, const CardFacts& facts) {
  CardReport card;
  card.device = facts.device;
  card.known_by = facts.known_by;
  card.capacity = facts.capacity;
  std::vector<HeldCurve> curves;
  for (const CardTrace& t : traces) {
    card.processes.push_back(t.process);
    curves.push_back(CurveOf(t.trace));
    const TimeUs first = t.trace.timeline.events.front().time_us;
    card.began = card.began == 0 ? first : std::min(card.began, first);
  }
  card.turns = TurnsOf(traces);
  card.at_once = card.turns.empty();
  AddPeaks(curves, card);
  card.hand_overs = HandOversOf(card.turns);
  if (card.hand_overs.size() > kMostHandOvers) {
    card.earlier_hand_overs = card.hand_overs.size() - kMostHandOvers;
    card.hand_overs.erase(card.hand_overs.begin(),
                          card.hand_overs.end() - static_cast<std::ptrdiff_t>(kMostHandOvers));
  }
  for (HandOver& h : card.hand_overs) AddDetails(traces, h);
  return card;
}

/// What cannot be on one card.
std::string ContradictionIn(const CardReport& card) {
  if (!card.capacity || card.peak <= *card.capacity) return "";
  return fmt::format(
      "the records are not taken for processes of one card: together they held {}, and the card "
      "has "
      "{}",
      FormatBytes(card.peak), FormatBytes(*card.capacity));
}

/// The driver counts what each process has; where that agrees, it is proof.
void AddProof(const CardFacts& facts, const std::optional<Failure>& failure, CardReport& card) {
  if (!failure || !facts.others) return;
  // A context takes so much besides.
  constexpr Bytes kContext = 3584 * kMiB;
  Bytes others = 0;
  for (std::size_t p = 0; p < card.processes.size(); ++p) {
    if (p != failure->process) others += failure->held[p].reserved;
  }
  const Bytes more = *facts.others - others;
  if (more < 0 || more > kContext * static_cast<Bytes>(card.processes.size() - 1)) return;
  card.known_by += fmt::format(
      "; and the error text counts {} for other processes, which is the {} of these and {} outside "
      "PyTorch",
      FormatBytes(*facts.others), FormatBytes(others), FormatBytes(more));
}

}  // namespace

CardStudy StudyCard(const std::vector<CardTrace>& traces, const CardFacts& facts) {
  CardStudy study{.report = Describe(traces, facts)};
  study.contradiction = ContradictionIn(study.report);
  if (!study.contradiction.empty()) return study;
  const std::optional<Failure> failure = FindFailure(traces, study.report);
  if (failure) study.report.room = failure->room;
  AddProof(facts, failure, study.report);
  study.findings = FindNeighbours(traces, study.report, failure);
  return study;
}

std::string CardVerdict(const CardReport& card) {
  const std::size_t count = card.processes.size();
  const std::string both = count == 2 ? "both" : fmt::format("the {}", count);
  std::vector<std::string> names;
  for (const CardProcess& p : card.processes) names.push_back(p.name);
  std::string text =
      fmt::format("Device {} is shared by {}. ", card.device, Joined(names, " and "));
  const std::size_t hand_overs = card.hand_overs.size() + card.earlier_hand_overs;
  const Bytes kept = card.MostKept();
  if (card.at_once) {
    text += "They work at the same time. ";
  } else if (hand_overs == 0) {
    text += "There is no hand-over in the records. ";
  } else if (kept == 0) {
    text += fmt::format("Everything that can be given back was given back at {} hand-over{}. ",
                        hand_overs == 1 ? "the one" : fmt::format("each of the {}", hand_overs),
                        hand_overs == 1 ? "" : "s");
  } else {
    text += fmt::format("At {} hand-over{}, up to {} was kept that no tensor used. ", hand_overs,
                        hand_overs == 1 ? "" : "s", FormatBytes(kept));
  }
  text += fmt::format("Together {} held {} at most", both, FormatBytes(card.peak));
  if (card.capacity) {
    text += fmt::format(" of the card's {}", FormatBytes(*card.capacity));
  }
  return text + ".";
}

}  // namespace plimsoll
