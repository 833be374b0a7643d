// A record of the host's memory: whatever is read becomes an answer that holds together, beside
// texts that name any of its processes.
#include "readers/host_record/host_record.h"

#include <cstdio>
#include <cstdlib>

#include "answer/invariants.h"
#include "diagnose/host/host_study.h"
#include "fuzz.h"
#include "report/json.h"
#include "report/text.h"

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace plimsoll;
  const Result<Input> input =
      Input::FromMemory("fuzz", std::string(reinterpret_cast<const char*>(data), size));
  if (!input) {
    CheckError(input.error());
    return 0;
  }
  const Result<HostRecord> record = ReadHostRecord(*input);
  if (!record) {
    CheckError(record.error());
    return 0;
  }
  std::vector<ReportedEnd> reported;
  for (const bool with_texts : {false, true}) {
    if (with_texts && !record->processes.empty()) {
      const std::int64_t pid = record->processes[size % record->processes.size()].pid;
      for (const HostEvent event : {HostEvent::kWorkerLost, HostEvent::kSharedMemory,
                                    HostEvent::kWorkerKilled, HostEvent::kCgroupKill}) {
        reported.push_back({.event = event, .pid = pid});
      }
    }
    Explanation explanation;
    AddHost(StudyHost(*record, reported), explanation);
    for (const std::string& broken : BrokenInvariants(explanation)) {
      std::fprintf(stderr, "broken: %s\n", broken.c_str());
      std::abort();
    }
    PLIMSOLL_CHECK(!ExplanationJson(explanation).empty());
    PLIMSOLL_CHECK(!ExplanationText(explanation, TextStyle{}).empty());
  }
  return 0;
}
