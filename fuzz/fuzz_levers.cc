// A step file that is trained otherwise: the first line has settings as `predict --set` takes them,
// with blanks between them; the rest is the file. A choice is refused in one line, or what must
// hold of every prediction holds.
#include "fuzz.h"
#include "job/answer/predict.h"
#include "job/answer/prediction_invariants.h"
#include "job/file/at_length.h"
#include "job/file/step_file.h"
#include "plan/lever.h"

namespace plimsoll {
namespace {

/// What cannot be read is left out, so that the others are tried.
Choice ChoiceFrom(std::string_view line) {
  Choice choice;
  while (!line.empty()) {
    const std::string_view setting = line.substr(0, line.find(' '));
    line.remove_prefix(std::min(line.size(), setting.size() + 1));
    if (const std::optional<Error> error = ReadSetting(setting, choice)) CheckError(*error);
  }
  return choice;
}

void PredictWith(const Job& captured, const Choice& choice) {
  // What many micro-batches do, a few do too.
  if (MicroBatchesOf(captured, choice) > 4) return;
  const Result<std::size_t> chosen = VariantFor(captured, choice);
  if (!chosen) return CheckError(chosen.error());
  Job job = CopyOf(captured, *chosen);
  PredictOptions options{.steps = 4};
  std::optional<Error> error = Rewrite(job, choice);
  if (!error) error = Configure(options, choice);
  if (error) return CheckError(*error);
  for (const std::int64_t batch : {std::int64_t{5}, std::int64_t{1} << 24}) {
    options.batch = batch;
    const Result<Prediction> prediction = Predict(job, *FindGpu("2GiB"), options);
    if (!prediction) return CheckError(prediction.error());
    const std::vector<std::string> broken = BrokenInvariants(*prediction);
    for (const std::string& text : broken) std::fprintf(stderr, "%s\n", text.c_str());
    PLIMSOLL_CHECK(broken.empty());
  }
}

}  // namespace
}  // namespace plimsoll

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace plimsoll;
  const std::string_view all(reinterpret_cast<const char*>(data), size);
  const std::string_view line = all.substr(0, all.find('\n'));
  const Choice choice = ChoiceFrom(line);
  const std::size_t file = std::min(size, line.size() + 1);
  return FuzzWith(ReadJob, data + file, size - file, [&](Job& job) {
    if (HasLength(job)) return PredictWith(AtLength(job, 7).job, choice);
    PredictWith(job, choice);
  });
}
