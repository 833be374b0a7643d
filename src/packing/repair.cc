#include "packing/repair.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace plimsoll {
namespace {

/// So many steps without success, and the best order so far is taken up again.
constexpr std::uint32_t kPatience = 20;

}  // namespace

Repair::Repair(const Instance& instance, FirstFit& first_fit, std::vector<std::uint32_t> order)
    : instance_(instance),
      first_fit_(first_fit),
      order_(order),
      best_order_(std::move(order)),
      best_height_(std::numeric_limits<Bytes>::max()),
      random_(1) {}

std::optional<Bytes> Repair::Step(Bytes goal) {
  if (!too_high_.empty()) {
    if (steps_since_best_ > kPatience) {
      order_ = best_order_;
      steps_since_best_ = 0;
    }
    MoveForward();
  }
  const std::optional<Bytes> height = first_fit_.PlaceAll(order_, Fit::kLowest);
  if (!height) return std::nullopt;
  offsets_ = first_fit_.offsets();
  too_high_.clear();
  for (const std::uint32_t i : order_) {
    if (offsets_[i] + instance_.items[i].size > goal) too_high_.push_back(i);
  }
  ++steps_since_best_;
  if (*height < best_height_) {
    best_height_ = *height;
    best_order_ = order_;
    steps_since_best_ = 0;
  }
  return height;
}

/// Each item that lies too high goes to some place before its own.
void Repair::MoveForward() {
  std::vector<double> place(order_.size());
  for (std::size_t at = 0; at < order_.size(); ++at) place[order_[at]] = double(at);
  for (const std::uint32_t i : too_high_) place[i] *= double(random_() >> 11) * 0x1p-53;
  std::stable_sort(order_.begin(), order_.end(),
                   [&](std::uint32_t a, std::uint32_t b) { return place[a] < place[b]; });
}

}  // namespace plimsoll
