// The workspace of a convolution, looked up in a table of what was measured or asked for.
#pragma once

#include <optional>
#include <string>

#include "hardware/gpu.h"
#include "job/cudnn/convolution_workspace.h"
#include "job/file/job.h"
#include "job/file/workspace_table.h"

namespace plimsoll {

/// Exact at a batch of the table. Between two, on the line through them where it rises, with what
/// the engines of its neighbours would take as the upper end; beyond the last, on the line of the
/// last ones if there is a clear one. Nothing for a shape that is not in it.
std::optional<Workspace> FindWorkspace(const WorkspaceTable& table, const ConvShape& shape,
                                       ConvDirection direction);

/// What cuDNN was asked for at the capture, if that was about this card: others have other engines.
const AskedWorkspaces* AskedFor(const Job& job, const Gpu& gpu);

/// What cuDNN said, with room above it for what it cannot say without the card, and under
/// torch.backends.cudnn.benchmark for what the fastest plan may be.
std::optional<Workspace> FindAsked(const AskedWorkspaces& asked, const ConvShape& shape,
                                   ConvDirection direction, int multiprocessors);

/// PyTorch's search for the fastest plan of a convolution.
struct PlanSearch {
  /// By which it remembers the outcome.
  std::string key;
  /// The largest workspace of any plan.
  Workspace largest;
};

/// Nothing where PyTorch does not search, or what the plans take is not known.
std::optional<PlanSearch> FindSearch(const AskedWorkspaces& asked, const ConvShape& shape,
                                     ConvDirection direction);

}  // namespace plimsoll
