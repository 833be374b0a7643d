// The answers of `plan`.
#pragma once

#include <string>

#include "plan/search.h"
#include "report/text.h"

namespace plimsoll {

std::string PlanText(const PlanJob& job, const Plan& plan, bool explain, const TextStyle& style);
/// schema plimsoll.plan/1: docs/json.md
std::string PlanJson(const PlanJob& job, const Plan& plan);

}  // namespace plimsoll
