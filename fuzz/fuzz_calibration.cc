// A calibration file: whatever is read answers for any batch, with an upper end that is one.
#include "job/rules/calibration.h"

#include <fmt/format.h>

#include "files/encode.h"
#include "fuzz.h"

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace plimsoll;
  // With a checksum that is right: what is damaged by chance ends there.
  std::string text(reinterpret_cast<const char*>(data), size);
  text += fmt::format("crc32 {:08x}\n", Crc32(text));
  const Result<Input> input = Input::FromMemory("fuzz", std::move(text));
  if (!input) {
    CheckError(input.error());
    return 0;
  }
  const Result<Calibration> calibration = Calibration::Read(*input);
  if (!calibration) {
    CheckError(calibration.error());
    return 0;
  }
  // The shape that the seeds hold.
  ConvShape shape{.c = 64, .h = 56, .w = 56, .k = 64, .ho = 56, .wo = 56, .kh = 3, .kw = 3};
  shape.pad_h = shape.pad_w = 1;
  for (const bool half : {false, true}) {
    shape.element_bytes = half ? 2 : 4;
    shape.is_fp16 = half;
    for (const std::int64_t n : {std::int64_t{1}, std::int64_t{3}, std::int64_t{1} << 24}) {
      shape.n = n;
      for (const ConvDirection direction : {ConvDirection::kForward, ConvDirection::kBackwardData,
                                            ConvDirection::kBackwardWeight}) {
        const auto found = calibration->Find(shape, direction);
        if (found) PLIMSOLL_CHECK(found->likely <= found->upper);
      }
    }
  }
  return 0;
}
