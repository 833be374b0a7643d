#include "allocator/model/free_list.h"

namespace plimsoll {

void FreeList::Insert(const Entry& entry) {
  Position p = LowerBound(entry);
  if (AtEnd(p)) {
    // Most lists stay short, and there may be a thousand of them.
    if (runs_.empty()) runs_.emplace_back();
    p = {runs_.size() - 1, runs_.back().size()};
  }
  Run& run = runs_[p.run];
  run.insert(run.begin() + static_cast<std::ptrdiff_t>(p.index), entry);
  if (run.size() < kLongestRun) return;
  const auto half = run.begin() + static_cast<std::ptrdiff_t>(run.size() / 2);
  Run right;
  right.reserve(kLongestRun);
  right.assign(half, run.end());
  run.erase(half, run.end());
  runs_.insert(runs_.begin() + static_cast<std::ptrdiff_t>(p.run) + 1, std::move(right));
}

void FreeList::Erase(Position p) {
  Run& run = runs_[p.run];
  run.erase(run.begin() + static_cast<std::ptrdiff_t>(p.index));
  if (run.empty()) runs_.erase(runs_.begin() + static_cast<std::ptrdiff_t>(p.run));
}

void FreeList::Replace(Position p, const Entry& entry) {
  Run& run = runs_[p.run];
  const bool left = entry < run[p.index];
  const std::size_t to =
      left ? Search(run, 0, p.index, entry) : Search(run, p.index + 1, run.size(), entry) - 1;
  const bool leaves =
      (left && to == 0 && p.run > 0) || (!left && to + 1 == run.size() && p.run + 1 < runs_.size());
  if (leaves) {
    Erase(p);
    Insert(entry);
    return;
  }
  if (left) {
    std::move_backward(run.begin() + static_cast<std::ptrdiff_t>(to),
                       run.begin() + static_cast<std::ptrdiff_t>(p.index),
                       run.begin() + static_cast<std::ptrdiff_t>(p.index) + 1);
  } else {
    std::move(run.begin() + static_cast<std::ptrdiff_t>(p.index) + 1,
              run.begin() + static_cast<std::ptrdiff_t>(to) + 1,
              run.begin() + static_cast<std::ptrdiff_t>(p.index));
  }
  run[to] = entry;
}

}  // namespace plimsoll
