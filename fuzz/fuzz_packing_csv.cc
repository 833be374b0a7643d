#include <string>

#include "fuzz.h"
#include "packing/csv.h"
#include "packing/solve.h"
#include "packing/validate.h"

// Reads, and packs what is small: whatever the numbers are, the packing must be valid.
int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto input =
      plimsoll::Input::FromMemory("fuzz", std::string(reinterpret_cast<const char*>(data), size));
  if (!input) {
    plimsoll::CheckError(input.error());
    return 0;
  }
  const auto csv = plimsoll::ReadPackingCsv(*input);
  if (!csv) {
    plimsoll::CheckError(csv.error());
    return 0;
  }
  PLIMSOLL_CHECK(csv->ids.size() == csv->problem.buffers.size());
  if (csv->ids.size() > 40) return 0;
  const auto packed = plimsoll::Pack(csv->problem, {.seconds = 0.02});
  PLIMSOLL_CHECK(packed.ok());
  PLIMSOLL_CHECK(!plimsoll::FindFault(csv->problem, packed->packing));
  const auto again = plimsoll::ReadPackingCsv(
      *plimsoll::Input::FromMemory("again", plimsoll::WritePackingCsv(*csv, packed->packing)));
  PLIMSOLL_CHECK(again.ok());
  PLIMSOLL_CHECK(again->ids.size() == csv->ids.size());
  return 0;
}
