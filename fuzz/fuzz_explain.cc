// The whole way of a file: whichever reader recognises it, the explanation, every report and
// export.
#include "fuzz.h"
#include "fuzz_answers.h"
#include "readers/registry.h"
#include "timeline/redact.h"

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace plimsoll;
  const auto read = [](const Input& input) { return Read(input); };
  return FuzzWith(read, data, size, [](Recording& recording) {
    CheckRecording(recording);
    ExplainAndPrint(recording);
    Draw(recording);
    RedactFileNames(recording, 7);
    CheckRecording(recording);
    ExplainAndPrint(recording);
  });
}
