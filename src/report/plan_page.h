// A plan on the report page. Nothing is computed here.
#pragma once

#include "job/answer/predict.h"
#include "plan/search.h"
#include "report/page.h"
#include "timeline/history.h"

namespace plimsoll {

/// The way whose run the page shows: the first, or what comes closest.
const Way& ShownWay(const Plan& plan);

/// `prediction` and `history` are of the way that is shown, with `micro_batches` of its
/// micro-batches.
PageContent PlanPage(const PlanRequest& request, const Plan& plan, const Prediction& prediction,
                     const History& history, int micro_batches);

}  // namespace plimsoll
