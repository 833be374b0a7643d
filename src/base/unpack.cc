#include "base/unpack.h"

#include <fmt/format.h>
#include <lzma.h>
#include <zlib.h>
#include <zstd.h>

#include <algorithm>
#include <memory>

#include "base/bytes.h"

namespace plimsoll {
namespace {

constexpr std::size_t kChunk = 1 << 20;

/// Real traces pack 20 to 100 times. Beyond this, and beyond a gigabyte, it is a bomb.
constexpr std::size_t kMostRatio = 1000;
constexpr std::size_t kAlwaysAllowed = std::size_t{1} << 30;

Error Damaged(std::string_view what, std::size_t at, std::string_view why) {
  return Error{.message = fmt::format("the {} data is damaged: {}", what, why),
               .offset = at,
               .hint = "copy the file again, or unpack it by hand to see how much is left"};
}

std::optional<Error> RefuseBomb(std::size_t packed, std::size_t unpacked) {
  if (unpacked <= kAlwaysAllowed || unpacked / kMostRatio <= packed) return std::nullopt;
  return Error{.message = fmt::format("{} bytes unpack to more than {}", packed,
                                      FormatBytes(static_cast<Bytes>(unpacked))),
               .hint = "if the file is real, unpack it first and give the plain file"};
}

Result<std::string> Gunzip(std::string_view in) {
  z_stream z{};
  if (inflateInit2(&z, 15 + 32) != Z_OK) return Error{.message = "zlib could not start"};
  std::unique_ptr<z_stream, int (*)(z_stream*)> closer(&z, inflateEnd);
  std::string out;
  std::size_t taken = 0;
  while (true) {
    if (z.avail_in == 0 && taken < in.size()) {
      const std::size_t n = std::min<std::size_t>(in.size() - taken, std::size_t{1} << 30);
      z.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(in.data() + taken));
      z.avail_in = static_cast<uInt>(n);
      taken += n;
    }
    const std::size_t had = out.size();
    out.resize(had + kChunk);
    z.next_out = reinterpret_cast<Bytef*>(out.data() + had);
    z.avail_out = kChunk;
    const int rc = inflate(&z, Z_NO_FLUSH);
    out.resize(had + kChunk - z.avail_out);
    if (auto bomb = RefuseBomb(in.size(), out.size())) return *bomb;
    const std::size_t at = taken - z.avail_in;
    if (rc == Z_STREAM_END) {
      if (at >= in.size()) return out;
      inflateReset(&z);  // gzip files may be several members one after the other
      continue;
    }
    if (rc != Z_OK) return Damaged("gzip", at, z.msg ? z.msg : "it ends too early");
    if (z.avail_in == 0 && taken == in.size() && z.avail_out == kChunk) {
      return Damaged("gzip", at, "it ends too early");
    }
  }
}

Result<std::string> Unxz(std::string_view in) {
  lzma_stream s = LZMA_STREAM_INIT;
  constexpr std::uint64_t kMemoryLimit = std::uint64_t{512} << 20;
  if (lzma_stream_decoder(&s, kMemoryLimit, LZMA_CONCATENATED) != LZMA_OK) {
    return Error{.message = "liblzma could not start"};
  }
  std::unique_ptr<lzma_stream, void (*)(lzma_stream*)> closer(&s, lzma_end);
  s.next_in = reinterpret_cast<const std::uint8_t*>(in.data());
  s.avail_in = in.size();
  std::string out;
  while (true) {
    const std::size_t had = out.size();
    out.resize(had + kChunk);
    s.next_out = reinterpret_cast<std::uint8_t*>(out.data() + had);
    s.avail_out = kChunk;
    const lzma_ret rc = lzma_code(&s, LZMA_FINISH);
    out.resize(had + kChunk - s.avail_out);
    if (auto bomb = RefuseBomb(in.size(), out.size())) return *bomb;
    if (rc == LZMA_STREAM_END) return out;
    if (rc == LZMA_MEMLIMIT_ERROR) return Damaged("xz", s.total_in, "it needs too much memory");
    if (rc != LZMA_OK) {
      return Damaged("xz", s.total_in, rc == LZMA_BUF_ERROR ? "it ends too early" : "bad content");
    }
  }
}

Result<std::string> Unzstd(std::string_view in) {
  std::unique_ptr<ZSTD_DStream, std::size_t (*)(ZSTD_DStream*)> stream(ZSTD_createDStream(),
                                                                       ZSTD_freeDStream);
  ZSTD_inBuffer input{in.data(), in.size(), 0};
  std::string out;
  std::size_t pending = 1;
  while (input.pos < input.size || pending != 0) {
    const std::size_t had = out.size();
    out.resize(had + kChunk);
    ZSTD_outBuffer output{out.data() + had, kChunk, 0};
    const std::size_t before = input.pos;
    pending = ZSTD_decompressStream(stream.get(), &output, &input);
    out.resize(had + output.pos);
    if (ZSTD_isError(pending)) return Damaged("zstd", input.pos, ZSTD_getErrorName(pending));
    if (auto bomb = RefuseBomb(in.size(), out.size())) return *bomb;
    if (pending != 0 && input.pos == input.size && input.pos == before && output.pos < kChunk) {
      return Damaged("zstd", input.pos, "it ends too early");
    }
  }
  return out;
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

Result<std::string> Unpack(Compression compression, std::string_view packed) {
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
  return std::string(packed);
}

}  // namespace plimsoll
