#include "cli/next_steps.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <filesystem>

#include "cli/command/command_text.h"
#include "launch/logged_command.h"

namespace plimsoll {
namespace {

std::vector<std::string> WordsOf(const JobCommand& job) {
  return job.words.empty() ? std::vector<std::string>{"python", "train.py"} : job.words;
}

/// What the user has to add to a command of which not all is known.
std::string LeftToAdd(const JobCommand& job) {
  if (job.whole) return "";
  return job.words.empty() ? "; train.py stands for your script"
                           : "; add the arguments that it had";
}

/// In the place of the script that stands for the user's.
void PutScript(const std::string& script, std::string& line) {
  constexpr std::string_view kPlace = " train.py";
  const std::size_t at = line.find(kPlace);
  if (at != std::string::npos) line.replace(at + 1, kPlace.size() - 1, script);
}

JobCommand OfScript(const std::string& script) {
  return script.empty() ? JobCommand{} : JobCommand{.words = {"python", script}};
}

NextStep RunAgain(const JobCommand& job, const std::string& purpose,
                  const std::string& settings = {}) {
  const std::string command = CommandText("run").Plain("--").Words(WordsOf(job)).str();
  std::string before;
  for (const std::string& variable : job.variables) before += variable + " ";
  if (!settings.empty()) before += "PYTORCH_CUDA_ALLOC_CONF=" + Quoted(settings) + " ";
  return {before + command, purpose + LeftToAdd(job)};
}

/// Of the script itself, on tensors without memory. `card`: flags that say what there is room for.
NextStep FromScript(const char* command, const JobCommand& job,
                    const std::vector<std::string>& card, const std::string& purpose) {
  const BatchPlace place = WithBatchPlace(WordsOf(job));
  CommandText text(command);
  text.Flag("--run").Words(card);
  // What the job had is asked about first, and then what else there is room for.
  if (!place.batch.empty() && text.str().starts_with("plimsoll plan")) {
    text.Flag("--global-batch", place.batch);
  } else if (!place.batch.empty()) {
    text.Flag("--batch", place.batch).Flag("--max-batch");
  }
  text.Plain("--").Words(place.words);
  return {text.str(), purpose + (card.empty() ? "; --gpu names your card" : "")};
}

/// As logs print it, to two places: "39.39GiB".
std::string RoundedWord(Bytes bytes) {
  std::string size = FormatBytes(bytes);
  std::erase(size, ' ');
  return size;
}

/// As `command` is told of it: predict of a limit, plan of a budget.
std::vector<std::string> CardOf(const RankReport& rank, std::string_view command) {
  if (!rank.capacity) return {};
  std::vector<std::string> card = {"--gpu", RoundedWord(*rank.capacity)};
  if (rank.limit && *rank.limit < *rank.capacity) {
    card.insert(card.end(), {command == "plan" ? "--budget" : "--limit", RoundedWord(*rank.limit)});
  }
  for (const AccountLine& line : rank.account) {
    if (line.what == AccountItem::kOtherProcesses && line.bytes > 0) {
      card.insert(card.end(), {"--beside", RoundedWord(line.bytes)});
    }
  }
  return card;
}

/// What came through standard input cannot be named again.
bool IsGone(const std::vector<std::string>& files) {
  return std::ranges::find(files, "-") != files.end();
}

bool HasFinding(const Explanation& explanation, FindingId id, Severity least) {
  return std::ranges::any_of(explanation.findings, [&](const Finding& finding) {
    return finding.id == id && finding.severity <= least;
  });
}

NextStep ShowPage(const std::vector<std::string>& files) {
  return {CommandText("report").Words(files).Flag("-o", "report.html").str(),
          "a page that shows when each allocation was made and let go"};
}

NextStep TuneRecord(const std::string& file, const std::vector<std::string>& limits,
                    const std::string& purpose) {
  return {CommandText("tune").Word(file).Words(limits).str(), purpose};
}

std::vector<NextStep> AfterLog(const Explanation& explanation, const RankReport& shown,
                               const JobCommand& job) {
  if (!explanation.record_next.by_run) return {};
  std::vector<NextStep> steps = {
      RunAgain(job, "records every allocation with its line of code, and explains it")};
  if (explanation.record_next.trains) {
    steps.push_back(
        FromScript("predict", job, CardOf(shown, "predict"),
                   "whether it fits and the largest batch that does, found without a GPU"));
  }
  return steps;
}

/// The flags of predict and plan that say where the step comes from and what there is room for.
std::string Asked(const StepQuestion& asked, const char* command,
                  const std::vector<std::string>& more, std::string_view redirect = {}) {
  const bool plans = std::string_view(command) == "plan";
  const bool kept = asked.script.run && asked.script.keep;
  const bool runs = asked.script.run && !kept;
  CommandText text(command);
  if (runs) text.Flag("--run");
  if (kept) text.Word(*asked.script.keep);
  text.Words(asked.files);
  const bool sized = asked.batches && (runs || asked.files.size() == 2);
  if (sized) {
    text.Flag("--batches", fmt::format("{},{}", asked.batches->first, asked.batches->second));
  }
  if (!asked.points.empty()) text.Flag("--points", asked.points);
  if (asked.script.lengths) text.Flag("--lengths", *asked.script.lengths);
  if (asked.script.length) text.Flag("--length", fmt::format("{}", *asked.script.length));
  if (const std::string stated = AsText(asked.script.assume); !stated.empty() && !kept) {
    text.Flag("--assume", stated);
  }
  text.Words(asked.script.tuning.Words());
  if (asked.sequence) text.Flag("--seq", fmt::format("{}", *asked.sequence));
  text.Flag("--gpu", GpuWord(asked.gpu));
  if (asked.gpu.taken > 0) text.Flag("--beside", SizeWord(asked.gpu.taken));
  if (asked.limit) text.Flag(plans ? "--budget" : "--limit", SizeWord(*asked.limit));
  if (!asked.torch.empty()) text.Flag("--torch", asked.torch);
  text.Words(more);
  if (!redirect.empty()) text.Plain(redirect);
  if (runs) text.Plain("--").Words(asked.script.command);
  return text.str();
}

std::vector<std::string> Settings(const std::vector<std::string>& levers) {
  std::vector<std::string> words;
  for (const std::string& lever : levers) words.insert(words.end(), {"--set", lever});
  return words;
}

std::string CountWord(std::int64_t count) { return fmt::format("{}", count); }

/// What is asked of a plan alone.
std::vector<std::string> PlanWords(const PlanOutcome& outcome) {
  std::vector<std::string> words;
  if (outcome.gpus > outcome.nodes) {
    words.insert(words.end(), {"--gpus", CountWord(outcome.gpus / outcome.nodes)});
  }
  if (outcome.nodes > 1) words.insert(words.end(), {"--nodes", CountWord(outcome.nodes)});
  words.insert(words.end(), {"--global-batch", CountWord(outcome.samples)});
  if (outcome.keep_numerics) words.emplace_back("--keep-numerics");
  return words;
}

/// With the batch size in its place.
std::vector<std::string> AtBatchSize(std::vector<std::string> words, std::int64_t batch) {
  constexpr std::string_view kPlace = "{batch}";
  for (std::string& word : words) {
    const std::size_t place = word.find(kPlace);
    if (place != std::string::npos) word.replace(place, kPlace.size(), CountWord(batch));
  }
  return words;
}

bool Sets(const PlannedChange& way, std::string_view what) {
  return std::ranges::any_of(way.levers,
                             [&](const std::string& lever) { return lever.starts_with(what); });
}

/// The loop has to cut each batch: the script does not.
bool CutsBatches(const PlannedChange& first) { return first.passes > 1 && !first.own_accumulation; }

/// Whether plimsoll.apply sets any of it; the rest are edits of the script, or variables.
bool NeedsApply(const PlannedChange& first) {
  return !first.own_accumulation || std::ranges::any_of(first.levers, [](const std::string& lever) {
    return !lever.starts_with("accumulation=") && !lever.starts_with("evaluation=") &&
           !lever.starts_with("allocator=");
  });
}

/// Of the training loop, where plimsoll.apply alone cannot set it; empty where the loop stays.
std::vector<std::string> LinesOfLoop(const PlannedChange& first) {
  const bool cuts = CutsBatches(first);
  const bool scales = Sets(first, "precision=amp_fp16");
  const bool places = Sets(first, "precision=") && !cuts;
  if (!cuts && !places && !Sets(first, "offload=")) return {};
  std::vector<std::string> lines;
  if (cuts) lines.emplace_back("for x, y in applied.micro_batches((x, y)):");
  if (places) lines.emplace_back("x, y = applied.place((x, y))");
  const std::string indent = cuts ? "    " : "";
  lines.push_back(indent + "with applied.forward():");
  lines.push_back(indent + "    loss = criterion(model(x), y)");
  if (cuts || scales) {
    lines.push_back(indent + "loss = applied.backward(loss" + (first.scales ? ", scaler)" : ")"));
  }
  if (scales) {
    lines.push_back(first.before_step.empty() ? "applied.update()"
                                              : "applied.update(before_step=before_step)");
  }
  return lines;
}

/// How these lines go into the loop: nothing that the script does to gradients is lost.
std::string PurposeOfLoop(const PlannedChange& first) {
  const bool cuts = CutsBatches(first);
  const std::string used = fmt::format("{}", fmt::join(first.before_step, ", "));
  if (Sets(first, "precision=amp_fp16")) {
    std::string text =
        "in the loop, around your own forward, and in place of backward(), optimizer.step() and "
        "zero_grad()";
    if (!used.empty()) text += "; `before_step` is a function of yours that does " + used;
    return text;
  }
  if (!cuts) return "in the loop, around your own forward; the rest of the loop stays";
  return fmt::format(
      "in the loop, around your own forward, and in place of backward(). (x, y) are all {} samples "
      "of a step, still on the CPU: each micro-batch is moved by itself. loss becomes their mean. "
      "What follows stays, once a step: {}{}, zero_grad()",
      first.batch * first.passes, used.empty() ? "" : used + ", ",
      first.scales ? "scaler.step(optimizer)" : "optimizer.step()");
}

/// Sizes that can be cut into so many passes of two or more samples, where those of the question
/// cannot: a pass of one sample is often a case of its own.
std::optional<std::pair<std::int64_t, std::int64_t>> CutInto(
    std::int64_t passes, std::optional<std::pair<std::int64_t, std::int64_t>> batches) {
  const auto [small, large] = batches.value_or(std::pair<std::int64_t, std::int64_t>(4, 8));
  if (small % passes == 0 && large % passes == 0 && small > passes) return batches;
  return std::pair(2 * passes, 4 * passes);
}

/// The allocator's settings among levers, as its variable takes them; a capture does not see them.
std::string AllocatorLever(const std::vector<std::string>& levers) {
  constexpr std::string_view kName = "allocator=";
  for (const std::string& lever : levers) {
    if (lever.starts_with(kName)) return lever.substr(kName.size());
  }
  return "";
}

/// Of the script with the first way in it.
NextStep CheckEdited(const StepQuestion& asked, const PlanOutcome& outcome) {
  const PlannedChange& first = *outcome.first;
  if (asked.script.run && outcome.gpus == 1) {
    StepQuestion edited = asked;
    edited.script.keep.reset();
    edited.batches = CutInto(first.passes, asked.batches);
    const bool whole = !first.own_accumulation;
    if (!whole) edited.batches = asked.batches;
    std::vector<std::string> words = {"--batch",
                                      CountWord(whole ? first.batch * first.passes : first.batch)};
    const std::string settings = AllocatorLever(first.levers);
    if (!settings.empty()) words.insert(words.end(), {"--set", "allocator=" + settings});
    std::string purpose = "then: whether the script with these lines fits, without a GPU";
    if (first.passes > 1 && whole) {
      purpose += fmt::format(
          ". If you edited the loop by hand instead, its loader gives batches of {}: use "
          "--batch {}",
          first.batch, first.batch);
    }
    return {Asked(edited, "predict", words), purpose};
  }
  const JobCommand job{.words = AtBatchSize(asked.script.command, first.batch * first.passes),
                       .whole = asked.script.run};
  return RunAgain(job, "then: trains the edited script, and records what it really takes",
                  AllocatorLever(first.levers));
}

NextStep FindLongest(StepQuestion asked) {
  asked.script.length.reset();
  std::vector<std::string> words = {"--max-length"};
  words.insert(words.end(), asked.more.begin(), asked.more.end());
  for (const std::string& word : Settings(asked.levers)) words.push_back(word);
  return {Asked(asked, "predict", words), "the largest length that fits"};
}

NextStep PlanIt(const StepQuestion& asked, const PredictOutcome& outcome,
                const std::string& purpose) {
  std::vector<std::string> words;
  if (outcome.ranks > 1) words = {"--gpus", CountWord(outcome.ranks)};
  words.insert(words.end(), {"--global-batch", CountWord(outcome.samples * outcome.ranks)});
  return {Asked(asked, "plan", words), purpose};
}

}  // namespace

std::string SizeWord(Bytes bytes) {
  std::string text = FormatBytes(bytes);
  std::erase(text, ' ');
  const Result<Bytes> read = ParseBytes(text);
  if (read && *read == bytes) return text;
  return bytes % kMiB == 0 ? fmt::format("{}MiB", bytes / kMiB) : fmt::format("{}B", bytes);
}

std::string GpuWord(const Gpu& gpu) {
  return gpu.assumed ? SizeWord(gpu.memory + gpu.taken) : gpu.name;
}

JobCommand JobBehind(const Explanation& explanation) {
  if (explanation.ranks.empty()) return {};
  const RankReport& shown = explanation.ranks[explanation.shown];
  if (!shown.script.empty()) return OfScript(shown.script);
  const LoggedCommand logged = CommandOfLog(shown.file);
  return {.words = logged.words, .whole = logged.with_arguments, .variables = logged.variables};
}

void NameJob(const JobCommand& job, Explanation& explanation) {
  explanation.record_next.run = RunAgain(job, "").command;
  const auto script = std::ranges::find_if(
      job.words, [](const std::string& word) { return word.ends_with(".py"); });
  if (script == job.words.end()) return;
  const bool plain = std::ranges::all_of(*script, [](unsigned char c) {
    return std::isalnum(c) != 0 || std::string_view("_-./").find(char(c)) != std::string_view::npos;
  });
  const std::string typed = plain ? *script : Quoted(*script);
  for (std::string& line : explanation.record_next.lines) PutScript(typed, line);
  for (Finding& finding : explanation.findings) {
    for (Remedy& remedy : finding.remedies) {
      for (std::string& line : remedy.code) PutScript(typed, line);
    }
  }
}

std::vector<NextStep> AfterExplain(const Explanation& explanation,
                                   const std::vector<std::string>& files, const JobCommand& job) {
  if (explanation.ranks.empty()) return {};
  const RankReport& shown = explanation.ranks[explanation.shown];
  if (shown.events == 0) return AfterLog(explanation, shown, job);
  if (IsGone(files)) return {};
  // What the device held is not what ended it.
  const bool killed = explanation.host && !explanation.host->kills.empty();
  if (killed && !shown.RanOut()) return {ShowPage(files)};
  if (HasFinding(explanation, FindingId::kLeak, Severity::kHigh)) return {ShowPage(files)};
  const NextStep tune =
      TuneRecord(shown.file, {}, "the allocator settings under which this run holds least");
  if (!shown.RanOut()) return {tune, ShowPage(files)};
  const NextStep plan =
      FromScript("plan", job, CardOf(shown, "plan"),
                 "what to change so that it fits, the fastest way first" + LeftToAdd(job));
  if (HasFinding(explanation, FindingId::kFragmentation, Severity::kMedium)) return {tune, plan};
  return {plan, ShowPage(files)};
}

std::vector<NextStep> AfterUnrecordedRun(const std::vector<std::string>& command) {
  return {FromScript("predict", {.words = command, .whole = true}, {},
                     "what it will need, found without a GPU")};
}

std::vector<NextStep> AfterRun(const Explanation& explanation, const std::string& folder,
                               const std::vector<std::string>& command) {
  std::vector<NextStep> steps =
      AfterExplain(explanation, {folder}, {.words = command, .whole = true});
  std::erase_if(steps,
                [](const NextStep& step) { return step.command.starts_with("plimsoll report"); });
  const auto ran_out = [](const RankReport& rank) { return rank.RanOut(); };
  if (!explanation.ranks.empty() && std::ranges::none_of(explanation.ranks, ran_out)) {
    steps.insert(steps.begin(), {CommandText("explain").Word(folder).str(),
                                 "what its peak is made of, by line of code"});
  }
  return steps;
}

std::vector<NextStep> AfterPredict(const StepQuestion& asked, const PredictOutcome& outcome) {
  if (IsGone(asked.files)) return {};
  std::vector<std::string> largest = {"--max-batch"};
  largest.insert(largest.end(), asked.more.begin(), asked.more.end());
  for (const std::string& word : Settings(asked.levers)) largest.push_back(word);
  const bool unsure = outcome.fits && !outcome.surely;
  const NextStep find_largest = {
      Asked(asked, "predict", largest),
      unsure ? "the largest batch that fits for certain" : "the largest batch that fits"};
  if (asked.files.size() >= 2) {
    if (outcome.one_batch && !outcome.longest) return {FindLongest(asked)};
    if (!outcome.largest && !outcome.one_batch) return {find_largest};
    return {TuneRecord(asked.record, {"--gpu", GpuWord(asked.gpu)},
                       "the allocator settings under which the recorded run holds least")};
  }
  if (outcome.grows) {
    if (!asked.script.run) return {};
    StepQuestion again = asked;
    again.script.keep.reset();
    std::vector<std::string> words = {"--batch", CountWord(outcome.batch)};
    for (const std::string& word : Settings(asked.levers)) words.push_back(word);
    return {{Asked(again, "predict", words), "once that line is changed: whether it still grows"}};
  }
  std::vector<NextStep> steps;
  if (!outcome.fits && outcome.ranks > 0) {
    steps.push_back(
        PlanIt(asked, outcome, "what to change so that it fits, the fastest way first"));
  }
  if (!outcome.largest) steps.push_back(find_largest);
  if (outcome.fits && outcome.largest && outcome.ranks > 0) {
    steps.push_back(PlanIt(asked, outcome, "whether a step of this batch can be faster"));
  }
  const bool is_own = !outcome.own_batch || *outcome.own_batch == outcome.batch;
  // The script does not have what was set beside it, but for the allocator's settings.
  const bool as_asked = std::ranges::all_of(
      asked.levers, [](const std::string& lever) { return lever.starts_with("allocator="); });
  if (outcome.fits && asked.script.run && is_own && as_asked) {
    const JobCommand job{.words = AtBatchSize(asked.script.command, outcome.batch), .whole = true};
    steps.push_back(
        RunAgain(job, "trains it, and records what it really takes", AllocatorLever(asked.levers)));
  }
  return steps;
}

std::vector<NextStep> ApplyPlan(const std::string& file, const PlannedChange& first) {
  NextStep set = {
      fmt::format("applied = plimsoll.apply(\"{}\", model, optimizer)", file),
      "in the script, once the optimizer is made: applies the plan's first way (way=1: the second) "
      "and prints what is left to do. It needs `import plimsoll`: `plimsoll run` brings the "
      "package, and `pip install .` in Plimsoll's checkout installs it",
      {"optimizer = applied.optimizer", "print(applied)"}};
  if (Sets(first, "allocator=")) {
    set.purpose +=
        ". The allocator's setting cannot be applied there, since the model is on the GPU by then: "
        "export it, as told above";
  }
  if (first.own_accumulation && Sets(first, "accumulation=")) {
    set.purpose += ". Batch size and accumulation steps are edited in the script, as told above";
  }
  std::vector<std::string> lines = LinesOfLoop(first);
  if (lines.empty()) return {set};
  std::string line = std::move(lines.front());
  lines.erase(lines.begin());
  return {set, {std::move(line), PurposeOfLoop(first), std::move(lines)}};
}

/// One that is there may be in use: the shell would empty it before the script, which is to be
/// captured, reads it.
std::string NewPlanFile() {
  std::string file = "plan.json";
  for (int i = 2; i < 100 && std::filesystem::exists(file); ++i)
    file = fmt::format("plan{}.json", i);
  return file;
}

std::vector<NextStep> AfterPlan(const StepQuestion& asked, const PlanOutcome& outcome) {
  if (IsGone(asked.files)) return {};
  if (!outcome.first) {
    if (!outcome.larger) return {};
    StepQuestion larger = asked;
    larger.gpu = *outcome.larger;
    larger.limit.reset();
    return {
        {Asked(larger, "plan", PlanWords(outcome)), "the fastest ways on a card that holds it"}};
  }
  const std::vector<std::string> at_batch = {"--batch", CountWord(outcome.first->batch)};
  if (outcome.first->levers.empty()) {
    return {{Asked(asked, "predict", at_batch),
             "the first way by itself: what it needs, and what holds it"}};
  }
  if (!NeedsApply(*outcome.first)) return {CheckEdited(asked, outcome)};
  std::vector<std::string> as_json = PlanWords(outcome);
  as_json.emplace_back("--json");
  const std::string file = NewPlanFile();
  std::vector<NextStep> steps = {
      {Asked(asked, "plan", as_json, ">" + file), "writes the plan for the lines below"}};
  for (NextStep& step : ApplyPlan(file, *outcome.first)) steps.push_back(std::move(step));
  steps.push_back(CheckEdited(asked, outcome));
  return steps;
}

std::vector<NextStep> AfterTune(const TuneReport& report, const std::string& script,
                                const std::optional<Gpu>& gpu) {
  const TuneResult& result = report.result;
  const JobCommand job = OfScript(script);
  const TuneRow& best = result.rows[result.simplest];
  if (best.replayed.fits && best.settings != result.rows.front().settings) {
    return {RunAgain(job, "trains with these settings, and records what it then takes",
                     FormatSettings(best.settings))};
  }
  const std::vector<std::string> card =
      gpu ? std::vector<std::string>{"--gpu", GpuWord(*gpu)} : std::vector<std::string>{};
  return {FromScript(
      "plan", job, card,
      "what else lowers its memory: precision, checkpointing, the optimizer" + LeftToAdd(job))};
}

std::vector<NextStep> AfterReplay(const ReplayReport& report, const std::string& script,
                                  const std::vector<std::string>& limits) {
  const bool other = report.settings != report.recorded_settings && !report.settings.empty();
  if (report.replayed.fits && other) {
    return {RunAgain(OfScript(script), "trains with these settings, and records what it then takes",
                     report.settings)};
  }
  return {TuneRecord(report.file, limits,
                     "the settings under which it holds least, of all that exist")};
}

std::vector<NextStep> AfterDiff(const std::vector<std::string>& before,
                                const std::vector<std::string>& after) {
  if (IsGone(before) || IsGone(after)) return {};
  CommandText text("report");
  text.Words(after);
  for (const std::string& file : before) text.Flag("--compare", file);
  return {{text.Flag("-o", "compared.html").str(), "a page that shows both runs on one scale"}};
}

std::vector<NextStep> AfterPack(const std::string& file) {
  return {
      TuneRecord(file, {}, "how near to this PyTorch's allocator comes, and with which settings")};
}

std::vector<NextStep> AfterWatch() {
  return {RunAgain({}, "a job that is started so also tells here what PyTorch has reserved")};
}

}  // namespace plimsoll
