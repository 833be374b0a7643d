// The last linear layer and its loss in chunks of rows, as plimsoll.chunked_cross_entropy and
// plimsoll.chunked_log_probs do it, so that nothing of rows by classes outlives its chunk.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "job/file/job.h"

namespace plimsoll {

/// What both take if nothing is said.
inline constexpr int kDefaultChunks = 8;
inline constexpr int kMostChunks = 1024;

/// Adds to the step's strings and layouts.
Result<Variant> ChunkLoss(Job& job, const Variant& variant, int chunks);

/// What has to be known of a loss to type it, or to set it.
struct LossInChunks {
  /// The layer that makes the logits; empty where the capture names no module.
  std::string layer;
  bool has_bias = false;
  /// Log-probabilities of single classes, and what belongs to them; otherwise a cross-entropy.
  bool log_probs = false;
  bool scaled = false;
  bool entropy = false;
  bool has_gradient = true;
  /// It stands in one of the ways that plimsoll.apply recognises.
  bool applies = true;

  friend bool operator==(const LossInChunks&, const LossInChunks&) = default;
};
/// Each once. None where ChunkLoss has an error.
std::vector<LossInChunks> LossesInChunks(const Job& job, const Variant& variant, int chunks);

/// The layers that make logits, which plimsoll.apply replaces: they cannot be checkpointed too.
/// None where ChunkLoss has an error, or the capture names no module.
std::vector<std::string> LogitLayers(const Job& job, const Variant& variant, int chunks);

/// Why logits of at least so many bytes at the first captured batch size cannot go in chunks.
/// Nothing where there are none.
std::optional<std::string> WhyNotChunked(const Job& job, const Variant& variant, int chunks,
                                         Bytes least);

/// Bytes of the logits at the first captured batch size; 0 where ChunkLoss has an error.
Bytes LogitsOf(const Job& job, const Variant& variant, int chunks);

}  // namespace plimsoll
