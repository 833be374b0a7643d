// `plimsoll mcp`: the commands that only read, for agents. Each tool is a command with --json, run
// in this process; what it prints is the result.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <memory>
#include <string>
#include <vector>

#include "base/printable.h"
#include "cli/command/command.h"
#include "cli/command/command_text.h"
#include "cli/file_kind.h"
#include "cli/mcp/server.h"
#include "cli/run.h"
#include "cli/terminal/terminal.h"

namespace plimsoll {
namespace {

using mcp::Argument;
using mcp::ArgumentKind;
using mcp::Tool;
using mcp::ToolAnswer;

/// What the command takes an argument for.
enum class WordKind : std::uint8_t { kFlag, kFile, kName };

/// Which flag an argument is; files and names are the command's own words.
struct Mapping {
  std::string argument;
  WordKind kind = WordKind::kFlag;
  std::string flag = {};
};

/// A word of a command line that looks like a flag would be taken for it, and "-" is where the
/// messages come from.
std::optional<Error> CheckName(const std::string& name, std::string_view what) {
  if (name.empty()) return Error{.message = fmt::format("the name of a {} is empty", what)};
  if (name.find('\0') != std::string::npos) {
    return Error{.message = fmt::format("the name of a {} has a zero byte in it", what)};
  }
  if (!name.starts_with('-')) return std::nullopt;
  return Error{.message = fmt::format("the name of a {} may not begin with '-'", what),
               .file = name,
               .hint = what == "file" ? "write ./ in front of it" : ""};
}

/// What never ends, or waits for somebody, would stop the server.
std::optional<Error> CheckPath(const std::string& path) {
  if (std::optional<Error> wrong = CheckName(path, "file")) return wrong;
  struct stat status {};
  const std::string plain = path.starts_with("hf:") ? path.substr(3) : path;
  const bool there = ::stat(plain.c_str(), &status) == 0;
  if (!there || S_ISREG(status.st_mode) || S_ISDIR(status.st_mode)) return std::nullopt;
  return Error{.message = "it is neither a file nor a folder", .file = path};
}

std::optional<Error> AddWords(const Json& value, const Mapping& mapping,
                              std::vector<std::string>& words) {
  std::vector<std::string> values;
  if (const std::string* const text = value.text()) values.push_back(*text);
  if (const auto number = value.whole()) values.push_back(std::to_string(*number));
  for (const Json& item : value.items()) values.push_back(*item.text());
  if (const auto on = value.boolean()) {
    if (*on) words.push_back(mapping.flag);
    return std::nullopt;
  }
  for (const std::string& each : values) {
    if (mapping.kind == WordKind::kFlag) {
      words.push_back(mapping.flag + "=" + each);
      continue;
    }
    std::optional<Error> wrong =
        mapping.kind == WordKind::kFile ? CheckPath(each) : CheckName(each, "card");
    if (wrong) return wrong;
    words.push_back(each);
  }
  return std::nullopt;
}

ToolAnswer Unusable(const Error& error) {
  return {.complaint = Printable(error.ToLine()), .exit_code = kUnusable};
}

/// The command line as somebody would type it.
std::string AsTyped(const std::vector<std::string>& words) {
  CommandText text(words.front());
  text.Words({words.begin() + 1, words.end()});
  return text.str();
}

/// Whether a job fits, of a prediction or a plan.
std::string Decided(const Json& document, const std::string& verdict) {
  if (verdict == "fits") return "It fits.";
  if (verdict == "does_not_fit") return "It does not fit.";
  std::string text = "It is unknown whether it fits";
  const Json& why =
      document["unknown"].items().empty() ? Json() : document["unknown"].items().front();
  if (const std::string* const what = why["what"].text()) text += ": " + *what;
  const std::string* const file = why["file"].text();
  const auto line = why["line"].whole();
  if (file && line) text += " (" + *file + ":" + std::to_string(*line) + ")";
  return text + ".";
}

/// What a document says of itself in a sentence.
std::string SummaryOf(const Json& document, int exit_code) {
  const std::string* const verdict = document["verdict"].text();
  if (verdict && document["unknown"].is_array()) return Decided(document, *verdict);
  if (verdict) return *verdict;
  return exit_code == kNo ? "The answer is no." : "";
}

ToolAnswer RunWords(std::vector<std::string> words) {
  std::string command = AsTyped(words);
  ToolAnswer answer;
  {
    CapturedOutput output;
    words.insert(words.begin() + 1, "-q");
    answer.exit_code = Run(words, ProgramVersion());
    answer.document = ParseOwnJson(output.printed());
    answer.complaint = output.told();
  }
  while (answer.complaint.ends_with('\n')) answer.complaint.pop_back();
  answer.command = std::move(command);
  if (answer.document.is_object()) answer.summary = SummaryOf(answer.document, answer.exit_code);
  return answer;
}

/// `plimsoll COMMAND --json` with the words that the arguments are.
ToolAnswer CallCommand(const std::string& command, const std::vector<Mapping>& mappings,
                       const Json& arguments) {
  std::vector<std::string> words = {command, "--json"};
  for (const Mapping& mapping : mappings) {
    const Json& value = arguments[mapping.argument];
    if (value.is_null()) continue;
    if (const std::optional<Error> wrong = AddWords(value, mapping, words)) {
      return Unusable(*wrong);
    }
  }
  const Json& script = arguments["script"];
  if (!script.empty()) {
    words.insert(words.begin() + 2, "--run");
    words.emplace_back("--");
    for (const Json& word : script.items()) words.push_back(*word.text());
  }
  return RunWords(std::move(words));
}

/// A text as a file that has no place on any disk.
class TextFile {
 public:
  explicit TextFile(const std::string& text) : file_(::memfd_create("text", MFD_CLOEXEC)) {
    for (std::size_t done = 0; file_ >= 0 && done < text.size();) {
      const ssize_t written = ::write(file_, text.data() + done, text.size() - done);
      if (written <= 0 && errno == EINTR) continue;
      if (written <= 0) break;
      done += static_cast<std::size_t>(written);
    }
    if (file_ >= 0) ::lseek(file_, 0, SEEK_SET);
  }
  ~TextFile() {
    if (file_ >= 0) ::close(file_);
  }
  TextFile(const TextFile&) = delete;

  std::string path() const { return fmt::format("/proc/self/fd/{}", file_); }

 private:
  int file_;
};

/// Where a document names the file of the text, it was the text.
void Rename(Json& json, const std::string& path) {
  for (Json& item : json.items()) Rename(item, path);
  for (Json::Member& member : json.members()) {
    const std::string* const text = member.second.text();
    if (text != nullptr && *text == path) {
      member.second = "(text)";
    } else {
      Rename(member.second, path);
    }
  }
}

ToolAnswer ExplainLog(const Json& arguments) {
  const std::string* const file = arguments["file"].text();
  const std::string* const text = arguments["text"].text();
  if ((file == nullptr) == (text == nullptr)) {
    return Unusable({.message = "explain_log takes either a file or a text"});
  }
  if (file != nullptr) {
    if (const std::optional<Error> wrong = CheckPath(*file)) return Unusable(*wrong);
    return RunWords({"explain", "--json", *file});
  }
  const TextFile written(*text);
  ToolAnswer answer = RunWords({"explain", "--json", written.path()});
  Rename(answer.document, written.path());
  for (std::string* const said : {&answer.complaint, &answer.command}) {
    for (std::size_t at = said->find(written.path()); at != std::string::npos;
         at = said->find(written.path(), at)) {
      said->replace(at, written.path().size(), "(text)");
    }
  }
  return answer;
}

ToolAnswer Identify(const Json& arguments) {
  const std::string& file = *arguments["file"].text();
  if (const std::optional<Error> wrong = CheckPath(file)) return Unusable(*wrong);
  const FileKind kind = KindOf(file);
  if (kind == FileKind::kMissing) {
    return Unusable({.message = "there is no such file", .file = file});
  }
  Json uses = Json::array();
  for (const NextStep& step : UsesOf(kind, file)) {
    uses.push_back({{"command", step.command}, {"purpose", step.purpose}});
  }
  Json document = Json::object();
  document["schema"] = "plimsoll.file/1";
  document["file"] = file;
  document["kind"] = KindName(kind);
  document["uses"] = std::move(uses);
  return {.summary = fmt::format("{} is {}.", Printable(file), KindName(kind)),
          .document = std::move(document),
          .command = AsTyped({file})};
}

Argument Text(std::string name, std::string help, bool required = false) {
  return {std::move(name), ArgumentKind::kText, std::move(help), required};
}
Argument Texts(std::string name, std::string help, bool required = false) {
  return {std::move(name), ArgumentKind::kTexts, std::move(help), required};
}
Argument Whole(std::string name, std::string help) {
  return {std::move(name), ArgumentKind::kWhole, std::move(help)};
}
Argument OnOff(std::string name, std::string help) {
  return {std::move(name), ArgumentKind::kSwitch, std::move(help)};
}

/// "max_batch" is --max-batch.
std::string FlagOf(const std::string& argument) {
  std::string flag = "--" + argument;
  std::ranges::replace(flag, '_', '-');
  return flag;
}

/// A tool whose arguments are a command's: `words` as they stand, all others as flags.
Tool OfCommand(Tool tool, const std::string& command, const std::vector<Mapping>& words,
               bool allow_run) {
  std::vector<Mapping> mappings;
  for (const Argument& argument : tool.arguments) {
    const auto word = std::ranges::find(words, argument.name, &Mapping::argument);
    mappings.push_back(word != words.end()
                           ? *word
                           : Mapping{.argument = argument.name, .flag = FlagOf(argument.name)});
  }
  if (allow_run) {
    tool.runs_scripts = true;
    tool.arguments.push_back(
        Texts("script",
              "in place of a file: the command that trains, word by word, with {batch} where its "
              "batch size stands; it is run on tensors without memory"));
  }
  tool.call = [command, mappings](const Json& arguments) {
    return CallCommand(command, mappings, arguments);
  };
  return tool;
}

std::vector<Tool> Tools(bool allow_run) {
  const Argument gpu = Text("gpu", "the card, by a name of the tool gpus or its memory (22GiB)");
  const Argument torch = Text("torch", "the release of PyTorch that will train (2.11)");
  std::vector<Tool> tools;
  tools.push_back(OfCommand(
      {.name = "explain",
       .title = "Why it ran out of memory",
       .description =
           "Explains memory snapshots, logs, profiler traces, nsys exports or the folder of a "
           "`plimsoll run`: the verdict, where every byte is, who holds it by line of code, causes "
           "with their evidence, and remedies with what they save. Several files are the ranks of "
           "one job, or processes that share a card.",
       .arguments = {Texts("files", "the files or folders", true),
                     Whole("at", "account at this event, not at the out-of-memory or the peak"),
                     Text("group", "add the holders up by what this regular expression finds"),
                     Text("capacity",
                          "the memory of a card that several processes share (80GiB)")}},
      "explain", {{"files", WordKind::kFile}}, false));
  tools.push_back({.name = "explain_log",
                   .title = "What an error text or a log tells",
                   .description =
                       "The same of one log, or of the text of an error: whose memory ran out, "
                       "the arithmetic of its figures, what they rule out, and what to do.",
                   .arguments = {Text("file", "a log"), Text("text", "the text itself")},
                   .call = ExplainLog});
  tools.push_back(OfCommand(
      {.name = "predict",
       .title = "What a training step will need",
       .description =
           "How much memory a captured training step takes at a batch size on a card, whether it "
           "fits, the largest batch, and where the memory is at the peak. Takes a step file "
           "(*.step.json.gz), two snapshots at two batch sizes, or hf:config.json.",
       .arguments = {Texts("files", "a step file, two snapshots, or hf:config.json", !allow_run),
                     Whole("batch", "the batch size; the largest that fits unless given"),
                     Text("batches", "the batch sizes of two snapshots (8,16)"),
                     Whole("length", "of a job over a length too: the one that is asked about"),
                     Whole("seq", "with hf:config.json: tokens in a sequence"), gpu,
                     OnOff("max_batch", "also the largest batch that fits"),
                     OnOff("max_length", "also the longest that fits"),
                     Text("checkpoint", "activation checkpointing: all, every:2, names of blocks"),
                     Whole("accumulate", "passes before each step of the optimizer"),
                     Text("optimizer", "another optimizer than the captured one"),
                     Text("precision", "a precision that was captured too (amp_bf16)"),
                     Text("mesh", "as one rank of several: fsdp=4,tensor=2"),
                     Text("limit", "what set_per_process_memory_fraction will allow (20GiB)"),
                     Text("beside", "what other processes hold of the card (70GiB)"),
                     Text("host", "what the machine has for the job (64GiB)"), torch}},
      "predict", {{"files", WordKind::kFile}}, allow_run));
  tools.push_back(OfCommand(
      {.name = "plan",
       .title = "What to change so that it fits",
       .description =
           "The ways to train a captured step within a card, the fastest first: precision, passes, "
           "checkpointing, optimizer, offload, several GPUs; with memory and time of each.",
       .arguments = {Texts("files", "one step file, hf:config.json or a snapshot", !allow_run), gpu,
                     Whole("global_batch", "samples in each step of the optimizer"),
                     Whole("gpus", "so many of the card in each machine"),
                     Whole("nodes", "so many machines"),
                     Text("budget", "what PyTorch may hold of the card (20GiB)"),
                     OnOff("keep_numerics", "only what gives the same results"), torch}},
      "plan", {{"files", WordKind::kFile}}, allow_run));
  tools.push_back(OfCommand(
      {.name = "diff",
       .title = "What grew between two runs",
       .description = "Compares two memory snapshots, or two folders of `plimsoll run`: peaks, "
                      "categories, and the lines of code that grew.",
       .arguments = {Text("before", "the snapshot or folder of the one run", true),
                     Text("after", "that of the other", true),
                     Text("fail_above",
                          "the answer is no where a peak grew by more (200MiB, 5%)")}},
      "diff", {{"before", WordKind::kFile}, {"after", WordKind::kFile}}, false));
  tools.push_back({.name = "identify",
                   .title = "What a file is",
                   .description = "What kind of file this is, by its content, and what can be done "
                                  "with it.",
                   .arguments = {Text("file", "any file or folder", true)},
                   .call = Identify});
  tools.push_back(OfCommand({.name = "gpus",
                             .title = "The catalogue of cards",
                             .description = "Memory, speed and links of cards, by name; all of "
                                            "them where none is named.",
                             .arguments = {Texts("names", "cards, however spelled (4090, H100)")}},
                            "gpus", {{"names", WordKind::kName}}, false));
  return tools;
}

/// The channel of the messages. While commands run, nobody else can read from it or write to it:
/// not what they start, nor a library that prints.
class Channel {
 public:
  Channel()
      : in_(::fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 3)),
        out_(::fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 3)) {
    const int nothing = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (nothing >= 0) {
      ::dup2(nothing, STDIN_FILENO);
      ::close(nothing);
    }
    ::dup2(STDERR_FILENO, STDOUT_FILENO);
  }
  ~Channel() {
    ::close(in_);
    ::close(out_);
  }
  Channel(const Channel&) = delete;

  enum class Got : std::uint8_t { kLine, kTooLong, kEnd };
  /// The next line, without its end.
  Got Next(std::string& line) {
    line.clear();
    bool too_long = false;
    while (true) {
      const std::size_t end = pending_.find('\n');
      const std::size_t count = end == std::string::npos ? pending_.size() : end;
      too_long = too_long || line.size() + count > mcp::kLongestMessage;
      if (!too_long) line.append(pending_, 0, count);
      if (too_long) line.clear();
      if (end != std::string::npos) {
        pending_.erase(0, end + 1);
        return too_long ? Got::kTooLong : Got::kLine;
      }
      pending_.clear();
      if (!Fill())
        return line.empty() && !too_long ? Got::kEnd : too_long ? Got::kTooLong : Got::kLine;
    }
  }

  /// False where the client is gone. Nothing that a command starts inherits how signals are handled
  /// here: messages are sent between commands.
  bool Send(const std::string& line) const {
    const auto before = std::signal(SIGPIPE, SIG_IGN);
    const bool sent = Write(line);
    std::signal(SIGPIPE, before);
    return sent;
  }

 private:
  bool Write(const std::string& line) const {
    const std::string whole = line + "\n";
    for (std::size_t done = 0; done < whole.size();) {
      const ssize_t written = ::write(out_, whole.data() + done, whole.size() - done);
      if (written < 0 && errno == EINTR) continue;
      if (written <= 0) return false;
      done += static_cast<std::size_t>(written);
    }
    return true;
  }

  bool Fill() {
    std::array<char, 65536> buffer;
    ssize_t count = 0;
    do {
      count = ::read(in_, buffer.data(), buffer.size());
    } while (count < 0 && errno == EINTR);
    if (count <= 0) return false;
    pending_.assign(buffer.data(), static_cast<std::size_t>(count));
    return true;
  }

  int in_;
  int out_;
  std::string pending_;
};

int RunMcp(bool allow_run) {
  if (::isatty(STDIN_FILENO) == 1) {
    Remark("this speaks the Model Context Protocol on standard input; it is for a client to start");
  }
  mcp::Server server(Tools(allow_run), ProgramVersion());
  Channel channel;
  std::string line;
  while (true) {
    const Channel::Got got = channel.Next(line);
    if (got == Channel::Got::kEnd) return kFine;
    const std::optional<std::string> answer =
        got == Channel::Got::kTooLong ? mcp::Server::TooLong() : server.Answer(line);
    if (answer && !channel.Send(*answer)) return kFine;
  }
}

}  // namespace

Command AddMcp(Flags& declare) {
  const auto allow_run = std::make_shared<bool>(false);
  declare.Switch("--allow-run", *allow_run,
                 "predict and plan may also run a training script, on tensors without memory; "
                 "without it, no tool starts a program of yours");
  declare.Examples(
      "  plimsoll mcp   for a client to start: {\"command\": \"plimsoll\", \"args\": [\"mcp\"]}\n"
      "  plimsoll mcp --allow-run   its tools may run scripts");
  return [allow_run] { return RunMcp(*allow_run); };
}

}  // namespace plimsoll
