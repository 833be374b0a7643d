// The file in which `plimsoll run` notes the host's memory: docs/formats/host.md.
#pragma once

#include "base/result.h"
#include "files/input.h"
#include "timeline/host_record.h"

namespace plimsoll {

/// A line that cannot be used is counted; the last one, which a kill may have cut, is not even
/// that. An Error only where the first line is not that of such a file, or there is too much.
Result<HostRecord> ReadHostRecord(const Input& input);

}  // namespace plimsoll
