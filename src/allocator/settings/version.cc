#include "allocator/settings/version.h"

#include <algorithm>
#include <array>
#include <charconv>

#include "base/printable.h"
#include "base/text.h"

namespace plimsoll {
namespace {

constexpr int kNewestMinor = 15;

/// The table: what each release of PyTorch 2 changed, on top of the one before. What the parsers do
/// was checked by running the real ones (docs/allocator.md).
constexpr VersionRules RulesOfMinor(int minor) {
  VersionRules r;  // 2.4 and 2.5
  if (minor >= 5) {
    r.private_pools_expand = true;
  }
  if (minor >= 6) {
    r.has_max_non_split_rounding = true;
    r.has_pinned_background_threads = true;
  }
  if (minor >= 9) {
    r.has_graph_capture_record_stream_reuse = true;
  }
  if (minor >= 10) {
    r.shared_parser = true;
    r.greater_key_after_last = true;
    r.has_per_process_memory_fraction = true;
    r.has_pinned_reserve_segment = true;
  }
  if (minor >= 11) {
    r.has_large_segment_size = true;
  }
  if (minor >= 12) {
    r.tie_break = TieBreak::kBlockNumber;
    r.has_throw_on_cudamalloc_oom = true;
    r.has_pinned_free_catch_all = true;
  }
  if (minor >= 13) {
    r.tie_break = TieBreak::kSegmentNumber;
    r.pool_scope_counts_as_capture = false;
    r.has_pinned_max_sizes = true;
  }
  // 2.14 changes what is recorded, but no decision.
  if (minor >= 15) {
    r.has_expandable_segments_reserve = true;
  }
  return r;
}

constexpr auto kVersions = [] {
  std::array<VersionRules, kNewestMinor + 1> table{};
  for (int minor = 0; minor <= kNewestMinor; ++minor) {
    table[static_cast<std::size_t>(minor)] = RulesOfMinor(minor);
  }
  return table;
}();

/// The version that a word begins with: "2.11", "2.11.0+cu130", "v2.11," but not "2" or "12.1x86".
std::optional<TorchVersion> VersionOfWord(std::string_view word) {
  if (word.starts_with('v')) word.remove_prefix(1);
  TorchVersion version;
  const char* const end = word.data() + word.size();
  const auto major = std::from_chars(word.data(), end, version.major);
  if (major.ec != std::errc() || !IsDigit(word[0])) return std::nullopt;
  if (major.ptr == end || *major.ptr != '.') return std::nullopt;
  if (major.ptr + 1 == end || !IsDigit(major.ptr[1])) return std::nullopt;
  const auto minor = std::from_chars(major.ptr + 1, end, version.minor);
  if (minor.ec != std::errc()) return std::nullopt;
  const bool ends =
      minor.ptr == end || std::string_view(".+,;)ar").find(*minor.ptr) != std::string_view::npos;
  return ends ? std::optional(version) : std::nullopt;
}

}  // namespace

std::string TorchVersion::ToText() const {
  return std::to_string(major) + "." + std::to_string(minor);
}

std::optional<TorchVersion> ParseTorchVersion(std::string_view text) {
  std::optional<TorchVersion> newest;
  while (!text.empty()) {
    const std::size_t length = std::min(text.find_first_of(" \t-("), text.size());
    const std::optional<TorchVersion> version = VersionOfWord(text.substr(0, length));
    if (version && (!newest || *newest < *version)) newest = version;
    text.remove_prefix(std::min(length + 1, text.size()));
  }
  return newest;
}

const VersionRules& RulesOf(TorchVersion version) {
  int minor = std::clamp(version.minor, 0, kNewestMinor);
  if (version.major != 2) minor = version.major < 2 ? 0 : kNewestMinor;
  return kVersions[static_cast<std::size_t>(minor)];
}

TorchVersion NewestKnown() { return {.major = 2, .minor = kNewestMinor}; }

Result<TorchVersion> ParseKnownVersion(std::string_view text) {
  const std::optional<TorchVersion> version = ParseTorchVersion(text);
  const std::string written = '\'' + Printable(text) + '\'';
  if (!version) {
    return Error{.message = written + " is no release of PyTorch", .hint = "write it as 2.11"};
  }
  constexpr TorchVersion kOldest{.major = 2, .minor = 0};
  if (*version < kOldest || NewestKnown() < *version) {
    return Error{.message = "the rules of PyTorch " + written + " are not known",
                 .hint = "known are " + kOldest.ToText() + " to " + NewestKnown().ToText()};
  }
  return *version;
}

}  // namespace plimsoll
