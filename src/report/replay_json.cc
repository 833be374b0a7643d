#include <cmath>

#include "report/format/json_values.h"
#include "report/json.h"

namespace plimsoll {
namespace {

Json ToJson(const PinnedReport& p) {
  return {{"segment", p.pinned.segment},
          {"segment_size", p.pinned.segment_size},
          {"free", p.pinned.free},
          {"largest_free", p.pinned.largest_free},
          {"used", p.pinned.used},
          {"block", p.requested},
          {"made", OrNull(p.made)},
          {"released", OrNull(p.released)},
          {"where", p.where}};
}

Json FragmentationJson(const ReplayReport& r) {
  Json causes = Json::object();
  for (std::size_t i = 0; i < kWastes; ++i) {
    causes[std::string(WasteName(static_cast<Waste>(i)))] = r.fragmentation.waste[i];
  }
  Json pinned = Json::array();
  for (const PinnedReport& p : r.pinned) pinned.push_back(ToJson(p));
  Json largest = Json::array();
  for (const LargestFree& f : r.fragmentation.largest_free) {
    largest.push_back({{"pool", f.pool},
                       {"stream", f.stream},
                       {"small", f.small},
                       {"largest", f.size},
                       {"free", f.free}});
  }
  return {{"event", r.fragmentation_event},
          {"reserved", r.fragmentation.reserved},
          {"requested", r.fragmentation.requested},
          {"causes", causes},
          {"pinned", pinned},
          {"largest_free", largest}};
}

}  // namespace

std::string ReplayJson(const ReplayReport& r, bool verify) {
  const AllocatorCounters& c = r.replayed.counters;
  const auto only_verified = [&](std::int64_t n) { return verify ? Json(n) : Json(nullptr); };
  Json mismatch = nullptr;
  if (r.first_mismatch) {
    mismatch = {{"event", r.first_mismatch->event}, {"what", r.first_mismatch->what}};
  }
  const bool exact = r.address_mismatches + r.segment_mismatches + r.refusal_mismatches == 0;
  return Dump(
      {{"schema", "plimsoll.replay/1"},
       {"file", r.file},
       {"device", r.device},
       {"torch", r.torch.ToText()},
       {"events", r.events},
       {"allocations", r.allocations},
       {"address_mismatches", only_verified(r.address_mismatches)},
       {"segment_events", r.segment_events},
       {"segment_mismatches", only_verified(r.segment_mismatches)},
       {"refusal_mismatches", only_verified(r.refusal_mismatches)},
       {"final_block_differences", only_verified(r.final_block_differences)},
       {"first_mismatch", mismatch},
       {"model_is_exact", exact},
       {"settings", r.settings},
       {"recorded",
        {{"settings", r.recorded_settings},
         {"peak_reserved", r.recorded_peak_reserved},
         {"final_reserved", r.recorded_final_reserved},
         {"driver_calls", r.recorded_driver_calls}}},
       {"limit", OrNull(r.limits.limit)},
       {"capacity", OrNull(r.limits.capacity)},
       {"empty_cache_every", r.empty_cache_every},
       {"peak_reserved", c.peak_reserved},
       {"final_reserved", c.reserved},
       {"peak_allocated", c.peak_allocated},
       {"retries", c.retries},
       {"driver_calls", c.driver_allocations + c.driver_frees},
       {"driver_us", std::llround(c.driver_us)},
       {"given_back", c.given_back},
       {"fits", r.replayed.fits},
       {"oom_event", OrNull(r.replayed.oom_event)},
       {"oom_requested", r.replayed.oom_event ? Json(r.replayed.oom_requested) : Json(nullptr)},
       {"oom_where", r.replayed.oom_event ? Json(r.oom_where) : Json(nullptr)},
       {"lower_bound", r.lower_bound},
       {"packed", {{"height", r.packed}, {"optimal", r.packed_is_least}}},
       {"smallest_capacity", OrNull(r.smallest_capacity)},
       {"fragmentation", FragmentationJson(r)},
       {"fault", OrNull(r.fault)},
       {"assumed", r.assumed},
       {"inferred", r.inferred},
       {"caveats", r.caveats}});
}

std::string TuneJson(const TuneReport& r) {
  Json results = Json::array();
  for (const TuneRow& row : r.result.rows) {
    results.push_back({{"settings", FormatSettings(row.settings)},
                       {"peak_reserved", row.replayed.counters.peak_reserved},
                       {"fits", row.replayed.fits},
                       {"driver_calls", row.DriverCalls()},
                       {"driver_us", std::llround(row.replayed.counters.driver_us)},
                       {"retries", row.replayed.counters.retries},
                       {"oom_event", OrNull(row.replayed.oom_event)},
                       {"fault", OrNull(row.fault)}});
  }
  return Dump({{"schema", "plimsoll.tune/1"},
               {"file", r.file},
               {"device", r.device},
               {"torch", r.torch.ToText()},
               {"limit", OrNull(r.limits.limit)},
               {"capacity", OrNull(r.limits.capacity)},
               {"lower_bound", r.lower_bound},
               {"recorded",
                {{"settings", FormatSettings(r.result.rows.front().settings)},
                 {"peak_reserved", r.recorded_peak_reserved}}},
               {"results", results},
               {"best", FormatSettings(r.result.rows[r.result.best].settings)},
               {"simplest", FormatSettings(r.result.rows[r.result.simplest].settings)},
               {"default_is_best", r.result.best == r.result.defaults},
               {"assumed", r.assumed},
               {"inferred", r.inferred},
               {"caveats", r.caveats}});
}

}  // namespace plimsoll
