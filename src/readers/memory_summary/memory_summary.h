// torch.cuda.memory_summary(): a table in the text of a log.
#pragma once

#include <optional>
#include <string_view>

#include "readers/wordings/scanner.h"
#include "timeline/recording.h"

namespace plimsoll {

/// The words with which a table begins.
inline constexpr std::string_view kSummaryTitle = "memory summary, device ID";

/// A table from behind its title on; none where no row follows.
std::optional<MemorySummary> ReadSummary(Scanner& scanner);

}  // namespace plimsoll
