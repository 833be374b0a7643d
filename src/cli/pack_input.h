// What `pack` reads: a table of buffers, or a record.
#pragma once

#include <optional>
#include <string>

#include "base/result.h"
#include "diagnose/pack_trace.h"
#include "packing/csv.h"

namespace plimsoll {

/// The problem of a file with the capacity that is asked about, and the table in which to write the
/// answer.
Result<PackReport> ReadProblem(const std::string& path,
                               const std::optional<std::string>& capacity_text, PackingCsv& csv);

}  // namespace plimsoll
