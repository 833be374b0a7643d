#include "allocator/rules.h"

#include <algorithm>
#include <bit>

namespace plimsoll {

AllocatorRules AllocatorRules::From(const RecordedSettings& settings) {
  AllocatorRules rules;
  if (settings.max_split_size.value_or(-1) > 0) rules.max_split_size = *settings.max_split_size;
  if (settings.large_segment_size.value_or(0) > 0) {
    rules.large_segment = *settings.large_segment_size;
  }
  rules.roundup_power2_divisions = settings.roundup_power2_divisions;
  return rules;
}

Bytes AllocatorRules::Round(Bytes requested) const {
  if (requested < kMinBlock) return kMinBlock;
  const auto n = static_cast<std::uint64_t>(requested);
  const int log2 = static_cast<int>(std::bit_width(n)) - 1;
  // One setting for each power of two from 1 MiB to 32 GiB; smaller sizes use the first.
  const std::int64_t divisions =
      roundup_power2_divisions[static_cast<std::size_t>(std::clamp(log2 - 20, 0, 15))];
  if (divisions > 1 && requested / divisions > kMinBlock && !std::has_single_bit(n)) {
    const std::uint64_t power = std::uint64_t{1} << log2;
    const std::uint64_t step = power >> (std::bit_width(static_cast<std::uint64_t>(divisions)) - 1);
    if (step == 0) return static_cast<Bytes>(power * 2);
    return static_cast<Bytes>((n + step - 1) & ~(step - 1));
  }
  if (requested > std::numeric_limits<Bytes>::max() - kMinBlock) return requested;
  return (requested + kMinBlock - 1) / kMinBlock * kMinBlock;
}

}  // namespace plimsoll
