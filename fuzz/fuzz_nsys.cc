#include "fuzz.h"
#include "readers/nsys/nsys.h"

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  return plimsoll::Fuzz(plimsoll::ReadNsys, data, size);
}
