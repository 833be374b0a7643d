#include "base/unpack.h"

#include <fmt/format.h>
#include <lzma.h>
#include <zlib.h>
#include <zstd.h>
#include <zstd_errors.h>

#include <algorithm>
#include <memory>

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

Result<ByteBuffer> Gunzip(std::string_view in) {
  z_stream z{};
  if (inflateInit2(&z, 15 + 32) != Z_OK) return NoMemory("gzip", 0);
  std::unique_ptr<z_stream, int (*)(z_stream*)> closer(&z, inflateEnd);
  Output out(in.size());
  std::size_t taken = 0;
  while (true) {
    if (z.avail_in == 0 && taken < in.size()) {
      const std::size_t n = std::min<std::size_t>(in.size() - taken, std::size_t{1} << 30);
      z.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(in.data() + taken));
      z.avail_in = static_cast<uInt>(n);
      taken += n;
    }
    const std::size_t room = out.RoomLeft();
    z.next_out = reinterpret_cast<Bytef*>(out.Room());
    z.avail_out = static_cast<uInt>(room);
    const int rc = inflate(&z, Z_NO_FLUSH);
    out.bytes.Grow(room - z.avail_out);
    if (out.TooMuch()) return out.Refusal();
    const std::size_t at = taken - z.avail_in;
    if (rc == Z_STREAM_END) {
      if (at >= in.size()) return std::move(out.bytes);
      inflateReset(&z);  // gzip files may be several members one after the other
      continue;
    }
    if (rc == Z_MEM_ERROR) return NoMemory("gzip", at);
    if (rc != Z_OK) return Damaged("gzip", at, z.msg ? z.msg : "it ends too early");
    if (z.avail_in == 0 && taken == in.size() && z.avail_out == room) {
      return Damaged("gzip", at, "it ends too early");
    }
  }
}

Result<ByteBuffer> Unxz(std::string_view in) {
  lzma_stream s = LZMA_STREAM_INIT;
  if (lzma_stream_decoder(&s, kMostForXz, LZMA_CONCATENATED) != LZMA_OK) return NoMemory("xz", 0);
  std::unique_ptr<lzma_stream, void (*)(lzma_stream*)> closer(&s, lzma_end);
  s.next_in = reinterpret_cast<const std::uint8_t*>(in.data());
  s.avail_in = in.size();
  Output out(in.size());
  while (true) {
    const std::size_t room = out.RoomLeft();
    s.next_out = reinterpret_cast<std::uint8_t*>(out.Room());
    s.avail_out = room;
    const lzma_ret rc = lzma_code(&s, LZMA_FINISH);
    out.bytes.Grow(room - s.avail_out);
    if (out.TooMuch()) return out.Refusal();
    if (rc == LZMA_STREAM_END) return std::move(out.bytes);
    if (rc == LZMA_MEM_ERROR) return NoMemory("xz", s.total_in);
    if (rc == LZMA_MEMLIMIT_ERROR) {
      return Error{.message = fmt::format("unpacking the xz data takes more than {}",
                                          FormatBytes(static_cast<Bytes>(kMostForXz))),
                   .offset = s.total_in,
                   .hint = "if the file is real, unpack it first and give the plain file"};
    }
    if (rc != LZMA_OK) {
      return Damaged("xz", s.total_in, rc == LZMA_BUF_ERROR ? "it ends too early" : "bad content");
    }
  }
}

Result<ByteBuffer> Unzstd(std::string_view in) {
  std::unique_ptr<ZSTD_DStream, std::size_t (*)(ZSTD_DStream*)> stream(ZSTD_createDStream(),
                                                                       ZSTD_freeDStream);
  if (stream == nullptr) return NoMemory("zstd", 0);
  ZSTD_inBuffer input{in.data(), in.size(), 0};
  Output out(in.size());
  std::size_t pending = 1;
  while (input.pos < input.size || pending != 0) {
    ZSTD_outBuffer output{out.Room(), out.RoomLeft(), 0};
    const std::size_t before = input.pos;
    pending = ZSTD_decompressStream(stream.get(), &output, &input);
    out.bytes.Grow(output.pos);
    if (ZSTD_isError(pending)) {
      if (ZSTD_getErrorCode(pending) == ZSTD_error_memory_allocation) {
        return NoMemory("zstd", input.pos);
      }
      return Damaged("zstd", input.pos, ZSTD_getErrorName(pending));
    }
    if (out.TooMuch()) return out.Refusal();
    if (pending != 0 && input.pos == input.size && input.pos == before &&
        output.pos < output.size) {
      return Damaged("zstd", input.pos, "it ends too early");
    }
  }
  return std::move(out.bytes);
}

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

Result<ByteBuffer> Unpack(Compression compression, std::string_view packed) {
  switch (compression) {
    case Compression::kGzip:
      return Gunzip(packed);
    case Compression::kXz:
      return Unxz(packed);
    case Compression::kZstd:
      return Unzstd(packed);
    case Compression::kNone:
      break;
  }
  ByteBuffer plain;
  std::copy(packed.begin(), packed.end(), plain.Room(packed.size()));
  plain.Grow(packed.size());
  return plain;
}

}  // namespace plimsoll
