#include "fuzz.h"
#include "readers/memory_summary/memory_summary.h"

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  return plimsoll::Fuzz(plimsoll::ReadMemorySummary, data, size);
}
