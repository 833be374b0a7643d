#include "launch/plain_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

namespace plimsoll {

std::optional<std::string> ReadPlainFile(const std::filesystem::path& path, std::size_t most) {
  const int file = ::open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
  if (file < 0) return std::nullopt;
  struct stat found = {};
  if (::fstat(file, &found) != 0 || !S_ISREG(found.st_mode)) {
    ::close(file);
    return std::nullopt;
  }
  std::string text(std::min(most, static_cast<std::size_t>(found.st_size)), '\0');
  std::size_t size = 0;
  while (size < text.size()) {
    const ssize_t part = ::read(file, text.data() + size, text.size() - size);
    if (part < 0 && errno == EINTR) continue;
    if (part <= 0) break;
    size += static_cast<std::size_t>(part);
  }
  ::close(file);
  text.resize(size);
  return text;
}

bool IsOwnersAlone(const std::filesystem::path& path) {
  struct stat found = {};
  return ::lstat(path.c_str(), &found) == 0 && S_ISDIR(found.st_mode) &&
         found.st_uid == ::geteuid() && (found.st_mode & 077) == 0;
}

}  // namespace plimsoll
