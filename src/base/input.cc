#include "base/input.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/unpack.h"

namespace plimsoll {
namespace {

constexpr std::size_t kChunk = 1 << 20;
/// A pipe may never end; a file has a size.
constexpr std::size_t kMostStreamed = std::size_t{8} << 30;

struct FileDescriptor {
  int fd = -1;
  ~FileDescriptor() {
    if (fd > STDERR_FILENO) ::close(fd);
  }
};

Error CannotRead(const std::string& path, int code) {
  std::string hint;
  if (code == ENOENT) hint = "check the path";
  if (code == EACCES) hint = "check who may read it";
  if (code == EISDIR) hint = "name the files in it, for example " + path + "/*.pickle";
  return Error{.message = fmt::format("cannot be read: {}", std::strerror(code)),
               .file = path,
               .hint = hint};
}

Result<std::string> ReadAll(const std::string& name, int fd) {
  std::string out;
  while (true) {
    const std::size_t had = out.size();
    out.resize(had + kChunk);
    const ssize_t n = ::read(fd, out.data() + had, kChunk);
    if (n < 0 && errno == EINTR) {
      out.resize(had);
      continue;
    }
    if (n < 0) return CannotRead(name, errno);
    out.resize(had + static_cast<std::size_t>(n));
    if (n == 0) return out;
    if (out.size() > kMostStreamed) {
      return Error{.message = "more than 8 GiB came through the pipe",
                   .file = name,
                   .hint = "write it to a file and give that"};
    }
  }
}

}  // namespace

Result<Input> Input::FromMemory(std::string name, std::string bytes) {
  const Compression compression = RecogniseCompression(bytes);
  if (compression != Compression::kNone) {
    Result<std::string> unpacked = Unpack(compression, bytes);
    if (!unpacked) {
      unpacked.error().file = name;
      return unpacked.error();
    }
    bytes = std::move(*unpacked);
  }
  auto owner = std::make_shared<const std::string>(std::move(bytes));
  const std::string_view view = *owner;
  return Input(std::move(name), std::move(owner), view);
}

Result<Input> Input::Open(const std::string& path) {
  if (path == "-") {
    Result<std::string> all = ReadAll("standard input", STDIN_FILENO);
    if (!all) return all.error();
    return FromMemory("standard input", std::move(*all));
  }
  FileDescriptor file{::open(path.c_str(), O_RDONLY | O_CLOEXEC)};
  struct stat info {};
  if (file.fd < 0 || ::fstat(file.fd, &info) != 0) return CannotRead(path, errno);
  if (S_ISDIR(info.st_mode)) return CannotRead(path, EISDIR);
  if (S_ISCHR(info.st_mode) && path != "/dev/stdin" && path != "/dev/null") {
    return Error{.message = "it is a device, not a file", .file = path};
  }
  const auto size = static_cast<std::size_t>(info.st_size);
  // Pipes and the files of /proc have no size to map.
  if (!S_ISREG(info.st_mode) || size == 0) {
    Result<std::string> all = ReadAll(path, file.fd);
    if (!all) return all.error();
    return FromMemory(path, std::move(*all));
  }
  void* mapped = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.fd, 0);
  if (mapped == MAP_FAILED) return CannotRead(path, errno);
  std::shared_ptr<const void> owner(
      mapped, [size](const void* p) { ::munmap(const_cast<void*>(p), size); });
  ::madvise(mapped, size, MADV_SEQUENTIAL);
  const std::string_view bytes(static_cast<const char*>(mapped), size);
  const Compression compression = RecogniseCompression(bytes);
  if (compression == Compression::kNone) return Input(path, std::move(owner), bytes);
  Result<std::string> unpacked = Unpack(compression, bytes);
  if (!unpacked) {
    unpacked.error().file = path;
    return unpacked.error();
  }
  auto buffer = std::make_shared<const std::string>(std::move(*unpacked));
  const std::string_view view = *buffer;
  return Input(path, std::move(buffer), view);
}

}  // namespace plimsoll
