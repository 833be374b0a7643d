// PyTorch's allocator of pinned host memory: sizes in powers of two, blocks that are kept for good.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include "allocator/settings/settings.h"
#include "base/bytes.h"

namespace plimsoll {

class HostAllocator {
 public:
  using Request = std::size_t;

  explicit HostAllocator(const PinnedSettings& settings) : settings_(settings) {}

  /// Requests are numbered from 0.
  Request Take(Bytes bytes);
  /// What is given twice stays given.
  void Give(Request request);

  /// What the process has pinned, in use or kept.
  Bytes held() const { return held_; }
  /// What was asked for and is in use.
  Bytes asked() const { return asked_; }

 private:
  struct Block {
    Bytes asked = 0;
    Bytes size = 0;
    bool in_use = false;
  };
  Bytes BlockSize(Bytes bytes) const;

  PinnedSettings settings_;
  std::vector<Block> blocks_;
  /// By size: how many are kept.
  std::map<Bytes, std::size_t> free_;
  Bytes held_ = 0;
  Bytes asked_ = 0;
  /// Of the segment that is reserved at first.
  Bytes left_in_segment_ = 0;
  bool has_segment_ = false;
};

}  // namespace plimsoll
