#include "files/input.h"

#include <fmt/format.h>

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>

#include "files/byte_buffer.h"
#include "files/byte_stream.h"
#include "files/unpack.h"

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
    const Result<std::size_t> n = ReadSome(name, fd, out.Room(wanted), wanted);
    if (!n) return n.error();
    if (*n == 0) break;
    out.Grow(*n);
  }
  return out;
}

Error TooLongForAPipe(const std::string& name) {
  return Error{.message = "more than 8 GiB came through the pipe",
               .file = name,
               .hint = "write it to a file and give that"};
}

Result<ByteBuffer> ReadStream(const std::string& name, int fd) {
  Result<ByteBuffer> all = ReadUpTo(kMostStreamed, name, fd);
  if (all && all->size() == kMostStreamed) return TooLongForAPipe(name);
  return all;
}

Result<ByteBuffer> ReadPath(const std::string& path) {
  const Result<OpenedFile> opened = OpenToRead(path);
  if (!opened) return opened.error();
  const FileDescriptor file{opened->descriptor};
  if (opened->size) return ReadUpTo(*opened->size, path, file.fd);
  return ReadStream(path == "-" ? "standard input" : path, file.fd);
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

Result<Input> Input::FromStream(ByteStream& stream, std::string_view head) {
  try {
    ByteBuffer all;
    std::copy(head.begin(), head.end(), all.Room(head.size()));
    all.Grow(head.size());
    while (true) {
      const Result<std::size_t> n = stream.Fill(all.Room(kChunk), kChunk);
      if (!n) return n.error();
      all.Grow(*n);
      const std::size_t stored = stream.stored();
      if (all.size() > stored && all.size() > MostUnpacked(stored)) {
        return UnpacksToTooMuch(stream.name(), MostUnpacked(stored));
      }
      if (*n < kChunk) break;
      if (all.size() > kMostStreamed) return TooLongForAPipe(stream.name());
    }
    auto owner = std::make_shared<const ByteBuffer>(std::move(all));
    const std::string_view bytes = owner->view();
    return Input(stream.name(), std::move(owner), bytes, stream.stored());
  } catch (const std::bad_alloc&) {
    return NotEnoughMemory(stream.name());
  }
}

}  // namespace plimsoll
