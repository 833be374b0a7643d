#include "files/output.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

namespace plimsoll {
namespace {

/// Opens a new file whose name nobody else has: another process, on another machine too, or
/// another thread. Its permissions are those that any new file gets.
int OpenNew(const std::string& stem, std::string& name) {
  static std::atomic<unsigned> count = 0;
  constexpr int kMostTaken = 1000;  // left behind by those that were killed
  for (int i = 0; i < kMostTaken; ++i) {
    name = fmt::format("{}.{}-{}.part", stem, ::getpid(), count++);
    const int file = ::open(name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (file >= 0 || errno != EEXIST) return file;
  }
  return -1;
}

/// A new file beside the target, with its name in its own where a file's name may be that long.
int OpenBeside(const std::string& target, std::string& name) {
  const int file = OpenNew(target, name);
  if (file >= 0 || errno != ENAMETOOLONG) return file;
  return OpenNew((std::filesystem::path(target).parent_path() / "plimsoll").string(), name);
}

/// What a link leads to, also where there is nothing yet.
std::filesystem::path Behind(std::filesystem::path path) {
  constexpr int kMostLinks = 40;
  std::error_code ignored;
  for (int i = 0; i < kMostLinks && std::filesystem::is_symlink(path, ignored); ++i) {
    // An absolute target replaces the folder.
    path = path.parent_path() / std::filesystem::read_symlink(path, ignored);
  }
  return path;
}

/// A new name is on disk only when its folder is. Where folders cannot be synced, it is not our
/// loss.
void SyncFolderOf(const std::string& path) {
  const std::string folder = std::filesystem::path(path).parent_path().string();
  const int fd = ::open(folder.empty() ? "." : folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return;
  ::fsync(fd);
  ::close(fd);
}

}  // namespace

FileWriter::FileWriter(const std::string& path) : path_(path), target_(Behind(path).string()) {
  struct stat there {};
  const bool exists = ::stat(target_.c_str(), &there) == 0;
  if (!exists && errno == ENAMETOOLONG) {
    Fail();
    return;
  }
  if (exists && !S_ISREG(there.st_mode)) {
    OpenInPlace();
    return;
  }
  file_ = OpenBeside(target_, part_);
  if (file_ >= 0) {
    if (exists && ::fchmod(file_, there.st_mode & 07777) != 0) Fail();
    return;
  }
  Fail();
  no_part_ = exists;
  part_.clear();
}

FileWriter::~FileWriter() {
  if (file_ >= 0) ::close(file_);
  if (!part_.empty()) ::unlink(part_.c_str());
}

void FileWriter::OpenInPlace() {
  file_ = ::open(target_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (file_ < 0) Fail();
}

void FileWriter::Fail() {
  if (reason_ == 0) reason_ = errno;
}

void FileWriter::Write(std::string_view bytes) {
  while (!bytes.empty() && reason_ == 0) {
    const ssize_t written = ::write(file_, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return Fail();
    bytes.remove_prefix(static_cast<std::size_t>(written));
  }
}

std::optional<Error> FileWriter::Commit() {
  // Pipes and some file systems cannot sync; only a failing disk is a failure.
  if (reason_ == 0 && ::fsync(file_) != 0 && errno == EIO) Fail();
  if (file_ >= 0 && ::close(std::exchange(file_, -1)) != 0) Fail();
  if (reason_ == 0 && !part_.empty()) {
    if (::rename(part_.c_str(), target_.c_str()) == 0) {
      part_.clear();
      SyncFolderOf(target_);
    } else {
      Fail();
    }
  }
  return Problem();
}

std::optional<Error> FileWriter::Problem() const {
  if (reason_ == 0) return std::nullopt;
  if (!no_part_) {
    return Error{.message = fmt::format("it cannot be written: {}", std::strerror(reason_)),
                 .file = path_};
  }
  return Error{.message = fmt::format("no new file can be made beside it: {}; so it would be "
                                      "overwritten in place, and lost if that is cut short",
                                      std::strerror(reason_)),
               .file = path_,
               .hint = "name a file in another folder"};
}

std::optional<Error> WriteFile(const std::string& path, std::string_view bytes) {
  FileWriter file(path);
  file.Write(bytes);
  return file.Commit();
}

std::optional<Error> CheckWritable(const std::string& path) {
  struct stat there {};
  // To open a pipe is to wait for its other end.
  const bool special = ::stat(path.c_str(), &there) == 0 && !S_ISREG(there.st_mode);
  if (special && !S_ISDIR(there.st_mode)) return std::nullopt;
  return FileWriter(path).Problem();
}

bool IsSameFile(const std::string& one, const std::string& other) {
  struct stat a {};
  struct stat b {};
  return ::stat(one.c_str(), &a) == 0 && ::stat(other.c_str(), &b) == 0 && a.st_dev == b.st_dev &&
         a.st_ino == b.st_ino;
}

}  // namespace plimsoll
