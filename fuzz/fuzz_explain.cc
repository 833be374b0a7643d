// The whole way of a file: whichever reader recognises it, the explanation, and both reports.
#include "diagnose/explain.h"
#include "fuzz.h"
#include "readers/registry.h"
#include "report/json.h"
#include "report/text.h"

namespace plimsoll {
namespace {

void Explain(const Recording& recording) {
  CheckRecording(recording);
  Result<Explanation> part = ExplainRecording(recording, ExplainOptions{});
  if (!part) return CheckError(part.error());
  // Twice the same rank: what joins files is tried too.
  const Explanation whole = Join({*part, *part});
  PLIMSOLL_CHECK(!ExplanationJson(whole).empty());
  PLIMSOLL_CHECK(!ExplanationText(whole, TextStyle{.colour = true}).empty());
  PLIMSOLL_CHECK(!ExplanationText(*part, TextStyle{}).empty());
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
  const Result<Recording> recording = Read(*input);
  if (!recording) {
    CheckError(recording.error());
  } else {
    Explain(*recording);
  }
  return 0;
}
