// From recordings to an explanation: the main flow of `plimsoll explain`.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "answer/explanation.h"
#include "base/result.h"
#include "diagnose/attribution/analysed_trace.h"
#include "diagnose/attribution/groups.h"
#include "diagnose/neighbours/card_study.h"

namespace plimsoll {

struct ExplainOptions {
  /// Account at this event instead of the out-of-memory or the peak.
  std::optional<std::int64_t> at_event;
  /// Holders to keep for each rank; the rest is added up in one.
  std::size_t most_holders = 24;
  /// Holders are also added up by what this finds in their stacks and marks.
  std::optional<GroupPattern> group = {};
  /// The card's memory, where several processes share it and no error text tells.
  std::optional<Bytes> capacity = {};
};

/// Explains what one file holds, whatever its kind. Several devices give several ranks.
Result<Explanation> ExplainRecording(const AnalysedRecording& analysed,
                                     const ExplainOptions& options);

/// The same for who has no other use of the analysis.
Result<Explanation> ExplainRecording(const Recording& recording, const ExplainOptions& options);

/// Joins the explanations of several files: ranks are compared, error texts complete the traces of
/// the same rank, findings that many ranks share are told once. Those that share a card are not
/// compared but told together, with what was found of the card.
Explanation Join(std::vector<Explanation> parts, std::vector<CardStudy> cards = {},
                 const std::vector<std::string>& notes = {});

}  // namespace plimsoll
