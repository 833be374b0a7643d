// Which releases of PyTorch write a text that has certain words in it.
#pragma once

#include <string>

namespace plimsoll {

/// A range of releases, as major * 100 + minor: 2.5 is 205.
struct TorchVersions {
  static constexpr int kNewest = 9999;
  int first = 100;
  int last = kNewest;

  bool operator==(const TorchVersions&) const = default;

  /// Keeps what both allow. Words that contradict (somebody's wrapper raised another class) are
  /// ignored.
  void Narrow(int from, int to) {
    if (from > last || to < first) return;
    first = from > first ? from : first;
    last = to < last ? to : last;
  }
  /// "2.5 to 2.9", "2.1", "2.11 or newer".
  std::string ToString() const;
};

}  // namespace plimsoll
