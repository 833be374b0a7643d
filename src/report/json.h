// Results as JSON documents; docs/json.md describes them. Nothing is computed here.
#pragma once

#include <string>
#include <vector>

#include "answer/explanation.h"
#include "diagnose/diff.h"
#include "diagnose/pack_trace.h"
#include "diagnose/what_if.h"
#include "hardware/gpu.h"
#include "report/next_step.h"

namespace plimsoll {

/// One document of schema plimsoll.explain/1, with a newline at its end.
std::string ExplanationJson(const Explanation& explanation, const std::vector<NextStep>& next = {});
/// The same of schema plimsoll.diff/1.
std::string DifferenceJson(const Difference& difference);
/// Of schema plimsoll.replay/1; mismatches are null unless the record was to be verified.
std::string ReplayJson(const ReplayReport& report, bool verify);
/// Of schema plimsoll.tune/1.
std::string TuneJson(const TuneReport& report);
/// Of schema plimsoll.pack/1.
std::string PackJson(const PackReport& report);
/// Of schema plimsoll.gpus/1.
std::string GpusJson(const std::vector<Gpu>& gpus);

}  // namespace plimsoll
