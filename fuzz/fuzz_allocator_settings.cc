// A release, a line break and a PYTORCH_CUDA_ALLOC_CONF string: what is accepted must be written
// back so that it says the same, and must not make sizes overflow.
#include <algorithm>
#include <string_view>

#include "allocator/settings/rules.h"
#include "fuzz.h"

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace plimsoll;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const std::size_t line = std::min(text.find('\n'), text.size());
  const TorchVersion version = ParseTorchVersion(text.substr(0, line)).value_or(TorchVersion{});
  const std::string_view conf = text.substr(std::min(line + 1, text.size()));
  Result<AllocatorSettings> settings = ParseAllocatorSettings(conf, version);
  if (!settings) {
    CheckError(settings.error());
    return 0;
  }
  settings->ignored.clear();
  const Result<AllocatorSettings> again =
      ParseAllocatorSettings(FormatSettings(*settings), version);
  PLIMSOLL_CHECK(again && *again == *settings);

  const AllocatorRules rules{.settings = *settings, .version = RulesOf(version)};
  for (const Bytes request : {Bytes{1}, kMiB, 3 * kMiB, 11 * kMiB, 5 * kGiB + 1}) {
    const Bytes rounded = rules.Round(request);
    PLIMSOLL_CHECK(rounded >= request && rounded <= 2 * request + kMinBlock);
    PLIMSOLL_CHECK(rules.SegmentFor(rounded) >= rounded);
  }
  RecordedSettings recorded;
  recorded.conf = std::string(conf);
  PLIMSOLL_CHECK(FormatSettings(SettingsFrom(recorded, version)) == FormatSettings(*settings));
  return 0;
}
