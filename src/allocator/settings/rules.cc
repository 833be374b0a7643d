#include "allocator/settings/rules.h"

namespace plimsoll {

AllocatorRules AllocatorRules::From(const RecordedSettings& recorded, TorchVersion version) {
  return {.settings = SettingsFrom(recorded, version), .version = RulesOf(version)};
}

Bytes AllocatorRules::RoundToDivision(Bytes requested, std::int64_t divisions) {
  const auto n = static_cast<std::uint64_t>(requested);
  // A power of two is a multiple of 512 here: it is larger than 512 times the divisions.
  if (std::has_single_bit(n)) return requested;
  const std::uint64_t power = std::bit_floor(n);
  const std::uint64_t step = power >> (std::bit_width(static_cast<std::uint64_t>(divisions)) - 1);
  if (step == 0) return static_cast<Bytes>(power * 2);
  return static_cast<Bytes>((n + step - 1) & ~(step - 1));
}

}  // namespace plimsoll
