#include "fuzz.h"
#include "readers/profiler/profiler.h"

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  return plimsoll::Fuzz(plimsoll::ReadChromeTrace, data, size);
}
