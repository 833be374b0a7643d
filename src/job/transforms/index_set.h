// A set of storages, or of events: numbers that lie close together.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace plimsoll {

class IndexSet {
 public:
  bool contains(std::size_t index) const { return index < in_.size() && in_[index] != 0; }
  /// Whether it was not there.
  bool Insert(std::size_t index) {
    if (index >= in_.size()) in_.resize(index + 1, 0);
    return std::exchange(in_[index], 1) == 0;
  }
  void Erase(std::size_t index) {
    if (index < in_.size()) in_[index] = 0;
  }

 private:
  std::vector<char> in_;
};

}  // namespace plimsoll
