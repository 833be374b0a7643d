#include <cmath>

#include "report/json_values.h"
#include "report/predict.h"

namespace plimsoll {
namespace {

Json RangeJson(const Range& range) {
  return {{"low", range.low}, {"best", range.best}, {"high", range.high}};
}

}  // namespace

std::string PredictJson(const Prediction& p, const std::optional<MaxBatch>& max_batch) {
  Json account = Json::array();
  for (const AccountLine& line : p.account) {
    account.push_back({{"what", AccountItemName(line.what)}, {"bytes", line.bytes}});
  }
  Json holders = Json::array();
  for (const Holder& h : p.holders) {
    holders.push_back({{"where", h.where},
                       {"module", h.module},
                       {"category", CategoryName(h.category)},
                       {"bytes", h.bytes},
                       {"count", h.count}});
  }
  return Dump({{"schema", "plimsoll.predict/1"},
               {"file", p.file},
               {"model", p.model},
               {"precision", p.precision},
               {"gpu", p.gpu.name},
               {"memory", p.gpu.memory},
               {"torch", p.torch.ToText()},
               {"settings", p.settings},
               {"batch", p.batch},
               {"steps", p.steps},
               {"allocated", p.allocated.best},
               {"reserved", p.reserved.best},
               {"device", p.device.best},
               {"low", p.reserved.low},
               {"high", p.reserved.high},
               {"ranges",
                {{"allocated", RangeJson(p.allocated)},
                 {"reserved", RangeJson(p.reserved)},
                 {"device", RangeJson(p.device)}}},
               {"step_us", std::llround(p.step_us)},
               {"limit", OrNull(p.limit)},
               {"room", p.room},
               {"fits", p.fits},
               {"workspaces_refused", p.workspaces_refused},
               {"surely_fits", p.surely_fits},
               {"max_batch", max_batch ? Json(max_batch->batch) : Json(nullptr)},
               {"safe_max_batch", max_batch ? Json(max_batch->safe_batch) : Json(nullptr)},
               {"instant", InstantText(p)},
               {"peak",
                {{"step", p.peak.step},
                 {"phase", PhaseName(p.peak.phase)},
                 {"op", p.peak_op},
                 {"where", p.peak_where},
                 {"module", p.peak_module}}},
               {"account", account},
               {"holders", holders},
               {"reserved_after_step", p.reserved_after_step},
               {"assumptions", p.assumptions}});
}

}  // namespace plimsoll
