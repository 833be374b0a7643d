#include "diagnose/analysed_trace.h"

namespace plimsoll {

const Verification& AnalysedTrace::verified() const {
  std::call_once(verified_once_, [this] { verified_ = Verify(timeline, ledger, {}); });
  return *verified_;
}

AnalysedRecording::AnalysedRecording(const Recording& read) : recording(read) {
  for (const Timeline& timeline : recording.timelines) {
    traces.push_back(std::make_unique<const AnalysedTrace>(timeline));
  }
}

}  // namespace plimsoll
