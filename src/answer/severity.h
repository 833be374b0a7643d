// How grave a cause is: one rule for every finding that has a size.
#pragma once

#include "answer/finding.h"

namespace plimsoll {

/// By the share that it takes of the memory at hand (the budget, the limit, the card, or what
/// PyTorch held where none of them is known): high from a fifth on, medium from a twentieth, low
/// from a hundredth; less is told for completeness. What a leak takes is what it adds in a thousand
/// steps.
Severity SeverityOfShare(double share);

/// The same of a cause that is told however small it is.
Severity LeastLow(Severity severity);

}  // namespace plimsoll
