#include <algorithm>
#include <charconv>
#include <memory>
#include <optional>

#include "cli/command.h"
#include "cli/next_steps.h"
#include "cli/predict_flags.h"
#include "cli/terminal.h"
#include "plan/lever.h"
#include "report/predict.h"
#include "report/predict_page.h"
#include "step/earlier_frees.h"
#include "step/max_batch.h"
#include "step/predicted_history.h"
#include "step/trade_offs.h"

namespace plimsoll {
namespace {

int PrintEvents(const PredictJob& job) {
  const Result<const Variant*> variant = ChooseVariant(job.step, job.options);
  if (!variant) return Complain(variant.error());
  return Print(LoweredCsv(job.step, **variant,
                          Lower(job.step, **variant, job.gpu,
                                {.batch = job.options.batch,
                                 .steps = job.options.steps,
                                 .torch = TorchFor(job.step, job.options),
                                 .calibration = job.options.calibration})));
}

/// The same answer as a page, with the run that was predicted and the ways around it.
int WritePage(const std::string& path, const PredictJob& job, const PredictAnswer& answer) {
  const Result<History> history = PredictedHistory(job.step, job.gpu, job.options);
  if (!history) return Complain(history.error());
  Progress progress("predicting other batches and precisions");
  const Result<std::vector<TradeOff>> trade_offs =
      TradeOffs(job.step, job.gpu, job.options, [&](std::size_t done, std::size_t all) {
        if (done == 1) progress.Next("predicting other batches and precisions", all);
        progress.Advance();
      });
  if (!trade_offs) return Complain(trade_offs.error());
  return WriteOut(path, PageHtml(PredictionPage(answer, *history, *trade_offs)));
}

/// The first number of "fsdp:4:keep", which is how many GPUs share the job; 0 where none is told.
std::int64_t RanksIn(std::string_view parallel) {
  if (parallel.empty()) return 1;
  std::int64_t ranks = 0;
  const std::size_t colon = parallel.find(':');
  if (colon == parallel.npos || parallel.starts_with("pipeline")) return 0;
  std::from_chars(parallel.data() + colon + 1, parallel.data() + parallel.size(), ranks);
  return ranks;
}

std::vector<NextStep> NextOf(const PredictFlags& flags, const PredictJob& job,
                             const Prediction& prediction) {
  StepQuestion asked{.files = flags.files,
                     .script = flags.script,
                     .batches = flags.batches,
                     .sequence = flags.script.sequence,
                     .gpu = job.gpu,
                     .limit = flags.limit,
                     .torch = flags.torch ? flags.torch->ToText() : ""};
  for (const auto& [lever, value] : flags.Chosen().set) asked.levers.push_back(lever + "=" + value);
  if (flags.calibration) asked.more = {"--calibration", *flags.calibration};
  const PredictOutcome outcome{.fits = prediction.fits,
                               .largest = flags.FindsLargest(),
                               .batch = prediction.batch,
                               .samples = prediction.batch * prediction.passes,
                               .ranks = RanksIn(flags.Chosen().Get(kParallelLever.name))};
  return AfterPredict(asked, outcome);
}

int RunPredict(const PredictFlags& flags) {
  Progress progress(flags.script.run ? "running the script on tensors without memory" : "reading");
  const Result<std::unique_ptr<PredictJob>> read = ReadPredictJob(flags);
  if (!read) return Complain(read.error());
  PredictJob& job = **read;
  std::optional<MaxBatch> max_batch;
  if (flags.FindsLargest()) {
    progress.Next("finding the largest batch");
    const Result<MaxBatch> found = FindMaxBatch(job.step, job.gpu, job.options);
    if (!found) return Complain(found.error());
    max_batch = *found;
    if (!flags.batch) job.options.batch = std::max<std::int64_t>(1, found->Answer());
  }
  if (flags.events) return PrintEvents(job);
  progress.Next("predicting");
  const Result<Prediction> prediction = Predict(job.step, job.gpu, job.options);
  if (!prediction) return Complain(prediction.error());
  const Result<std::optional<EarlierFrees>> earlier_frees =
      FindEarlierFrees(job.step, job.gpu, job.options);
  if (!earlier_frees) return Complain(earlier_frees.error());
  const PredictAnswer answer{*prediction, max_batch, *earlier_frees};
  const int printed = flags.json ? Print(PredictJson(answer))
                                 : PrintWithNext(PredictText(answer, StyleOfStdout()),
                                                 NextOf(flags, job, *prediction));
  if (printed != kFine) return printed;
  if (flags.html) {
    const int written = WritePage(*flags.html, job, answer);
    if (written != kFine) return written;
  }
  return prediction->fits ? kFine : kNo;
}

}  // namespace

Command AddPredict(Flags& declare) {
  auto flags = std::make_shared<PredictFlags>();
  flags->AddTo(declare);
  declare.Examples(
      "  plimsoll predict gpt2.step.json.gz --batch 8 --gpu RTX4090   does it fit on that card?\n"
      "  plimsoll predict gpt2.step.json.gz --max-batch --gpu 22GiB   the largest batch that does\n"
      "  plimsoll predict b8.pickle b16.pickle --batches 8,16 --batch 32 --gpu H100\n"
      "  plimsoll predict gpt2.step.json.gz --batch 8 --gpu H100 --html gpt2.html   as a page too\n"
      "  plimsoll predict --run --batch 32 --gpu 4090 -- python train.py --batch-size {batch}   "
      "your script, "
      "unedited\n"
      "  plimsoll predict hf:config.json --seq 2048 --gpu L4   a model by its configuration\n"
      "Exit code 1: it does not fit.");
  return [flags] { return RunPredict(*flags); };
}

}  // namespace plimsoll
