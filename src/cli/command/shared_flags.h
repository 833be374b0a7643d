// Flags that several commands have, read in the same way.
#pragma once

#include <optional>
#include <string>

#include "allocator/settings/version.h"
#include "cli/command/flags.h"
#include "hardware/gpu.h"

namespace plimsoll {

/// A card of the catalogue, or its memory.
void AddGpuFlag(Flags& flags, std::optional<Gpu>& to, const std::string& help);
/// A release of PyTorch whose rules are known.
void AddTorchFlag(Flags& flags, std::optional<TorchVersion>& to, const std::string& help);
/// A size that has to be above 0.
void AddRoomFlag(Flags& flags, const std::string& name, std::optional<Bytes>& to,
                 const std::string& help);
/// An unknown verdict ends with exit code 0 instead of 3.
void AddAllowUnknown(Flags& flags, bool& to);

}  // namespace plimsoll
