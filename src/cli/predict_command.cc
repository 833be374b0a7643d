#include <algorithm>
#include <memory>
#include <optional>

#include "cli/command/command.h"
#include "cli/command/shared_flags.h"
#include "cli/next_steps.h"
#include "cli/predict_flags.h"
#include "cli/prices.h"
#include "cli/recorded_job.h"
#include "cli/terminal/terminal.h"
#include "files/output.h"
#include "job/answer/predicted_history.h"
#include "job/answer/predicted_snapshot.h"
#include "job/answer/question.h"
#include "job/answer/verdict.h"
#include "job/file/at_length.h"
#include "launch/script_capture.h"
#include "plan/lever.h"
#include "report/cards.h"
#include "report/predict.h"
#include "report/predict_page.h"

namespace plimsoll {
namespace {

/// The run that was predicted, for whatever reads PyTorch's snapshots.
int WriteSnapshot(const std::string& path, const Trial& trial) {
  FileWriter file(path);
  WritePredictedSnapshot(trial, [&](std::string_view bytes) { file.Write(bytes); });
  if (const std::optional<Error> error = file.Commit()) return Complain(*error);
  return kFine;
}

std::vector<NextStep> NextOf(const PredictFlags& flags, const Question& question,
                             const Prediction& prediction) {
  const Job& job = question.job.first();
  // No batch and no plan gives the host more.
  if (!prediction.FitsHost()) return {};
  // Nor can a plan vary the batches of a job as it stands.
  if (!job.sequence.empty()) return {};
  const bool serves = !prediction.trains;
  StepQuestion asked{.files = flags.files,
                     .script = flags.script,
                     .batches = flags.batches,
                     .points = PointsText(flags.points),
                     .record = job.file,
                     .sequence = flags.script.sequence,
                     .gpu = question.card.gpu,
                     .limit = flags.limit,
                     .torch = flags.torch ? flags.torch->ToText() : ""};
  const Choice chosen = flags.Chosen();
  for (const auto& [lever, value] : chosen.set) {
    asked.levers.push_back(lever + "=" + value.text());
  }
  if (flags.calibration) asked.more = {"--calibration", *flags.calibration};
  // What comes next is about the length that was found.
  if (flags.max_length || flags.max_tokens) asked.script.length = prediction.length;
  const PredictOutcome outcome{.fits = prediction.trial.fits,
                               .surely = prediction.trial.surely_fits,
                               .grows = prediction.growth && prediction.growth->EndsTheJob(),
                               .largest = question.largest || (flags.max_tokens && !flags.batch),
                               .longest = flags.max_length,
                               .one_batch = OnlyBatch(job).has_value(),
                               .batch = prediction.batch,
                               .samples = prediction.batch * prediction.passes,
                               .ranks = RanksOf(chosen),
                               .own_batch = job.own_batch};
  std::vector<NextStep> next = AfterPredict(asked, outcome);
  // What trains nothing cannot be planned.
  if (serves) {
    std::erase_if(next,
                  [](const NextStep& step) { return step.command.starts_with("plimsoll plan"); });
  }
  return next;
}

int ExitCode(const PredictFlags& flags, FitDecision decision) {
  if (decision == FitDecision::kDoesNotFit) return kNo;
  return decision == FitDecision::kFits || flags.allow_unknown ? kFine : kUnknownAnswer;
}

/// The same question for every card of the catalogue.
int PredictForCards(const PredictFlags& flags, const Question& question,
                    const AnswerProgress& progress) {
  const Result<std::vector<Card>> cards = ReadCards(flags);
  if (!cards) return Complain(cards.error());
  const Result<CardsFound> found = AnswerForCards(question, *cards, progress);
  if (!found) return Complain(found.error());
  const CardsAnswer answer{.batch = found->batch,
                           .cards = Priced(found->cards, flags.prices),
                           .not_followed = found->not_followed,
                           .left_out = found->left_out,
                           .notes = question.job.first().notes};
  const int printed = Print(flags.json ? CardsJson(answer) : CardsText(answer, StyleOfStdout()));
  if (printed != kFine) return printed;
  const auto any = [&](FitDecision decision) {
    return std::ranges::find(found->cards, decision, &CardNeeds::decision) != found->cards.end();
  };
  if (any(FitDecision::kFits)) return kFine;
  return ExitCode(flags,
                  any(FitDecision::kUnknown) ? FitDecision::kUnknown : FitDecision::kDoesNotFit);
}

int PrintEvents(const Question& question, const AnswerProgress& progress) {
  const Result<Trial> trial = TrialOf(question, progress);
  if (!trial) return Complain(trial.error());
  const Setting& setting = trial->setting();
  if (!trial->lowered().workload.repeats.empty()) {
    Remark("each step has further micro-batches, which do what the last one here does");
  }
  return Print(LoweredCsv(*setting.job, setting.variant(), trial->lowered()));
}

/// On the screen and into the files that are asked for.
int Show(const PredictFlags& flags, const Question& question, const Answer& answer) {
  const int printed = flags.json ? Print(PredictJson(answer))
                                 : PrintWithNext(PredictText(answer, StyleOfStdout()),
                                                 NextOf(flags, question, answer.prediction));
  if (printed != kFine) return printed;
  if (flags.html) {
    const PageContent page = PredictionPage(answer, PredictedHistory(*answer.trial));
    const int written = WriteOut(*flags.html, PageHtml(page));
    if (written != kFine) return written;
  }
  if (flags.snapshot) {
    const int written = WriteSnapshot(*flags.snapshot, *answer.trial);
    if (written != kFine) return written;
  }
  return ExitCode(flags, VerdictOf(answer.prediction).decision);
}

int RunPredict(const PredictFlags& flags) {
  if (AsksForNames(flags.files)) {
    const std::optional<Error> error = ListModels();
    return error ? Complain(*error) : kFine;
  }
  Progress line(flags.script.run ? "running the script on tensors without memory" : "reading");
  const AnswerProgress progress{
      .next = [&](const std::string& what, std::size_t pieces) { line.Next(what, pieces); },
      .advance = [&] { line.Advance(); }};
  const Result<Question> question = ReadQuestion(flags);
  if (!question) return Complain(question.error());
  if (flags.any_gpu) return PredictForCards(flags, *question, progress);
  if (flags.events) return PrintEvents(*question, progress);
  const Result<Answer> answer = AnswerQuestion(*question, progress);
  if (!answer) return Complain(answer.error());
  return Show(flags, *question, *answer);
}

}  // namespace

Command AddPredict(Flags& declare) {
  auto flags = std::make_shared<PredictFlags>();
  flags->AddTo(declare);
  declare.Examples(
      "  plimsoll predict gpt2.step.json.gz --batch 8 --gpu RTX4090   does it fit on that card?\n"
      "  plimsoll predict gpt2.step.json.gz --max-batch --gpu 22GiB   the largest batch that does\n"
      "  plimsoll predict gpt2.step.json.gz --batch 8 --max-length --gpu H100   the longest\n"
      "  plimsoll predict b8.pickle b16.pickle --batches 8,16 --batch 32 --gpu H100\n"
      "  plimsoll predict a.pickle b.pickle c.pickle --points 2x256,4x256,2x512 --batch 8 --length "
      "1024\n"
      "  plimsoll predict gpt2.step.json.gz --batch 8 --gpu H100 --html gpt2.html   as a page too\n"
      "  plimsoll predict --run --batch 32 --gpu 4090 -- python train.py --batch-size {batch}   "
      "your script, "
      "unedited\n"
      "  plimsoll predict --run --batch 8 --length 8192 --gpu H100 -- python train.py -b {batch} "
      "-l {length}\n"
      "  plimsoll predict hf:llama-3.1-8b --lora 16 --length 4096 --gpu 4090   a model by its "
      "name\n"
      "  plimsoll predict hf:llama-3.1-8b --lora 16 --batch 1 --max-length --gpu 4090   the "
      "longest\n"
      "  plimsoll predict hf:qwen3-8b --qlora 16 --length 2048 --batch 4 --gpu any   which card?\n"
      "  plimsoll predict hf:config.json --seq 2048 --gpu L4   a model by its configuration\n"
      "Exit code 1: it does not fit; 3: unknown.");
  return [flags] { return RunPredict(*flags); };
}

Command AddData(Flags& declare) {
  auto flags = std::make_shared<PredictFlags>();
  flags->script.run = true;
  flags->script.data = true;
  declare.CommandLine("COMMAND", flags->script.command, "the training script as you type it");
  AddGpuFlag(declare, flags->gpu,
             "the card: a name that `plimsoll gpus` lists, or its memory (22GiB); an H200 unless "
             "given");
  declare.Seconds("--seconds", flags->script.data_seconds,
                  "of the processor, to look through the data (50)");
  AddRoomFlag(declare, "--limit", flags->limit,
              "what set_per_process_memory_fraction will allow (20GiB)");
  AddTorchFlag(declare, flags->torch, "the release that will train (2.11)");
  declare.Text("--keep-step", "FILE", flags->script.keep,
               "keep what was captured under this name, for `plimsoll predict`");
  declare.Switch("--json", flags->json, "one JSON document (docs/json.md)");
  AddAllowUnknown(declare, flags->allow_unknown);
  declare.Examples(
      "  plimsoll data --gpu 4090 -- python train.py --batch-size 32   the heaviest batch of an "
      "epoch,\n"
      "      what changing sizes leave reserved, and what sorting or packing would save\n"
      "Exit code 1: it does not fit; 3: unknown.");
  return [flags] { return RunPredict(*flags); };
}

}  // namespace plimsoll
