// What changed in which PyTorch release: one table (release.cc), read by the parser of settings and
// by the model of the allocator. docs/allocator.md ("Settings and releases") shows it and says how
// it was checked.
#pragma once

#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"

namespace plimsoll {

/// A release of PyTorch. Patch releases are left out: those that were looked at change nothing
/// here.
struct TorchVersion {
  int major = 2;
  int minor = 11;

  /// "2.11"
  std::string ToText() const;

  friend auto operator<=>(const TorchVersion&, const TorchVersion&) = default;
};

/// "2.11", "2.11.0+cu130", "2.2 to 2.9" (takes the newest named: 2.9); nullopt for text that is no
/// version.
std::optional<TorchVersion> ParseTorchVersion(std::string_view text);

/// Which of several free blocks of the same size is taken.
enum class TieBreak : std::uint8_t {
  kAddress,        // the lowest address
  kBlockNumber,    // the block object that was created first; a split creates the left part anew
  kSegmentNumber,  // the block of the segment that was created first, then the lowest address
};

struct VersionRules {
  // How blocks are chosen and how memory is asked for.

  /// Decides between free blocks of equal size.
  TieBreak tie_break = TieBreak::kAddress;
  /// Private pools take part in expandable segments; 2.4 gives them segments of their own.
  bool private_pools_expand = false;
  /// While a private pool is in use anywhere on the device, neither is the cache released nor are
  /// pending frees completed, as if a graph were being captured.
  bool pool_scope_counts_as_capture = true;

  // How PYTORCH_CUDA_ALLOC_CONF is read.

  /// The parser shared by all accelerators reads the string. It takes any token as a separator,
  /// 64-bit numbers and every kind of white space, lets sizes equal the segment's, and insists on
  /// the "]" of a list. CUDA's own, before, checks separators, reads 32-bit numbers, drops blanks
  /// only, wants sizes above the segment's, and forgives a list that is not closed.
  bool shared_parser = false;
  /// In the list of roundup_power2_divisions ">" begins after the last key; before, at it, and so
  /// overwrote the last key's own value.
  bool greater_key_after_last = false;

  // Which keys it may have, beside those that every release knows.

  /// max_non_split_rounding_mb; fixed at 20 MiB before.
  bool has_max_non_split_rounding = false;
  /// graph_capture_record_stream_reuse.
  bool has_graph_capture_record_stream_reuse = false;
  /// per_process_memory_fraction.
  bool has_per_process_memory_fraction = false;
  /// large_segment_size_mb; fixed at 20 MiB before. It is read before all other keys.
  bool has_large_segment_size = false;
  /// throw_on_cudamalloc_oom.
  bool has_throw_on_cudamalloc_oom = false;
  /// expandable_segments_reserve, expandable_segments_reserve_by_class.
  bool has_expandable_segments_reserve = false;
  /// pinned_use_background_threads.
  bool has_pinned_background_threads = false;
  /// pinned_reserve_segment_size_mb.
  bool has_pinned_reserve_segment = false;
  /// pinned_free_catch_all.
  bool has_pinned_free_catch_all = false;
  /// pinned_max_round_threshold_mb, pinned_max_cached_size_mb.
  bool has_pinned_max_sizes = false;
};

/// The rules of a release; one newer than the newest known takes the newest's, one older than 2.4
/// those of 2.4.
const VersionRules& RulesOf(TorchVersion version);

/// The newest release in the table.
TorchVersion NewestKnown();

/// A release whose rules somebody asks for: one of PyTorch 2, no newer than the newest known.
Result<TorchVersion> ParseKnownVersion(std::string_view text);

}  // namespace plimsoll
