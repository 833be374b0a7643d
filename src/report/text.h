// Results as text for a terminal. Nothing is computed here.
#pragma once

#include <string>
#include <vector>

#include "answer/explanation.h"
#include "diagnose/diff.h"
#include "diagnose/pack_trace.h"
#include "diagnose/what_if.h"
#include "hardware/gpu.h"
#include "report/format/style.h"

namespace plimsoll {

std::string ExplanationText(const Explanation& explanation, const TextStyle& style);
std::string DifferenceText(const Difference& difference, const TextStyle& style);
/// For a pull request: GitHub's and GitLab's Markdown, with nothing of the record read as such.
std::string DifferenceMarkdown(const Difference& difference);
/// With `verify`, only how the model compares with the record.
std::string ReplayText(const ReplayReport& report, bool verify, const TextStyle& style);
std::string PackText(const PackReport& report, const TextStyle& style);
std::string TuneText(const TuneReport& report, const TextStyle& style);
/// The catalogue as a table.
std::string GpusText(const std::vector<Gpu>& gpus, const TextStyle& style);
/// One card in full.
std::string GpuText(const Gpu& gpu, const TextStyle& style);

}  // namespace plimsoll
