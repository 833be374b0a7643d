// The answers of `plan`.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "plan/search.h"
#include "report/text.h"

namespace plimsoll {

/// What to know first, in one or two sentences.
std::string PlanVerdict(const PlanJob& job, const Plan& plan);
/// `fitting` names the ways that fit for certain: "those shown".
std::vector<std::string> PlanNotes(const PlanJob& job, const Plan& plan, std::string_view fitting);
std::string PlanText(const PlanJob& job, const Plan& plan, bool explain, const TextStyle& style);
/// schema plimsoll.plan/1: docs/json.md
std::string PlanJson(const PlanJob& job, const Plan& plan);

}  // namespace plimsoll
