// Causes and what to do about them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"

namespace plimsoll {

/// The kinds of causes. Each has a paragraph in docs/explain.md.
enum class FindingId : std::uint8_t {
  kCapacity,
  kFragmentation,
  kLimit,
  kLeak,
  kCrumbs,
  kWarmUp,
  kLongestBatch,
  kEvalSpike,
  kWorkspaceRefused,
  kRankImbalance,
  kDeviceImbalance,
  kStrayContext,
  kOtherProcess,
  kOutsidePytorch,
  kHostMemory,
  kRoundingLoss,
  kPrivatePools,
  kKvCache,
  kUnusedGraph,
  kSavings,
  kNeighbours,
  kRecompiles,
  kPendingFree,
  kPinnedRounding,
  kAllocatorRetries,
  kNearlyFull,
  kNone,
};
/// As JSON has it: "rank_imbalance".
std::string_view FindingName(FindingId id);

enum class Severity : std::uint8_t { kHigh, kMedium, kLow, kInfo };
std::string_view SeverityName(Severity severity);

/// What a remedy changes. One kind is told once in an answer.
enum class Lever : std::uint8_t {
  kOther,  // told by its own words
  kSmallerBatch,
  kCheckpointing,
  kMixedPrecision,
  kOptimizer,
  kSharding,
  kAllocatorSetting,
  kMemoryLimit,
  kOtherProcesses,
  kReleaseTensors,
  kServerSetting,  // of a program that serves models
  kQuantization,
  kOffload,
  kLoaderWorkers,
  kHostLimit,  // of the container, the job or the page file
  kSharedMemory,
  kCheckSize,  // a shape or a size that is larger than meant
  kEvaluation,
  kChunkedLoss,
};
/// As JSON has it: "checkpointing".
std::string_view LeverName(Lever lever);

/// How the effect of a remedy is known.
enum class Basis : std::uint8_t {
  kRecorded,   // the record itself shows the bytes
  kReplayed,   // the allocator's model ran the record with the change
  kMeasured,   // a run with the change was measured
  kEstimated,  // computed from the record by a rule of thumb
  kRule,       // no figure can be given
};
std::string_view BasisName(Basis basis);

/// What a remedy does to a job that ran out.
enum class Effect : std::uint8_t {
  kUnknown,
  kGetsPast,  // past the request that failed; the record does not show what comes after it
  kFits,      // the whole job: only where the record holds a complete step
};

struct Remedy {
  std::string change;
  std::optional<Bytes> saves = {};
  std::string costs = {};
  /// What else is to be known of it, where that is no cost.
  std::string remark = {};
  Basis basis = Basis::kRule;
  Lever lever = Lever::kOther;
  /// Lines to type, of Python or shell, where there are any.
  std::vector<std::string> code = {};
  /// Often advised, but it makes this job worse; `change` names what not to do.
  bool avoid = false;
  Effect effect = Effect::kUnknown;
  /// `saves` is the most that it can be; how much of it, the record does not show.
  bool at_most = false;
};

/// Whether it is meant to save memory of the device, and nobody can say how much.
bool SavesUnknown(const Remedy& remedy);

struct Finding {
  FindingId id = FindingId::kNone;
  Severity severity = Severity::kInfo;
  std::optional<int> rank = {};
  /// Of processes that share a card: whose it is.
  std::string process = {};
  /// A sentence without its full stop: the verdict quotes it.
  std::string title = {};
  std::vector<std::string> evidence = {};
  std::vector<Remedy> remedies = {};
  /// The event that it is about, where there is one.
  std::optional<std::int64_t> event = {};
  /// Bytes that would not be there without it, at the instant of the account; 0 where it has none.
  Bytes explains = 0;
};

/// The findings of one rank, or of several, as they are told: the gravest first, each remedy once.
std::vector<Finding> InOrder(std::vector<Finding> findings);

/// The findings of several ranks in one answer: what several of them show, as grave on each, is
/// told once with the figures of the first. Then InOrder().
std::vector<Finding> MergeFindings(std::vector<Finding> all, std::size_t ranks);

/// A cause that the figures exclude.
struct RuledOut {
  FindingId id = FindingId::kNone;
  std::string because;
};

}  // namespace plimsoll
