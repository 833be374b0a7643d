#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/output.h"
#include "base/printable.h"
#include "cli/command.h"
#include "cli/explain_pipeline.h"
#include "cli/report_pipeline.h"
#include "cli/terminal.h"
#include "job/child.h"
#include "job/live.h"
#include "job/processes.h"
#include "job/run_folder.h"
#include "report/table.h"
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

/// Of our own; the job's output stays as it is.
void Say(std::string_view text) {
  Progress::Hide();
  std::fputs(fmt::format("plimsoll: {}\n", Printable(text)).c_str(), stderr);
}

std::string NameOf(const std::string& path) {
  return std::filesystem::path(path).filename().string();
}

std::string Many(std::int64_t count, std::string_view one, std::string_view more) {
  return fmt::format("{} {}", count, count == 1 ? one : more);
}

std::string HowItEnded(const RecordedProcess& process) {
  switch (process.end) {
    case ProcessEnd::kException:
      return process.detail;
    case ProcessEnd::kSignal:
      return process.detail;
    case ProcessEnd::kExit:
      return "exit";
    case ProcessEnd::kUnknown:
      break;
  }
  return IsAlive(process) ? "still runs" : "killed or crashed";
}

std::string ProcessTable(const std::vector<RecordedProcess>& processes) {
  Writer w(StyleOfStderr());
  Table table({{.heading = "rank", .right = true},
               {.heading = "process", .right = true},
               {.heading = "ended by"},
               {.heading = "out of memory", .right = true},
               {.heading = "optimizer steps", .right = true, .may_go = true},
               {.heading = "size", .right = true, .may_go = true},
               {.heading = "snapshot", .wraps = true}});
  for (const RecordedProcess& process : processes) {
    const SnapshotFile* const main = process.Main();
    table.Row({process.rank ? fmt::format("{}", *process.rank) : "-",
               fmt::format("{}", process.pid), Printable(HowItEnded(process)),
               process.ooms == 0 ? "-" : Many(process.ooms, "time", "times"),
               fmt::format("{}", process.optimizer_steps),
               main != nullptr ? FormatBytes(main->bytes) : "-",
               main != nullptr ? Printable(NameOf(main->path)) : "none"});
  }
  table.WriteTo(w);
  return w.Take();
}

void SayCost(const std::vector<RecordedProcess>& processes) {
  Bytes bytes = 0;
  std::size_t files = 0;
  double longest = 0;
  for (const RecordedProcess& process : processes) {
    for (const SnapshotFile& file : process.snapshots) bytes += file.bytes;
    files += process.snapshots.size();
    longest = std::max(longest, process.seconds);
  }
  Say(fmt::format("{}, {} in all; writing took {:.2f} s{}",
                  Many(static_cast<std::int64_t>(files), "snapshot", "snapshots"),
                  FormatBytes(bytes), longest,
                  processes.size() > 1 ? " in the process where it took longest" : ""));
  for (const RecordedProcess& process : processes) {
    const SnapshotFile* const main = process.Main();
    if (main == nullptr || !main->full) continue;
    Say(fmt::format("{}: only the last {} events are in it; --max-entries keeps more",
                    NameOf(main->path), process.max_entries));
  }
}

void SayNothingRecorded(bool torch_was_imported) {
  Say(torch_was_imported
          ? "nothing was recorded: PyTorch was imported, but no process of the job initialised CUDA"
          : "nothing was recorded: no Python process was seen to import PyTorch (one that replaces "
            "PYTHONPATH instead of adding to it, or runs as python -I, is not seen)");
}

/// With the error texts, as long as each completes a snapshot; one that does not would be told as a
/// process of its own.
Explained ExplainWithTexts(const FilesOfRun& run, std::vector<std::string>& files) {
  files = run.snapshots;
  files.insert(files.end(), run.error_texts.begin(), run.error_texts.end());
  Explained explained = ExplainFiles(files, {});
  const auto alone = [&](const RankReport& rank) {
    return std::ranges::find(run.error_texts, rank.file) != run.error_texts.end();
  };
  if (!explained.explanation || std::ranges::none_of(explained.explanation->ranks, alone)) {
    return explained;
  }
  files = run.snapshots;
  return ExplainFiles(files, {});
}

/// The whole answer goes to a file; on the terminal a job that did not run out gets a line.
void ExplainRun(const RunFolder& folder, const FilesOfRun& run) {
  std::vector<std::string> files;
  const Explained explained = ExplainWithTexts(run, files);
  if (!explained.explanation) return;
  const Explanation& answer = *explained.explanation;
  const auto ran_out = [](const RankReport& rank) { return rank.RanOut(); };
  Progress::Hide();
  if (std::ranges::any_of(answer.ranks, ran_out)) {
    std::fputs(("\n" + ExplanationText(answer, StyleOfStderr()) + "\n").c_str(), stderr);
  } else {
    Say(answer.verdict);
  }
  const std::string path = (std::filesystem::path(folder.path) / "explanation.txt").string();
  if (const auto error = WriteFile(path, ExplanationText(answer, TextStyle{}))) Complain(*error);
  MakeReport({.files = files, .out = std::filesystem::path(folder.path) / "report.html"});
}

void TellRun(const RunFolder& folder, const ChildEnd& end) {
  AwaitStragglers(folder, kSecondsForStragglers);
  const std::vector<RecordedProcess> processes = ReadProcesses(folder);
  const bool torch_was_imported = TorchWasImported(folder);
  for (const std::string& complaint : HookComplaints(folder)) Say(complaint);
  RemoveHook(folder);
  if (processes.empty()) return SayNothingRecorded(torch_was_imported);
  const std::string how =
      end.signal ? fmt::format("was ended by signal {} ({})", *end.signal, ::strsignal(*end.signal))
                 : fmt::format("ended with exit code {}", end.code);
  Say(fmt::format("the job {}; recorded in {}:", how, folder.path));
  std::fputs(ProcessTable(processes).c_str(), stderr);
  SayCost(processes);
  const FilesOfRun files = FilesToExplain(processes);
  if (!files.snapshots.empty()) ExplainRun(folder, files);
}

int RunJob(const RunFlags& flags) {
  const Result<RunFolder> folder = MakeRunFolder(flags.out);
  if (!folder) return Complain(folder.error());
  if (!Progress::IsSilent()) Say(fmt::format("recording into {}", folder->path));
  const HookSettings settings{.budget = flags.budget,
                              .max_entries = flags.max_entries.value_or(kEntries),
                              .modules = flags.modules};
  const Registration registration(*folder);
  const ChildEnd end = RunChild(flags.command, HookVariables(*folder, settings));
  if (end.refused) {
    RemoveHook(*folder);
    Complain(*end.refused);
    return end.code;
  }
  TellRun(*folder, end);
  if (flags.budget) {
    Say(fmt::format("PyTorch was allowed {} of each device, by --budget",
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
               "a new folder for what is recorded; plimsoll-run-1 or the next free number unless "
               "given");
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
