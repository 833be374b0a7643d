#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/bisection.h"
#include "base/printable.h"
#include "cli/allowance.h"
#include "cli/command/command.h"
#include "cli/command/command_text.h"
#include "cli/command/shared_flags.h"
#include "cli/commit_place.h"
#include "cli/next_steps.h"
#include "cli/predict_flags.h"
#include "cli/terminal/terminal.h"
#include "job/answer/max_batch.h"
#include "job/answer/predict.h"
#include "job/file/at_length.h"
#include "launch/child.h"
#include "launch/repository.h"
#include "report/bisect.h"

namespace plimsoll {
namespace {

constexpr std::string_view kAllowedUnlessGiven = "1%";

struct BisectFlags {
  std::optional<std::string> good;
  std::optional<std::string> bad;
  std::vector<std::string> pythons;
  std::vector<std::string> links;
  std::optional<Allowance> fail_above;
  std::string fail_above_word = std::string(kAllowedUnlessGiven);
  PredictFlags predict;
};

/// What a prediction says that is compared.
struct Foreseen {
  BisectFigures figures;
  std::vector<AccountLine> account;
  std::vector<Holder> holders;
  /// The release that captured it.
  std::string torch;
  std::string gpu;
};

/// The batch that is asked about, or the script's own.
std::optional<Error> SetBatch(Question& question) {
  question.largest = false;
  const Job& job = question.job.first();
  if (question.batch || !job.sequence.empty() || OnlyBatch(job)) return std::nullopt;
  if (!job.own_batch) {
    return Error{.message = "the script has no batch size of its own that could be seen",
                 .hint = "give the one to compare: --batch 16"};
  }
  question.batch = job.own_batch;
  return std::nullopt;
}

/// By the pipeline of `predict`. Of the stages of a pipeline, the one that takes most.
Result<Foreseen> Foresee(const PredictFlags& flags) {
  Result<Question> question = ReadQuestion(flags);
  if (!question) return question.error();
  if (std::optional<Error> error = SetBatch(*question)) return *error;
  question->earlier_frees = false;
  Result<Answer> answer = AnswerQuestion(std::move(*question));
  if (!answer) return answer.error();
  Prediction& prediction = answer->prediction;
  const Needs& needs = prediction.trial.needs;
  return Foreseen{.figures = {.allocated = needs.allocated.best,
                              .reserved = needs.reserved.best,
                              .device = needs.device.best,
                              .batch = prediction.batch,
                              .fits = prediction.Runs()},
                  .account = std::move(prediction.account),
                  .holders = HoldersAtPeak(*answer->trial),
                  .torch = answer->trial->setting().job->torch,
                  .gpu = prediction.gpu.name};
}

/// What lies in a row, and how one of them is tried.
struct Row {
  BisectedThing thing = BisectedThing::kCommit;
  std::vector<BisectCandidate> candidates;
  std::function<Result<Foreseen>(std::size_t)> try_one;
};

/// Tries them and keeps what came of it.
class Tries {
 public:
  Tries(const Row& row, Allowance allowance) : row_(row), allowance_(std::move(allowance)) {
    answer_.thing = row.thing;
    answer_.candidates = row.candidates;
    answer_.allowed = allowance_.text;
  }

  /// What was foreseen of one of them; null where it cannot be tried.
  const Foreseen* Try(std::size_t which) {
    progress_.Next(fmt::format("trying {}", Label(which)));
    Result<Foreseen> foreseen = row_.try_one(which);
    if (EndWatch::Asked()) return nullptr;
    BisectTry& made = answer_.tries.emplace_back(BisectTry{.candidate = which});
    if (!foreseen) {
      error_ = foreseen.error();
      made.refused = foreseen.error().ToLine();
      Remark(fmt::format("{} is skipped: {}", Label(which), Printable(made.refused)));
      return nullptr;
    }
    made.figures = foreseen->figures;
    answer_.gpu = foreseen->gpu;
    if (row_.thing == BisectedThing::kRelease) answer_.candidates[which].title = foreseen->torch;
    return &foreseen_.emplace(which, std::move(*foreseen)).first->second;
  }

  /// The first and the last have to be known.
  std::optional<Error> TryEnds() {
    for (const std::size_t which : {std::size_t{0}, row_.candidates.size() - 1}) {
      if (Try(which) || EndWatch::Asked()) continue;
      Error error = error_;
      error.message = fmt::format("{} cannot be predicted: {}", Label(which), error.message);
      return error;
    }
    return std::nullopt;
  }

  bool Grew(std::size_t from, std::size_t to) const {
    return !allowance_.Allows(AllocatedOf(from, to)) || !allowance_.Allows(ReservedOf(from, to));
  }

  void Search() {
    const std::size_t last = row_.candidates.size() - 1;
    answer_.found = Grew(0, last);
    answer_.first_after = last;
    answer_.reserved_in_all = ReservedOf(0, last);
    if (answer_.found) {
      const Bisection found = FindChange(last, [&](std::size_t which) {
        const Foreseen* const foreseen = Try(which);
        if (EndWatch::Asked()) return Side::kStop;
        if (foreseen == nullptr) return Side::kUnknown;
        return Grew(0, which) ? Side::kAfter : Side::kBefore;
      });
      answer_.last_before = found.last_before;
      answer_.first_after = found.first_after;
    }
  }

  const BisectAnswer& Answer() {
    const Foreseen& before = foreseen_.at(answer_.last_before);
    const Foreseen& after = foreseen_.at(answer_.first_after);
    answer_.allocated = AllocatedOf(answer_.last_before, answer_.first_after);
    answer_.reserved = ReservedOf(answer_.last_before, answer_.first_after);
    answer_.batch_before = before.figures.batch;
    answer_.batch_after = after.figures.batch;
    answer_.categories = ChangesByCategory(before.account, after.account);
    answer_.holders = ChangesByLine(before.holders, after.holders);
    return answer_;
  }

 private:
  std::string Label(std::size_t which) const {
    const std::string& name = row_.candidates[which].name;
    return row_.thing == BisectedThing::kCommit ? "commit " + name.substr(0, 12) : Printable(name);
  }
  Change AllocatedOf(std::size_t from, std::size_t to) const {
    return {.before = foreseen_.at(from).figures.allocated,
            .after = foreseen_.at(to).figures.allocated};
  }
  Change ReservedOf(std::size_t from, std::size_t to) const {
    return {.before = foreseen_.at(from).figures.reserved,
            .after = foreseen_.at(to).figures.reserved};
  }

  const Row& row_;
  Allowance allowance_;
  BisectAnswer answer_;
  std::map<std::size_t, Foreseen> foreseen_;
  Error error_ = {};
  Progress progress_{"looking at commits"};
};

/// The flags of one try: another command, and paths that hold wherever the process stands.
PredictFlags FlagsFor(const BisectFlags& flags, std::vector<std::string> command) {
  PredictFlags one = flags.predict;
  one.script.run = true;
  one.script.command = std::move(command);
  std::error_code ignored;
  if (one.calibration && std::filesystem::exists(*one.calibration, ignored)) {
    one.calibration = std::filesystem::absolute(*one.calibration).string();
  }
  return one;
}

Result<Row> RowOfCommits(const BisectFlags& flags) {
  std::error_code failed;
  const std::string here = std::filesystem::current_path(failed).string();
  Result<Repository> repository = Repository::Of(here);
  if (!repository) return repository.error();
  const Result<Commit> good = repository->Find(*flags.good);
  if (!good) return good.error();
  const Result<Commit> bad = repository->Find(flags.bad.value_or("HEAD"));
  if (!bad) return bad.error();
  Result<std::vector<Commit>> commits = repository->Between(*good, *bad);
  if (!commits) return commits.error();
  Row row{.thing = BisectedThing::kCommit};
  for (const Commit& commit : *commits) {
    row.candidates.push_back({.name = commit.hash,
                              .title = commit.subject,
                              .author = commit.author,
                              .date = commit.date,
                              .parents = commit.parents.size()});
  }
  const PredictFlags one =
      FlagsFor(flags, MovableCommand(*repository, flags.predict.script.command));
  row.try_one = [commits = *std::move(commits), repository = *std::move(repository), one,
                 links = flags.links](std::size_t which) -> Result<Foreseen> {
    const auto place = CommitPlace::Of(repository, commits[which], links);
    if (!place) return place.error();
    return Foresee(one);
  };
  return row;
}

/// The command by another Python: itself where the command begins with one, or the launcher that
/// lies beside it.
Result<std::vector<std::string>> ByPython(std::vector<std::string> command,
                                          const std::string& python) {
  namespace fs = std::filesystem;
  const fs::path first = command.front();
  std::error_code failed;
  if (!fs::exists(python, failed)) {
    return Error{.message = "--python names no file",
                 .file = python,
                 .hint = "give the Python of an environment: /opt/torch213/bin/python"};
  }
  if (first.filename().string().starts_with("python")) {
    command.front() = python;
    return command;
  }
  const fs::path beside = fs::path(python).parent_path() / first.filename();
  if (first.extension() != ".py" && !fs::exists(beside, failed)) {
    return Error{.message = fmt::format("there is no {} beside it", first.filename().string()),
                 .file = python,
                 .hint = "begin the command with python"};
  }
  command.front() = beside.string();
  return command;
}

Result<Row> RowOfReleases(const BisectFlags& flags) {
  Row row{.thing = BisectedThing::kRelease};
  std::vector<PredictFlags> asked;
  for (const std::string& python : flags.pythons) {
    Result<std::vector<std::string>> command = ByPython(flags.predict.script.command, python);
    if (!command) return command.error();
    row.candidates.push_back({.name = python});
    asked.push_back(FlagsFor(flags, *std::move(command)));
  }
  row.try_one = [asked = std::move(asked)](std::size_t which) { return Foresee(asked[which]); };
  return row;
}

/// What does not go together, before anything is run.
std::optional<Error> WrongQuestion(const BisectFlags& flags) {
  if (flags.pythons.empty() && !flags.good) {
    return Error{.message = "neither --good nor --python is given",
                 .hint =
                     "give the commit that was as it should be (--good v1.2), or two Pythons or "
                     "more with other releases of PyTorch"};
  }
  if (!flags.pythons.empty() && (flags.good || flags.bad || !flags.links.empty())) {
    return Error{
        .message = "--python is about releases, and --good, --bad and --link about commits",
        .hint = "ask one after the other"};
  }
  if (flags.pythons.size() == 1) {
    return Error{.message = "one Python is given, and there is nothing to compare it with",
                 .hint = "give --python again, for each environment, the oldest first"};
  }
  if (!flags.pythons.empty() && flags.predict.torch) {
    return Error{.message = "--torch names one release, and --python several",
                 .hint = "leave --torch out"};
  }
  const auto has_batch = [](const std::string& word) {
    return word.find("{batch}") != std::string::npos;
  };
  if (!flags.predict.batch && std::ranges::any_of(flags.predict.script.command, has_batch)) {
    return Error{.message = "the command has {batch}, and no batch to compare at is given",
                 .hint = "give --batch 16"};
  }
  if (!flags.predict.gpu) {
    return Error{.message = "which GPU?", .hint = "give --gpu; `plimsoll gpus` lists them"};
  }
  return std::nullopt;
}

/// The same question about two other commits.
std::string AskedAgain(const BisectFlags& flags, const std::string& good, const std::string& bad) {
  CommandText text("bisect");
  text.Flag("--good", good).Flag("--bad", bad).Flag("--fail-above", flags.fail_above_word);
  text.Flag("--gpu", GpuWord(*flags.predict.gpu));
  if (flags.predict.batch) text.Flag("--batch", fmt::format("{}", *flags.predict.batch));
  for (const auto& [lever, value] : flags.predict.Chosen().set) {
    text.Flag("--set", lever + "=" + value.text());
  }
  if (flags.predict.script.length) {
    text.Flag("--length", fmt::format("{}", *flags.predict.script.length));
  }
  for (const std::string& link : flags.links) text.Flag("--link", link);
  return text.Plain("--").Words(flags.predict.script.command).str();
}

/// Where the branch began that a merge brought.
std::optional<std::string> BranchedOff(const std::string& merge) {
  std::error_code failed;
  const Result<Repository> repository =
      Repository::Of(std::filesystem::current_path(failed).string());
  if (!repository) return std::nullopt;
  const Result<Commit> base = repository->CommonAncestor(merge + "^1", merge + "^2");
  if (!base) return std::nullopt;
  return base->hash.substr(0, 12);
}

std::vector<NextStep> AfterBisect(const BisectFlags& flags, const BisectAnswer& answer) {
  if (answer.thing != BisectedThing::kCommit || !answer.found) return {};
  std::vector<NextStep> next;
  const BisectCandidate& first = answer.candidates[answer.first_after];
  const std::string name = first.name.substr(0, 12);
  const bool one = answer.first_after == answer.last_before + 1;
  if (one && first.parents > 1) {
    if (const std::optional<std::string> base = BranchedOff(name)) {
      next.push_back({.command = AskedAgain(flags, *base, name + "^2"),
                      .purpose = "it is a merge: which commit of the branch that it brought"});
    }
  }
  if (answer.reserved_in_all.growth() > answer.reserved.growth() &&
      answer.first_after + 1 < answer.candidates.size()) {
    next.push_back({.command = AskedAgain(flags, name, flags.bad.value_or("HEAD")),
                    .purpose = "what grew after it"});
  }
  return next;
}

int RunBisect(const BisectFlags& flags) {
  if (const std::optional<Error> error = WrongQuestion(flags)) return Complain(*error);
  const EndWatch watch;
  Result<Row> row = flags.pythons.empty() ? RowOfCommits(flags) : RowOfReleases(flags);
  if (!row) return Complain(row.error());
  std::optional<Allowance> allowance = flags.fail_above;
  if (!allowance) ReadAllowance(std::string(kAllowedUnlessGiven), allowance);
  Tries tries(*row, *allowance);
  const std::optional<Error> unknown = tries.TryEnds();
  if (unknown && !EndWatch::Asked()) return Complain(*unknown);
  if (!EndWatch::Asked()) tries.Search();
  if (const std::optional<int> signal = EndWatch::Asked()) {
    Remark("stopped; what was made is taken away again");
    return 128 + *signal;
  }
  const BisectAnswer& answer = tries.Answer();
  const int printed = flags.predict.json ? Print(BisectJson(answer))
                                         : PrintWithNext(BisectText(answer, StyleOfStdout()),
                                                         AfterBisect(flags, answer));
  if (printed != kFine) return printed;
  return answer.found ? kNo : kFine;
}

}  // namespace

Command AddBisect(Flags& declare) {
  auto flags = std::make_shared<BisectFlags>();
  PredictFlags& predict = flags->predict;
  declare.CommandLine("COMMAND", predict.script.command,
                      "the script as you type it, {batch} in place of the batch size");
  declare.Text("--good", "COMMIT", flags->good, "a commit at which it took what it should");
  declare.Text("--bad", "COMMIT", flags->bad, "one at which it takes more; HEAD unless given");
  declare.Texts("--python", "PATH", flags->pythons,
                "instead of commits: the Python of an environment; again for each, in the order of "
                "their releases of PyTorch");
  declare.Value("--fail-above", "SIZE",
                "what counts as growth of the peak, allocated or reserved: 200MiB, 5%; 1% unless "
                "given",
                [flags](const std::string& text) {
                  flags->fail_above_word = text;
                  return ReadAllowance(text, flags->fail_above);
                });
  declare.Texts("--link", "PATH", flags->links,
                "a file or a folder that is not committed and that the script reads (data); again "
                "for each");
  declare.Count("--batch", "N", predict.batch, "the batch size; the script's own unless given", 1,
                kLargestBatch);
  declare.Value(
      "--batches", "N,M", "those to capture, 4,8 unless given",
      [flags](const std::string& text) { return ReadBatches(text, flags->predict.batches); });
  predict.script.AddPointsTo(declare);
  AddGpuFlag(declare, predict.gpu,
             "the card: a name that `plimsoll gpus` lists, or its memory (22GiB)");
  predict.AddSettingTo(declare);
  predict.AddMachineTo(declare);
  declare.Switch("--json", predict.json, "one JSON document (docs/json.md)");
  declare.Examples(
      "  plimsoll bisect --good v1.2 --gpu 4090 --batch 16 -- python train.py --batch-size {batch} "
      "  "
      "which commit since v1.2\n"
      "  plimsoll bisect --good HEAD~40 --bad HEAD~3 --fail-above 200MiB --gpu L4 -- python "
      "train.py\n"
      "  plimsoll bisect --python a/bin/python --python b/bin/python --gpu L4 -- python train.py   "
      "which release of PyTorch\n"
      "Your files are not touched: commits are checked out elsewhere and taken away again.\n"
      "Exit code 1: it grew by more than --fail-above; 0: it did not.");
  return [flags] { return RunBisect(*flags); };
}

}  // namespace plimsoll
