// What cuDNN said of a job's convolutions, in a step file.
#pragma once

#include <memory>

#include "files/json.h"
#include "job/file/workspace_table.h"

namespace plimsoll::step_file {

/// Null where there is nothing.
std::shared_ptr<const AskedWorkspaces> ReadAsked(const Json& json);

}  // namespace plimsoll::step_file
