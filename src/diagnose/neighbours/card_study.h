// The processes of one card on one clock: turns, hand-overs, the sum, and what made one run out.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "answer/card.h"
#include "answer/finding.h"
#include "diagnose/attribution/analysed_trace.h"

namespace plimsoll {

/// One process of the card, with its record.
struct CardTrace {
  CardProcess process;
  const AnalysedTrace& trace;
};

/// What is known of the card itself.
struct CardFacts {
  int device = 0;
  std::string known_by = {};
  /// From an error text beside the records.
  std::optional<Bytes> capacity = {};
  /// What that text counts for the other processes.
  std::optional<Bytes> others = {};
};

struct CardStudy {
  CardReport report;
  std::vector<Finding> findings = {};
  /// Why they cannot be of one card after all, in a sentence; else empty.
  std::string contradiction = {};
};

CardStudy StudyCard(const std::vector<CardTrace>& traces, const CardFacts& facts);

/// "Device 0 is shared by engine and trainer. Everything that can be given back was given back …".
std::string CardVerdict(const CardReport& card);

}  // namespace plimsoll
