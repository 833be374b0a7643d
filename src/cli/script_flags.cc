#include "cli/script_flags.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "base/text.h"
#include "cli/file_kind.h"
#include "cli/terminal/terminal.h"
#include "cli/tuning_flags.h"
#include "files/input.h"
#include "files/output.h"
#include "job/file/at_length.h"
#include "job/file/matched_runs.h"
#include "job/file/step_file.h"
#include "launch/script_capture.h"

namespace plimsoll {
namespace {

constexpr std::string_view kGpu = "H200";
constexpr std::string_view kPrefix = "hf:";
constexpr std::string_view kAutocast = "amp_bf16";
constexpr std::string_view kPackedStep = ".step.json.gz";
constexpr std::string_view kPlainStep = ".step.json";

/// A name among the temporary files, gone with the object.
class TemporaryFile {
 public:
  explicit TemporaryFile(std::string_view ending) {
    std::error_code failed;
    const auto folder = std::filesystem::temp_directory_path(failed);
    std::string name = (folder / fmt::format("plimsoll-XXXXXX{}", ending)).string();
    const int file = failed ? -1 : ::mkstemps(name.data(), static_cast<int>(ending.size()));
    if (file < 0) return;
    ::close(file);
    path_ = name;
  }
  ~TemporaryFile() {
    std::error_code ignored;
    if (!path_.empty()) std::filesystem::remove(path_, ignored);
  }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;

  /// Empty where none could be made.
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

/// The file, or the name, without the prefix.
std::string ConfigurationOf(const std::string& path) {
  return path.starts_with(kPrefix) ? path.substr(kPrefix.size()) : path;
}

std::optional<Error> Capture(const StepRequest& request, const std::string& to) {
  const std::string gpu = request.gpu.empty() ? std::string(kGpu) : request.gpu;
  if (request.script.run) {
    return CaptureScript(
        {.command = request.script.command,
         .batches = request.batches,
         .batch = request.batch,
         .length = request.script.length,
         .lengths = request.script.lengths,
         .data_seconds = request.script.data ? request.script.data_seconds : 0,
         .assume = request.script.assume,
         .allow_network = request.script.allow_network,
         .gpu = gpu,
         .every_precision = request.every_precision || request.precision == kAutocast,
         .step_file = to});
  }
  const ScriptFlags& script = request.script;
  return CaptureConfiguration({.path = ConfigurationOf(request.files.front()),
                               .tuning = script.tuning,
                               .sequence = script.sequence ? script.sequence : script.length,
                               .over_lengths = request.over_lengths,
                               .around = request.around,
                               .precision = request.precision,
                               .optimizer = request.optimizer,
                               .assume = request.script.assume,
                               .gpu = gpu,
                               .every_precision = request.every_precision,
                               .step_file = to});
}

std::string BytesOf(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream bytes;
  bytes << file.rdbuf();
  return std::move(bytes).str();
}

/// What is captured is a file for a moment: it goes by what was typed, unless it is kept.
std::string NameOf(const StepRequest& request) {
  if (request.script.keep) return *request.script.keep;
  return request.script.run ? Joined(request.script.command, " ") : request.files.front();
}

Result<Job> ReadStep(const Result<Input>& input) {
  if (!input) return input.error();
  return ReadJob(*input);
}

}  // namespace

void ScriptFlags::AddTo(Flags& flags) {
  flags.Switch("--run", run,
               "capture the step here and now: runs the training script that stands after -- on "
               "tensors without memory, for two batch sizes and three steps; no GPU is needed");
  flags.Text("--keep-step", "FILE", keep,
             "with --run or hf:config.json: keep the captured step under this name");
  flags.Count("--seq", "N", sequence,
              "with hf:config.json or hf:NAME: tokens in a sequence; --length says the same", 1,
              100'000'000);
  AddTuningFlags(flags, tuning);
  AddPointsTo(flags);
  flags.CommandLine(
      "COMMAND", command,
      "with --run: the script as you type it, {batch} in place of the batch size and, "
      "if you like, another word in braces in place of a length: {length}",
      "--run");
}

void ScriptFlags::AddPointsTo(Flags& flags) {
  flags.Count("--length", "L", length,
              "of a job over a length too (sequences, the side of images): the one that is asked "
              "about; the longest of the capture unless given",
              1, Forms::kLargestExtent);
  flags.Text("--lengths", "L,M,N", lengths,
             "with --run and a length in braces: those to capture, 128,192,256 or around --length "
             "unless given");
  flags.Repeated(
      "--assume", "WHAT=VALUE",
      "with --run or hf:config.json, of values that a capture does not have: "
      "routing=balanced (unless given), routing=skewed:F (the busiest expert gets F "
      "times its share), routing=worst (one expert gets every token), mask=SHARE (of "
      "its elements that a mask selects, 0 to 1; all unless given), outliers=SHARE (of the "
      "columns that go into layers in 8 bits, 0 to 1; none unless given); with commas, "
      "or again",
      [this](const std::string& text) { return ReadAssumptions(text, assume); });
  flags.Switch("--allow-network", allow_network,
               "with --run: let the script connect to other machines, which is refused unless "
               "this is given. What the script changes in files goes to copies that are thrown "
               "away, with this flag too. Where the kernel makes no namespaces, only Python's own "
               "functions are held back (not other programs, nor libraries in C), and a line says "
               "so");
}

Result<Job> AtAskedLength(Job job, const std::optional<std::int64_t>& length) {
  if (!HasLength(job)) {
    if (!length) return job;
    return Error{.message = "the job was captured at one length, and --length asks for another",
                 .file = job.file,
                 .hint =
                     "capture it over lengths: make_batch(batch_size, length) in "
                     "plimsoll.capture, or a word in braces behind --run: --max-length "
                     "{length}"};
  }
  JobAtLength sliced = AtLength(job, length.value_or(CapturedLengths(job).back()));
  // Bytes of a record are rounded up by less than a block is, and it has no operators to name.
  if (IsRecorded(job)) return std::move(sliced.job);
  if (sliced.rounded > 0) {
    sliced.job.notes.push_back(fmt::format(
        "at {} {} {} sizes are no whole numbers by those of the capture, and were rounded up; "
        "--lengths with this one among them captures them",
        NameOfLength(job), *sliced.job.length, sliced.rounded));
  }
  if (!sliced.unexplained.empty()) {
    sliced.job.notes.push_back(fmt::format(
        "what {} take{} is no sum of batch, {}, their product and squares; it is drawn through the "
        "captured points",
        fmt::join(sliced.unexplained, ", "), sliced.unexplained.size() == 1 ? "s" : "",
        NameOfLength(job)));
  }
  return std::move(sliced.job);
}

std::string CapturedFor(const std::optional<Gpu>& gpu) {
  if (!gpu) return "";
  return gpu->assumed ? gpu->like : gpu->name;
}

bool IsConfiguration(const std::string& path) { return KindOf(path) == FileKind::kConfiguration; }

std::optional<std::int64_t> LengthToPutAt(const ScriptFlags& flags,
                                          const std::vector<std::string>& files, const Job& job) {
  const bool made = !flags.run && !files.empty() && IsConfiguration(files.front());
  if (made && !HasLength(job)) return std::nullopt;
  return flags.length ? flags.length : flags.sequence;
}

bool AsksForNames(const std::vector<std::string>& files) {
  return files.size() == 1 && files.front() == "hf:list";
}

Result<Job> ReadOrCapture(const StepRequest& request) {
  const ScriptFlags& script = request.script;
  if (!script.run && !IsConfiguration(request.files.front())) {
    return ReadStep(Input::Open(request.files.front()));
  }
  const TemporaryFile captured(script.keep && !script.keep->ends_with(".gz") ? kPlainStep
                                                                             : kPackedStep);
  if (captured.path().empty()) {
    return Error{.message = "no temporary file can be made",
                 .hint = "name a folder that can be written in TMPDIR"};
  }
  if (const std::optional<Error> error = Capture(request, captured.path())) return *error;
  std::string bytes = BytesOf(captured.path());
  if (script.keep) {
    // Whole or not at all, whatever the capture was doing when it was ended.
    if (const std::optional<Error> error = WriteFile(*script.keep, bytes)) return *error;
  }
  return ReadStep(Input::FromMemory(NameOf(request), std::move(bytes)));
}

std::optional<Error> CheckSource(const ScriptFlags& flags, const std::vector<std::string>& files) {
  if (flags.run && !files.empty()) {
    return Error{.message = "a file and --run are two sources of a step",
                 .hint = "give one of them"};
  }
  if (!flags.run && files.empty()) {
    return Error{.message = "neither a step file nor --run is given",
                 .hint = "give a step file, or --run -- python train.py --batch-size {batch}"};
  }
  const bool configuration = !files.empty() && IsConfiguration(files.front());
  if (configuration && files.size() > 1) {
    return Error{.message = "hf:config.json is given together with another file",
                 .hint = "give one of them"};
  }
  if (!flags.run && !configuration && flags.keep) {
    return Error{.message = "--keep-step keeps what --run captures", .hint = "add --run"};
  }
  if (!flags.run && !configuration && flags.assume != Assumptions{}) {
    return Error{.message = "--assume is for what --run captures",
                 .hint = "add --run; a step file has what was assumed when it was captured"};
  }
  if (!flags.run && flags.allow_network) {
    return Error{.message = "--allow-network is for the script behind --run", .hint = "add --run"};
  }
  if (!flags.run && flags.lengths) {
    return Error{.message = "--lengths are those that --run captures", .hint = "give --length"};
  }
  if (!flags.run && flags.data) {
    return Error{.message = "--data looks through the data of the script behind --run",
                 .hint = "add --run, and the script behind --"};
  }
  if (!configuration && flags.sequence) {
    return Error{.message = "--seq goes with hf:config.json",
                 .hint = "a captured step has the length it was captured with"};
  }
  if (configuration && flags.sequence && flags.length && flags.sequence != flags.length) {
    return Error{.message = "--seq and --length are two lengths of a sequence",
                 .hint = "give one of them"};
  }
  if (std::optional<Error> error = CheckTuning(flags.tuning, configuration)) return error;
  std::vector<std::string> inputs = flags.command;
  if (configuration) inputs.push_back(ConfigurationOf(files.front()));
  return CheckOutput("--keep-step", flags.keep, inputs);
}

std::optional<Error> CheckFollowed(std::string_view precision) {
  constexpr std::string_view kFollowed[] = {"", "as_written", kAutocast, "eager"};
  if (std::ranges::find(kFollowed, precision) != std::end(kFollowed)) return std::nullopt;
  return Error{.message = fmt::format("no script is followed in precision {}", precision),
               .hint = "give amp_bf16 (bf16 autocast), or capture others with plimsoll.capture"};
}

std::optional<Error> ReadBatches(const std::string& text,
                                 std::optional<std::pair<std::int64_t, std::int64_t>>& to) {
  std::pair<std::int64_t, std::int64_t> sizes{};
  const char* const end = text.data() + text.size();
  const auto first = std::from_chars(text.data(), end, sizes.first);
  const bool comma = first.ec == std::errc() && first.ptr != end && *first.ptr == ',';
  const auto second = std::from_chars(comma ? first.ptr + 1 : end, end, sizes.second);
  if (second.ec != std::errc() || second.ptr != end) {
    return Error{.message = fmt::format("'{}' cannot be used", text),
                 .hint = "give two numbers with a comma between them, such as 8,16"};
  }
  to = sizes;
  return std::nullopt;
}

}  // namespace plimsoll
