// What convolutions really take on one GPU, measured there once: with it the workspace of a
// measured shape is exact, where the general rules are only likely right.
// docs/formats/calibration.md.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/input.h"
#include "base/result.h"
#include "step/rules/convolution_workspace.h"

namespace plimsoll {

class Calibration {
 public:
  static Result<Calibration> Read(const Input& input);
  /// The one that is part of the program, for this GPU; null if there is none.
  static const Calibration* BuiltIn(std::string_view gpu);

  const std::string& gpu() const { return gpu_; }
  std::size_t size() const { return series_.size(); }

  /// Exact at a measured batch; between two, on the line through them, with the larger one as the
  /// upper end. Nothing for a shape that was not measured, or a batch far beyond.
  std::optional<Workspace> Find(const ConvShape& shape, ConvDirection direction) const;

 private:
  /// What a shape takes, by batch.
  struct Point {
    std::int64_t batch = 0;
    Bytes bytes = 0;
  };
  struct Series {
    std::vector<Point> points[3];
  };
  class Reader;

  std::string gpu_;
  std::unordered_map<std::string, Series> series_;
};

}  // namespace plimsoll
