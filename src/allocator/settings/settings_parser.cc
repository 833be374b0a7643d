// Reads the string as the release would. It was checked against the real parsers of
// 2.4 to 2.15, string by string: docs/allocator.md, "Settings and releases".
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <iterator>
#include <span>

#include "allocator/settings/settings.h"
#include "allocator/settings/settings_tokens.h"
#include "base/printable.h"
#include "base/suggest.h"

namespace plimsoll {
namespace {

constexpr std::uint64_t kMostRegisterThreads = 128;
/// A large segment must hold every request that is served from it.
constexpr std::uint64_t kLargestServedMiB = 10;

/// A part of the string for an error of one line.
std::string Shown(std::string_view part) {
  constexpr std::size_t kLongest = 60;
  return Printable(part.substr(0, kLongest)) + (part.size() > kLongest ? "…" : "");
}

/// Which pass over the string reads a key. The shared parser goes over it three times: for the
/// segment size, which bounds other sizes, for its other keys and for those of CUDA.
enum class Pass : std::uint8_t { kSegment, kShared, kCuda };

struct Reading;

struct Key {
  std::string_view name;
  Pass pass;
  bool (*read)(Reading&, const Key&);
  /// Whether a release knows it; null: all do.
  bool VersionRules::*known = nullptr;
};

/// Goes over the tokens and reads values as a release does. Each step stops on the last token that
/// it took, or keeps an error and is false.
class ValueReader {
 public:
  ValueReader(std::string_view conf, TorchVersion version)
      : version_(version), rules_(RulesOf(version)), tokens_(SettingTokens(conf, rules_)) {}

  const VersionRules& rules() const { return rules_; }
  const std::string& token() const { return tokens_[at_]; }
  bool AtEnd() const { return at_ >= tokens_.size(); }
  bool Advance() { return ++at_ < tokens_.size(); }
  void Restart() { at_ = 0; }
  bool IsLast() const { return at_ + 1 >= tokens_.size(); }
  bool IsNext(std::string_view text) const { return !IsLast() && tokens_[at_ + 1] == text; }

  bool Separator(const Key& key, char expected);
  bool Next(const Key& key);
  /// Steps over the colon, onto the value.
  bool Value(const Key& key) { return Separator(key, ':') && Next(key); }
  bool Skip(const Key& key);

  std::optional<std::uint64_t> Number(const Key& key);
  bool Flag(const Key& key, bool& to);
  bool Share(const Key& key, double& to, bool open);
  bool Divisions(const Key& key, std::uint64_t& to, bool may_be_zero);

  bool Refuse(std::string_view what, std::string why, std::string hint);
  bool RefuseValue(const Key& key, std::string why, std::string hint);
  const std::optional<Error>& error() const { return error_; }

 private:
  const TorchVersion version_;
  const VersionRules& rules_;
  const std::vector<std::string> tokens_;
  std::size_t at_ = 0;
  std::optional<Error> error_;
};

/// To the end of the value of a key that another pass reads.
bool ValueReader::Skip(const Key& key) {
  if (!Value(key)) return false;
  if (token() != "[") return true;
  while (Advance() && token() != "]") {
  }
  if (!AtEnd()) return true;
  return Refuse(key.name, "the list has no closing bracket", "close it with ]");
}

bool ValueReader::Refuse(std::string_view what, std::string why, std::string hint) {
  error_ = Error{.message = fmt::format("{}: PyTorch {} refuses it: {}", Shown(what),
                                        version_.ToText(), std::move(why)),
                 .hint = std::move(hint)};
  return false;
}

/// Refuses the current token as a key's value.
bool ValueReader::RefuseValue(const Key& key, std::string why, std::string hint) {
  return Refuse(fmt::format("{}:{}", key.name, token()), std::move(why), std::move(hint));
}

/// Steps onto a separator. The shared parser only looks whether there is a token at all.
bool ValueReader::Separator(const Key& key, char expected) {
  const bool there = Advance();
  if (there && (rules_.shared_parser || token() == std::string_view(&expected, 1))) return true;
  return Refuse(key.name,
                there ? fmt::format("expected {} but got {}", expected, Shown(token()))
                      : fmt::format("expected {} but the string ends", expected),
                "write key:value,key:value or key:[size:value,>:value]");
}

bool ValueReader::Next(const Key& key) {
  if (Advance()) return true;
  return Refuse(key.name, "a value is missing", fmt::format("write {}:value", key.name));
}

std::optional<std::uint64_t> ValueReader::Number(const Key& key) {
  const std::optional<std::uint64_t> number =
      rules_.shared_parser ? ReadUnsigned(token()) : ReadInt(token());
  if (!number) RefuseValue(key, "not a number that fits", "write a whole number");
  return number;
}

bool ValueReader::Flag(const Key& key, bool& to) {
  if (!Value(key)) return false;
  if (token() != "True" && token() != "False") {
    return RefuseValue(
        key, "expected True or False",
        SuggestOr(token(), {"True", "False"}, "write True or False, with a capital"));
  }
  to = token() == "True";
  return true;
}

bool ValueReader::Share(const Key& key, double& to, bool open) {
  if (!Value(key)) return false;
  const std::optional<double> value = ReadDouble(token());
  if (!value) return RefuseValue(key, "not a number", "write a fraction such as 0.8");
  // Written so that NaN is outside.
  const bool inside = open ? *value > 0 && *value < 1 : *value >= 0 && *value <= 1;
  if (!inside) {
    return RefuseValue(key, open ? "must be in (0.0, 1.0)" : "must be in [0.0, 1.0]",
                       "write a fraction such as 0.8");
  }
  to = *value;
  return true;
}

bool ValueReader::Divisions(const Key& key, std::uint64_t& to, bool may_be_zero) {
  const std::optional<std::uint64_t> value = Number(key);
  if (!value) return false;
  const bool valid = std::has_single_bit(*value) || (may_be_zero && *value == 0);
  if (!valid) {
    return RefuseValue(key,
                       may_be_zero ? "divisions have to be a power of 2, or 0 to disable"
                                   : "divisions have to be a power of 2",
                       "write 2, 4, 8 or 16");
  }
  // Beyond this no request is large enough to be rounded.
  to = std::min(*value, std::uint64_t{1} << 62);
  return true;
}

/// What the string has said so far.
struct Reading {
  Reading(std::string_view conf, TorchVersion version) : in(conf, version) {
    if (!in.rules().shared_parser) native = LoadsNative(conf);
  }

  ValueReader in;
  AllocatorSettings settings = {};
  std::optional<Bytes> max_non_split_rounding = {};
  /// What the loader chose: the first mention.
  std::optional<bool> native = {};
};

/// A size in MiB that may not be below the large segment's.
bool ReadSize(Reading& r, const Key& key, Bytes& to) {
  if (!r.in.Value(key)) return false;
  const std::optional<std::uint64_t> mib = r.in.Number(key);
  if (!mib) return false;
  auto least = static_cast<std::uint64_t>(r.settings.large_segment_size / kMiB);
  if (!r.in.rules().shared_parser) ++least;
  if (*mib < least) {
    const std::string bound = r.in.rules().shared_parser ? fmt::format("must be >= {}", least)
                                                         : fmt::format("must be > {}", least - 1);
    return r.in.RefuseValue(key, "too small, " + bound, fmt::format("use {} or more", least));
  }
  const bool fits = *mib < static_cast<std::uint64_t>(kLargestSetting / kMiB);
  to = fits ? static_cast<Bytes>(*mib) * kMiB : kLargestSetting;
  return true;
}

/// A key that PyTorch takes and that changes nothing of what the model decides.
void NoteIgnored(Reading& r, const Key& key) {
  std::vector<std::string>& list = r.settings.ignored;
  if (std::find(list.begin(), list.end(), key.name) == list.end()) list.emplace_back(key.name);
}

bool ReadExpandable(Reading& r, const Key& key) {
  return r.in.Flag(key, r.settings.expandable_segments);
}

bool ReadThrow(Reading& r, const Key& key) {
  return r.in.Flag(key, r.settings.throw_on_cudamalloc_oom);
}

bool ReadReuse(Reading& r, const Key& key) {
  return r.in.Flag(key, r.settings.graph_capture_record_stream_reuse);
}

bool ReadGarbage(Reading& r, const Key& key) {
  return r.in.Share(key, r.settings.garbage_collection_threshold, true);
}

bool ReadFraction(Reading& r, const Key& key) {
  return r.in.Share(key, r.settings.per_process_memory_fraction.emplace(1), false);
}

bool ReadMaxSplit(Reading& r, const Key& key) {
  return ReadSize(r, key, r.settings.max_split_size);
}

bool ReadBackend(Reading& r, const Key& key) {
  if (!r.in.Value(key)) return false;
  if (r.in.token() != "native" && r.in.token() != "cudaMallocAsync") {
    return r.in.RefuseValue(
        key, "unknown allocator backend",
        SuggestOr(r.in.token(), {"native", "cudaMallocAsync"}, "write native or cudaMallocAsync"));
  }
  const bool native = r.in.token() == "native";
  if (r.native.value_or(native) != native) {
    return r.in.RefuseValue(key, "another backend was chosen at load time",
                            "name one backend, without blanks");
  }
  r.native = native;
  return true;
}

bool ReadLargeSegment(Reading& r, const Key& key) {
  if (!r.in.Value(key)) return false;
  const std::optional<std::uint64_t> mib = r.in.Number(key);
  if (!mib) return false;
  if (*mib <= kLargestServedMiB) {
    return r.in.RefuseValue(key, fmt::format("must be > {}", kLargestServedMiB),
                            fmt::format("use {} or more", kLargestServedMiB + 1));
  }
  const bool fits = *mib < static_cast<std::uint64_t>(kLargestSetting / kMiB);
  r.settings.large_segment_size = fits ? static_cast<Bytes>(*mib) * kMiB : kLargestSetting;
  return true;
}

bool ReadMaxNonSplit(Reading& r, const Key& key) {
  return ReadSize(r, key, r.max_non_split_rounding.emplace());
}

/// "[256:1,512:2,>:4]": the first size stands for all below it too, ">" for all above the last.
bool ReadDivisionList(Reading& r, const Key& key) {
  auto& buckets = r.settings.roundup_power2_divisions;
  bool first = true;
  std::size_t last = 0;
  while (r.in.Advance() && r.in.token() != "]") {
    const std::string size = r.in.token();
    std::uint64_t divisions = 0;
    if (!r.in.Value(key) || !r.in.Divisions(key, divisions, true)) return false;
    const auto value = static_cast<std::int64_t>(divisions);
    if (size == ">") {
      const std::size_t from = last + (r.in.rules().greater_key_after_last ? 1 : 0);
      std::fill(buckets.begin() + static_cast<std::ptrdiff_t>(from), buckets.end(), value);
    } else {
      const std::optional<std::uint64_t> mib = ReadUnsigned(size);
      if (!mib || !std::has_single_bit(*mib)) {
        return r.in.Refuse(fmt::format("{}:[{}:…]", key.name, size),
                           "the sizes of the list have to be a power of 2",
                           "write 64, 128, 256 or >");
      }
      last = std::min(static_cast<std::size_t>(std::countr_zero(*mib)), buckets.size() - 1);
      if (first) std::fill_n(buckets.begin(), last, value);
      first = false;
      buckets[last] = value;
    }
    if (!r.in.IsNext("]") && !r.in.Separator(key, ',')) return false;
  }
  return true;
}

bool ReadDivisions(Reading& r, const Key& key) {
  if (!r.in.Value(key)) return false;
  if (r.in.token() == "[") return ReadDivisionList(r, key);
  std::uint64_t divisions = 0;
  if (!r.in.Divisions(key, divisions, false)) return false;
  r.settings.roundup_power2_divisions.fill(static_cast<std::int64_t>(divisions));
  return true;
}

bool ReadReserve(Reading& r, const Key& key) {
  if (!r.in.Value(key)) return false;
  if (const auto reserve = ReadAddressReserve(r.in.token()))
    r.settings.expandable_segments_reserve = reserve;
  return true;
}

/// "[class:0.5,other:40G]", where the program gives streams their class.
bool ReadReserveByClass(Reading& r, const Key& key) {
  if (!r.in.Value(key) || !r.in.Next(key)) return false;
  while (r.in.token() != "]") {
    if (!r.in.Value(key)) return false;
    if (r.in.IsNext(",")) r.in.Advance();
    if (!r.in.Next(key)) return false;
  }
  NoteIgnored(r, key);
  return true;
}

bool IgnoreFlag(Reading& r, const Key& key) {
  bool value = false;
  if (!r.in.Flag(key, value)) return false;
  NoteIgnored(r, key);
  return true;
}

/// MiB of pinned memory; what is beyond every machine is `most`.
bool ReadPinned(Reading& r, const Key& key, Bytes& size, Bytes most = kUnlimited) {
  if (!r.in.Value(key)) return false;
  const std::optional<std::uint64_t> mib = r.in.Number(key);
  if (!mib) return false;
  const bool fits = *mib < static_cast<std::uint64_t>(kLargestSetting / kMiB);
  size = fits ? static_cast<Bytes>(*mib) * kMiB : most;
  return true;
}

bool ReadPinnedThreshold(Reading& r, const Key& key) {
  return ReadPinned(r, key, r.settings.pinned.max_round_threshold);
}

bool ReadPinnedCached(Reading& r, const Key& key) {
  return ReadPinned(r, key, r.settings.pinned.max_cached_size);
}

bool ReadPinnedSegment(Reading& r, const Key& key) {
  if (!ReadPinned(r, key, r.settings.pinned.reserve_segment_size, kLargestSetting)) return false;
  if (r.settings.pinned.reserve_segment_size > 0) return true;
  return r.in.RefuseValue(key, "has to be greater than 0", "use 1 or more");
}

bool IgnoreThreads(Reading& r, const Key& key) {
  if (!r.in.Value(key)) return false;
  const std::optional<std::uint64_t> threads = r.in.Number(key);
  if (!threads) return false;
  if (!std::has_single_bit(*threads)) {
    return r.in.RefuseValue(key, "has to be a power of 2", "use 1, 2, 4 up to 128");
  }
  if (*threads > kMostRegisterThreads) {
    return r.in.RefuseValue(key, fmt::format("must be <= {}", kMostRegisterThreads),
                            "use 128 or less");
  }
  NoteIgnored(r, key);
  return true;
}

std::span<const Key> Keys() {
  using R = VersionRules;
  static constexpr Key kKeys[] = {
      {"backend", Pass::kCuda, &ReadBackend},
      {"expandable_segments", Pass::kShared, &ReadExpandable},
      {"max_split_size_mb", Pass::kShared, &ReadMaxSplit},
      {"garbage_collection_threshold", Pass::kShared, &ReadGarbage},
      {"roundup_power2_divisions", Pass::kShared, &ReadDivisions},
      {"release_lock_on_cudamalloc", Pass::kCuda, &IgnoreFlag},
      {"release_lock_on_hipmalloc", Pass::kCuda, &IgnoreFlag},
      {"pinned_use_cuda_host_register", Pass::kCuda, &IgnoreFlag},
      {"pinned_use_hip_host_register", Pass::kCuda, &IgnoreFlag},
      {"pinned_num_register_threads", Pass::kCuda, &IgnoreThreads},
      {"max_non_split_rounding_mb", Pass::kShared, &ReadMaxNonSplit,
       &R::has_max_non_split_rounding},
      {"pinned_use_background_threads", Pass::kShared, &IgnoreFlag,
       &R::has_pinned_background_threads},
      {"graph_capture_record_stream_reuse", Pass::kCuda, &ReadReuse,
       &R::has_graph_capture_record_stream_reuse},
      {"per_process_memory_fraction", Pass::kCuda, &ReadFraction,
       &R::has_per_process_memory_fraction},
      {"pinned_reserve_segment_size_mb", Pass::kCuda, &ReadPinnedSegment,
       &R::has_pinned_reserve_segment},
      {"large_segment_size_mb", Pass::kSegment, &ReadLargeSegment, &R::has_large_segment_size},
      {"throw_on_cudamalloc_oom", Pass::kCuda, &ReadThrow, &R::has_throw_on_cudamalloc_oom},
      {"pinned_free_catch_all", Pass::kCuda, &IgnoreFlag, &R::has_pinned_free_catch_all},
      {"pinned_max_round_threshold_mb", Pass::kShared, &ReadPinnedThreshold,
       &R::has_pinned_max_sizes},
      {"pinned_max_cached_size_mb", Pass::kShared, &ReadPinnedCached, &R::has_pinned_max_sizes},
      {"expandable_segments_reserve", Pass::kCuda, &ReadReserve,
       &R::has_expandable_segments_reserve},
      {"expandable_segments_reserve_by_class", Pass::kCuda, &ReadReserveByClass,
       &R::has_expandable_segments_reserve},
  };
  return kKeys;
}

const Key* FindKey(std::string_view name, const VersionRules& rules) {
  const std::span<const Key> keys = Keys();
  const auto found = std::find_if(keys.begin(), keys.end(), [&](const Key& key) {
    return key.name == name && (key.known == nullptr || rules.*key.known);
  });
  return found == keys.end() ? nullptr : &*found;
}

bool RefuseUnknown(ValueReader& in) {
  const std::string& name = in.token();
  const std::string_view before_equals = std::string_view(name).substr(0, name.find('='));
  if (before_equals.size() < name.size() && FindKey(before_equals, in.rules()) != nullptr) {
    return in.Refuse(name, "unrecognized key", fmt::format("write {}:value", before_equals));
  }
  std::vector<std::string_view> known;
  for (const Key& key : Keys()) {
    if (key.name == name) {
      TorchVersion since{.major = 2, .minor = 0};
      while (!(RulesOf(since).*key.known)) ++since.minor;
      return in.Refuse(name, "unrecognized key",
                       fmt::format("PyTorch {} and newer know it", since.ToText()));
    }
    if (FindKey(key.name, in.rules()) != nullptr) known.push_back(key.name);
  }
  return in.Refuse(name, "unrecognized key",
                   SuggestOr(name, known, "docs/allocator.md lists the keys of each release"));
}

/// One pass over the tokens; without an argument all keys are read in it.
bool ReadKeys(Reading& r, std::optional<Pass> pass) {
  for (r.in.Restart(); !r.in.AtEnd(); r.in.Advance()) {
    const Key* const key = FindKey(r.in.token(), r.in.rules());
    if (key == nullptr) return RefuseUnknown(r.in);
    const bool mine = !pass || key->pass == *pass;
    if (mine ? !key->read(r, *key) : !r.in.Skip(*key)) return false;
    if (!r.in.IsLast() && !r.in.Separator(*key, ',')) return false;
  }
  return true;
}

}  // namespace

Result<AllocatorSettings> ParseAllocatorSettings(std::string_view conf, TorchVersion version) {
  Reading r(conf, version);
  const bool ok =
      r.in.rules().shared_parser
          ? ReadKeys(r, Pass::kCuda) && ReadKeys(r, Pass::kSegment) && ReadKeys(r, Pass::kShared)
          : ReadKeys(r, std::nullopt);
  if (!ok) return *r.in.error();
  if (r.settings.max_split_size >= kLargestSetting) r.settings.max_split_size = kUnlimited;
  r.settings.native = r.native.value_or(true);
  r.settings.max_non_split_rounding =
      r.max_non_split_rounding.value_or(r.settings.large_segment_size);
  return std::move(r.settings);
}

}  // namespace plimsoll
