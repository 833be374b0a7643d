// What is made of a recording for people: the answer in every form, the page and the exports.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <optional>

#include "answer/invariants.h"
#include "diagnose/explain.h"
#include "diagnose/recorded_history.h"
#include "fuzz.h"
#include "report/exports/exports.h"
#include "report/history_pack.h"
#include "report/json.h"
#include "report/page.h"
#include "report/text.h"

namespace plimsoll {

/// Nothing where the recording holds nothing about memory.
inline std::optional<Explanation> ExplainAndPrint(const Recording& recording) {
  const Result<Explanation> part = ExplainRecording(recording, ExplainOptions{});
  if (!part) {
    CheckError(part.error());
    return std::nullopt;
  }
  for (const std::string& broken : BrokenInvariants(*part)) {
    std::fprintf(stderr, "broken: %s\n", broken.c_str());
    std::abort();
  }
  // Twice the same rank: what joins files is tried too.
  const Explanation whole = Join({*part, *part});
  PLIMSOLL_CHECK(!ExplanationJson(whole).empty());
  PLIMSOLL_CHECK(!ExplanationText(whole, TextStyle{.colour = true}).empty());
  PLIMSOLL_CHECK(!ExplanationText(*part, TextStyle{}).empty());
  return *part;
}

inline void Draw(const Recording& recording) {
  PageContent page{.title = recording.file};
  for (const Timeline& timeline : recording.timelines) {
    const History history = RecordedHistory(AnalysedTrace(timeline));
    const ExportedRun run{.history = &history};
    PLIMSOLL_CHECK(!PerfettoJson({run}).empty());
    PLIMSOLL_CHECK(!SpeedscopeJson(run, static_cast<Position>(history.times.size() / 2)).empty());
    PLIMSOLL_CHECK(!HistoryCsv(run).empty());
    page.runs.push_back(
        {.file = recording.file, .device = timeline.device, .history = PackHistory(history)});
  }
  PLIMSOLL_CHECK(!PageHtml(page).empty());
}

}  // namespace plimsoll
