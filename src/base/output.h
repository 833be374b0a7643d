// The other side of base/input.h: where whole files are written.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"

namespace plimsoll {

/// Writes a file whole or not at all: what was there stays until the new one is complete, and its
/// permissions stay too. Through a link the file behind it is written; a pipe or a device, or a
/// file in a folder that takes no new ones, is written in place. Nothing, or what went wrong.
std::optional<Error> WriteFile(const std::string& path, std::string_view bytes);

}  // namespace plimsoll
