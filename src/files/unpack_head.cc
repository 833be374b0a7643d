#include "files/unpack_head.h"

#include <lzma.h>
#include <zlib.h>
#include <zstd.h>

#include <memory>

#include "files/unpack.h"

namespace plimsoll {
namespace {

constexpr std::uint64_t kMostForXzHead = std::uint64_t{128} << 20;

std::string GzipHead(std::string_view in, std::string out) {
  z_stream z{};
  if (inflateInit2(&z, 15 + 32) != Z_OK) return {};
  const std::unique_ptr<z_stream, int (*)(z_stream*)> closer(&z, inflateEnd);
  z.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(in.data()));
  z.avail_in = static_cast<uInt>(in.size());
  z.next_out = reinterpret_cast<Bytef*>(out.data());
  z.avail_out = static_cast<uInt>(out.size());
  inflate(&z, Z_SYNC_FLUSH);
  return out.substr(0, z.total_out);
}

std::string XzHead(std::string_view in, std::string out) {
  lzma_stream s = LZMA_STREAM_INIT;
  if (lzma_stream_decoder(&s, kMostForXzHead, 0) != LZMA_OK) return {};
  const std::unique_ptr<lzma_stream, void (*)(lzma_stream*)> closer(&s, lzma_end);
  s.next_in = reinterpret_cast<const std::uint8_t*>(in.data());
  s.avail_in = in.size();
  s.next_out = reinterpret_cast<std::uint8_t*>(out.data());
  s.avail_out = out.size();
  while (s.avail_out > 0 && lzma_code(&s, LZMA_RUN) == LZMA_OK) {
  }
  out.resize(out.size() - s.avail_out);
  return out;
}

std::string ZstdHead(std::string_view in, std::string out) {
  const std::unique_ptr<ZSTD_DStream, std::size_t (*)(ZSTD_DStream*)> stream(ZSTD_createDStream(),
                                                                             ZSTD_freeDStream);
  if (stream == nullptr) return {};
  ZSTD_inBuffer input{in.data(), in.size(), 0};
  ZSTD_outBuffer output{out.data(), out.size(), 0};
  while (output.pos < output.size && input.pos < input.size &&
         ZSTD_isError(ZSTD_decompressStream(stream.get(), &output, &input)) == 0) {
  }
  out.resize(output.pos);
  return out;
}

}  // namespace

std::string UnpackHead(std::string_view beginning, std::size_t most) {
  std::string room(most, '\0');
  switch (RecogniseCompression(beginning)) {
    case Compression::kGzip:
      return GzipHead(beginning, std::move(room));
    case Compression::kXz:
      return XzHead(beginning, std::move(room));
    case Compression::kZstd:
      return ZstdHead(beginning, std::move(room));
    case Compression::kNone:
      break;
  }
  return std::string(beginning.substr(0, most));
}

}  // namespace plimsoll
