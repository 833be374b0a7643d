#include "report/plan_page.h"

#include <fmt/format.h>

#include "plan/lever.h"
#include "report/plan.h"
#include "report/predict_page.h"

namespace plimsoll {

PageContent PlanPage(const PlanRequest& request, const Plan& plan, const Prediction& prediction,
                     const History& history, int micro_batches) {
  PageContent page = RunPage({.prediction = prediction}, history, "planned");
  page.explanation.verdict = PlanVerdict(request, plan);
  std::vector<std::string> notes = PlanNotes(request, plan, "those that are not drawn pale");
  if (const int all = MicroBatchesOf(request.job, plan.Shown().choice); all > micro_batches) {
    notes.push_back(fmt::format(
        "the run below has {} of the {} micro-batches of each step: the others repeat the last",
        micro_batches, all));
  }
  std::vector<std::string>& told = page.explanation.ranks.front().notes;
  told.insert(told.begin(), notes.begin(), notes.end());
  page.plan = PlanJson(request, plan);
  return page;
}

}  // namespace plimsoll
