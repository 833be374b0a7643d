#include "launch/script_capture.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string_view>

#include "files/input.h"
#include "files/output.h"
#include "launch/child.h"
#include "launch/scratch.h"
#include "launch/shell_command.h"

namespace plimsoll {

// From capture/ and python/plimsoll, by plimsoll_embed.
std::string CaptureArchive();

namespace {

namespace fs = std::filesystem;

/// The file in the PATH that a word names; nothing where it names none.
std::optional<fs::path> FindProgram(const std::string& word) {
  if (word.find('/') != std::string::npos) return fs::path(word);
  const char* const variable = std::getenv("PATH");
  std::string_view rest = variable != nullptr ? variable : "";
  while (!rest.empty()) {
    const std::string_view folder = rest.substr(0, rest.find(':'));
    rest.remove_prefix(std::min(rest.size(), folder.size() + 1));
    fs::path path = fs::path(folder) / word;
    if (::access(path.c_str(), X_OK) == 0) return path;
  }
  return std::nullopt;
}

/// What the package says, in two lines: what is wrong, and what to do.
Error ReadComplaint(const std::string& file, const std::string& python, int code) {
  const Result<Input> input = Input::Open(file);
  constexpr int kBySignal = 128;
  if (!input && code > kBySignal) {
    return {.message = fmt::format("{} was ended by signal {} ({}) before the script was captured",
                                   python, code - kBySignal, strsignal(code - kBySignal))};
  }
  std::error_code ignored;
  if (!input && !fs::exists(fs::path(file).parent_path(), ignored)) {
    return {.message = fmt::format("{} was removed while the script ran",
                                   fs::path(file).parent_path().string()),
            .hint = "name a folder in TMPDIR that nobody empties"};
  }
  if (!input) {
    return {.message = fmt::format("{} ended with exit code {} before the script was captured",
                                   python, code),
            .hint = "Python 3.9 or newer with PyTorch 2.4 or newer is needed"};
  }
  const std::string_view text = input->bytes();
  const std::size_t end = std::min(text.find('\n'), text.size());
  const std::string_view hint = text.substr(std::min(end + 1, text.size()));
  return {.message = std::string(text.substr(0, end)),
          .hint = std::string(hint.substr(0, hint.find('\n')))};
}

}  // namespace

std::string PythonOf(const std::vector<std::string>& command) {
  if (command.empty()) return "python3";
  const fs::path first = command.front();
  if (first.filename().string().starts_with("python")) return command.front();
  const std::optional<fs::path> launcher = FindProgram(command.front());
  if (launcher && launcher->extension() != ".py") {
    const fs::path beside = launcher->parent_path() / "python3";
    if (::access(beside.c_str(), X_OK) == 0) return beside.string();
  }
  return "python3";
}

namespace {

/// Runs the archive with these words; what it complains of is the error.
std::optional<Error> RunPackage(const std::string& python, const std::vector<std::string>& flags,
                                const std::vector<std::string>& rest) {
  const Scratch scratch;
  if (!scratch.ok()) {
    return Error{.message = fmt::format("no folder can be made for temporary files: {}",
                                        std::strerror(errno)),
                 .hint = "name one that can be written in TMPDIR"};
  }
  const std::string archive = scratch.File("capture.zip");
  if (auto error = WriteFile(archive, CaptureArchive())) return error;
  const std::string complaint = scratch.File("complaint.txt");
  std::vector<std::string> words = {python, archive};
  words.insert(words.end(), flags.begin(), flags.end());
  words.insert(words.end(), {"--complaint", complaint, "--"});
  words.insert(words.end(), rest.begin(), rest.end());
  ChildEnd end = RunChild(words, {}, Bond::kTied);
  if (end.refused) return end.refused;
  if (end.code == 0) return std::nullopt;
  return ReadComplaint(complaint, python, end.code);
}

}  // namespace

std::optional<Error> CaptureScript(const ScriptJob& job) {
  if (std::optional<Error> error = RefuseShell(job.command)) return error;
  std::vector<std::string> flags = {"-o", job.step_file, "--gpu", job.gpu};
  if (job.batches) {
    flags.insert(flags.end(),
                 {"--batches", fmt::format("{},{}", job.batches->first, job.batches->second)});
  }
  if (job.data_seconds > 0) {
    flags.insert(flags.end(), {"--data", fmt::format("{}", job.data_seconds)});
  }
  if (const std::string stated = AsText(job.assume); !stated.empty()) {
    flags.insert(flags.end(), {"--assume", stated});
  }
  if (job.batch) flags.insert(flags.end(), {"--batch", std::to_string(*job.batch)});
  if (job.lengths) flags.insert(flags.end(), {"--lengths", *job.lengths});
  if (job.length) flags.insert(flags.end(), {"--length", std::to_string(*job.length)});
  if (job.every_precision) flags.emplace_back("--every-precision");
  if (job.allow_network) flags.emplace_back("--allow-network");
  std::optional<Error> error = RunPackage(PythonOf(job.command), flags, job.command);
  if (error && error->message.starts_with("there is no program")) {
    error->hint = "give the command as you type it to train: python train.py";
  }
  return error;
}

std::optional<Error> CaptureConfiguration(const ConfigurationJob& job) {
  std::vector<std::string> flags = {"configuration", "-o", job.step_file, "--gpu", job.gpu};
  const auto add = [&](const char* name, const std::string& value) {
    if (!value.empty()) flags.insert(flags.end(), {name, value});
  };
  add("--seq", job.sequence ? fmt::format("{}", *job.sequence) : "");
  add("--precision", job.precision);
  add("--optimizer", job.optimizer);
  add("--assume", AsText(job.assume));
  if (job.every_precision) flags.emplace_back("--every-precision");
  if (job.over_lengths) flags.emplace_back("--over-lengths");
  add("--around", job.around ? fmt::format("{}", *job.around) : "");
  const std::vector<std::string> tuning = job.tuning.Words();
  flags.insert(flags.end(), tuning.begin(), tuning.end());
  std::optional<Error> error = RunPackage("python3", flags, {job.path});
  if (error && error->message.starts_with("there is no program")) {
    error->hint = "a model is made of its configuration by Python, torch and transformers";
  }
  return error;
}

std::optional<Error> ListModels() { return RunPackage("python3", {"models"}, {}); }

}  // namespace plimsoll
