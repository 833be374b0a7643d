// plimsoll-train, but for where it starts.
#pragma once

namespace plimsoll::train {

/// Its exit code.
int TrainProgram(int argc, char** argv);

}  // namespace plimsoll::train
