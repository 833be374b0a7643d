// A plan on the report page. Nothing is computed here.
#pragma once

#include "job/answer/predict.h"
#include "plan/search.h"
#include "report/page.h"
#include "timeline/history.h"

namespace plimsoll {

/// `prediction` and `history` are of Plan::Shown(), with `micro_batches` of its
/// micro-batches.
PageContent PlanPage(const PlanRequest& request, const Plan& plan, const Prediction& prediction,
                     const History& history, int micro_batches);

}  // namespace plimsoll
