#include "cli/file_kind.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <filesystem>

#include "cli/command/command_text.h"
#include "cli/next_steps.h"
#include "files/input.h"
#include "files/json.h"
#include "files/unpack_head.h"
#include "launch/processes.h"
#include "readers/registry.h"

namespace plimsoll {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kHead = std::size_t{1} << 16;

/// The first bytes, unpacked; empty where it is no plain file.
std::string HeadOf(const std::string& path) {
  const int file = ::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  if (file < 0) return {};
  struct stat found = {};
  std::string head(kHead, '\0');
  ssize_t size = 0;
  if (::fstat(file, &found) == 0 && S_ISREG(found.st_mode)) {
    size = ::read(file, head.data(), head.size());
  }
  ::close(file);
  head.resize(size > 0 ? static_cast<std::size_t>(size) : 0);
  return UnpackHead(head, kHead);
}

/// The value of "schema" in a document of ours: "plimsoll.step/1".
std::string_view SchemaIn(std::string_view head) {
  constexpr std::string_view kKey = "\"schema\"";
  const std::size_t key = head.find(kKey);
  if (!head.starts_with('{') || key == std::string_view::npos) return {};
  const std::size_t value = head.find_first_not_of(" \t\r\n:", key + kKey.size());
  if (value == std::string_view::npos || head[value] != '"') return {};
  const std::string_view text = head.substr(value + 1);
  return text.substr(0, text.find('"'));
}

bool IsSafetensors(std::string_view head) {
  if (head.size() < 10 || head[8] != '{' || head[9] != '"') return false;
  return head[6] == '\0' && head[7] == '\0';  // the header's length, which is never that large
}

/// torch.save writes an archive in which a pickle comes first.
bool IsSavedByTorch(std::string_view head) {
  return head.starts_with("PK\x03\x04") && head.substr(0, 300).find("data.pkl") != head.npos;
}

bool HasKeys(std::string_view head, std::initializer_list<std::string_view> keys) {
  return head.starts_with('{') && std::ranges::all_of(keys, [&](std::string_view key) {
           return head.find(key) != std::string_view::npos;
         });
}

bool IsBufferTable(std::string_view head) {
  const std::string_view first = head.substr(0, head.find('\n'));
  return first.find("lower") != first.npos && first.find("upper") != first.npos &&
         first.find("size") != first.npos && first.find(',') != first.npos;
}

/// Text readers look at the whole of it, which a head is not.
bool IsTrace(std::string_view head) {
  const auto is_text = [](const Reader& reader) {
    return reader.name.find("text") != std::string_view::npos;
  };
  return std::ranges::any_of(
      Readers(), [&](const Reader& reader) { return !is_text(reader) && reader.recognise(head); });
}

FileKind KindOfSchema(std::string_view schema) {
  if (schema.starts_with("plimsoll.step/")) return FileKind::kStep;
  if (schema.starts_with("plimsoll.plan/")) return FileKind::kPlan;
  if (schema.starts_with("plimsoll.calibration/")) return FileKind::kCalibration;
  if (schema.starts_with("plimsoll.host/")) return FileKind::kHostRecord;
  return FileKind::kAnswer;
}

/// Not "[2026-05-02 10:00:00] [INFO]" nor "{'loss': 1.2}", with which logs begin.
bool MayBeJson(std::string_view text) {
  const bool object = text.starts_with('{');
  if (!object && !text.starts_with('[')) return false;
  const std::size_t second = text.find_first_not_of(" \t\r\n", 1);
  if (second == text.npos) return true;
  return std::string_view(object ? "\"}" : "{[\"]").find(text[second]) != text.npos;
}

bool IsImage(std::string_view head) {
  constexpr std::string_view kStarts[] = {"\x89PNG", "\xff\xd8\xff", "GIF8", "%PDF-"};
  return std::ranges::any_of(kStarts, [&](std::string_view s) { return head.starts_with(s); });
}

FileKind KindOfContent(const std::string& path, std::string_view head) {
  if (IsImage(head)) return FileKind::kImage;
  head.remove_prefix(std::min(head.find_first_not_of(" \t\r\n"), head.size()));
  if (const std::string_view schema = SchemaIn(head); schema.starts_with("plimsoll.")) {
    return KindOfSchema(schema);
  }
  if (IsSafetensors(head) || IsSavedByTorch(head)) return FileKind::kWeights;
  if (head.find("<meta name=\"generator\" content=\"plimsoll\">") != head.npos)
    return FileKind::kPage;
  if (IsTrace(head)) return FileKind::kTrace;
  if (HasKeys(head, {"\"cells\"", "\"nbformat\""}) || path.ends_with(".ipynb")) {
    return FileKind::kNotebook;
  }
  // By its name too: a log may begin with the configuration of what it trains.
  if (path.ends_with(".json") && HasKeys(head, {"\"model_type\""})) {
    return FileKind::kConfiguration;
  }
  if (path.ends_with(".py")) return FileKind::kScript;
  return IsBufferTable(head) ? FileKind::kBuffers : FileKind::kText;
}

struct KindWords {
  FileKind kind;
  std::string_view name;
};
constexpr auto kNames = std::to_array<KindWords>({
    {FileKind::kMissing, "not there"},
    {FileKind::kText, "a log or another text"},
    {FileKind::kTrace, "a record of a run"},
    {FileKind::kStep, "a captured training step"},
    {FileKind::kHostRecord, "a record of the host's memory alone"},
    {FileKind::kRunFolder, "a folder of recorded processes"},
    {FileKind::kFolder, "a folder without memory snapshots"},
    {FileKind::kConfiguration, "the configuration of a Hugging Face model"},
    {FileKind::kScript, "a Python script"},
    {FileKind::kNotebook, "a notebook"},
    {FileKind::kPlan, "a plan, made by plimsoll plan --json"},
    {FileKind::kAnswer, "an answer of plimsoll in JSON"},
    {FileKind::kCalibration, "a calibration, measured by plimsoll.calibrate"},
    {FileKind::kPage, "a page made by plimsoll"},
    {FileKind::kWeights, "a file of weights, which holds no record of memory"},
    {FileKind::kBuffers, "a table of buffers with lifetimes"},
    {FileKind::kImage, "an image, of which no text is read"},
});

NextStep RunIt(std::vector<std::string> command) {
  return {CommandText("run").Plain("--").Words(command).str(),
          "runs it as it is, records it and explains what it took"};
}

NextStep PredictIt(const std::vector<std::string>& command) {
  return {CommandText("predict").Flag("--run").Plain("--").Words(command).str(),
          "the largest batch that fits, without a GPU; --gpu names the card"};
}

/// None where nothing fits, or where the job is best as it is.
std::vector<NextStep> UsesOfPlan(const std::string& path) {
  const Result<Input> input = Input::Open(path);
  if (!input) return {};
  const Result<Json> plan = ReadJson(*input);
  if (!plan || (*plan)["ways"].empty()) return {};
  const Json& way = (*plan)["ways"][std::size_t{0}];
  PlannedChange first{.batch = way["batch"].integer().value_or(0),
                      .passes = way["passes"].integer().value_or(1),
                      .own_accumulation = (*plan)["captured_passes"].integer().value_or(1) > 1};
  for (const Json& use : (*plan)["gradients_used"].items()) {
    if (use["by_scaler"].boolean().value_or(false)) {
      first.scales = true;
    } else if (use["at"].text()) {
      first.before_step.push_back(*use["at"].text());
    }
  }
  for (const auto& [lever, value] : way["set"].members()) {
    first.levers.push_back(fmt::format("{}={}", lever, value.text() ? *value.text() : ""));
  }
  if (first.levers.empty()) return {};
  std::vector<NextStep> steps = ApplyPlan(path, first);
  NextStep run = RunIt({"python", "train.py"});
  run.purpose =
      "then: trains the edited script, and records what it really takes; train.py stands "
      "for your script";
  steps.push_back(std::move(run));
  return steps;
}

}  // namespace

FileKind KindOf(const std::string& path) {
  if (path.starts_with("hf:")) return FileKind::kConfiguration;
  if (path == "-") return FileKind::kText;
  std::error_code failed;
  if (!fs::exists(path, failed)) return FileKind::kMissing;
  if (!fs::is_directory(path, failed)) return KindOfContent(path, HeadOf(path));
  const FolderFiles files = FilesBehind(path);
  if (!files.snapshots.empty()) return FileKind::kRunFolder;
  return files.hosts.empty() ? FileKind::kFolder : FileKind::kHostRecord;
}

bool IsPlainText(const std::string& path) {
  if (path == "-" || KindOf(path) != FileKind::kText) return false;
  const std::string head = HeadOf(path);
  const std::size_t first = head.find_first_not_of(" \t\r\n");
  return first != head.npos && !MayBeJson(std::string_view(head).substr(first));
}

std::string_view KindName(FileKind kind) {
  return std::ranges::find(kNames, kind, &KindWords::kind)->name;
}

std::vector<NextStep> UsesOf(FileKind kind, const std::string& path) {
  const auto with = [&](const char* command) { return CommandText(command).Word(path); };
  switch (kind) {
    case FileKind::kText:
      return {{with("explain").str(), "what its out-of-memory messages tell"}};
    case FileKind::kTrace:
    case FileKind::kRunFolder:
      return {{with("explain").str(), "why it ran out, or what its peak is made of"}};
    case FileKind::kHostRecord:
      return {
          {with("explain").str(), "what the job held of the host's memory, and who was killed"}};
    case FileKind::kStep:
      return {{with("predict").str(), "the largest batch that fits; --gpu names the card"},
              {with("plan").str(), "what to change so that it fits, and the fastest way"}};
    case FileKind::kConfiguration:
      return {
          {CommandText("predict")
               .Word(path.starts_with("hf:") ? path : "hf:" + path)
               .Flag("--seq", "2048")
               .str(),
           "the largest batch that fits; --gpu names the card, --seq the tokens in a sequence"}};
    case FileKind::kScript:
      return {RunIt({"python", path}), PredictIt({"python", path})};
    case FileKind::kNotebook:
      return {RunIt({"jupyter", "nbconvert", "--to", "notebook", "--execute", path})};
    case FileKind::kPlan:
      return UsesOfPlan(path);
    case FileKind::kCalibration:
      return {{CommandText("predict").Word("job.step.json.gz").Flag("--calibration", path).str(),
               "with what was measured on that card"}};
    case FileKind::kBuffers:
      return {{with("pack").str(), "the least memory that they need"}};
    default:
      return {};
  }
}

std::optional<Error> WrongKind(const std::string& path, std::vector<FileKind> taken,
                               std::string_view wanted) {
  const FileKind kind = KindOf(path);
  if (std::ranges::find(taken, kind) != taken.end() || kind == FileKind::kMissing) {
    return std::nullopt;
  }
  const std::vector<NextStep> uses = UsesOf(kind, path);
  std::string hint = kind == FileKind::kPage    ? "open it in a browser"
                     : kind == FileKind::kImage ? "copy the text into a file, and give that"
                                                : "";
  if (!uses.empty()) hint = uses.front().command;
  return Error{.message = fmt::format("it is {}, not {}", KindName(kind), wanted),
               .file = path,
               .hint = hint};
}

FolderFiles FilesOf(const FilesOfRun& run) {
  FolderFiles files{
      .snapshots = run.snapshots, .error_texts = run.error_texts, .worker_texts = run.worker_texts};
  files.others = run.others;
  files.missing = run.missing;
  if (run.host) files.hosts.push_back(*run.host);
  return files;
}

FolderFiles FilesBehind(const std::string& path) {
  std::error_code failed;
  if (path != "-" && !fs::is_directory(path, failed) && KindOf(path) == FileKind::kHostRecord) {
    return {.hosts = {path}};
  }
  if (path == "-" || !fs::is_directory(path, failed)) return {.snapshots = {path}};
  const RunFolder folder{.path = path};
  FolderFiles files = FilesOf(FilesToExplain(folder, ReadProcesses(folder)));
  if (!files.snapshots.empty()) return files;
  for (fs::directory_iterator i(path, failed), end; !failed && i != end; i.increment(failed)) {
    const std::string name = i->path().filename().string();
    if (name.find(".pickle") == std::string::npos || !i->is_regular_file(failed)) continue;
    if (!name.ends_with(".part")) files.snapshots.push_back(i->path().string());
  }
  std::ranges::sort(files.snapshots);
  for (const std::string& snapshot : files.snapshots) {
    const std::string text = snapshot.substr(0, snapshot.rfind(".pickle")) + ".error.txt";
    if (fs::is_regular_file(text, failed)) files.error_texts.push_back(text);
  }
  return files;
}

namespace {

/// Of a folder in which `plimsoll run` left nothing but what its hook complained of.
std::optional<Error> NothingRecorded(const std::string& path) {
  std::error_code failed;
  if (path == "-" || !fs::is_directory(path, failed)) return std::nullopt;
  const FolderFiles files = FilesBehind(path);
  if (!files.snapshots.empty()) return std::nullopt;
  const std::vector<std::string> complaints = HookComplaints({.path = path});
  if (complaints.empty() && files.missing.empty()) return std::nullopt;
  if (complaints.empty()) {
    return Error{.message = "there is no snapshot in it: " + files.missing, .file = path};
  }
  std::string why;
  for (std::string_view complaint : complaints) {
    constexpr std::string_view kSame = "nothing is recorded: ";
    if (complaint.starts_with(kSame)) complaint.remove_prefix(kSame.size());
    why += (why.empty() ? "" : "; ") + std::string(complaint);
  }
  return Error{.message = "plimsoll run recorded nothing in it: " + why,
               .file = path,
               .hint =
                   "what a job will need is found without a GPU by plimsoll predict --run -- "
                   "python train.py"};
}

}  // namespace

std::optional<Error> WrongForRecords(const std::string& path) {
  if (std::optional<Error> nothing = NothingRecorded(path)) return nothing;
  return WrongKind(path, {FileKind::kText, FileKind::kTrace, FileKind::kRunFolder},
                   "a record of a run");
}

Result<std::vector<std::string>> RecordFiles(const std::vector<std::string>& paths) {
  std::vector<std::string> files;
  for (const std::string& path : paths) {
    if (const std::optional<Error> wrong = WrongForRecords(path)) return *wrong;
    const FolderFiles found = FilesBehind(path);
    files.insert(files.end(), found.snapshots.begin(), found.snapshots.end());
  }
  return files;
}

Result<std::string> RecordFile(const std::string& path) {
  const Result<std::vector<std::string>> files = RecordFiles({path});
  if (!files) return files.error();
  if (files->size() == 1) return files->front();
  return Error{.message = fmt::format("{} snapshots are in it", files->size()),
               .file = path,
               .hint = "give one of them, such as " + files->front()};
}

}  // namespace plimsoll
