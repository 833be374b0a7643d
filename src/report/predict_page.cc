#include "report/predict_page.h"

#include <fmt/format.h>

#include "report/format/json_values.h"
#include "report/history_pack.h"
#include "report/predict.h"
#include "report/predict_verdict.h"

namespace plimsoll {
namespace {

Json ToJson(const TradeOff& t) {
  return {{"precision", t.precision},
          {"batch", t.batch},
          {"settings", t.settings},
          {"allocated", t.trial.needs.allocated.best},
          {"reserved", t.trial.needs.reserved.best},
          {"device", t.trial.needs.device.best},
          {"high", t.trial.needs.device.high},
          {"step_us", t.trial.step_us},
          {"fits", t.fits},
          {"surely_fits", t.fits && t.trial.surely_fits},
          {"on_frontier", t.on_frontier},
          {"chosen", t.chosen}};
}

Json StageRows(const std::vector<StageNeeds>& stages) {
  Json rows = Json::array();
  for (const StageNeeds& stage : stages) {
    rows.push_back({{"name", StageTitle(stage)},
                    {"stage", StageName(stage.stage)},
                    {"parts", stage.parts},
                    {"allocated", stage.allocated},
                    {"reserved", stage.reserved},
                    {"device", stage.device},
                    {"host", OrNull(stage.host)},
                    {"where", stage.where}});
  }
  return rows;
}

RankReport AsRank(const Answer& answer, const History& history) {
  const Prediction& p = answer.prediction;
  RankReport rank{.file = p.file, .format = "prediction", .device = history.device};
  rank.torch = p.torch.ToText();
  rank.events = static_cast<std::int64_t>(history.times.size());
  rank.steps = p.steps;
  rank.peak_allocated = p.trial.needs.allocated.best;
  rank.peak_reserved = p.trial.needs.reserved.best;
  rank.capacity = p.gpu.memory;
  rank.limit = p.limit;
  rank.phase = InstantText(p);
  rank.account = p.account;
  if (p.limit) rank.account_of = ShareBasis::kLimit;
  rank.notes = p.assumptions;
  if (answer.earlier_frees) {
    for (const std::string& text : EarlierFreeTexts(*answer.earlier_frees, p)) {
      rank.notes.push_back("Held, though nothing uses it again: " + text);
    }
  }
  return rank;
}

}  // namespace

PageContent RunPage(const Answer& answer, const History& history, std::string_view how) {
  const Prediction& p = answer.prediction;
  PageContent page{.title = fmt::format("{}, {}", p.model.empty() ? p.file : p.model, how)};
  page.explanation.ranks.push_back(AsRank(answer, history));
  page.runs.push_back({.file = p.file, .device = history.device, .history = PackHistory(history)});
  if (!p.stages.empty() || p.host) {
    page.stages = Dump({{"rows", StageRows(p.stages)},
                        {"host", p.host ? Json(HostText(p)) : Json(nullptr)},
                        {"host_room", OrNull(p.host_room)}},
                       kOneLine);
  }
  return page;
}

PageContent PredictionPage(Answer answer, const History& history) {
  const TradeOffTable& trade_offs = answer.page->trade_offs;
  Json points = Json::array();
  for (const TradeOff& point : trade_offs.points) points.push_back(ToJson(point));
  answer.frontier = answer.page->frontier;
  PageContent page = RunPage(answer, history, "predicted");
  page.explanation.verdict = PredictVerdict(answer.prediction, answer.max_batch);
  page.prediction = PredictJson(answer);
  page.trade_offs = Dump(points, kOneLine);
  if (trade_offs.left_out > 0) {
    page.explanation.ranks.front().notes.push_back(fmt::format(
        "the step is long: {} other batches and settings were not tried", trade_offs.left_out));
  }
  return page;
}

}  // namespace plimsoll
