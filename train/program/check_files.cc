#include "train/program/check_files.h"

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>
#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <string_view>
#include <vector>

#include "train/parallel/ranks/launch.h"

namespace plimsoll::train {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kHeadBytes = 9;

bool IsLog(std::string_view head) { return head.starts_with('{'); }
bool IsSnapshot(std::string_view head) { return head.starts_with('\x80'); }
bool IsState(std::string_view head) { return head.starts_with("plimsoll "); }
/// The length of a header, which is JSON.
bool IsSafetensors(std::string_view head) {
  std::uint64_t length = 0;
  if (head.size() < kHeadBytes) return false;
  std::memcpy(&length, head.data(), sizeof length);
  return length <= 100'000'000 && head[sizeof length] == '{';
}

/// A file that a flag has written.
struct OutputFile {
  const char* flag;
  std::string path;
  const char* kind;
  bool (*is_one)(std::string_view head);
  /// Each rank has its own, by OfRank.
  bool of_each_rank = false;
  /// Lines are added to what is there; otherwise it is replaced.
  bool appended = false;
};

std::array<OutputFile, 4> OutputsOf(const Flags& flags) {
  return {OutputFile{"--save", flags.save, "saved state", IsState},
          OutputFile{"--weights", flags.weights, "safetensors file", IsSafetensors},
          OutputFile{"--log", flags.log, "log of a run", IsLog, /*of_each_rank=*/true,
                     /*appended=*/true},
          OutputFile{"--snapshot", flags.snapshot, "memory snapshot", IsSnapshot,
                     /*of_each_rank=*/true}};
}

/// The names under which it is written.
std::vector<fs::path> PathsOf(const OutputFile& file, const Flags& flags) {
  const int ranks = flags.ranks > 0 ? flags.ranks : LaunchFromEnvironment().size;
  const bool alone = ranks == 1 && flags.ranks == 0;
  if (!file.of_each_rank || alone) return {file.path};
  std::vector<fs::path> paths;
  for (int rank = 0; rank < ranks; ++rank) paths.push_back(OfRank(file.path, rank));
  return paths;
}

/// Names that are too long for the file system are refused here.
fs::file_status StatusOf(const char* flag, const fs::path& path) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  const bool known = status.type() != fs::file_type::none;
  TORCH_CHECK(known, flag, ": ", path.string(), ": ", error.message());
  return status;
}

void CheckNoFolder(const char* flag, const fs::path& path) {
  TORCH_CHECK(!fs::is_directory(StatusOf(flag, path)), flag, ": ", path.string(),
              " is a folder, and should be a file");
}

/// Whether opening it may wait for another program. A pipe that the shell made is open already.
bool MayWait(const fs::path& path, fs::file_status status) {
  const bool pipe = status.type() == fs::file_type::fifo || status.type() == fs::file_type::socket;
  const bool opened = path == "/dev/stdin" || path.string().starts_with("/dev/fd/");
  return pipe && !opened;
}

void CheckNoPipe(const char* flag, const fs::path& path) {
  TORCH_CHECK(!MayWait(path, StatusOf(flag, path)), flag, ": ", path.string(),
              " is a pipe, which is not waited for; give a file");
}

std::string HeadOf(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  std::string head(kHeadBytes, '\0');
  in.read(head.data(), static_cast<std::streamsize>(head.size()));
  head.resize(static_cast<std::size_t>(in.gcount()));
  return head;
}

/// Behind links, also where there is nothing yet.
fs::path Target(fs::path path) {
  constexpr int kMostLinks = 40;
  std::error_code ignored;
  for (int i = 0; i < kMostLinks && fs::is_symlink(path, ignored); ++i) {
    path = path.parent_path() / fs::read_symlink(path, ignored);
  }
  return path;
}

/// Makes one as FileWriter will (src/base/output.h), and takes it away again.
void CheckFileCanBeMadeBeside(const char* flag, const fs::path& path) {
  // Its name is at least as long.
  const std::string part = c10::str(Target(path).string(), ".", ::getpid(), "-1000000000.part");
  const int file = ::open(part.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  TORCH_CHECK(file >= 0, flag, ": no file can be made beside ", path.string(), ": ",
              std::strerror(errno), "; it grows there until it is whole");
  ::close(file);
  ::unlink(part.c_str());
}

void CheckOutput(const OutputFile& file, const fs::path& path) {
  const char* const flag = file.flag;
  CheckNoFolder(flag, path);
  CheckNoPipe(flag, path);
  const fs::path folder = fs::absolute(path).parent_path();
  TORCH_CHECK(fs::is_directory(StatusOf(flag, folder)), flag, ": there is no folder ",
              folder.string());
  const fs::file_status status = StatusOf(flag, path);
  const fs::path written = fs::exists(status) ? path : folder;
  TORCH_CHECK(::access(written.c_str(), W_OK) == 0, flag, ": there is no permission to write to ",
              written.string());
  // A device such as /dev/null takes anything.
  if (fs::exists(status) && !fs::is_regular_file(status)) return;
  const std::string head = fs::exists(status) ? HeadOf(path) : "";
  TORCH_CHECK(head.empty() || file.is_one(head), flag, ": ", path.string(),
              " is there already and is no ", file.kind, "; give another name");
  if (!file.appended) CheckFileCanBeMadeBeside(flag, path);
}

bool IsSameFile(const fs::path& one, const fs::path& other) {
  std::error_code ignored;
  // A device such as /dev/null is none.
  const fs::file_status status = fs::status(one, ignored);
  if (fs::exists(status) && !fs::is_regular_file(status)) return false;
  const fs::path plain = fs::weakly_canonical(one, ignored);
  return fs::equivalent(one, other, ignored) ||
         (!plain.empty() && plain == fs::weakly_canonical(other, ignored));
}

void CheckAllDiffer(const Flags& flags) {
  struct Named {
    const char* flag;
    std::string path;
  };
  std::vector<Named> named = {
      {"--data", flags.data}, {"--from", flags.initial_weights}, {"--plan", flags.plan}};
  const auto outputs = OutputsOf(flags);
  for (const OutputFile& file : outputs) named.push_back({file.flag, file.path});
  for (const OutputFile& file : outputs) {
    if (file.path.empty()) continue;
    std::vector<fs::path> paths = PathsOf(file, flags);
    paths.emplace_back(file.path);
    for (const auto& [flag, path] : named) {
      if (path.empty() || flag == std::string_view(file.flag)) continue;
      for (const fs::path& own : paths) {
        TORCH_CHECK(!IsSameFile(own, path), file.flag, " and ", flag, " name the same file, ",
                    own.string(), ", of which only one would be left");
      }
    }
  }
}

/// A text file for the gpt, a folder of images for the others.
void CheckData(const Flags& flags) {
  if (flags.data.empty()) return;
  TORCH_CHECK(flags.model != "mlp", "--data: the mlp has no data but what is made on the spot");
  if (flags.model == "gpt") return CheckInput("--data", flags.data);
  const fs::file_status status = StatusOf("--data", flags.data);
  TORCH_CHECK(fs::exists(status), "--data: there is no ", flags.data);
  TORCH_CHECK(fs::is_directory(status), "--data: ", flags.data,
              " is a file, and should be a folder of images");
}

}  // namespace

fs::path OfRank(const fs::path& path, int rank) {
  fs::path own = path;
  return own.replace_filename(
      c10::str(path.stem().string(), ".rank", rank, path.extension().string()));
}

void CheckInput(const char* flag, const std::string& path) {
  if (path.empty() || path == "-") return;
  TORCH_CHECK(fs::exists(StatusOf(flag, path)), flag, ": there is no ", path);
  CheckNoFolder(flag, path);
  CheckNoPipe(flag, path);
}

void CheckFiles(const Flags& flags) {
  CheckData(flags);
  CheckInput("--from", flags.initial_weights);
  CheckInput("--plan", flags.plan);
  CheckAllDiffer(flags);
  for (const OutputFile& file : OutputsOf(flags)) {
    if (file.path.empty()) continue;
    if (file.flag == std::string_view("--save")) {
      CheckNoFolder(file.flag, file.path);
      TORCH_CHECK(flags.resume || !fs::exists(StatusOf(file.flag, file.path)),
                  "--save: ", file.path,
                  " is there already; --resume goes on from it, or give another name");
    }
    for (const fs::path& path : PathsOf(file, flags)) CheckOutput(file, path);
  }
}

}  // namespace plimsoll::train
