#include "files/unpack.h"

#include <fmt/format.h>
#include <lzma.h>
#include <zlib.h>
#include <zstd.h>
#include <zstd_errors.h>

#include <algorithm>
#include <memory>
#include <variant>

#include "base/bytes.h"

namespace plimsoll {
namespace {

constexpr std::size_t kUnpackedAtOnce = 1 << 20;

constexpr std::size_t kMostRatio = 100;
constexpr std::size_t kAlwaysAllowed = std::size_t{64} << 20;
constexpr std::size_t kSmallFile = 10'000'000;
constexpr std::size_t kMostOfSmallFile = std::size_t{384} << 20;
/// What xz may take besides the output; its highest level needs half of it.
constexpr std::uint64_t kMostForXz = std::uint64_t{128} << 20;

Error Damaged(std::string_view what, std::size_t at, std::string_view why) {
  return Error{.message = fmt::format("the {} data is damaged: {}", what, why),
               .offset = at,
               .hint = "copy the file again, or unpack it by hand to see how much is left"};
}

/// The file may be fine; it is the machine that lacks something.
Error NoMemory(std::string_view what, std::size_t at) {
  return Error{.message = fmt::format("there is not enough memory to unpack the {} data", what),
               .offset = at};
}

/// Where unpacked bytes go, up to as many as the file may have.
class Output {
 public:
  explicit Output(std::size_t packed) : packed_(packed), most_(MostUnpacked(packed)) {}

  /// One byte more than there may be, so that a file with just as many is seen to end.
  std::size_t RoomLeft() const { return std::min(kUnpackedAtOnce, most_ + 1 - bytes.size()); }
  char* Room() { return bytes.Room(RoomLeft()); }
  bool TooMuch() const { return bytes.size() > most_; }
  Error Refusal() const {
    return Error{.message = fmt::format("{} unpack to more than {}",
                                        FormatBytes(static_cast<Bytes>(packed_)),
                                        FormatBytes(static_cast<Bytes>(most_))),
                 .hint = "if the file is real, unpack it first and give the plain file"};
  }

  ByteBuffer bytes;

 private:
  std::size_t packed_;
  std::size_t most_;
};

using Progress = Unpacker::Progress;

class Gunzip {
 public:
  Gunzip() : made_(inflateInit2(&z_, 15 + 32) == Z_OK) {}
  ~Gunzip() { inflateEnd(&z_); }
  Gunzip(const Gunzip&) = delete;
  Gunzip& operator=(const Gunzip&) = delete;

  Result<Progress> Run(std::string_view in, bool last, std::span<char> out, std::size_t at) {
    if (!made_) return NoMemory("gzip", 0);
    if (between_ && in.empty() && last) return Progress{.ended = true};
    z_.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(in.data()));
    z_.avail_in = static_cast<uInt>(std::min<std::size_t>(in.size(), std::size_t{1} << 30));
    z_.next_out = reinterpret_cast<Bytef*>(out.data());
    z_.avail_out = static_cast<uInt>(out.size());
    const uInt offered = z_.avail_in;
    const int rc = inflate(&z_, Z_NO_FLUSH);
    Progress progress{.taken = offered - z_.avail_in, .made = out.size() - z_.avail_out};
    at += progress.taken;
    if (progress.taken > 0) between_ = false;
    if (rc == Z_STREAM_END) {
      inflateReset(&z_);  // gzip files may be several members one after the other
      between_ = true;
      progress.ended = last && progress.taken == in.size();
      return progress;
    }
    if (rc == Z_MEM_ERROR) return NoMemory("gzip", at);
    const bool stuck = progress.taken == 0 && progress.made == 0;
    if (rc == Z_BUF_ERROR && !(stuck && last)) return progress;
    if (rc != Z_OK) return Damaged("gzip", at, z_.msg ? z_.msg : "it ends too early");
    return progress;
  }

 private:
  z_stream z_{};
  bool made_;
  bool between_ = false;  // two members
};

class Unxz {
 public:
  Unxz() : made_(lzma_stream_decoder(&s_, kMostForXz, LZMA_CONCATENATED) == LZMA_OK) {}
  ~Unxz() { lzma_end(&s_); }
  Unxz(const Unxz&) = delete;
  Unxz& operator=(const Unxz&) = delete;

  Result<Progress> Run(std::string_view in, bool last, std::span<char> out, std::size_t at) {
    if (!made_) return NoMemory("xz", 0);
    s_.next_in = reinterpret_cast<const std::uint8_t*>(in.data());
    s_.avail_in = in.size();
    s_.next_out = reinterpret_cast<std::uint8_t*>(out.data());
    s_.avail_out = out.size();
    const lzma_ret rc = lzma_code(&s_, last ? LZMA_FINISH : LZMA_RUN);
    const Progress progress{.taken = in.size() - s_.avail_in,
                            .made = out.size() - s_.avail_out,
                            .ended = rc == LZMA_STREAM_END};
    at += progress.taken;
    if (rc == LZMA_MEM_ERROR) return NoMemory("xz", at);
    if (rc == LZMA_MEMLIMIT_ERROR) {
      return Error{.message = fmt::format("unpacking the xz data takes more than {}",
                                          FormatBytes(static_cast<Bytes>(kMostForXz))),
                   .offset = at,
                   .hint = "if the file is real, unpack it first and give the plain file"};
    }
    if (rc == LZMA_OK || rc == LZMA_STREAM_END || (rc == LZMA_BUF_ERROR && !last)) return progress;
    return Damaged("xz", at, rc == LZMA_BUF_ERROR ? "it ends too early" : "bad content");
  }

 private:
  lzma_stream s_ = LZMA_STREAM_INIT;
  bool made_;
};

class Unzstd {
 public:
  Unzstd() : stream_(ZSTD_createDStream(), ZSTD_freeDStream) {}

  Result<Progress> Run(std::string_view in, bool last, std::span<char> out, std::size_t at) {
    if (stream_ == nullptr) return NoMemory("zstd", 0);
    if (pending_ == 0 && in.empty() && last) return Progress{.ended = true};
    ZSTD_inBuffer input{in.data(), in.size(), 0};
    ZSTD_outBuffer output{out.data(), out.size(), 0};
    pending_ = ZSTD_decompressStream(stream_.get(), &output, &input);
    at += input.pos;
    if (ZSTD_isError(pending_)) {
      if (ZSTD_getErrorCode(pending_) == ZSTD_error_memory_allocation) return NoMemory("zstd", at);
      return Damaged("zstd", at, ZSTD_getErrorName(pending_));
    }
    if (pending_ != 0 && last && input.pos == 0 && in.empty() && output.pos < output.size) {
      return Damaged("zstd", at, "it ends too early");
    }
    return Progress{.taken = input.pos,
                    .made = output.pos,
                    .ended = pending_ == 0 && last && input.pos == in.size()};
  }

 private:
  std::unique_ptr<ZSTD_DStream, std::size_t (*)(ZSTD_DStream*)> stream_;
  std::size_t pending_ = 1;
};

/// What is not packed.
struct Copy {
  Result<Progress> Run(std::string_view in, bool last, std::span<char> out, std::size_t) {
    const std::size_t n = std::min(in.size(), out.size());
    std::copy_n(in.begin(), n, out.begin());
    return Progress{.taken = n, .made = n, .ended = last && n == in.size()};
  }
};

}  // namespace

Compression RecogniseCompression(std::string_view bytes) {
  using namespace std::string_view_literals;
  if (bytes.starts_with("\x1f\x8b"sv)) return Compression::kGzip;
  if (bytes.starts_with("\xfd"
                        "7zXZ\0"sv))
    return Compression::kXz;
  if (bytes.starts_with("\x28\xb5\x2f\xfd"sv)) return Compression::kZstd;
  return Compression::kNone;
}

std::size_t MostUnpacked(std::size_t packed) {
  const std::size_t by_ratio = std::max(kAlwaysAllowed, packed * kMostRatio);
  return packed < kSmallFile ? std::min(by_ratio, kMostOfSmallFile) : by_ratio;
}

struct Unpacker::State {
  std::variant<Copy, Gunzip, Unxz, Unzstd> way;
  std::size_t taken = 0;
};

Unpacker::Unpacker(Compression compression) : state_(std::make_unique<State>()) {
  switch (compression) {
    case Compression::kGzip:
      state_->way.emplace<Gunzip>();
      break;
    case Compression::kXz:
      state_->way.emplace<Unxz>();
      break;
    case Compression::kZstd:
      state_->way.emplace<Unzstd>();
      break;
    case Compression::kNone:
      break;
  }
}
Unpacker::~Unpacker() = default;
Unpacker::Unpacker(Unpacker&&) noexcept = default;
Unpacker& Unpacker::operator=(Unpacker&&) noexcept = default;

Result<Unpacker::Progress> Unpacker::Run(std::string_view in, bool last, std::span<char> out) {
  Result<Progress> progress =
      std::visit([&](auto& way) { return way.Run(in, last, out, state_->taken); }, state_->way);
  if (progress) state_->taken += progress->taken;
  return progress;
}

Result<ByteBuffer> Unpack(Compression compression, std::string_view packed) {
  Unpacker unpacker(compression);
  Output out(packed.size());
  while (true) {
    const std::span<char> room(out.Room(), out.RoomLeft());
    const Result<Unpacker::Progress> progress = unpacker.Run(packed, true, room);
    if (!progress) return progress.error();
    packed.remove_prefix(progress->taken);
    out.bytes.Grow(progress->made);
    if (out.TooMuch()) return out.Refusal();
    if (progress->ended) return std::move(out.bytes);
  }
}

}  // namespace plimsoll
