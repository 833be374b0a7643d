#include <string_view>

#include "files/unpack.h"
#include "fuzz.h"

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  const auto unpacked = plimsoll::Unpack(plimsoll::RecogniseCompression(bytes), bytes);
  if (!unpacked) plimsoll::CheckError(unpacked.error());
  return 0;
}
