// The answers of `plan`.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "plan/search.h"
#include "report/format/style.h"

namespace plimsoll {

/// "16 × 4 = 64 samples a step": micro-batch, accumulation steps, GPUs.
std::string SamplesAStep(const Job& job, const Choice& choice);
/// What to know first, in one or two sentences.
std::string PlanVerdict(const PlanRequest& request, const Plan& plan);
/// `fitting` names the ways that fit for certain: "those shown".
std::vector<std::string> PlanNotes(const PlanRequest& request, const Plan& plan,
                                   std::string_view fitting);
std::string PlanText(const PlanRequest& request, const Plan& plan, bool explain,
                     const TextStyle& style);
/// schema plimsoll.plan/1: docs/json.md
std::string PlanJson(const PlanRequest& request, const Plan& plan);

}  // namespace plimsoll
