#include "base/output.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>

namespace plimsoll {
namespace {

bool WriteAll(int file, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(file, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return false;
    bytes.remove_prefix(static_cast<std::size_t>(written));
  }
  return true;
}

/// Also where writing failed, whose reason is then kept.
bool Finish(int file, bool written) {
  const int reason = errno;
  const bool closed = ::close(file) == 0;
  if (!written) errno = reason;
  return written && closed;
}

bool WriteInPlace(const std::string& path, std::string_view bytes) {
  const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  return file >= 0 && Finish(file, WriteAll(file, bytes));
}

/// The permissions of what was there, or those that a new file gets.
mode_t ModeFor(const std::string& path) {
  struct stat before {};
  if (::stat(path.c_str(), &before) == 0) return before.st_mode & 07777;
  const mode_t mask = ::umask(0);
  ::umask(mask);
  return 0666 & ~mask;
}

bool Replace(const std::string& path, std::string part, int file, std::string_view bytes) {
  const bool written = ::fchmod(file, ModeFor(path)) == 0 && WriteAll(file, bytes);
  if (Finish(file, written) && ::rename(part.c_str(), path.c_str()) == 0) return true;
  const int reason = errno;
  ::unlink(part.c_str());
  errno = reason;
  return false;
}

bool Write(const std::string& path, std::string_view bytes) {
  struct stat there {};
  const bool exists = ::stat(path.c_str(), &there) == 0;
  if (exists && !S_ISREG(there.st_mode)) return WriteInPlace(path, bytes);
  std::string part = path + ".XXXXXX";
  const int file = ::mkstemp(part.data());
  if (file >= 0) return Replace(path, std::move(part), file, bytes);
  return exists && WriteInPlace(path, bytes);
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

}  // namespace

std::optional<Error> WriteFile(const std::string& path, std::string_view bytes) {
  if (Write(Behind(path).string(), bytes)) return std::nullopt;
  return Error{.message = fmt::format("it cannot be written: {}", std::strerror(errno)),
               .file = path};
}

}  // namespace plimsoll
