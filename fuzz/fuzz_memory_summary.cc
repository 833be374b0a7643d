#include "fuzz.h"
#include "readers/error_text/error_text.h"

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  return plimsoll::Fuzz(plimsoll::ReadErrorText, data, size);
}
