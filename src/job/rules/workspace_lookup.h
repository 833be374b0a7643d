// The workspace of a convolution, looked up in a table of what was measured or asked for.
#pragma once

#include <optional>

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

/// What cuDNN said, with room above it for what it cannot say without the card.
std::optional<Workspace> FindAsked(const AskedWorkspaces& asked, const ConvShape& shape,
                                   ConvDirection direction, int multiprocessors);

}  // namespace plimsoll
