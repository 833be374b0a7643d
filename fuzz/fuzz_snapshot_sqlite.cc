#include "fuzz.h"
#include "readers/snapshot/snapshot.h"

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  return plimsoll::Fuzz(plimsoll::ReadSqliteSnapshot, data, size);
}
