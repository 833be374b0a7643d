// PyTorch memory snapshots in every dialect; docs/formats/snapshot.md describes them.
#pragma once

#include <string_view>

#include "base/result.h"
#include "files/byte_window.h"
#include "files/input.h"
#include "timeline/recording.h"

namespace plimsoll {

bool RecognisePickle(std::string_view bytes);
Result<Recording> ReadPickleSnapshot(const Input& input);
/// The same of a file that is not in memory as a whole.
Result<Recording> ReadPickleWindow(ByteWindow& stream);

bool RecogniseJsonSnapshot(std::string_view bytes);
Result<Recording> ReadJsonSnapshot(const Input& input);

bool RecogniseSqliteSnapshot(std::string_view bytes);
Result<Recording> ReadSqliteSnapshot(const Input& input);

}  // namespace plimsoll
