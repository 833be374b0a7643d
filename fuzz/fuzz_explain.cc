// The whole way of a file: whichever reader recognises it, the explanation, every report and
// export.
#include <cstdio>
#include <cstdlib>

#include "answer/invariants.h"
#include "diagnose/explain.h"
#include "diagnose/recorded_history.h"
#include "fuzz.h"
#include "readers/registry.h"
#include "report/exports.h"
#include "report/history_pack.h"
#include "report/json.h"
#include "report/page.h"
#include "report/text.h"
#include "timeline/redact.h"

namespace plimsoll {
namespace {

void Explain(const Recording& recording) {
  CheckRecording(recording);
  Result<Explanation> part = ExplainRecording(recording, ExplainOptions{});
  if (!part) return CheckError(part.error());
  for (const std::string& broken : BrokenInvariants(*part)) {
    std::fprintf(stderr, "broken: %s\n", broken.c_str());
    std::abort();
  }
  // Twice the same rank: what joins files is tried too.
  const Explanation whole = Join({*part, *part});
  PLIMSOLL_CHECK(!ExplanationJson(whole).empty());
  PLIMSOLL_CHECK(!ExplanationText(whole, TextStyle{.colour = true}).empty());
  PLIMSOLL_CHECK(!ExplanationText(*part, TextStyle{}).empty());
}

void Draw(const Recording& recording) {
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

}  // namespace
}  // namespace plimsoll

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace plimsoll;
  const Result<Input> input =
      Input::FromMemory("fuzz", std::string(reinterpret_cast<const char*>(data), size));
  if (!input) {
    CheckError(input.error());
    return 0;
  }
  Result<Recording> recording = Read(*input);
  if (!recording) {
    CheckError(recording.error());
    return 0;
  }
  Explain(*recording);
  Draw(*recording);
  RedactFileNames(*recording, 7);
  Explain(*recording);
  return 0;
}
