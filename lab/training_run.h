// A made-up training run of a transformer: parameters, then steps of forward, backward and AdamW,
// each tensor with the stack that a real run would show.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "caching_allocator.h"

namespace plimsoll::bench {

struct Frame {
  std::string name;
  std::string file;
  int line = 0;
};

/// Every frame and every stack once; a stack lists frames innermost first.
struct Stacks {
  std::vector<Frame> frames;
  std::vector<std::vector<std::uint32_t>> stacks;
};

struct Annotation {
  const char* name;
  bool start = true;
  std::int64_t time_us = 0;
};

struct TrainingRun {
  CachingAllocator allocator;
  Stacks stacks;
  std::vector<Annotation> annotations;
};

/// Runs until exactly `events` events are recorded, even in the middle of a step.
TrainingRun Train(std::size_t events, std::size_t frames_per_stack);

}  // namespace plimsoll::bench
