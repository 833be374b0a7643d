// gzip, xz and zstd, recognised by their magic numbers.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string_view>

#include "base/result.h"
#include "files/byte_buffer.h"

namespace plimsoll {

enum class Compression { kNone, kGzip, kXz, kZstd };

Compression RecogniseCompression(std::string_view bytes);

/// How much a file of so many bytes may unpack to. Traces pack 20 to 50 times, seldom 100 times.
/// What a small file unpacks to has to fit into a gigabyte together with what is made of it.
std::size_t MostUnpacked(std::size_t packed);

/// Unpacks piece by piece, so that a stream of any length takes the memory of one piece.
class Unpacker {
 public:
  struct Progress {
    std::size_t taken = 0;
    std::size_t made = 0;
    bool ended = false;
  };

  explicit Unpacker(Compression compression);
  ~Unpacker();
  Unpacker(Unpacker&&) noexcept;
  Unpacker& operator=(Unpacker&&) noexcept;

  /// Takes some of `in`, makes some of `out`. `last`: nothing follows `in`.
  Result<Progress> Run(std::string_view in, bool last, std::span<char> out);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// The unpacked bytes. A file that unpacks to more than it may is refused before the memory for it
/// is taken.
Result<ByteBuffer> Unpack(Compression compression, std::string_view packed);

}  // namespace plimsoll
