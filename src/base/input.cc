#include "base/input.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>

#include "base/byte_buffer.h"
#include "base/unpack.h"

namespace plimsoll {

Error CannotRead(const std::string& path, int code) {
  std::string hint;
  if (code == ENOENT) hint = "check the path";
  if (code == EACCES) hint = "check who may read it";
  if (code == EISDIR) hint = "name the files in it, for example " + path + "/*.pickle";
  return Error{.message = fmt::format("cannot be read: {}", std::strerror(code)),
               .file = path,
               .hint = hint};
}

namespace {

constexpr std::size_t kChunk = 16 << 20;
/// A pipe may never end; a file has a size.
constexpr std::size_t kMostStreamed = std::size_t{8} << 30;

struct FileDescriptor {
  int fd = -1;
  ~FileDescriptor() {
    if (fd > STDERR_FILENO) ::close(fd);
  }
};

/// Up to `most` bytes, or to the end. Read and not mapped: a mapped file that somebody cuts short
/// ends the program, and one that somebody changes is not the one that was checked.
Result<ByteBuffer> ReadUpTo(std::size_t most, const std::string& name, int fd) {
  ByteBuffer out;
  if (most != kMostStreamed) out.Reserve(most);
  while (out.size() < most) {
    const std::size_t wanted = std::min(most - out.size(), kChunk);
    const ssize_t n = ::read(fd, out.Room(wanted), wanted);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return CannotRead(name, errno);
    if (n == 0) break;
    out.Grow(static_cast<std::size_t>(n));
  }
  return out;
}

Result<ByteBuffer> ReadStream(const std::string& name, int fd) {
  Result<ByteBuffer> all = ReadUpTo(kMostStreamed, name, fd);
  if (all && all->size() == kMostStreamed) {
    return Error{.message = "more than 8 GiB came through the pipe",
                 .file = name,
                 .hint = "write it to a file and give that"};
  }
  return all;
}

/// All that comes through a named pipe. Nobody may ever write to it: that is waited for only so
/// long, and then told.
Result<ByteBuffer> ReadNamedPipe(const std::string& name, int fd) {
  constexpr int kTick = 100;  // milliseconds
  constexpr int kTicksForAWriter = 50;
  ByteBuffer out;
  for (int ticks = 0; out.size() < kMostStreamed;) {
    const ssize_t n = ::read(fd, out.Room(kChunk), kChunk);
    if (n > 0) out.Grow(static_cast<std::size_t>(n));
    if (n > 0 || (n < 0 && errno == EINTR)) continue;
    if (n < 0 && errno != EAGAIN) return CannotRead(name, errno);
    // Without a writer it is at its end; with one that is silent it is not.
    const bool at_end = n == 0;
    if (at_end && out.size() > 0) return out;
    if (at_end && ++ticks > kTicksForAWriter) {
      return Error{.message = "it is a pipe, and nobody writes to it",
                   .file = name,
                   .hint = "give a file, or pipe into standard input (-)"};
    }
    pollfd waiting{.fd = fd, .events = POLLIN, .revents = 0};
    ::poll(&waiting, 1, kTick);
  }
  return Error{.message = "more than 8 GiB came through the pipe", .file = name};
}

Result<ByteBuffer> ReadPath(const std::string& path) {
  if (path == "-") return ReadStream("standard input", STDIN_FILENO);
  // To open a pipe is to wait for its writer, otherwise.
  FileDescriptor file{::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)};
  struct stat info {};
  if (file.fd < 0 || ::fstat(file.fd, &info) != 0) return CannotRead(path, errno);
  if (S_ISDIR(info.st_mode)) return CannotRead(path, EISDIR);
  if (S_ISCHR(info.st_mode) && path != "/dev/stdin" && path != "/dev/null") {
    return Error{.message = "it is a device, not a file", .file = path};
  }
  if (S_ISFIFO(info.st_mode)) return ReadNamedPipe(path, file.fd);
  ::fcntl(file.fd, F_SETFL, ::fcntl(file.fd, F_GETFL) & ~O_NONBLOCK);
  // The files of /proc have no size.
  if (!S_ISREG(info.st_mode) || info.st_size == 0) return ReadStream(path, file.fd);
  return ReadUpTo(static_cast<std::size_t>(info.st_size), path, file.fd);
}

Error NotEnoughMemory(std::string name) {
  return Error{.message = "there is not enough memory to read it", .file = std::move(name)};
}

}  // namespace

Result<Input> Input::Unpacked(std::string name, std::shared_ptr<const void> owner,
                              std::string_view stored) {
  const Compression compression = RecogniseCompression(stored);
  if (compression == Compression::kNone) {
    return Input(std::move(name), std::move(owner), stored, stored.size());
  }
  Result<ByteBuffer> unpacked = Unpack(compression, stored);
  if (!unpacked) {
    unpacked.error().file = std::move(name);
    return unpacked.error();
  }
  auto buffer = std::make_shared<const ByteBuffer>(std::move(*unpacked));
  const std::string_view view = buffer->view();
  return Input(std::move(name), std::move(buffer), view, stored.size());
}

Result<Input> Input::FromMemory(std::string name, std::string bytes) {
  auto owner = std::make_shared<const std::string>(std::move(bytes));
  const std::string_view stored = *owner;
  return Unpacked(std::move(name), std::move(owner), stored);
}

Result<Input> Input::Open(const std::string& path) {
  const std::string name = path == "-" ? "standard input" : path;
  try {
    Result<ByteBuffer> read = ReadPath(path);
    if (!read) return read.error();
    auto owner = std::make_shared<const ByteBuffer>(std::move(*read));
    const std::string_view stored = owner->view();
    return Unpacked(name, std::move(owner), stored);
  } catch (const std::bad_alloc&) {
    return NotEnoughMemory(name);
  }
}

}  // namespace plimsoll
