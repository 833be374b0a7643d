// What every fuzz target does: hand the bytes to one reader and check what comes out.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "base/check.h"
#include "base/result.h"
#include "files/input.h"
#include "timeline/recording.h"
#include "timeline/vet.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace plimsoll {

/// An error must be one line that says something.
inline void CheckError(const Error& error) {
  const std::string line = error.ToLine();
  PLIMSOLL_CHECK(!error.message.empty());
  PLIMSOLL_CHECK(line.find('\n') == std::string::npos);
}

inline void CheckRecording(const Recording& recording) {
  for (const Timeline& timeline : recording.timelines) PLIMSOLL_CHECK(!timeline.Validate());
}

/// Hands the bytes to `read`, and what it makes of them to `use`.
template <typename Read, typename Use>
int FuzzWith(Read read, const std::uint8_t* data, std::size_t size, Use use) {
  const Result<Input> input =
      Input::FromMemory("fuzz", std::string(reinterpret_cast<const char*>(data), size));
  if (!input) {
    CheckError(input.error());
    return 0;
  }
  auto result = read(*input);
  if (!result) {
    CheckError(result.error());
  } else {
    use(*result);
  }
  return 0;
}

inline int Fuzz(Result<Recording> (*read)(const Input&), const std::uint8_t* data,
                std::size_t size) {
  return FuzzWith(read, data, size, [](Recording& recording) {
    TakeOutImpossible(recording);
    CheckRecording(recording);
  });
}

}  // namespace plimsoll
