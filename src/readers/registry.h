// Every format that can be read, recognised by its content. A new one is a folder here and one line
// in registry.cc.
#pragma once

#include <span>
#include <string_view>

#include "base/result.h"
#include "files/input.h"
#include "timeline/recording.h"

namespace plimsoll {

struct Reader {
  std::string_view name;
  /// Looks at the content (not at the file's name). Readers are asked in the order of the table.
  bool (*recognise)(std::string_view bytes);
  Result<Recording> (*read)(const Input& input);
};

std::span<const Reader> Readers();

/// Recognises the format and reads it.
Result<Recording> Read(const Input& input);
/// Opens, recognises and reads.
Result<Recording> ReadFile(const std::string& path);

}  // namespace plimsoll
