// A log that tells memory: whatever is read becomes an answer that holds together.
#include "fuzz_answers.h"
#include "readers/error_text/error_text.h"

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace plimsoll;
  return FuzzWith(ReadErrorText, data, size, [](Recording& recording) {
    TakeOutImpossible(recording);
    ExplainAndPrint(recording);
  });
}
