// What was found in each file of a job becomes what is told together: the error texts that complete
// a snapshot, and the cards that several of its processes share.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "answer/explanation.h"
#include "diagnose/neighbours/card_study.h"

namespace plimsoll {

/// A file as answers name it, and where it is.
using NamedPath = std::pair<std::string, std::string>;

/// Those that are named by their paths.
std::vector<NamedPath> PathsThemselves(const std::vector<std::string>& paths);

struct CardOptions {
  /// Of the snapshots.
  std::vector<NamedPath> paths;
  /// The card's memory, where no error text tells it.
  std::optional<Bytes> capacity = {};
  /// Names of files and hosts are replaced, as they were in the explanations.
  std::optional<std::uint64_t> salt = {};
};

/// What Join() makes one answer of.
struct PartsOfJob {
  std::vector<Explanation> explanations;
  bool has_texts = false;
  std::vector<CardStudy> cards = {};
  /// Why records that could be of one card are not taken for it, in sentences.
  std::vector<std::string> apart = {};
};

/// The error texts are told together with the snapshots as long as each completes one: one that
/// does not would be told as a process of its own.
PartsOfJob BelongingTogether(std::vector<Explanation> snapshots, std::vector<Explanation> texts,
                             const CardOptions& options);

}  // namespace plimsoll
