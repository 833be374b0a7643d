#include "cli/script_flags.h"

#include <fmt/format.h>
#include <unistd.h>

#include <charconv>
#include <cstdlib>
#include <filesystem>

#include "job/script_capture.h"

namespace plimsoll {
namespace {

constexpr std::string_view kGpu = "H200";

Result<std::string> TemporaryStepFile() {
  std::error_code failed;
  const auto folder = std::filesystem::temp_directory_path(failed);
  std::string name = (folder / "plimsoll-XXXXXX.step.json.gz").string();
  const int file = failed ? -1 : ::mkstemps(name.data(), sizeof(".step.json.gz") - 1);
  if (file < 0) {
    return Error{.message = "no temporary file can be made",
                 .hint = "name a folder that can be written in TMPDIR"};
  }
  ::close(file);
  return name;
}

}  // namespace

void ScriptFlags::AddTo(Flags& flags) {
  flags.Switch("--run", run,
               "capture the step here and now: runs the training script that stands after -- on "
               "tensors without memory, for two batch sizes and three steps; no GPU is needed");
  flags.Text("--keep-step", "FILE", keep, "with --run: keep the step file under this name");
  flags.CommandLine("COMMAND", command,
                    "with --run: the script as you type it, {batch} in place of the batch size",
                    "--run");
}

Result<CapturedStep> CapturedStep::Of(const ScriptFlags& flags,
                                      std::optional<std::pair<std::int64_t, std::int64_t>> batches,
                                      const std::string& gpu) {
  const Result<std::string> path =
      flags.keep ? Result<std::string>(*flags.keep) : TemporaryStepFile();
  if (!path) return path.error();
  CapturedStep step(*path, flags.keep.has_value());
  const std::optional<Error> error = CaptureScript({.command = flags.command,
                                                    .batches = batches,
                                                    .gpu = gpu.empty() ? std::string(kGpu) : gpu,
                                                    .step_file = *path});
  if (error) return *error;
  return step;
}

CapturedStep::CapturedStep(CapturedStep&& other) noexcept
    : path_(std::move(other.path_)), kept_(std::exchange(other.kept_, true)) {}

CapturedStep::~CapturedStep() {
  std::error_code ignored;
  if (!kept_) std::filesystem::remove(path_, ignored);
}

std::optional<Error> CheckSource(const ScriptFlags& flags, const std::vector<std::string>& files) {
  if (flags.run && !files.empty()) {
    return Error{.message = "a file and --run are two sources of a step",
                 .hint = "give one of them"};
  }
  if (!flags.run && files.empty()) {
    return Error{.message = "which step?",
                 .hint = "give a step file, or --run -- python train.py --batch-size {batch}"};
  }
  if (!flags.run && flags.keep) {
    return Error{.message = "--keep-step keeps what --run captures", .hint = "add --run"};
  }
  return std::nullopt;
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
