// What may be made of a file, in memory, goes by the file's size: a few bytes can stand for a great
// deal (they are packed, or refer to one another), and whoever sends a small file must not be able
// to fill the machine with it.
#pragma once

#include <algorithm>
#include <cstddef>

#include "base/result.h"
#include "files/input.h"

namespace plimsoll {

/// How many times the allowance of a small file (10 MB) a file has. Packed ones count as what they
/// usually pack from.
inline double ShareOf(InputSize file) {
  constexpr double kSmallFile = 10e6;
  constexpr double kUsualRatio = 50;
  const double size =
      std::max(static_cast<double>(file.stored), static_cast<double>(file.unpacked) / kUsualRatio);
  return std::max(1.0, size / kSmallFile);
}

inline double ShareOf(const Input& input) { return ShareOf(input.size()); }

/// The bytes of a reader's tables.
class ReadBudget {
 public:
  explicit ReadBudget(const Input& input) : ReadBudget(input.size()) {}
  explicit ReadBudget(InputSize file)
      : left_(static_cast<std::size_t>(kOfSmallFile * ShareOf(file))) {}

  /// False, and from then on, where the tables have become too large for the file.
  bool Take(std::size_t bytes) {
    if (bytes > left_) {
      spent_ = true;
      left_ = 0;
    } else {
      left_ -= bytes;
    }
    return !spent_;
  }
  /// What is no longer held.
  void Return(std::size_t bytes) { left_ += bytes; }
  std::size_t left() const { return left_; }
  bool spent() const { return spent_; }
  static Error Refusal() {
    return Error{.message = "it unfolds to far more than a real file of its size holds",
                 .hint = "if the file is real, unpack it first and give the plain file"};
  }

 private:
  static constexpr double kOfSmallFile = 224.0 * (1 << 20);

  std::size_t left_;
  bool spent_ = false;
};

}  // namespace plimsoll
