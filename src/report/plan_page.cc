#include "report/plan_page.h"

#include <fmt/format.h>

#include "plan/lever.h"
#include "report/plan.h"
#include "report/predict_page.h"

namespace plimsoll {

const Way& ShownWay(const Plan& plan) {
  return plan.ways.empty() ? *plan.closest : plan.ways.front();
}

PageContent PlanPage(const PlanRequest& request, const Plan& plan, const Prediction& prediction,
                     const History& history, int passes) {
  PageContent page = RunPage({.prediction = prediction}, history, "planned");
  page.explanation.verdict = PlanVerdict(request, plan);
  std::vector<std::string> notes = PlanNotes(request, plan, "the ways that are not drawn pale");
  if (const int all = PassesOf(ShownWay(plan).choice); all > passes) {
    notes.push_back(fmt::format(
        "the run below has {} of the {} passes of each step: the others repeat the last", passes,
        all));
  }
  std::vector<std::string>& told = page.explanation.ranks.front().notes;
  told.insert(told.begin(), notes.begin(), notes.end());
  page.plan = PlanJson(request, plan);
  return page;
}

}  // namespace plimsoll
