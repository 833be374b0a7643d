// From what was found in each file to what a page shows: ranks joined, a title, what fits on it,
// the runs of a baseline paired with its own.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "diagnose/neighbours/card_study.h"
#include "report/page.h"

namespace plimsoll {

/// What was found in the files of one job.
struct PageParts {
  /// One for each file; with every holder where there is a baseline.
  std::vector<Explanation> explanations;
  std::vector<PageRun> runs;
  /// Of the cards that several of them share.
  std::vector<CardStudy> cards = {};
  /// Why others that could share one do not, in sentences.
  std::vector<std::string> apart = {};
};

/// A page of `parts`, compared with `baseline` where that is not empty. The error says which of the
/// two cannot be compared.
Result<PageContent> AssemblePage(PageParts parts, PageParts baseline);

}  // namespace plimsoll
