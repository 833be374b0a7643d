// Files that processes of a job left, which may be anything by now: read without waiting and
// without following anybody elsewhere.
#pragma once

#include <cstddef>
#include <filesystem>
#include <optional>
#include <string>

namespace plimsoll {

/// Up to `most` bytes of a plain file, not behind a link; nothing of a pipe, a device or a folder.
std::optional<std::string> ReadPlainFile(const std::filesystem::path& path, std::size_t most);

/// A folder, no link, that is this user's and that nobody else can write to or look into.
bool IsOwnersAlone(const std::filesystem::path& path);

}  // namespace plimsoll
