#include "report/json.h"

#include "answer/shares.h"
#include "report/changes.h"
#include "report/format/json_values.h"
#include "report/host_text.h"
#include "report/log_text.h"

namespace plimsoll {
namespace {

Json ToJson(const AccountLine& line, const std::optional<double>& share) {
  return {{"what", AccountItemName(line.what)},
          {"bytes", line.bytes},
          {"share", OrNull(share)},
          {"confidence", ConfidenceName(line.confidence)},
          {"because", line.because}};
}

Json ToJson(const HolderPart& part) {
  return {{"module", part.module}, {"bytes", part.bytes}, {"count", part.count}};
}

Json ToJson(const Owner& owner) {
  return {{"name", owner.name}, {"bytes", owner.bytes}, {"count", owner.count}};
}

Json ToJson(const Holder& h) {
  Json parts = Json::array();
  for (const HolderPart& part : h.parts) parts.push_back(ToJson(part));
  Json owners = Json::array();
  for (const Owner& owner : h.owners) owners.push_back(ToJson(owner));
  Json json = {{"where", h.where},
               {"category", CategoryName(h.category)},
               {"bytes", h.bytes},
               {"count", h.count},
               {"module", h.module},
               {"parts", std::move(parts)},
               {"owners", std::move(owners)},
               {"stack", h.stack}};
  if (!h.labels.empty()) json["labels"] = h.labels;
  return json;
}

Json ToJson(const OomReport& oom) {
  return {{"event", OrNull(oom.event)},
          {"requested", OrNull(oom.requested)},
          {"fatal", oom.fatal},
          {"caught", oom.caught},
          {"why", OomCauseName(oom.why)},
          {"where", oom.where},
          {"in_backward", oom.in_backward},
          {"device_free", OrNull(oom.device_free)}};
}

Json ToJson(const StepReport& s) {
  return {{"first_event", s.first_event},       {"last_event", s.last_event},
          {"peak_allocated", s.peak_allocated}, {"peak_reserved", s.peak_reserved},
          {"activations", s.activations},       {"end_allocated", s.end_allocated},
          {"micro_batches", s.micro_batches}};
}

Json ToJson(const MarkReport& m) {
  return {
      {"name", m.name},   {"stage", StageName(m.stage)},        {"depth", m.depth},
      {"times", m.times}, {"peak_allocated", m.peak_allocated}, {"peak_reserved", m.peak_reserved},
      {"left", m.left}};
}

Json ToJson(const PoolReport& p) {
  return {{"id", Json{p.id.first, p.id.second}},
          {"peak_reserved", p.peak_reserved},
          {"peak_allocated", p.peak_allocated},
          {"reserved", p.reserved},
          {"allocated", p.allocated},
          {"free", p.reserved - p.allocated},
          {"made_by", p.made_by.empty() ? Json(nullptr) : Json(p.made_by)}};
}

Json ToJson(const HostPinnedReport& p) {
  Json places = Json::array();
  for (const HostPinnedReport::Place& place : p.places) {
    places.push_back({{"where", place.where}, {"bytes", place.bytes}, {"count", place.count}});
  }
  return {{"events", p.events},
          {"reserved", p.reserved},
          {"allocated", p.allocated},
          {"requested", OrNull(p.requested)},
          {"peak_reserved", p.peak_reserved},
          {"peak_allocated", p.peak_allocated},
          {"places", std::move(places)}};
}

Json ToJson(const HolderGroup& g) {
  return {{"name", g.name}, {"bytes", g.bytes}, {"count", g.count}};
}

Json ToJson(const NextStep& step) {
  std::vector<std::string> lines = {step.command};
  lines.insert(lines.end(), step.further_lines.begin(), step.further_lines.end());
  return {{"lines", std::move(lines)}, {"purpose", step.purpose}};
}

Json ToJson(const CardShare& held, const CardProcess& process) {
  return {{"process", process.name},
          {"reserved", held.reserved},
          {"allocated", held.allocated},
          {"not_given_back", held.cached}};
}

Json HeldJson(const std::vector<Bytes>& held, const CardReport& card) {
  Json list = Json::array();
  for (std::size_t i = 0; i < held.size(); ++i) {
    list.push_back({{"process", card.processes[i].name}, {"reserved", held[i]}});
  }
  return list;
}

Json ToJson(const HandOver& h, const CardReport& card) {
  Json held = Json::array();
  for (std::size_t i = 0; i < h.held.size(); ++i) {
    held.push_back(ToJson(h.held[i], card.processes[i]));
  }
  return {{"time_us", h.time_us},
          {"from", card.processes[h.from].name},
          {"to", card.processes[h.to].name},
          {"after", h.after},
          {"before", h.before},
          {"not_given_back", h.not_given_back},
          {"held", std::move(held)}};
}

Json ToJson(const CardReport& card) {
  Json processes = Json::array();
  for (const CardProcess& p : card.processes) {
    processes.push_back({{"name", p.name}, {"file", p.file}});
  }
  Json turns = Json::array();
  for (const Turn& t : card.turns) {
    turns.push_back({{"process", card.processes[t.process].name},
                     {"begin_us", t.time.begin},
                     {"end_us", t.time.end},
                     {"marks", t.marks},
                     {"peak_reserved", t.peak},
                     {"held", HeldJson(t.held, card)}});
  }
  Json hand_overs = Json::array();
  for (const HandOver& h : card.hand_overs) hand_overs.push_back(ToJson(h, card));
  return {{"device", card.device},
          {"processes", std::move(processes)},
          {"known_by", card.known_by},
          {"capacity", OrNull(card.capacity)},
          {"room", OrNull(card.room)},
          {"began_us", card.began},
          {"peak_reserved", card.peak},
          {"peak_us", card.peak_at},
          {"held_at_peak", HeldJson(card.held_at_peak, card)},
          {"at_once", card.at_once},
          {"turns", std::move(turns)},
          {"earlier_hand_overs", card.earlier_hand_overs},
          {"hand_overs", std::move(hand_overs)}};
}

Json ToJson(const RankReport& r);
Json ToJson(const Remedy& r);
Json ToJson(const Finding& f);

template <typename T>
Json List(const std::vector<T>& items) {
  Json list = Json::array();
  for (const T& item : items) list.push_back(ToJson(item));
  return list;
}

Json ToJson(const RankReport& r) {
  Json peaks = nullptr;
  if (r.peaks) {
    peaks = Json::object();
    for (std::size_t c = 0; c < kCategoryCount; ++c) {
      // No record tells a cache; a predicted run does.
      if (static_cast<Category>(c) == Category::kCache && (*r.peaks)[c] == 0) continue;
      peaks[std::string(CategoryName(static_cast<Category>(c)))] = (*r.peaks)[c];
    }
  }
  const Whole whole = WholeOf(r);
  Json account = Json::array();
  for (const AccountLine& line : r.account) account.push_back(ToJson(line, ShareOf(r, line)));
  Json json = {{"file", r.file},
               {"format", r.format},
               {"rank", OrNull(r.rank)},
               {"device", OrNull(r.device)},
               {"torch", r.torch.empty() ? Json(nullptr) : Json(r.torch)},
               {"events", r.events},
               {"steps", OrNull(r.steps)},
               {"complete_steps", r.complete_steps},
               {"peak_allocated", OrNull(r.peak_allocated)},
               {"peak_reserved", OrNull(r.peak_reserved)},
               {"capacity", OrNull(r.capacity)},
               {"limit", OrNull(r.limit)},
               {"budget", OrNull(r.budget)},
               {"shares_of", {{"what", ShareBasisName(whole.basis)}, {"bytes", whole.bytes}}},
               {"instant",
                {{"kind", InstantName(r.instant.kind)},
                 {"event", OrNull(r.instant.event)},
                 {"time_us", OrNull(r.instant.time_us)},
                 {"allocated", OrNull(r.instant.allocated)},
                 {"reserved", OrNull(r.instant.reserved)},
                 {"phase", r.phase}}},
               {"account", std::move(account)},
               {"peaks", std::move(peaks)},
               {"holders", List(r.holders)},
               {"ooms", List(r.ooms)},
               {"step_table", List(r.step_table)},
               {"notes", r.notes}};
  // Keys that most answers do not need.
  if (!r.prediction.empty()) json["prediction"] = r.prediction;
  if (!r.process.empty()) json["process"] = r.process;
  if (!r.marks.empty()) json["marks"] = List(r.marks);
  if (!r.pools.pools.empty()) {
    json["pools"] = {{"rows", List(r.pools.pools)},
                     {"sum_of_peaks", r.pools.sum_of_peaks},
                     {"peak_of_sum", r.pools.peak_of_sum},
                     {"peak_reserved", r.pools.peak_reserved},
                     {"saved_by_one", r.pools.SavedByOne()}};
  }
  if (r.pinned) json["pinned"] = ToJson(*r.pinned);
  if (!r.group_by.empty()) {
    json["group_by"] = r.group_by;
    json["groups"] = List(r.groups);
  }
  return json;
}

/// With what else is to be known, which readers of this key always had in it.
std::string CostsOf(const Remedy& r) {
  return r.costs + (r.costs.empty() || r.remark.empty() ? "" : "; ") + r.remark;
}

Json ToJson(const Remedy& r) {
  return {{"change", r.change},
          {"saves", OrNull(r.saves)},
          {"costs", CostsOf(r)},
          {"basis", BasisName(r.basis)},
          {"lever", LeverName(r.lever)},
          {"code", r.code},
          {"avoid", r.avoid},
          {"at_most", r.at_most}};
}

Json ToJson(const Finding& f) {
  Json json = {{"id", FindingName(f.id)},     {"severity", SeverityName(f.severity)},
               {"rank", OrNull(f.rank)},      {"title", f.title},
               {"evidence", f.evidence},      {"event", OrNull(f.event)},
               {"remedies", List(f.remedies)}};
  if (!f.process.empty()) json["process"] = f.process;
  return json;
}

}  // namespace

std::string DifferenceJson(const Difference& d) {
  Json ranks = Json::array();
  for (const RankDifference& r : d.ranks) {
    ranks.push_back({{"name", r.name},
                     {"peak_allocated", PeakJson(r.allocated)},
                     {"peak_reserved", PeakJson(r.reserved)},
                     {"ran_out_before", r.ran_out_before},
                     {"ran_out_after", r.ran_out_after}});
  }
  return Dump({{"schema", "plimsoll.diff/1"},
               {"verdict", d.verdict},
               {"notes", d.notes},
               {"before", d.file_before},
               {"after", d.file_after},
               {"peak_allocated", PeakJson(d.allocated)},
               {"peak_reserved", PeakJson(d.reserved)},
               {"ranks", std::move(ranks)},
               {"categories", CategoriesJson(d.categories)},
               {"holders", HoldersJson(d.holders)}});
}

std::string ExplanationJson(const Explanation& e, const std::vector<NextStep>& next) {
  Json ruled_out = Json::array();
  for (const RuledOut& excluded : e.ruled_out) ruled_out.push_back(excluded.because);
  Json json = {{"schema", "plimsoll.explain/1"},
               {"verdict", e.verdict},
               {"ranks", List(e.ranks)},
               {"shown", e.shown},
               {"findings", List(e.findings)},
               {"arithmetic", e.arithmetic},
               {"ruled_out", std::move(ruled_out)},
               {"record_next", e.record_next.Lines()},
               {"next", List(next)}};
  if (!e.savings.empty()) json["savings"] = e.savings;
  if (!e.cards.empty()) json["cards"] = List(e.cards);
  if (e.host) json["host"] = HostJson(*e.host);
  if (e.log) json["log"] = LogJson(*e.log);
  return Dump(json);
}

}  // namespace plimsoll
