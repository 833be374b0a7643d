// The gradients of a sharded model on their way from a backward to the parts.
#pragma once

#include <cstddef>
#include <deque>
#include <memory>
#include <vector>

#include "train/parallel/sharded/flat_group.h"

namespace plimsoll::train {

/// Takes each gradient from its parameter when backward has made it, and sums those of a group over
/// ranks when the group has all.
class GradientSums {
 public:
  /// What becomes of the gradients of one backward.
  struct Pass {
    /// They are summed over ranks. Else they stay, to be added to.
    bool send = false;
    /// They are of rows. Else they are made only to do what the other ranks do, and dropped.
    bool counts = true;
  };

  /// The groups must outlive it, and neither become more nor fewer.
  explicit GradientSums(const std::vector<std::unique_ptr<FlatGroup>>& groups);
  ~GradientSums();
  GradientSums(const GradientSums&) = delete;
  GradientSums& operator=(const GradientSums&) = delete;

  void Begin(Pass pass);
  /// The sums of all groups have come, where they are sent: also of those without a gradient.
  void Finish();
  /// What has come of this pass does not count as come any more.
  void Forget();

 private:
  class Hook;

  void Take(std::size_t group, std::size_t parameter);
  void BeginSums(std::size_t down_to);

  const std::vector<std::unique_ptr<FlatGroup>>& groups_;
  Pass pass_;
  /// By group: all its gradients are there.
  std::vector<bool> complete_;
  /// Sums begin from the last group to the first, on all ranks alike; those from here on have
  /// begun.
  std::size_t begun_ = 0;
  std::deque<std::size_t> on_their_way_;
};

}  // namespace plimsoll::train
