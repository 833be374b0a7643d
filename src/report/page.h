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
  /// PYTORCH_CUDA_ALLOC_CONF as far as the record tells; empty for the defaults.
  std::string settings = {};
  /// PackHistory().
  std::string history = {};
  std::optional<TuneReport> what_if = {};
};

/// Another run on the same page, which the page's own is compared with.
struct PageBaseline {
  std::string title;
  Explanation explanation;
  std::vector<PageRun> runs;
  /// For each rank of the page's own explanation the one of these that it is compared with, and
  /// what differs, in a sentence.
  struct Pair {
    std::size_t rank = 0;
    std::string verdict = {};
  };
  std::vector<Pair> pairs = {};
};

struct PageContent {
  std::string title;
  Explanation explanation;
  std::vector<PageRun> runs;
  /// Sentences on what was left out to keep the page small.
  std::vector<std::string> left_out = {};
  std::optional<PageBaseline> baseline = {};
  /// Documents of `predict`, where the page shows a prediction; JSON, or empty.
  std::string prediction = {};
  std::string trade_offs = {};
  /// The rows of its stages, with the parts of the timeline that each is made of.
  std::string stages = {};
  /// The document of `plan`, where the page shows one.
  std::string plan = {};
};

std::string PageHtml(const PageContent& content);

}  // namespace plimsoll
