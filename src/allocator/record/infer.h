// What a record does not say but shows: the release's rules, the limits under which it ran, how
// large the device is.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "allocator/model/caching_allocator.h"
#include "allocator/record/ledger.h"
#include "timeline/timeline.h"

namespace plimsoll {

struct Inferred {
  DeviceLimits limits;
  /// Each inference in words.
  std::vector<std::string> notes;
};

/// The limits of the recorded run. Given ones are kept.
Inferred InferLimits(const Timeline& timeline, const Ledger& ledger, const AllocatorRules& rules,
                     const DeviceLimits& given);

/// Whether a frame of this stack is torch.cuda.empty_cache. Nothing where there are no frames.
class EmptyCacheStacks {
 public:
  explicit EmptyCacheStacks(const Timeline& timeline);
  std::optional<bool> Of(StackId stack) const;

 private:
  std::vector<std::int8_t> of_stack_;  // -1 no Python frames, 0 no, 1 yes
};

}  // namespace plimsoll
