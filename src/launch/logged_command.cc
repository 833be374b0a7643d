#include "launch/logged_command.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdint>
#include <filesystem>
#include <optional>

namespace plimsoll {
namespace {

/// Of a log that is longer, only its ends are looked at.
constexpr std::size_t kEndOfLog = std::size_t{1} << 20;
constexpr std::size_t kMostWords = 100;

bool IsHarmless(std::string_view word) {
  constexpr std::string_view kSigns = "_./=:,@%+-{}[]^";
  return !word.empty() && word.size() < 300 && std::ranges::all_of(word, [&](unsigned char c) {
    return std::isalnum(c) != 0 || kSigns.find(static_cast<char>(c)) != std::string_view::npos;
  });
}

std::string_view BaseName(std::string_view path) {
  const std::size_t slash = path.rfind('/');
  return slash == std::string_view::npos ? path : path.substr(slash + 1);
}

bool IsPython(std::string_view word) { return BaseName(word).starts_with("python"); }

bool IsScript(std::string_view word) { return word.ends_with(".py") && IsHarmless(word); }

/// A file of a library, which nobody starts by its name.
bool IsLibrary(std::string_view path) {
  constexpr std::array<std::string_view, 5> kParts = {"site-packages/", "dist-packages/",
                                                      "/lib/python", "<frozen", "\\lib\\"};
  return std::ranges::any_of(
      kParts, [&](std::string_view part) { return path.find(part) != std::string_view::npos; });
}

/// Whether the words start a script: "python -u train.py", "torchrun train.py", "python -m mod".
bool StartsScript(const std::vector<std::string>& words) {
  constexpr std::array<std::string_view, 4> kLaunchers = {"torchrun", "accelerate", "deepspeed",
                                                          "srun"};
  if (words.size() < 2 || words.size() > kMostWords) return false;
  if (!std::ranges::all_of(words, IsHarmless)) return false;
  const bool known =
      IsPython(words[0]) || std::ranges::find(kLaunchers, BaseName(words[0])) != kLaunchers.end();
  const bool script = std::ranges::any_of(words, IsScript);
  const bool module = IsPython(words[0]) && words[1] == "-m" && words.size() > 2;
  return known && (script || module);
}

/// As somebody would type it: a launcher adds its own path of Python, and a rank to each process.
std::vector<std::string> AsTyped(std::vector<std::string> words) {
  if (IsPython(words.front()) && words.front().starts_with('/')) words.front() = "python";
  std::erase_if(words, [](const std::string& word) {
    return word == "-u" || word.starts_with("--local_rank=") || word.starts_with("--local-rank=");
  });
  return words;
}

/// "'/usr/bin/python', '-u', 'train.py']…", as Python prints a list, behind its bracket.
std::vector<std::string> WordsOfList(std::string_view text) {
  std::vector<std::string> words;
  std::size_t at = 0;
  while (at < text.size() && (text[at] == '\'' || text[at] == '"')) {
    const std::size_t end = text.find(text[at], at + 1);
    if (end == std::string_view::npos) return {};
    words.emplace_back(text.substr(at + 1, end - at - 1));
    at = end + 1;
    if (!text.substr(at).starts_with(", ")) break;
    at += 2;
  }
  return at < text.size() && text[at] == ']' ? words : std::vector<std::string>();
}

std::vector<std::string> WordsOfLine(std::string_view line) {
  std::vector<std::string> words;
  while (!line.empty()) {
    const std::size_t first = line.find_first_not_of(" \t\r");
    if (first == std::string_view::npos) break;
    line.remove_prefix(first);
    const std::string_view word = line.substr(0, line.find_first_of(" \t\r"));
    words.emplace_back(word);
    line.remove_prefix(word.size());
  }
  return words;
}

/// "Command '['/usr/bin/python', 'train.py']' returned", "cmd=['python', …": of accelerate,
/// DeepSpeed and whoever starts processes.
std::vector<std::string> FromLauncher(std::string_view line) {
  for (std::size_t at = line.find('['); at != std::string_view::npos; at = line.find('[', at + 1)) {
    std::vector<std::string> words = WordsOfList(line.substr(at + 1));
    if (StartsScript(words)) return AsTyped(std::move(words));
  }
  return {};
}

/// "cmd = /usr/bin/python -u -m deepspeed.launcher.launch --world_info=eyJ… train.py --lr 1e-4" of
/// DeepSpeed's runner: the script and what is behind it, as `deepspeed` was given them.
std::vector<std::string> FromDeepSpeedRunner(std::string_view line) {
  constexpr std::string_view kModule = "-m deepspeed.launcher.launch ";
  const std::size_t at = line.find(kModule);
  if (at == std::string_view::npos) return {};
  std::vector<std::string> words = WordsOfLine(line.substr(at + kModule.size()));
  words.erase(words.begin(), std::ranges::find_if(words, IsScript));
  if (words.empty()) return {};
  words.insert(words.begin(), "python");
  return StartsScript(words) ? AsTyped(std::move(words)) : std::vector<std::string>();
}

/// Whether the line is a launcher's command with nothing in front: scripts print what they start.
bool BeginsWithLauncher(std::string_view line) {
  return line.starts_with("torchrun ") || line.starts_with("deepspeed ") ||
         line.starts_with("accelerate launch ");
}

/// "+ python train.py --lr 1e-4" of `set -x`, "me@host:~$ torchrun train.py" of a terminal.
LoggedCommand FromShell(std::string_view line) {
  std::string_view typed;
  if (line.starts_with("+ ")) typed = line.substr(2);
  if (BeginsWithLauncher(line)) typed = line;
  for (const std::string_view prompt : {"$ ", "# ", "% "}) {
    const std::size_t found = line.find(prompt);
    const bool begins = found != std::string_view::npos && found < 80;
    if (typed.empty() && begins) typed = line.substr(found + 2);
  }
  std::vector<std::string> words = WordsOfLine(typed);
  const auto script = std::ranges::find_if(
      words, [](const std::string& word) { return word.find('=') == std::string::npos; });
  std::vector<std::string> variables(words.begin(), script);
  std::erase_if(variables, [](const std::string& variable) {
    return !variable.starts_with("CUDA_VISIBLE_DEVICES=") || !IsHarmless(variable);
  });
  words.erase(words.begin(), script);
  if (!words.empty() && words.front() == "plimsoll") return {};
  if (!StartsScript(words)) return {};
  return {.words = AsTyped(std::move(words)), .with_arguments = true, .variables = variables};
}

/// The file of "  File "train.py", line 57, in <module>".
std::string FromTraceback(std::string_view line) {
  const std::size_t file = line.find("File \"");
  if (file == std::string_view::npos || !line.ends_with(", in <module>")) return {};
  const std::string_view rest = line.substr(file + 6);
  const std::string_view path = rest.substr(0, rest.find('"'));
  return IsScript(path) && !IsLibrary(path) ? std::string(path) : std::string();
}

/// What started the processes, by what it leaves in a log. accelerate calls the others: the later
/// of this list counts.
enum class Launcher : std::uint8_t { kNone, kTorchrun, kDeepSpeed, kAccelerate };

Launcher LauncherIn(std::string_view line) {
  struct Row {
    std::string_view words;
    Launcher launcher;
  };
  constexpr auto kRows = std::to_array<Row>({
      {"accelerate/commands/launch.py", Launcher::kAccelerate},
      {"accelerate.commands.launch", Launcher::kAccelerate},
      {"deepspeed.launcher", Launcher::kDeepSpeed},
      {"deepspeed/launcher/", Launcher::kDeepSpeed},
      {"[launch.py:", Launcher::kDeepSpeed},
      {"torch.distributed.elastic", Launcher::kTorchrun},
      {"torch/distributed/run.py", Launcher::kTorchrun},
      {"torch/distributed/launch.py", Launcher::kTorchrun},
      {"--local_rank=", Launcher::kTorchrun},
      {"--local-rank=", Launcher::kTorchrun},
  });
  for (const Row& row : kRows) {
    if (line.find(row.words) != std::string_view::npos) return row.launcher;
  }
  return Launcher::kNone;
}

/// The command of one process as the launcher is given it: started alone, it would be one process.
std::vector<std::string> Launched(Launcher launcher, std::vector<std::string> words) {
  if (launcher == Launcher::kNone || !IsPython(words.front())) return words;
  const bool launches =
      words.size() > 2 && words[1] == "-m" && LauncherIn(words[2]) != Launcher::kNone;
  if (launches || (words.size() > 2 && words[2].starts_with("torch.distributed."))) return words;
  std::vector<std::string> front = {"torchrun", "--nproc-per-node", "gpu"};
  if (launcher == Launcher::kDeepSpeed) front = {"deepspeed"};
  if (launcher == Launcher::kAccelerate) front = {"accelerate", "launch"};
  words.erase(words.begin());
  if (launcher == Launcher::kDeepSpeed && words.front() == "-m") words.front() = "--module";
  words.insert(words.begin(), front.begin(), front.end());
  return words;
}

struct SeenInLog {
  std::vector<std::string> launcher = {};
  LoggedCommand shell = {};
  /// The first of the last traceback, below whoever ran it: what it imports stands below it.
  std::string script = {};
  Launcher by = Launcher::kNone;
};

/// A frame of Python's own module that runs a script or a module.
bool IsOfRunpy(std::string_view line) {
  return line.find("File \"<frozen runpy>\"") != std::string_view::npos ||
         line.find("/runpy.py\"") != std::string_view::npos;
}

void LookAt(std::string_view line, bool& in_traceback, SeenInLog& seen) {
  if (line.size() > 4096) return;
  if (line.find("Traceback (most recent call last)") != std::string_view::npos) {
    in_traceback = false;
  }
  if (std::string script = FromTraceback(line); !script.empty() && !in_traceback) {
    seen.script = std::move(script);
    in_traceback = true;
  }
  // What runs another script by its path, stands above that.
  if (IsOfRunpy(line)) in_traceback = false;
  seen.by = std::max(seen.by, LauncherIn(line));
  if (std::vector<std::string> words = FromLauncher(line); !words.empty()) {
    seen.launcher = std::move(words);
  }
  if (std::vector<std::string> words = FromDeepSpeedRunner(line); !words.empty()) {
    seen.launcher = std::move(words);
  }
  if (LoggedCommand typed = FromShell(line); !typed.words.empty()) seen.shell = std::move(typed);
}

/// Where a batch size stands in a command.
struct BatchWord {
  std::size_t word = 0;
  std::size_t begin = 0;  // in the word
  /// It is plainly of one device: where there are several, that is the one.
  bool of_one_device = false;
};

/// The parts of an option's name, without what is in front of its last point: "per", "device",
/// "batch" of "--per-device-batch", "batch", "size" of "data.batch_size".
std::vector<std::string> PartsOfName(std::string name) {
  name = name.substr(name.rfind('.') + 1);
  std::vector<std::string> parts(1);
  for (const char each : name) {
    const auto c = static_cast<unsigned char>(each);
    if (each != '-' && each != '_') {
      parts.back() += static_cast<char>(std::tolower(c));
    } else if (!parts.back().empty()) {
      parts.emplace_back();
    }
  }
  return parts;
}

/// Names are made of these words in any order: --batch-size, --per_device_train_batch_size,
/// --micro-batch, --train_bs. Those of an evaluation, or of all devices together, have others.
bool NamesBatch(const std::vector<std::string>& parts) {
  constexpr auto kBatch =
      std::to_array<std::string_view>({"batch", "batchsize", "bs", "bsz", "mbs", "minibatch"});
  constexpr auto kBeside = std::to_array<std::string_view>(
      {"size", "train", "training", "micro", "mini", "per", "device", "gpu", "rank", "local"});
  const auto is_batch = [&](const std::string& part) {
    return std::ranges::find(kBatch, part) != kBatch.end();
  };
  const auto may_be_there = [&](const std::string& part) {
    return is_batch(part) || std::ranges::find(kBeside, part) != kBeside.end();
  };
  if (parts.size() == 1 && parts.front() == "b") return true;
  return std::ranges::any_of(parts, is_batch) && std::ranges::all_of(parts, may_be_there);
}

bool IsOfOneDevice(const std::vector<std::string>& parts) {
  return std::ranges::any_of(parts, [](const std::string& part) {
    return part == "micro" || part == "device" || part == "gpu" || part == "local" ||
           part == "rank" || part == "mbs";
  });
}

/// "--batch-size=8" in one word, or "--batch-size" and a number behind it.
std::optional<BatchWord> BatchWordAt(const std::vector<std::string>& words, std::size_t i) {
  const auto is_number = [](std::string_view text) {
    return !text.empty() && text.size() < 8 && text.find_first_not_of("0123456789") == text.npos;
  };
  const std::size_t equals = words[i].find('=');
  const std::vector<std::string> parts = PartsOfName(words[i].substr(0, equals));
  if (!NamesBatch(parts)) return {};
  if (equals != std::string::npos) {
    if (!is_number(std::string_view(words[i]).substr(equals + 1))) return {};
    return BatchWord{i, equals + 1, IsOfOneDevice(parts)};
  }
  const bool option = words[i].starts_with('-') && i + 1 < words.size();
  if (!option || !is_number(words[i + 1])) return {};
  return BatchWord{i + 1, 0, IsOfOneDevice(parts)};
}

}  // namespace

LoggedCommand CommandIn(std::string_view log) {
  SeenInLog seen;
  bool in_traceback = false;
  while (!log.empty()) {
    std::string_view line = log.substr(0, log.find('\n'));
    log.remove_prefix(std::min(log.size(), line.size() + 1));
    if (line.ends_with('\r')) line.remove_suffix(1);
    LookAt(line, in_traceback, seen);
  }
  if (!seen.shell.words.empty()) return seen.shell;
  if (!seen.launcher.empty()) return {Launched(seen.by, seen.launcher), true};
  if (seen.script.empty()) return {};
  return {Launched(seen.by, {"python", seen.script}), false};
}

LoggedCommand CommandOfLog(const std::string& path) {
  const int file = ::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  if (file < 0) return {};
  struct stat found = {};
  std::string text;
  if (::fstat(file, &found) == 0 && S_ISREG(found.st_mode)) {
    const auto all = static_cast<std::size_t>(found.st_size);
    const auto read = [&](std::size_t from, std::size_t size) {
      std::string part(size, '\0');
      const ssize_t got = ::pread(file, part.data(), size, static_cast<off_t>(from));
      text.append(part, 0, got > 0 ? static_cast<std::size_t>(got) : 0);
    };
    read(0, std::min(all, kEndOfLog));
    if (all > kEndOfLog)
      read(std::max(all - kEndOfLog, kEndOfLog), std::min(all - kEndOfLog, kEndOfLog));
  }
  ::close(file);
  return CommandIn(text);
}

BatchPlace WithBatchPlace(std::vector<std::string> words) {
  std::optional<BatchWord> best;
  for (std::size_t i = 0; i < words.size(); ++i) {
    const std::optional<BatchWord> found = BatchWordAt(words, i);
    if (found && (!best || found->of_one_device > best->of_one_device)) best = found;
  }
  if (!best) return {.words = std::move(words)};
  std::string& word = words[best->word];
  std::string batch = word.substr(best->begin);
  word.replace(best->begin, std::string::npos, "{batch}");
  return {.words = std::move(words), .batch = std::move(batch)};
}

}  // namespace plimsoll
