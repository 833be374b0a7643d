// Out-of-memory messages in any log, as people paste them, and the memory that it tells besides.
#pragma once

#include <string_view>

#include "base/result.h"
#include "files/input.h"
#include "readers/error_text/log_window.h"
#include "timeline/recording.h"

namespace plimsoll {

/// Whether there is at least one out-of-memory message of a known wording in the text.
bool RecogniseErrorText(std::string_view bytes);

/// Whether a log says anything about memory.
bool TellsMemory(const Recording& recording);

/// The messages of the text, the tables of torch.cuda.memory_summary() beside them, and the memory
/// that its other lines tell.
Result<Recording> ReadErrorText(const Input& input);
/// The same of a log that may be longer than memory, in one pass, and nothing where it has none.
/// `head` was read from the stream before.
Result<Recording> ReadLog(ByteStream& stream, std::string_view head);

}  // namespace plimsoll
