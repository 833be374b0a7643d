#include <cmath>

#include "report/format/range_json.h"
#include "report/growth_text.h"
#include "report/predict.h"
#include "report/predict_verdict.h"

namespace plimsoll {
namespace {

Json FiguresJson(const Needs& figures) {
  return {{"allocated", RangeJson(figures.allocated)},
          {"reserved", RangeJson(figures.reserved)},
          {"device", RangeJson(figures.device)}};
}

Json UnquantizedJson(const Unquantized& found) {
  Json weights = Json::array();
  for (const WholeWeights& one : found.whole) {
    weights.push_back(
        {{"name", one.name}, {"count", one.count}, {"bytes", one.bytes}, {"saves", one.saves}});
  }
  return {{"bits", found.bits},     {"quantized", found.quantized},
          {"share", found.share},   {"bytes", found.bytes()},
          {"saves", found.saves()}, {"weights", std::move(weights)}};
}

Json SpeedJson(const BatchSpeed& speed) {
  if (speed.batch == 0) return nullptr;
  return {{"batch", speed.batch},
          {"step_us", std::llround(speed.step_us)},
          {"samples_per_second", std::round(speed.SamplesPerSecond() * 10) / 10},
          {"workspaces_refused", speed.refused}};
}

Json BatchesJson(const MaxBatch& max_batch) {
  return {{"surely_fits", SpeedJson(max_batch.sure)},
          {"may_fit", SpeedJson(max_batch.most)},
          {"fastest", SpeedJson(max_batch.fastest)},
          {"tried_every", max_batch.tried_every},
          {"untried_below",
           max_batch.untried_below > 0 ? Json(max_batch.untried_below) : Json(nullptr)}};
}

std::string_view EditName(ReleaseEdit::Kind kind) {
  switch (kind) {
    case ReleaseEdit::Kind::kVariable:
      return "variable";
    case ReleaseEdit::Kind::kPlace:
      return "place";
    case ReleaseEdit::Kind::kGraph:
      return "graph";
    case ReleaseEdit::Kind::kBatch:
      return "batch";
    case ReleaseEdit::Kind::kGradients:
      return "gradients";
  }
  return "";
}

Json SavingJson(const PeakSaving& saved) {
  return {{"allocated", saved.allocated}, {"device", saved.device}};
}

Json EarlierFreesJson(const EarlierFrees& frees, const Prediction& p) {
  Json changes = Json::array();
  for (const EarlierFree& change : frees.changes) {
    Json edits = Json::array();
    for (const EarlierFree::Edit& edit : change.edits) {
      edits.push_back({{"kind", EditName(edit.kind)}, {"name", edit.name}, {"where", edit.where}});
    }
    changes.push_back({{"edits", edits},
                       {"made_at", change.made_at},
                       {"made_there_alone", change.made_there_alone},
                       {"saved", SavingJson(change.saved)},
                       {"by_step", change.by_step}});
  }
  return {{"changes", changes},
          {"together", SavingJson(frees.together)},
          {"fits", frees.fits},
          {"texts", EarlierFreeTexts(frees, p)}};
}

Json HoldersJson(const std::vector<Holder>& all) {
  Json holders = Json::array();
  for (const Holder& h : all) {
    Json parts = Json::array();
    for (const HolderPart& part : h.parts) {
      parts.push_back({{"module", part.module}, {"bytes", part.bytes}, {"count", part.count}});
    }
    holders.push_back({{"where", h.where},
                       {"module", h.module},
                       {"parts", std::move(parts)},
                       {"category", CategoryName(h.category)},
                       {"bytes", h.bytes},
                       {"count", h.count}});
  }
  return holders;
}

}  // namespace

Json GrowthJson(const Growth& growth) {
  Json json = {{"bytes_per_step", growth.every == 1 ? Json(growth.bytes) : Json(nullptr)},
               {"bytes_each_time", growth.bytes},
               {"every", growth.every},
               {"steps", growth.steps},
               {"ends_the_job", growth.EndsTheJob()},
               {"holders", HoldersJson(growth.holders)}};
  if (growth.without) {
    const TrialResult& without = *growth.without;
    json["without"] = {{"allocated", without.needs.allocated.best},
                       {"reserved", without.needs.reserved.best},
                       {"device", without.needs.device.best},
                       {"fits", without.fits}};
  }
  if (!growth.branch.empty()) json["comes_due"] = growth.branch;
  if (growth.keeper) {
    json["kept_by"] = {{"name", growth.keeper->name}, {"where", growth.keeper->where}};
    if (growth.keeper->most > 0) json["kept_by"]["most"] = growth.keeper->most;
  }
  return json;
}

namespace {

std::string_view ChangeName(EvaluationChange::Kind kind) {
  switch (kind) {
    case EvaluationChange::Kind::kNoGrad:
      return "no_grad";
    case EvaluationChange::Kind::kOnHost:
      return "host";
    case EvaluationChange::Kind::kSmaller:
      return "batch/4";
  }
  return "";
}

Json EvaluationJson(const std::vector<EvaluationChange>& changes) {
  Json list = Json::array();
  for (const EvaluationChange& change : changes) {
    list.push_back({{"set", fmt::format("evaluation={}", ChangeName(change.kind))},
                    {"allocated", change.trial.needs.allocated.best},
                    {"reserved", change.trial.needs.reserved.best},
                    {"device", change.trial.needs.device.best},
                    {"fits", change.trial.fits}});
  }
  return list;
}

Json HostJson(const Prediction& p) {
  const HostPart& peak = p.host->peak();
  Json json = {{"resident", peak.resident()},
               {"tensors", peak.tensors},
               {"pinned", peak.pinned},
               {"base", peak.base},
               {"imports", peak.imports},
               {"workers", peak.workers},
               {"of_workers", peak.of_workers},
               {"shared", peak.shared},
               {"ranks", p.host->ranks},
               {"of_machine", p.host->of_machine()},
               {"stage", StageName(p.host_stage)},
               {"where", peak.where},
               {"fits", p.FitsHost()}};
  if (p.host_room) json["room"] = *p.host_room;
  return json;
}

Json StagesJson(const std::vector<StageNeeds>& stages) {
  Json list = Json::array();
  for (const StageNeeds& stage : stages) {
    Json row = {{"stage", StageName(stage.stage)},
                {"after_load", stage.after_load},
                {"heaviest_batch", stage.heaviest},
                {"allocated", stage.allocated},
                {"reserved", stage.reserved},
                {"device", stage.device},
                {"where", stage.where}};
    if (stage.host) row["host"] = *stage.host;
    if (stage.pinned) row["pinned"] = *stage.pinned;
    list.push_back(std::move(row));
  }
  return list;
}

Json RanksJson(const std::vector<RankNeeds>& ranks) {
  Json list = Json::array();
  for (const RankNeeds& needs : ranks) {
    list.push_back({{"stage", needs.stage},
                    {"first_rank", needs.first},
                    {"ranks", needs.ranks},
                    {"allocated", needs.allocated},
                    {"reserved", needs.reserved},
                    {"device", needs.device},
                    {"fits", needs.fits},
                    {"shown", needs.shown}});
  }
  return list;
}

std::string_view NameOf(SizeChange::Kind kind) {
  switch (kind) {
    case SizeChange::Kind::kExpandable:
      return "expandable_segments";
    case SizeChange::Kind::kMultiples:
      return "multiples";
    case SizeChange::Kind::kLargest:
      return "largest";
    case SizeChange::Kind::kHeaviestFirst:
      return "heaviest_first";
  }
  return "";
}

Json SizeChangesJson(const std::vector<SizeChange>& changes) {
  Json list = Json::array();
  for (const SizeChange& change : changes) {
    Json row = {{"change", NameOf(change.kind)},
                {"allocated", change.trial.unlimited.allocated.best},
                {"reserved", change.trial.unlimited.reserved.best},
                {"fits", change.trial.fits}};
    if (change.multiple > 0) row["multiple"] = change.multiple;
    list.push_back(std::move(row));
  }
  return list;
}

/// Squares of what a hostile file names are beyond an integer.
std::int64_t CountJson(double count) { return std::llround(std::min(count, 9e18)); }

Json FrontierJson(const Frontier& frontier) {
  Json points = Json::array();
  for (const FrontierPoint& point : frontier.points) {
    points.push_back({{"length", point.length},
                      {"safe_max_batch", point.sure.batch},
                      {"max_batch", point.most},
                      {"in_step", CountJson(point.InStep())},
                      {"step_us", std::llround(point.sure.step_us)},
                      {"per_second", CountJson(point.PerSecond())},
                      {"fastest", &point == frontier.Fastest()},
                      {"most", &point == frontier.Most()}});
  }
  const SampleUnit unit = frontier.Unit();
  return {{"name", frontier.name},
          {"unit", unit.name},
          {"squared", unit.squared},
          {"points", std::move(points)}};
}

/// `is`: of what is predicted; `other`: what the job takes without it, or with it.
Json CompiledJson(const Compiled& compiled) {
  return {{"is", compiled.is},
          {"other",
           {{"allocated", compiled.other.allocated.best},
            {"reserved", compiled.other.reserved.best},
            {"device", compiled.other.device.best},
            {"step_us", std::llround(compiled.other_step_us)}}},
          {"timing", compiled.timing}};
}

}  // namespace

Json NotFollowedJson(const std::vector<NotFollowed>& parts) {
  Json json = Json::array();
  for (const NotFollowed& part : parts) {
    const bool placed = !part.file.empty();
    json.push_back({{"what", part.what},
                    {"file", placed ? Json(part.file) : Json(nullptr)},
                    {"line", placed ? Json(part.line) : Json(nullptr)}});
  }
  return json;
}

std::string PredictJson(const Answer& answer) {
  const Prediction& p = answer.prediction;
  const FitVerdict verdict = VerdictOf(p);
  const std::optional<MaxBatch>& max_batch = answer.max_batch;
  Json account = Json::array();
  for (const AccountLine& line : p.account) {
    account.push_back({{"what", AccountItemName(line.what)}, {"bytes", line.bytes}});
  }
  Json json = {{"schema", "plimsoll.predict/1"},
               {"file", p.file},
               {"model", p.model},
               {"precision", p.precision},
               {"gpu", p.gpu.name},
               {"memory", p.gpu.memory},
               {"torch", p.torch.ToText()},
               {"settings", p.settings},
               {"batch", p.batch},
               {"passes", p.passes},
               {"steps", p.steps},
               {"allocated", p.trial.needs.allocated.best},
               {"reserved", p.trial.needs.reserved.best},
               {"device", p.trial.needs.device.best},
               {"low", p.trial.needs.reserved.low},
               {"high", p.trial.needs.reserved.high},
               {"ranges", FiguresJson(p.trial.needs)},
               {"unlimited", FiguresJson(p.trial.unlimited)},
               {"step_us", std::llround(p.trial.step_us)},
               {"step_us_range", StepRangeJson(p.trial)},
               {"unlimited_step_us", std::llround(p.unlimited_step_us)},
               {"gpu_busy_us", std::llround(p.trial.gpu_busy_us)},
               {"waited_us", std::llround(p.trial.waited_us)},
               {"limit", OrNull(p.limit)},
               {"room", p.trial.room},
               {"verdict", DecisionName(verdict.decision)},
               {"unknown", NotFollowedJson(verdict.unknown)},
               {"fits", p.Runs()},
               {"growth", p.growth ? GrowthJson(*p.growth) : Json(nullptr)},
               {"workspaces_refused", p.trial.workspaces_refused},
               {"refused_in_a_step", p.trial.refused_in_a_step},
               {"reserved_without_search", OrNull(p.trial.reserved_without_search)},
               {"surely_fits", p.trial.surely_fits && p.Runs()},
               {"max_batch", max_batch ? Json(max_batch->most.batch) : Json(nullptr)},
               {"safe_max_batch", max_batch ? Json(max_batch->sure.batch) : Json(nullptr)},
               {"batches", max_batch ? BatchesJson(*max_batch) : Json(nullptr)},
               {"instant", InstantText(p)},
               {"peak",
                {{"step", p.peak.step},
                 {"phase", StageName(p.peak.stage)},
                 {"op", p.peak_op},
                 {"where", p.peak_where},
                 {"module", p.peak_module}}},
               {"account", account},
               {"holders", HoldersJson(p.holders)},
               {"reserved_after_step", p.reserved_after_step},
               {"earlier_frees",
                answer.earlier_frees ? EarlierFreesJson(*answer.earlier_frees, p) : Json(nullptr)},
               {"assumptions", p.assumptions}};
  json["trains"] = p.trains;
  if (p.unquantized) json["unquantized"] = UnquantizedJson(*p.unquantized);
  if (p.cache) {
    json["cache"] = {{"bytes", p.cache->bytes},
                     {"bytes_per_token", OrNull(p.cache->token)},
                     {"tokens", OrNull(p.cache->tokens)}};
  }
  if (p.peak_token) {
    json["peak"]["token"] = p.peak_token->token;
    json["peak"]["tokens"] = p.peak_token->of;
  }
  if (p.length) json["length"] = {{"name", p.length_name}, {"value", *p.length}};
  if (answer.longest) {
    json["max_length"] = {{"sure", answer.longest->sure},
                          {"most", answer.longest->most},
                          {"tried_every", answer.longest->apart}};
  }
  if (answer.frontier) json["frontier"] = FrontierJson(*answer.frontier);
  if (!p.stages.empty()) json["stages"] = StagesJson(p.stages);
  if (!p.ranks.empty()) json["ranks"] = RanksJson(p.ranks);
  if (p.host) json["host"] = HostJson(p);
  if (!p.lost_at.empty()) json["lost_at"] = p.lost_at;
  if (answer.compiled) json["compiled"] = CompiledJson(*answer.compiled);
  if (answer.epoch) json["data"] = EpochJson(*answer.epoch);
  if (p.own_batches > 0) {
    json["own_batches"] = p.own_batches;
    json["size_changes"] = SizeChangesJson(p.size_changes);
  }
  if (!p.evaluation.empty()) json["evaluation"] = EvaluationJson(p.evaluation);
  if (answer.share) json["left_for_others"] = p.LeftForOthers();
  if (answer.engine) {
    const ServedModel& model = *answer.engine;
    const Bytes left = std::max<Bytes>(0, p.LeftForOthers() - model.weights);
    json["engine"] = {{"model", model.name},
                      {"weights", model.weights},
                      {"bytes_per_token", model.token},
                      {"tokens", left / model.token}};
  }
  if (p.fails_in && !p.stages.empty()) {
    json["fails_in"] = StageName(*p.fails_in);
    json["fails_at"] = p.fails_at;
  }
  return Dump(json);
}

}  // namespace plimsoll
