#include "cli/run.h"

#include <fmt/format.h>
#include <signal.h>

#include <algorithm>
#include <new>

#include "base/printable.h"
#include "base/suggest.h"
#include "cli/command/command.h"
#include "cli/command/completion.h"
#include "cli/command/help.h"
#include "cli/command/manual.h"
#include "cli/file_kind.h"
#include "cli/terminal/terminal.h"

namespace plimsoll {
namespace {

std::string program_version;

struct Entry {
  const char* name;
  const char* what;
  Command (*add)(Flags&);
};

constexpr Entry kCommands[] = {
    {"explain", "why it ran out of memory, or what its peak is made of", AddExplain},
    {"run", "runs a training job as it is, records it and explains it", AddRunJob},
    {"hook", "records the processes of clusters and notebooks, whoever starts them", AddHook},
    {"watch", "memory of each GPU and of each process on it, live, with its trend", AddWatch},
    {"report", "one page that shows where the memory went", AddReport},
    {"diff", "what grew between two records, by source line and category", AddDiff},
    {"bisect", "which commit, or which release of PyTorch, made a job grow", AddBisect},
    {"replay", "the same job under other allocator settings, limits or releases", AddReplay},
    {"tune", "the allocator settings that suit a recorded job best", AddTune},
    {"predict", "how much memory a training step will need, before it is run", AddPredict},
    {"data", "the sizes of a script's batches, the heaviest, and what they need", AddData},
    {"plan", "what to change so that a training step fits, and the fastest way", AddPlan},
    {"pack", "the least memory that a set of lifetimes needs", AddPack},
    {"mcp", "answers agents over the Model Context Protocol, on standard input", AddMcp},
    {"gpus", "the catalogue: memory, speed and links of the cards that people own", AddGpus},
};

/// A command with its flags declared, ready to parse.
struct Declared {
  Flags flags;
  Command run;
  bool quiet = false;
};

std::unique_ptr<Declared> Declare(const Entry& entry) {
  auto command = std::make_unique<Declared>(Declared{.flags = Flags(entry.name, entry.what)});
  command->run = entry.add(command->flags);
  command->flags.Switch("-q,--quiet", command->quiet, "no line of progress on the terminal");
  return command;
}

std::vector<CommandInfo> DescribeAll() {
  std::vector<CommandInfo> all;
  for (const Entry& entry : kCommands) all.push_back(Declare(entry)->flags.Describe());
  return all;
}

const Entry* Find(const std::string& name) {
  const Entry* const found =
      std::ranges::find_if(kCommands, [&](const Entry& entry) { return name == entry.name; });
  return found == std::end(kCommands) ? nullptr : found;
}

/// Which command a file is for; nothing where it is for none.
const char* CommandFor(FileKind kind) {
  switch (kind) {
    case FileKind::kText:
    case FileKind::kTrace:
    case FileKind::kRunFolder:
    case FileKind::kHostRecord:
      return "explain";
    case FileKind::kStep:
      return "predict";
    case FileKind::kConfiguration:
      return "predict";
    case FileKind::kBuffers:
      return "pack";
    default:
      return nullptr;
  }
}

/// What a file is that no command begins with, and what can be done with it.
int DescribeFile(const std::string& path, FileKind kind) {
  const std::vector<NextStep> uses = UsesOf(kind, path);
  std::string_view more;
  if (kind == FileKind::kPage) more = ": open it in a browser";
  if (kind == FileKind::kPlan && uses.empty()) {
    more = "; it has nothing to apply: no way fits, or the job is best as it is";
  }
  const std::string what = fmt::format("{} is {}{}.\n", Printable(path), KindName(kind), more);
  return Print(what + NextText(uses, StyleOfStdout()));
}

int NoSuchCommand(const std::string& name) {
  std::vector<std::string_view> known = {"help", "completion", "--help", "--version"};
  for (const Entry& entry : kCommands) known.emplace_back(entry.name);
  const bool names_file = name.find_first_of("./") != std::string::npos;
  return Complain({.message = fmt::format("there is no command '{}'{}", name,
                                          names_file ? ", and no such file" : ""),
                   .hint = SuggestOr(name, known, "plimsoll help lists them")});
}

int PrintHelp(const std::vector<std::string>& words) {
  if (words.empty()) return Print(Overview(DescribeAll(), StyleOfStdout()));
  const Entry* const entry = Find(words.front());
  if (entry == nullptr) return NoSuchCommand(words.front());
  return Print(HelpOf(Declare(*entry)->flags.Describe(), StyleOfStdout()));
}

int PrintCompletion(const std::vector<std::string>& words) {
  const Result<std::string> script =
      CompletionScript(words.empty() ? "" : words.front(), DescribeAll());
  return script ? Print(*script) : Complain(script.error());
}

/// For whoever packs or installs the program; help does not list it.
int PrintManual(const std::vector<std::string>& words, const std::string& version) {
  if (words.empty()) return Print(ManualOverview(DescribeAll(), version));
  const Entry* const entry = Find(words.front());
  if (entry == nullptr) return NoSuchCommand(words.front());
  return Print(ManualOf(Declare(*entry)->flags.Describe(), version));
}

bool AsksForHelp(const std::vector<std::string>& words) {
  const auto end = std::ranges::find(words, "--");
  return std::any_of(words.begin(), end,
                     [](const std::string& word) { return word == "-h" || word == "--help"; });
}

int RunCommand(const Entry& entry, const std::vector<std::string>& words) {
  if (AsksForHelp(words)) return PrintHelp({entry.name});
  const std::unique_ptr<Declared> command = Declare(entry);
  if (const std::optional<Error> error = command->flags.Parse(words)) return Complain(*error);
  Progress::Silence(command->quiet);
  try {
    return command->run();
  } catch (const std::bad_alloc&) {
    return Complain({.message = "there is not enough memory for this"});
  }
}

/// `plimsoll FILE...`: what the file is for.
int RunForFile(const std::vector<std::string>& words, FileKind kind) {
  // "config.json" is a configuration as much as "hf:config.json" is; but what is to be asked of it
  // has to be told.
  const bool asks = kind != FileKind::kConfiguration || words.front().starts_with("hf:");
  const char* const command = asks ? CommandFor(kind) : nullptr;
  return command == nullptr ? DescribeFile(words.front(), kind) : RunCommand(*Find(command), words);
}

}  // namespace

const std::string& ProgramVersion() { return program_version; }

int Run(const std::vector<std::string>& words, const std::string& version) {
  if (program_version != version) program_version = version;
  ::signal(SIGXFSZ, SIG_IGN);  // a file that grows too large is an error of writing, told in a line
  if (words.empty()) {
    std::fputs(Overview(DescribeAll(), StyleOfStderr()).c_str(), stderr);
    return kUnusable;
  }
  const std::string& first = words.front();
  const std::vector<std::string> rest(words.begin() + 1, words.end());
  if (first == "--version") return Print(version + "\n");
  if (first == "help" || first == "--help" || first == "-h") return PrintHelp(rest);
  if (first == "completion") return PrintCompletion(rest);
  if (first == "man") return PrintManual(rest, version);
  if (const Entry* const entry = Find(first)) return RunCommand(*entry, rest);
  const FileKind kind = KindOf(first);
  if (kind != FileKind::kMissing) return RunForFile(words, kind);
  return NoSuchCommand(first);
}

}  // namespace plimsoll
