// What is said of the memory that a log tells: each function is one sign, as grave as it is sure.
#pragma once

#include <optional>
#include <vector>

#include "answer/finding.h"
#include "answer/log_report.h"

namespace plimsoll {

/// Of what tensors, PyTorch or the card held now, or at most since the line before: a peak that is
/// never reset can only rise.
bool MayGrow(const LoggedSeries& series);

/// Signs of a log, the findings in the order of the signs.
std::vector<Finding> FindInLog(const LogReport& report);

/// What a card has outside PyTorch, by what is in use and what is reserved in the same phase.
std::optional<Bytes> OutsideIn(const LogReport& report, const FigureSource& source);

}  // namespace plimsoll
