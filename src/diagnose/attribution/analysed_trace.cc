#include "diagnose/attribution/analysed_trace.h"

namespace plimsoll {

const Verification& AnalysedTrace::verified() const {
  std::call_once(verified_once_, [this] {
    verified_ = Verify(timeline, ledger, {.limit = timeline.settings.budget});
  });
  return *verified_;
}

AnalysedRecording AnalyseRecording(const Recording& recording) {
  AnalysedRecording analysed{.recording = recording, .traces = {}};
  for (const Timeline& timeline : recording.timelines) {
    analysed.traces.push_back(std::make_unique<const AnalysedTrace>(timeline));
  }
  return analysed;
}

}  // namespace plimsoll
