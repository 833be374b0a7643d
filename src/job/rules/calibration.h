// What convolutions really take on one GPU, measured there once: with it the workspace of a
// measured shape is exact, where the general rules are only likely right.
// docs/formats/calibration.md.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"
#include "files/input.h"
#include "job/calls/host_model.h"
#include "job/cudnn/convolution_workspace.h"
#include "job/file/workspace_table.h"
#include "job/rules/workspace_lookup.h"

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
  std::size_t size() const { return table_.size(); }
  const std::optional<MeasuredContext>& context() const { return context_; }
  /// Of the machine that the card is in.
  const std::optional<HostModel>& host() const { return host_; }

  /// Nothing for a shape that was not measured.
  std::optional<Workspace> Find(const ConvShape& shape, ConvDirection direction) const {
    return FindWorkspace(table_, shape, direction);
  }

 private:
  std::string gpu_;
  std::optional<MeasuredContext> context_;
  std::optional<HostModel> host_;
  WorkspaceTable table_;
};

}  // namespace plimsoll
