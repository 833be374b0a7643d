#include <cmath>

#include "job/transforms/gradient_uses.h"
#include "plan/lever.h"
#include "report/format/range_json.h"
#include "report/growth_text.h"
#include "report/plan.h"
#include "report/predict_verdict.h"

namespace plimsoll {
namespace {

Json ValueJson(const LeverFields& fields) {
  Json value = Json::object();
  for (const LeverField& field : fields) {
    std::visit([&](const auto& is) { value[field.name] = is; }, field.is);
  }
  return value;
}

Json WayJson(const PlanRequest& request, const Way& way) {
  Json set = Json::object();
  Json levers = Json::array();
  for (const auto& [lever, value] : LeversOf(way.choice)) {
    set[lever->name] = value->text();
    levers.push_back({{"lever", lever->name},
                      {"set_to", value->text()},
                      {"value", ValueJson(lever->fields(request.job, *value))},
                      {"words", lever->describe(request.job, way.choice, *value)},
                      {"numerics", NumericsName(lever->numerics(request.job, *value))},
                      {"code", lever->code(request.job, way.choice, *value)}});
  }
  return {{"batch", way.choice.batch},
          {"passes", MicroBatchesOf(request.job, way.choice)},
          {"samples", way.samples},
          {"set", std::move(set)},
          {"levers", std::move(levers)},
          {"numerics", NumericsName(NumericsOf(request.job, way.choice))},
          {"reserved", RangeJson(way.trial.needs.reserved)},
          {"device", RangeJson(way.trial.needs.device)},
          {"room", way.trial.room},
          {"fits", way.trial.fits && !way.leaves_out_parts && !way.leak},
          {"surely_fits", way.SurelyFits() && !way.leak},
          {"growth", way.leak ? GrowthJson(*way.leak) : Json(nullptr)},
          {"step_us", std::llround(way.trial.step_us)},
          {"step_us_range", StepRangeJson(way.trial)},
          {"gpu_busy_us", std::llround(way.trial.gpu_busy_us)},
          {"samples_per_second", way.SamplesPerSecond()}};
}

Json WaysJson(const PlanRequest& request, const std::vector<Way>& outcomes) {
  Json ways = Json::array();
  for (const Way& way : outcomes) ways.push_back(WayJson(request, way));
  return ways;
}

Json WorthJson(const PlanRequest& request, const std::vector<LeverWorth>& worth) {
  Json all = Json::array();
  for (const LeverWorth& one : worth) {
    all.push_back({{"lever", one.lever->name},
                   {"alone", WayJson(request, one.alone)},
                   {"without", WayJson(request, one.without)}});
  }
  return all;
}

Json GradientUsesJson(const Job& job) {
  Json uses = Json::array();
  for (const GradientUse& use : GradientUsesOf(job, job.variants.front())) {
    uses.push_back({{"at", use.at}, {"by_scaler", use.by_scaler}});
  }
  return uses;
}

}  // namespace

std::string PlanJson(const PlanRequest& request, const Plan& plan) {
  return Dump(
      {{"schema", "plimsoll.plan/1"},
       {"file", request.job.file},
       {"model", request.job.model},
       {"gpu", request.gpu.name},
       {"samples", request.samples},
       {"captured_passes", CapturedPasses(request.job)},
       {"gradients_used", GradientUsesJson(request.job)},
       {"keep_numerics", request.keep_numerics},
       {"ways", WaysJson(request, plan.ways)},
       {"alone", WaysJson(request, plan.single)},
       {"worth", WorthJson(request, plan.worth)},
       {"frontier", WaysJson(request, plan.frontier)},
       {"as_captured", WayJson(request, plan.as_captured)},
       {"otherwise", plan.otherwise ? WayJson(request, *plan.otherwise) : Json(nullptr)},
       {"closest", plan.closest ? WayJson(request, *plan.closest) : Json(nullptr)},
       {"growth",
        plan.ways.empty() || plan.Lasts() ? Json(nullptr) : GrowthJson(*plan.ways.front().leak)},
       {"smallest_card", plan.smallest_card ? Json(plan.smallest_card->name) : Json(nullptr)},
       {"verdict", DecisionName(plan.Verdict().decision)},
       {"unknown", NotFollowedJson(plan.Verdict().unknown)},
       {"evaluations", plan.evaluations},
       {"combinations", plan.combinations},
       {"left_out", plan.left_out},
       {"out_of_time", plan.out_of_time}});
}

}  // namespace plimsoll
