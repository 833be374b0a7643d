#include "files/byte_stream.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/bytes.h"
#include "files/input.h"

namespace plimsoll {
namespace {

constexpr std::size_t kPackedChunk = 256 << 10;
/// What a packed stream may always unpack to, and how many times its own size beyond that: a stream
/// takes no memory, but a hostile one must not take hours.
constexpr std::size_t kAlwaysStreamed = std::size_t{1} << 30;
constexpr std::size_t kMostStreamedRatio = 100;

/// Whether anything comes through a named pipe. Nobody may ever write to it, so that is waited for
/// only so long. The pipes of a shell (<(command)) have their writer from the beginning.
bool AwaitsNobody(const std::string& path, int descriptor) {
  constexpr int kMostMilliseconds = 5000;
  if (path.starts_with("/dev/") || path.starts_with("/proc/")) return false;
  pollfd waiting{.fd = descriptor, .events = POLLIN, .revents = 0};
  return ::poll(&waiting, 1, kMostMilliseconds) == 0;
}

/// Whether a plain file of size 0 has content all the same: the system makes it up as it is read,
/// as in /proc, and it may never end.
bool IsMadeUp(int descriptor) {
  pollfd ready{.fd = descriptor, .events = POLLIN, .revents = 0};
  if (::poll(&ready, 1, 0) == 0) return true;  // plain files are always ready
  char first[8];                               // /proc/self/pagemap gives no less
  const ssize_t n = ::pread(descriptor, first, sizeof first, 0);
  return n > 0 || (n < 0 && errno == EAGAIN);
}

/// What cannot be read to its end: nothing where it can.
std::optional<Error> Unreadable(const std::string& path, const OpenedFile& file,
                                const struct stat& info) {
  const bool standard_input = path == "-" || path == "/dev/stdin";
  const std::string name = path == "-" ? "standard input" : path;
  if (S_ISDIR(info.st_mode)) return CannotRead(name, EISDIR);
  if (S_ISCHR(info.st_mode)) {
    const bool terminal = standard_input && ::isatty(file.descriptor) == 1;
    const bool null = info.st_rdev == ::makedev(1, 3);
    if (!terminal && !null) return Error{.message = "it is a device, not a file", .file = name};
  }
  if (S_ISBLK(info.st_mode)) return Error{.message = "it is a device, not a file", .file = name};
  if (S_ISREG(info.st_mode) && info.st_size == 0 && IsMadeUp(file.descriptor)) {
    return Error{.message = "it has no size: the system makes it up as it is read",
                 .file = name,
                 .hint = "copy what you need of it to a file"};
  }
  if (!standard_input && S_ISFIFO(info.st_mode) && AwaitsNobody(path, file.descriptor)) {
    return Error{.message = "it is a pipe, and nobody writes to it",
                 .file = name,
                 .hint = "give a file, or pipe into standard input (-)"};
  }
  return {};
}

}  // namespace

Result<OpenedFile> OpenToRead(const std::string& path) {
  const bool standard_input = path == "-";
  // To open a pipe is to wait for its writer, otherwise.
  OpenedFile file{.descriptor = standard_input
                                    ? STDIN_FILENO
                                    : ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK),
                  .size = {}};
  if (file.descriptor < 0) return CannotRead(path, errno);
  struct stat info {};
  const bool known = ::fstat(file.descriptor, &info) == 0;
  const std::optional<Error> error =
      known ? Unreadable(path, file, info) : std::optional(CannotRead(path, errno));
  if (error) {
    if (!standard_input) ::close(file.descriptor);
    return *error;
  }
  if (standard_input) return file;
  ::fcntl(file.descriptor, F_SETFL, ::fcntl(file.descriptor, F_GETFL) & ~O_NONBLOCK);
  if (S_ISREG(info.st_mode) && info.st_size > 0) {
    file.size = static_cast<std::size_t>(info.st_size);
  }
  return file;
}

Result<std::size_t> ReadSome(const std::string& name, int descriptor, char* into,
                             std::size_t room) {
  while (true) {
    const ssize_t n = ::read(descriptor, into, room);
    if (n >= 0) return static_cast<std::size_t>(n);
    if (errno != EINTR) return CannotRead(name, errno);
  }
}

Error UnpacksToTooMuch(const std::string& name, std::size_t most) {
  return Error{
      .message = fmt::format("it unpacks to more than {}", FormatBytes(static_cast<Bytes>(most))),
      .file = name,
      .hint = "if the file is real, unpack it first and give the plain file"};
}

void ByteStream::Closer::operator()(const int* descriptor) const {
  if (*descriptor > STDERR_FILENO) ::close(*descriptor);
  delete descriptor;
}

ByteStream::ByteStream(std::string name, OpenedFile file)
    : name_(std::move(name)),
      file_(new int(file.descriptor)),
      size_(file.size),
      packed_(std::make_unique<char[]>(kPackedChunk)) {}

Result<ByteStream> ByteStream::Open(const std::string& path) {
  const Result<OpenedFile> file = OpenToRead(path);
  if (!file) return file.error();
  ByteStream stream(path == "-" ? "standard input" : path, *file);
  if (auto error = stream.ReadOn()) return *error;
  stream.unpacker_.emplace(RecogniseCompression(stream.waiting_));
  return stream;
}

/// More packed bytes, behind those that wait. The first few of a pipe may come one by one.
std::optional<Error> ByteStream::ReadOn() {
  std::copy(waiting_.begin(), waiting_.end(), packed_.get());
  std::size_t held = waiting_.size();
  while (held < kPackedChunk && !last_) {
    const Result<std::size_t> n =
        ReadSome(name_, *file_, packed_.get() + held, kPackedChunk - held);
    if (!n) return n.error();
    last_ = *n == 0;
    held += *n;
    stored_ += *n;
  }
  waiting_ = std::string_view(packed_.get(), held);
  return {};
}

std::optional<Error> ByteStream::CheckAmount() const {
  const bool packed = made_ > stored_;
  const std::size_t most = std::max(kAlwaysStreamed, size_.value_or(stored_) * kMostStreamedRatio);
  if (!packed || made_ <= most) return {};
  return UnpacksToTooMuch(name_, most);
}

Result<std::size_t> ByteStream::Fill(char* into, std::size_t room) {
  std::size_t filled = 0;
  while (filled < room && !ended_) {
    if (waiting_.empty() && !last_) {
      if (auto error = ReadOn()) return *error;
    }
    Result<Unpacker::Progress> progress =
        unpacker_->Run(waiting_, last_, std::span<char>(into + filled, room - filled));
    if (!progress) {
      progress.error().file = name_;
      return progress.error();
    }
    waiting_.remove_prefix(progress->taken);
    filled += progress->made;
    made_ += progress->made;
    ended_ = progress->ended;
    if (auto error = CheckAmount()) return *error;
    const bool stuck = progress->taken == 0 && progress->made == 0 && !ended_;
    if (stuck && !last_) {
      if (auto error = ReadOn()) return *error;
    }
  }
  return filled;
}

}  // namespace plimsoll
