// What convolutions really take on one GPU, measured there once: with it the workspace of a
// measured shape is exact, where the general rules are only likely right.
// docs/formats/calibration.md.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/hash.h"
#include "base/result.h"
#include "files/input.h"
#include "job/cudnn/convolution_workspace.h"

namespace plimsoll {

/// What a process was seen to take besides PyTorch's memory.
struct MeasuredContext {
  Bytes bare = 0;
  Bytes training = 0;
};

class Calibration {
 public:
  /// The whole file is checked: a damaged one must not change an answer.
  static Result<Calibration> Read(const Input& input);
  /// The one that is part of the program, for this GPU; null if there is none.
  static std::shared_ptr<const Calibration> BuiltIn(std::string_view gpu);

  const std::string& gpu() const { return gpu_; }
  std::size_t size() const { return lines_.size(); }
  const std::optional<MeasuredContext>& context() const { return context_; }

  /// Exact at a measured batch. Between two, on the line through them where it rises, with what the
  /// engines of its measured neighbours would take as the upper end; beyond the last, on the line
  /// of the last ones if there is a clear one. Nothing for a shape that was not measured.
  std::optional<Workspace> Find(const ConvShape& shape, ConvDirection direction) const;

 private:
  /// Lines are read when their shape is asked for: a step has a few dozen of many thousands.
  std::shared_ptr<const std::string> text_;
  std::string gpu_;
  std::optional<MeasuredContext> context_;
  std::vector<std::vector<std::int64_t>> batches_;
  HashMap<std::string_view, std::string_view> lines_;
};

}  // namespace plimsoll
