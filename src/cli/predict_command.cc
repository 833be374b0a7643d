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
#include "job/answer/cards.h"
#include "job/answer/earlier_frees.h"
#include "job/answer/lengths.h"
#include "job/answer/max_batch.h"
#include "job/answer/predicted_history.h"
#include "job/answer/predicted_snapshot.h"
#include "job/answer/trade_offs.h"
#include "job/file/at_length.h"
#include "launch/script_capture.h"
#include "plan/lever.h"
#include "report/cards.h"
#include "report/predict.h"
#include "report/predict_page.h"

namespace plimsoll {
namespace {

/// The same answer as a page, with the run that was predicted and the ways around it.
int WritePage(const std::string& path, const PredictRequest& request, const Trial& trial,
              const PredictAnswer& answer) {
  Progress progress("predicting other batches and precisions");
  const Result<TradeOffTable> trade_offs =
      TradeOffs(request.job, request.gpu, request.options, [&](std::size_t done, std::size_t all) {
        if (done == 1) progress.Next("predicting other batches and precisions", all);
        progress.Advance();
      });
  if (!trade_offs) return Complain(trade_offs.error());
  return WriteOut(path, PageHtml(PredictionPage(answer, PredictedHistory(trial), *trade_offs)));
}

/// The run that was predicted, for whatever reads PyTorch's snapshots.
int WriteSnapshot(const std::string& path, const Trial& trial) {
  FileWriter file(path);
  WritePredictedSnapshot(trial, [&](std::string_view bytes) { file.Write(bytes); });
  if (const std::optional<Error> error = file.Commit()) return Complain(*error);
  return kFine;
}

/// Whether the largest batch is looked for; where one alone is known, there is none.
bool FindsLargest(const PredictFlags& flags, const PredictRequest& request) {
  return flags.FindsLargest() && !OnlyBatch(*request.job);
}

/// The trial that is asked for; with --max-batch that of the largest batch, and where nobody says,
/// that of the script's own.
Result<Trial> TrialFor(const PredictFlags& flags, PredictRequest& request,
                       std::optional<MaxBatch>& max_batch) {
  Result<Setting> setting = MakeSetting(request.job, request.gpu, request.options);
  if (!setting) return setting.error();
  // Batches of a job as it stands are what its data make them.
  if (FindsLargest(flags, request) && request.job->sequence.empty()) {
    max_batch = FindMaxBatch(*setting);
    const std::optional<std::int64_t>& own = request.job->own_batch;
    const std::int64_t largest = std::max<std::int64_t>(1, max_batch->Answer());
    if (!flags.batch) request.options.batch = flags.max_batch ? largest : own.value_or(largest);
  }
  return Trial::Of(setting->WithBatch(request.options.batch));
}

/// What each stage of a pipeline takes, of which the fullest is the one that is asked about.
Result<std::vector<RankNeeds>> NeedsOfStages(const PredictRequest& request) {
  std::vector<RankNeeds> needs;
  for (const std::shared_ptr<const Job>& job : request.stages) {
    Result<Setting> setting = MakeSetting(job, request.gpu, request.options);
    if (!setting) return setting.error();
    const Result<Trial> trial = Trial::Of(std::move(*setting));
    if (!trial) return trial.error();
    const TrialResult result = trial->Best();
    const auto stage = static_cast<std::int64_t>(needs.size());
    needs.push_back({.stage = static_cast<int>(stage),
                     .first = stage * request.ranks_of_a_stage,
                     .ranks = request.ranks_of_a_stage,
                     .allocated = result.needs.allocated.best,
                     .reserved = result.needs.reserved.best,
                     .device = result.needs.device.best,
                     .fits = result.fits});
  }
  const auto fullest = std::ranges::max_element(needs, {}, &RankNeeds::device);
  if (fullest != needs.end()) fullest->shown = true;
  return needs;
}

/// What was found over lengths.
struct OverLengths {
  std::optional<MaxLength> longest;
  std::optional<Frontier> frontier;
};

/// Looks for the longest, or for most tokens, and puts the request there. The page draws what fits
/// at several lengths, wherever the request is.
Result<OverLengths> SearchLengths(const PredictFlags& flags, PredictRequest& request) {
  OverLengths found;
  if (!request.captured) return found;
  const std::vector<std::int64_t> captured = CapturedLengths(*request.captured);
  const SettingAtLength at = [&](std::int64_t length) { return request.AtLength(length); };
  std::int64_t length = 0;
  if (flags.max_tokens || flags.html) {
    Result<Frontier> frontier = FindFrontier(at, captured, NameOfLength(*request.captured));
    if (!frontier) return frontier.error();
    found.frontier = std::move(*frontier);
  }
  const FrontierPoint* most = flags.GoesToMostTokens() ? found.frontier->Most() : nullptr;
  if (most) {
    length = most->length;
    if (!flags.batch) request.options.batch = most->sure.batch;
  }
  if (flags.max_length) {
    if (!flags.batch && !OnlyBatch(*request.job)) {
      request.options.batch = request.job->own_batch.value_or(1);
    }
    Result<MaxLength> longest = FindMaxLength(at, captured);
    if (!longest) return longest.error();
    found.longest = *longest;
    length = longest->sure > 0 ? longest->sure : std::max(longest->most, captured.front());
  }
  if (length > 0 && !flags.script.length && !flags.script.sequence) {
    Result<Setting> setting = request.AtLength(length);
    if (!setting) return setting.error();
    request.job = setting->job;
    // Those are at another length.
    request.stages.clear();
  }
  return found;
}

/// What is asked about, and what was found over its lengths.
struct Searched {
  PredictRequest request;
  OverLengths lengths;
};

/// The longest that was found of a model that is made anew, where it is beyond what was captured:
/// from some length on the model may do something else.
std::optional<std::int64_t> LongestBeyond(const PredictFlags& flags, const Searched& searched) {
  const std::optional<MaxLength>& found = searched.lengths.longest;
  if (!found || flags.script.run || !IsConfiguration(flags.files.front())) return std::nullopt;
  const std::int64_t longest = found->sure > 0 ? found->sure : found->most;
  const std::vector<std::int64_t> captured = CapturedLengths(*searched.request.captured);
  const bool within = longest >= captured.front() && longest <= captured.back();
  return within || longest == 0 ? std::nullopt : std::optional(longest);
}

/// Reads what the flags name and looks through its lengths; a model, if need be, captured again
/// around what was found.
Result<Searched> ReadAndSearch(const PredictFlags& flags, Progress& progress) {
  constexpr int kMostCaptures = 3;
  std::optional<std::int64_t> around;
  for (int captures = 1;; ++captures) {
    Result<PredictRequest> request = ReadPredictRequest(flags, around);
    if (!request) return request.error();
    if (request->captured && (flags.max_length || flags.max_tokens || flags.html)) {
      progress.Next("trying lengths");
    }
    Result<OverLengths> lengths = SearchLengths(flags, *request);
    if (!lengths) return lengths.error();
    Searched searched{.request = std::move(*request), .lengths = std::move(*lengths)};
    around = LongestBeyond(flags, searched);
    if (!around || captures == kMostCaptures) return searched;
    progress.Next("capturing it around what was found");
  }
}

std::vector<NextStep> NextOf(const PredictFlags& flags, const PredictRequest& request,
                             const Prediction& prediction) {
  // No batch and no plan gives the host more.
  if (!prediction.FitsHost()) return {};
  // Nor can a plan vary the batches of a job as it stands.
  if (!request.job->sequence.empty()) return {};
  const bool serves = !prediction.trains;
  StepQuestion asked{.files = flags.files,
                     .script = flags.script,
                     .batches = flags.batches,
                     .points = PointsText(flags.points),
                     .record = request.job->file,
                     .sequence = flags.script.sequence,
                     .gpu = request.gpu,
                     .limit = flags.limit,
                     .torch = flags.torch ? flags.torch->ToText() : ""};
  const Choice chosen = flags.Chosen();
  for (const auto& [lever, value] : chosen.set) {
    asked.levers.push_back(lever + "=" + value.text());
  }
  if (flags.calibration) asked.more = {"--calibration", *flags.calibration};
  // What comes next is about the length that was found.
  if (flags.max_length || flags.max_tokens) asked.script.length = request.job->length;
  const PredictOutcome outcome{
      .fits = prediction.trial.fits,
      .surely = prediction.trial.surely_fits,
      .grows = prediction.growth && prediction.growth->EndsTheJob(),
      .largest = FindsLargest(flags, request) || (flags.max_tokens && !flags.batch),
      .longest = flags.max_length,
      .one_batch = OnlyBatch(*request.job).has_value(),
      .batch = prediction.batch,
      .samples = prediction.batch * prediction.passes,
      .ranks = RanksOf(chosen),
      .own_batch = request.job->own_batch};
  std::vector<NextStep> next = AfterPredict(asked, outcome);
  // What trains nothing cannot be planned.
  if (serves) {
    std::erase_if(next,
                  [](const NextStep& step) { return step.command.starts_with("plimsoll plan"); });
  }
  return next;
}

/// Before a script is run for minutes.
Result<std::optional<ServedModel>> EngineOf(const PredictFlags& flags) {
  if (!flags.engine) return std::optional<ServedModel>();
  Result<ServedModel> model = ReadServedModel(*flags.engine);
  if (!model) return model.error();
  return std::optional<ServedModel>(std::move(*model));
}

/// The same question for every card of the catalogue.
int PredictForCards(const PredictFlags& flags, const PredictRequest& request, Progress& progress) {
  PredictOptions options = request.options;
  options.batch = flags.batch.value_or(request.job->own_batch.value_or(1));
  progress.Next("trying every card", Gpus().size());
  const Result<std::vector<CardNeeds>> cards =
      TryEveryCard(request.job, options, [&] { progress.Advance(); });
  if (!cards) return Complain(cards.error());
  const CardsAnswer answer{
      .batch = options.batch, .cards = Priced(*cards, flags.prices), .notes = request.job->notes};
  const int printed = Print(flags.json ? CardsJson(answer) : CardsText(answer, StyleOfStdout()));
  if (printed != kFine) return printed;
  const bool fits = std::ranges::any_of(*cards, &CardNeeds::fits);
  return fits ? kFine : kNo;
}

int RunPredict(const PredictFlags& flags) {
  if (AsksForNames(flags.files)) {
    const std::optional<Error> error = ListModels();
    return error ? Complain(*error) : kFine;
  }
  Progress progress(flags.script.run ? "running the script on tensors without memory" : "reading");
  Result<std::optional<ServedModel>> engine = EngineOf(flags);
  if (!engine) return Complain(engine.error());
  Result<Searched> searched = ReadAndSearch(flags, progress);
  if (!searched) return Complain(searched.error());
  PredictRequest* const request = &searched->request;
  const OverLengths* const lengths = &searched->lengths;
  if (flags.any_gpu) return PredictForCards(flags, *request, progress);
  progress.Next(FindsLargest(flags, *request) ? "finding the largest batch" : "predicting");
  std::optional<MaxBatch> max_batch;
  Result<Trial> trial = TrialFor(flags, *request, max_batch);
  if (!trial) return Complain(trial.error());
  Result<std::vector<RankNeeds>> ranks = NeedsOfStages(*request);
  if (!ranks) return Complain(ranks.error());
  // Which stage is the fullest was seen at the captured batch: at another it may be another.
  const auto fullest = std::ranges::find_if(*ranks, &RankNeeds::shown);
  if (fullest != ranks->end() && fullest->device > trial->Best().needs.device.best) {
    request->job = request->stages[static_cast<std::size_t>(fullest->stage)];
    trial = TrialFor(flags, *request, max_batch);
    if (!trial) return Complain(trial.error());
  }
  if (flags.events) {
    const Setting& setting = trial->setting();
    return Print(LoweredCsv(*setting.job, setting.variant(), trial->lowered()));
  }
  progress.Next("predicting");
  Prediction prediction = Predict(*trial);
  prediction.ranks = std::move(*ranks);
  PredictAnswer answer{prediction,
                       max_batch,
                       FindEarlierFrees(*trial),
                       flags.share || flags.engine,
                       std::move(*engine),
                       lengths->longest,
                       flags.max_tokens ? lengths->frontier : std::nullopt,
                       request->job->data,
                       FindCompiled(*request->job, request->gpu, request->options)};
  const int printed = flags.json ? Print(PredictJson(answer))
                                 : PrintWithNext(PredictText(answer, StyleOfStdout()),
                                                 NextOf(flags, *request, answer.prediction));
  if (printed != kFine) return printed;
  if (flags.html) {
    answer.frontier = lengths->frontier;
    const int written = WritePage(*flags.html, *request, *trial, answer);
    if (written != kFine) return written;
  }
  if (flags.snapshot) {
    const int written = WriteSnapshot(*flags.snapshot, *trial);
    if (written != kFine) return written;
  }
  return answer.prediction.Runs() ? kFine : kNo;
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
      "Exit code 1: it does not fit.");
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
  declare.Examples(
      "  plimsoll data --gpu 4090 -- python train.py --batch-size 32   the heaviest batch of an "
      "epoch,\n"
      "      what changing sizes leave reserved, and what sorting or packing would save\n"
      "Exit code 1: it does not fit.");
  return [flags] { return RunPredict(*flags); };
}

}  // namespace plimsoll
