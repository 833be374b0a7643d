#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cli/command/command.h"
#include "cli/explain_pipeline.h"
#include "cli/next_steps.h"
#include "cli/report_pipeline.h"
#include "cli/terminal/terminal.h"
#include "diagnose/host/host_study.h"
#include "files/output.h"
#include "launch/child.h"
#include "launch/host_log.h"
#include "launch/host_sampler.h"
#include "launch/live.h"
#include "launch/processes.h"
#include "launch/run_folder.h"
#include "report/run_text.h"
#include "report/text.h"

namespace plimsoll {
namespace {

/// About 16 MB of snapshot, written in half a second (measured with PyTorch 2.11).
constexpr std::int64_t kEntries = 200'000;
/// A process that the launcher left behind may still be writing.
constexpr double kSecondsForStragglers = 10;

struct RunFlags {
  std::vector<std::string> command;
  std::optional<Bytes> budget;
  std::optional<std::string> out;
  std::optional<std::int64_t> max_entries;
  bool modules = false;
};

void SayNothingRecorded(bool torch_was_imported, const ChildEnd& end,
                        const std::vector<std::string>& command) {
  if (torch_was_imported && (end.signal || end.code != 0)) {
    Remark(
        "nothing was recorded: the job ended with an error before any of its processes used CUDA");
  } else if (torch_was_imported) {
    Remark(
        "nothing was recorded: PyTorch was imported, but no process of the job initialised CUDA");
    if (Progress::IsSilent()) return;
    std::fputs(NextText(AfterUnrecordedRun(command), StyleOfStderr()).c_str(), stderr);
  } else if (end.signal || end.code != 0) {
    Remark(
        "nothing was recorded: no process of the job was seen to import PyTorch before it ended");
  } else {
    Remark(
        "nothing was recorded: no Python process was seen to import PyTorch (one that replaces "
        "PYTHONPATH instead of adding to it, or runs as python -I, is not seen)");
  }
}

bool WasKilled(const Explanation& answer) { return answer.host && !answer.host->kills.empty(); }

/// The whole answer goes to a file; on the terminal a job that did not run out gets a line for the
/// device and one for the host.
void ExplainRun(const RunFolder& folder, const FolderFiles& files,
                const std::vector<std::string>& command) {
  const Explained explained = ExplainFiles(files, {});
  if (!explained.explanation) return;
  const Explanation& answer = *explained.explanation;
  const auto ran_out = [](const RankReport& rank) { return rank.RanOut(); };
  Progress::Hide();
  if (WasKilled(answer) || std::ranges::any_of(answer.ranks, ran_out)) {
    std::fputs(("\n" + ExplanationText(answer, StyleOfStderr()) + "\n").c_str(), stderr);
  } else {
    if (!answer.ranks.empty()) Remark(answer.verdict);
    if (answer.host && !Progress::IsSilent()) Remark(HostPeakText(*answer.host));
  }
  const std::string path = (std::filesystem::path(folder.path) / "explanation.txt").string();
  if (const auto error = WriteFile(path, ExplanationText(answer, TextStyle{}))) Complain(*error);
  if (!explained.files.empty()) {
    MakeReport(
        {.files = explained.files, .out = std::filesystem::path(folder.path) / "report.html"});
  }
  if (Progress::IsSilent()) return;
  const std::vector<NextStep> next = AfterRun(answer, folder.path, command);
  std::fputs(NextText(next, StyleOfStderr()).c_str(), stderr);
}

/// Of a job that left no snapshots: its samples are kept where they say why it ended, or where it
/// is one that trains.
void TellHostAlone(const RunFolder& folder, const FilesOfRun& run, bool torch_was_imported,
                   const std::vector<std::string>& command) {
  const FolderFiles files{.hosts = FilesOf(run).hosts, .worker_texts = run.worker_texts};
  const Explained explained = ExplainFiles(files, {});
  if (!explained.explanation) return;
  if (torch_was_imported || WasKilled(*explained.explanation)) {
    return ExplainRun(folder, files, command);
  }
  std::error_code ignored;
  std::filesystem::remove(std::filesystem::path(folder.path) / kHostFile, ignored);
}

void TellRun(const RunFolder& folder, const ChildEnd& end,
             const std::vector<std::string>& command) {
  AwaitStragglers(folder, kSecondsForStragglers);
  const std::vector<RecordedProcess> processes = ReadProcesses(folder);
  const bool torch_was_imported = TorchWasImported(folder);
  for (const std::string& complaint : HookComplaints(folder)) Remark(complaint);
  const FilesOfRun files = FilesToExplain(folder, processes);
  if (processes.empty()) {
    SayNothingRecorded(torch_was_imported, end, command);
    TellHostAlone(folder, files, torch_was_imported, command);
    return RemoveHook(folder);
  }
  RemoveHook(folder);
  const std::string how =
      end.signal ? fmt::format("was ended by signal {} ({})", *end.signal, ::strsignal(*end.signal))
                 : fmt::format("ended with exit code {}", end.code);
  Remark(fmt::format("the job {}; recorded in {}:", how, folder.path));
  std::fputs(ProcessTable(processes, StyleOfStderr()).c_str(), stderr);
  for (const std::string& sentence : RecordingCost(processes)) Remark(sentence);
  ExplainRun(folder, FilesOf(files), command);
}

/// A folder that cannot be made is our trouble, not the job's.
int RunUnrecorded(const RunFlags& flags, const Error& why) {
  Remark(fmt::format("the job runs without being recorded{}: {}",
                     flags.budget ? " and without --budget" : "", why.ToLine()));
  const ChildEnd end = RunChild(flags.command, {});
  if (end.refused) Complain(*end.refused);
  return end.code;
}

void SayFolder(const RunFolder& folder) {
  if (!folder.instead.empty()) {
    Remark(fmt::format("{}: recording into {}", folder.instead, folder.path));
  } else if (!Progress::IsSilent()) {
    Remark(fmt::format("recording into {}", folder.path));
  }
}

int RunJob(const RunFlags& flags) {
  const Result<RunFolder> folder = MakeRunFolder(flags.out);
  if (!folder) return RunUnrecorded(flags, folder.error());
  SayFolder(*folder);
  const HookSettings settings{.budget = flags.budget,
                              .max_entries = flags.max_entries.value_or(kEntries),
                              .modules = flags.modules};
  const Registration registration(*folder);
  HostSampler sampler(*folder);
  const ChildEnd end = RunChild(flags.command, HookVariables(*folder, settings), Bond::kFree,
                                [&](std::int64_t child) { sampler.Begin(child); });
  sampler.End(end);
  if (end.refused) {
    RemoveHook(*folder);
    Complain(*end.refused);
    return end.code;
  }
  TellRun(*folder, end, flags.command);
  if (flags.budget) {
    Remark(fmt::format("PyTorch was allowed {} of each device, by --budget",
                       FormatBytes(*flags.budget)));
  }
  return end.code;
}

}  // namespace

Command AddRunJob(Flags& declare) {
  auto flags = std::make_shared<RunFlags>();
  declare.CommandLine("COMMAND", flags->command,
                      "the job as you type it without this: python, torchrun, accelerate launch, "
                      "a script that calls them");
  declare.Size("--budget", flags->budget,
               "what PyTorch may take of each device in each process, so that the job runs out as "
               "on a smaller card");
  declare.Text("-o,--output", "DIR", flags->out,
               "the folder for what is recorded; plimsoll-run-1 or the next free number unless "
               "given. Where it is not empty, or not yours alone, DIR.2 or the next free number");
  declare.Count(
      "--max-entries", "N", flags->max_entries,
      fmt::format("how many events each process keeps, the latest ones; {} unless given", kEntries),
      1000, 100'000'000);
  declare.Switch(
      "--modules", flags->modules,
      "note which module asks for memory, by its name in the model; PyTorch 2.10 or newer, "
      "about 10 microseconds for each call of a module");
  declare.Examples(
      "  plimsoll run -- python train.py   no edit to the script; why it ran out, and a page\n"
      "  plimsoll run -- torchrun --nproc-per-node 4 train.py   every rank\n"
      "  plimsoll run --budget 22GiB -- python train.py   as if the card had less\n"
      "The exit code is the job's: 128 and the signal's number if one ended it, 127 if there is no "
      "such command.");
  return [flags] { return RunJob(*flags); };
}

}  // namespace plimsoll
