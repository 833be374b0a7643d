// The report page: one HTML file that holds its data, its style and its scripts, and asks nothing
// of anybody. Its source is web/.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "answer/explanation.h"
#include "diagnose/what_if.h"

namespace plimsoll {

/// What a page shows of one device beyond its explanation.
struct PageRun {
  /// Which of the explanation's ranks it belongs to.
  std::string file;
  int device = 0;
  /// PackHistory().
  std::string history = {};
  std::optional<TuneReport> what_if = {};
};

struct PageContent {
  std::string title;
  Explanation explanation;
  std::vector<PageRun> runs;
  /// Sentences on what was left out to keep the page small.
  std::vector<std::string> left_out = {};
  /// Documents of `predict`, where the page shows a prediction; JSON, or empty.
  std::string prediction = {};
  std::string trade_offs = {};
};

std::string PageHtml(const PageContent& content);

}  // namespace plimsoll
