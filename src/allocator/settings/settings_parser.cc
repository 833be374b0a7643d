// One class that reads the string as the release would. It was checked against the real parsers of
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

class Parser;

struct Key {
  std::string_view name;
  Pass pass;
  bool (Parser::*read)(const Key&);
  /// Whether a release knows it; null: all do.
  bool VersionRules::*known = nullptr;
};

class Parser {
 public:
  Parser(std::string_view conf, TorchVersion version)
      : version_(version), rules_(RulesOf(version)), tokens_(SettingTokens(conf, rules_)) {
    if (!rules_.shared_parser) native_ = LoadsNative(conf);
  }

  Result<AllocatorSettings> Parse();

 private:
  friend std::span<const Key> Keys();

  // Every step below leaves at_ on the last token that it took, or sets error_ and is false.

  bool Go(std::optional<Pass> pass);
  const Key* Find(std::string_view name) const;
  bool Skip(const Key& key);

  bool Refuse(std::string_view what, std::string why, std::string hint);
  bool RefuseValue(const Key& key, std::string why, std::string hint);
  bool RefuseUnknown(const std::string& name);
  bool Separator(const Key& key, char expected);
  bool Next(const Key& key);
  /// Steps over the colon, onto the value.
  bool Value(const Key& key) { return Separator(key, ':') && Next(key); }
  const std::string& token() const { return tokens_[at_]; }

  std::optional<std::uint64_t> Number(const Key& key);
  bool Flag(const Key& key, bool& to);
  bool Size(const Key& key, Bytes& to);
  bool Share(const Key& key, double& to, bool open);
  bool Divisions(const Key& key, std::uint64_t& to, bool may_be_zero);
  void Ignore(const Key& key);

  bool ReadBackend(const Key& key);
  bool ReadExpandable(const Key& key) { return Flag(key, settings_.expandable_segments); }
  bool ReadLargeSegment(const Key& key);
  bool ReadMaxSplit(const Key& key) { return Size(key, settings_.max_split_size); }
  bool ReadMaxNonSplit(const Key& key);
  bool ReadGarbage(const Key& key) {
    return Share(key, settings_.garbage_collection_threshold, true);
  }
  bool ReadFraction(const Key& key) {
    return Share(key, settings_.per_process_memory_fraction.emplace(1), false);
  }
  bool ReadDivisions(const Key& key);
  bool ReadDivisionList(const Key& key);
  bool ReadThrow(const Key& key) { return Flag(key, settings_.throw_on_cudamalloc_oom); }
  bool ReadReuse(const Key& key) { return Flag(key, settings_.graph_capture_record_stream_reuse); }
  bool ReadReserve(const Key& key);
  bool ReadReserveByClass(const Key& key);
  bool IgnoreFlag(const Key& key);
  bool IgnoreNumber(const Key& key);
  bool IgnoreThreads(const Key& key);

  const TorchVersion version_;
  const VersionRules& rules_;
  const std::vector<std::string> tokens_;
  std::size_t at_ = 0;
  AllocatorSettings settings_;
  std::optional<Bytes> max_non_split_rounding_;
  /// What the loader chose: the first mention.
  std::optional<bool> native_;
  std::optional<Error> error_;
};

std::span<const Key> Keys() {
  using R = VersionRules;
  static constexpr Key kKeys[] = {
      {"backend", Pass::kCuda, &Parser::ReadBackend},
      {"expandable_segments", Pass::kShared, &Parser::ReadExpandable},
      {"max_split_size_mb", Pass::kShared, &Parser::ReadMaxSplit},
      {"garbage_collection_threshold", Pass::kShared, &Parser::ReadGarbage},
      {"roundup_power2_divisions", Pass::kShared, &Parser::ReadDivisions},
      {"release_lock_on_cudamalloc", Pass::kCuda, &Parser::IgnoreFlag},
      {"release_lock_on_hipmalloc", Pass::kCuda, &Parser::IgnoreFlag},
      {"pinned_use_cuda_host_register", Pass::kCuda, &Parser::IgnoreFlag},
      {"pinned_use_hip_host_register", Pass::kCuda, &Parser::IgnoreFlag},
      {"pinned_num_register_threads", Pass::kCuda, &Parser::IgnoreThreads},
      {"max_non_split_rounding_mb", Pass::kShared, &Parser::ReadMaxNonSplit,
       &R::has_max_non_split_rounding},
      {"pinned_use_background_threads", Pass::kShared, &Parser::IgnoreFlag,
       &R::has_pinned_background_threads},
      {"graph_capture_record_stream_reuse", Pass::kCuda, &Parser::ReadReuse,
       &R::has_graph_capture_record_stream_reuse},
      {"per_process_memory_fraction", Pass::kCuda, &Parser::ReadFraction,
       &R::has_per_process_memory_fraction},
      {"pinned_reserve_segment_size_mb", Pass::kCuda, &Parser::IgnoreNumber,
       &R::has_pinned_reserve_segment},
      {"large_segment_size_mb", Pass::kSegment, &Parser::ReadLargeSegment,
       &R::has_large_segment_size},
      {"throw_on_cudamalloc_oom", Pass::kCuda, &Parser::ReadThrow, &R::has_throw_on_cudamalloc_oom},
      {"pinned_free_catch_all", Pass::kCuda, &Parser::IgnoreFlag, &R::has_pinned_free_catch_all},
      {"pinned_max_round_threshold_mb", Pass::kShared, &Parser::IgnoreNumber,
       &R::has_pinned_max_sizes},
      {"pinned_max_cached_size_mb", Pass::kShared, &Parser::IgnoreNumber, &R::has_pinned_max_sizes},
      {"expandable_segments_reserve", Pass::kCuda, &Parser::ReadReserve,
       &R::has_expandable_segments_reserve},
      {"expandable_segments_reserve_by_class", Pass::kCuda, &Parser::ReadReserveByClass,
       &R::has_expandable_segments_reserve},
  };
  return kKeys;
}

Result<AllocatorSettings> Parser::Parse() {
  const bool ok = rules_.shared_parser ? Go(Pass::kCuda) && Go(Pass::kSegment) && Go(Pass::kShared)
                                       : Go(std::nullopt);
  if (!ok) return *std::move(error_);
  if (settings_.max_split_size >= kLargestSetting) settings_.max_split_size = kUnlimited;
  settings_.native = native_.value_or(true);
  settings_.max_non_split_rounding = max_non_split_rounding_.value_or(settings_.large_segment_size);
  return std::move(settings_);
}

/// One pass over the tokens; without an argument all keys are read in it.
bool Parser::Go(std::optional<Pass> pass) {
  for (at_ = 0; at_ < tokens_.size(); ++at_) {
    const Key* const key = Find(token());
    if (key == nullptr) return RefuseUnknown(token());
    const bool mine = !pass || key->pass == *pass;
    if (mine ? !(this->*key->read)(*key) : !Skip(*key)) return false;
    if (at_ + 1 < tokens_.size() && !Separator(*key, ',')) return false;
  }
  return true;
}

const Key* Parser::Find(std::string_view name) const {
  const std::span<const Key> keys = Keys();
  const auto found = std::find_if(keys.begin(), keys.end(), [&](const Key& key) {
    return key.name == name && (key.known == nullptr || rules_.*key.known);
  });
  return found == keys.end() ? nullptr : &*found;
}

/// To the end of the value of a key that another pass reads.
bool Parser::Skip(const Key& key) {
  if (!Value(key)) return false;
  if (token() != "[") return true;
  while (++at_ < tokens_.size() && token() != "]") {
  }
  if (at_ < tokens_.size()) return true;
  return Refuse(key.name, "the list has no closing bracket", "close it with ]");
}

bool Parser::Refuse(std::string_view what, std::string why, std::string hint) {
  error_ = Error{.message = fmt::format("{}: PyTorch {} refuses it: {}", Shown(what),
                                        version_.ToText(), std::move(why)),
                 .hint = std::move(hint)};
  return false;
}

/// Refuses the current token as a key's value.
bool Parser::RefuseValue(const Key& key, std::string why, std::string hint) {
  return Refuse(fmt::format("{}:{}", key.name, token()), std::move(why), std::move(hint));
}

bool Parser::RefuseUnknown(const std::string& name) {
  const std::string_view before_equals = std::string_view(name).substr(0, name.find('='));
  if (before_equals.size() < name.size() && Find(before_equals) != nullptr) {
    return Refuse(name, "unrecognized key", fmt::format("write {}:value", before_equals));
  }
  std::vector<std::string_view> known;
  for (const Key& key : Keys()) {
    if (key.name == name) {
      TorchVersion since{.major = 2, .minor = 0};
      while (!(RulesOf(since).*key.known)) ++since.minor;
      return Refuse(name, "unrecognized key",
                    fmt::format("PyTorch {} and newer know it", since.ToText()));
    }
    if (Find(key.name) != nullptr) known.push_back(key.name);
  }
  return Refuse(name, "unrecognized key",
                SuggestOr(name, known, "docs/allocator.md lists the keys of each release"));
}

/// Steps onto a separator. The shared parser only looks whether there is a token at all.
bool Parser::Separator(const Key& key, char expected) {
  ++at_;
  const bool there = at_ < tokens_.size();
  if (there && (rules_.shared_parser || token() == std::string_view(&expected, 1))) return true;
  return Refuse(key.name,
                there ? fmt::format("expected {} but got {}", expected, Shown(token()))
                      : fmt::format("expected {} but the string ends", expected),
                "write key:value,key:value or key:[size:value,>:value]");
}

bool Parser::Next(const Key& key) {
  if (++at_ < tokens_.size()) return true;
  return Refuse(key.name, "a value is missing", fmt::format("write {}:value", key.name));
}

std::optional<std::uint64_t> Parser::Number(const Key& key) {
  const std::optional<std::uint64_t> number =
      rules_.shared_parser ? ReadUnsigned(token()) : ReadInt(token());
  if (!number) RefuseValue(key, "not a number that fits", "write a whole number");
  return number;
}

bool Parser::Flag(const Key& key, bool& to) {
  if (!Value(key)) return false;
  if (token() != "True" && token() != "False") {
    return RefuseValue(
        key, "expected True or False",
        SuggestOr(token(), {"True", "False"}, "write True or False, with a capital"));
  }
  to = token() == "True";
  return true;
}

/// A size in MiB that may not be below the large segment's.
bool Parser::Size(const Key& key, Bytes& to) {
  if (!Value(key)) return false;
  const std::optional<std::uint64_t> mib = Number(key);
  if (!mib) return false;
  auto least = static_cast<std::uint64_t>(settings_.large_segment_size / kMiB);
  if (!rules_.shared_parser) ++least;
  if (*mib < least) {
    const std::string bound = rules_.shared_parser ? fmt::format("must be >= {}", least)
                                                   : fmt::format("must be > {}", least - 1);
    return RefuseValue(key, "too small, " + bound, fmt::format("use {} or more", least));
  }
  const bool fits = *mib < static_cast<std::uint64_t>(kLargestSetting / kMiB);
  to = fits ? static_cast<Bytes>(*mib) * kMiB : kLargestSetting;
  return true;
}

bool Parser::Share(const Key& key, double& to, bool open) {
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

bool Parser::Divisions(const Key& key, std::uint64_t& to, bool may_be_zero) {
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

void Parser::Ignore(const Key& key) {
  std::vector<std::string>& list = settings_.ignored;
  if (std::find(list.begin(), list.end(), key.name) == list.end()) list.emplace_back(key.name);
}

bool Parser::ReadBackend(const Key& key) {
  if (!Value(key)) return false;
  if (token() != "native" && token() != "cudaMallocAsync") {
    return RefuseValue(
        key, "unknown allocator backend",
        SuggestOr(token(), {"native", "cudaMallocAsync"}, "write native or cudaMallocAsync"));
  }
  const bool native = token() == "native";
  if (native_.value_or(native) != native) {
    return RefuseValue(key, "another backend was chosen at load time",
                       "name one backend, without blanks");
  }
  native_ = native;
  return true;
}

bool Parser::ReadLargeSegment(const Key& key) {
  if (!Value(key)) return false;
  const std::optional<std::uint64_t> mib = Number(key);
  if (!mib) return false;
  if (*mib <= kLargestServedMiB) {
    return RefuseValue(key, fmt::format("must be > {}", kLargestServedMiB),
                       fmt::format("use {} or more", kLargestServedMiB + 1));
  }
  const bool fits = *mib < static_cast<std::uint64_t>(kLargestSetting / kMiB);
  settings_.large_segment_size = fits ? static_cast<Bytes>(*mib) * kMiB : kLargestSetting;
  return true;
}

bool Parser::ReadMaxNonSplit(const Key& key) {
  return Size(key, max_non_split_rounding_.emplace());
}

bool Parser::ReadDivisions(const Key& key) {
  if (!Value(key)) return false;
  if (token() == "[") return ReadDivisionList(key);
  std::uint64_t divisions = 0;
  if (!Divisions(key, divisions, false)) return false;
  settings_.roundup_power2_divisions.fill(static_cast<std::int64_t>(divisions));
  return true;
}

/// "[256:1,512:2,>:4]": the first size stands for all below it too, ">" for all above the last.
bool Parser::ReadDivisionList(const Key& key) {
  auto& buckets = settings_.roundup_power2_divisions;
  bool first = true;
  std::size_t last = 0;
  while (++at_ < tokens_.size() && token() != "]") {
    const std::string size = token();
    std::uint64_t divisions = 0;
    if (!Value(key) || !Divisions(key, divisions, true)) return false;
    const auto value = static_cast<std::int64_t>(divisions);
    if (size == ">") {
      const std::size_t from = last + (rules_.greater_key_after_last ? 1 : 0);
      std::fill(buckets.begin() + static_cast<std::ptrdiff_t>(from), buckets.end(), value);
    } else {
      const std::optional<std::uint64_t> mib = ReadUnsigned(size);
      if (!mib || !std::has_single_bit(*mib)) {
        return Refuse(fmt::format("{}:[{}:…]", key.name, size),
                      "the sizes of the list have to be a power of 2", "write 64, 128, 256 or >");
      }
      last = std::min(static_cast<std::size_t>(std::countr_zero(*mib)), buckets.size() - 1);
      if (first) std::fill_n(buckets.begin(), last, value);
      first = false;
      buckets[last] = value;
    }
    if (at_ + 1 >= tokens_.size() || tokens_[at_ + 1] != "]") {
      if (!Separator(key, ',')) return false;
    }
  }
  return true;
}

bool Parser::ReadReserve(const Key& key) {
  if (!Value(key)) return false;
  if (const auto reserve = ReadAddressReserve(token()))
    settings_.expandable_segments_reserve = reserve;
  return true;
}

/// "[class:0.5,other:40G]", where the program gives streams their class.
bool Parser::ReadReserveByClass(const Key& key) {
  if (!Value(key) || !Next(key)) return false;
  while (token() != "]") {
    if (!Value(key)) return false;
    if (at_ + 1 < tokens_.size() && tokens_[at_ + 1] == ",") ++at_;
    if (!Next(key)) return false;
  }
  Ignore(key);
  return true;
}

bool Parser::IgnoreFlag(const Key& key) {
  bool value = false;
  if (!Flag(key, value)) return false;
  Ignore(key);
  return true;
}

bool Parser::IgnoreNumber(const Key& key) {
  if (!Value(key)) return false;
  const std::optional<std::uint64_t> number = Number(key);
  if (!number) return false;
  if (*number == 0 && key.known == &VersionRules::has_pinned_reserve_segment) {
    return RefuseValue(key, "has to be greater than 0", "use 1 or more");
  }
  Ignore(key);
  return true;
}

bool Parser::IgnoreThreads(const Key& key) {
  if (!Value(key)) return false;
  const std::optional<std::uint64_t> threads = Number(key);
  if (!threads) return false;
  if (!std::has_single_bit(*threads)) {
    return RefuseValue(key, "has to be a power of 2", "use 1, 2, 4 up to 128");
  }
  if (*threads > kMostRegisterThreads) {
    return RefuseValue(key, fmt::format("must be <= {}", kMostRegisterThreads), "use 128 or less");
  }
  Ignore(key);
  return true;
}

}  // namespace

Result<AllocatorSettings> ParseAllocatorSettings(std::string_view conf, TorchVersion version) {
  return Parser(conf, version).Parse();
}

}  // namespace plimsoll
