// Out-of-memory messages in any log, as people paste them.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/input.h"
#include "base/result.h"
#include "timeline/recording.h"

namespace plimsoll {

/// Whether there is at least one out-of-memory message of a known wording in the text.
bool RecogniseErrorText(std::string_view bytes);

/// The messages of the text, and the tables of torch.cuda.memory_summary() beside them.
Result<Recording> ReadErrorText(const Input& input);

/// A log is text: no zero byte in its first 4 KiB, unless it is Windows' UTF-16.
bool LooksLikeText(std::string_view bytes);
/// PowerShell writes what it redirects as UTF-16; everything else is returned unchanged, in
/// `storage` or as it is.
std::string_view AsUtf8(std::string_view bytes, std::string& storage);

}  // namespace plimsoll
