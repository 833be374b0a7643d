// The files that plimsoll-train is told of, looked at before the first step and not after the last.
#pragma once

#include <filesystem>
#include <string>

#include "train/program/flags.h"

namespace plimsoll::train {

/// "run.pickle" of rank 2 is "run.rank2.pickle".
std::filesystem::path OfRank(const std::filesystem::path& path, int rank);

/// That an input is there and can be read without waiting for anyone: a file, or "-".
void CheckInput(const char* flag, const std::string& path);

/// That inputs are there, that no output is an input or another output, that what is at the place
/// of an output is of its kind, so that one mistyped name costs nothing, and that a file can be
/// made there: it grows beside its target, which it replaces when it is whole.
void CheckFiles(const Flags& flags);

}  // namespace plimsoll::train
