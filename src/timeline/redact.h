// Taking the names of the user's own files out of a record, so that what is made of it can be shown
// to people who may not see them.
#pragma once

#include <cstdint>

#include "timeline/recording.h"

namespace plimsoll {

/// The user's own files become "file-1a2b3c.py": the hash is of the whole path and of `salt`, so
/// that files that have the same salt agree, and nobody without it can try names. Files of PyTorch,
/// of installed packages and of Python keep their names, without what stands before them
/// ("…/site-packages/torch/_tensor.py"): whatever is told from names is told as before. Paths in
/// texts (messages, marks, notes, names of functions) are replaced likewise. `recording.file`
/// stays.
void RedactFileNames(Recording& recording, std::uint64_t salt);

}  // namespace plimsoll
