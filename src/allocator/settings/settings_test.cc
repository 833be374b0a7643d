#include "allocator/settings/settings.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace plimsoll::settings_test {
namespace {

constexpr int kMinors[] = {4, 6, 9, 10, 11, 12, 13, 15};
constexpr TorchVersion Two(int minor) { return {.major = 2, .minor = minor}; }

AllocatorSettings Read(std::string_view conf, int minor = 15) {
  const Result<AllocatorSettings> parsed = ParseAllocatorSettings(conf, Two(minor));
  EXPECT_TRUE(parsed) << conf << ": " << (parsed ? "" : parsed.error().ToLine());
  return parsed ? *parsed : AllocatorSettings{};
}

std::string Refusal(std::string_view conf, int minor) {
  const Result<AllocatorSettings> parsed = ParseAllocatorSettings(conf, Two(minor));
  EXPECT_FALSE(parsed) << conf;
  return parsed ? "" : parsed.error().ToLine();
}

/// A string and the releases, first to last, that take it. 0 to 0: none does.
struct Case {
  std::string_view conf;
  int first;
  int last;
};
constexpr int kOldest = 4;
constexpr int kLatest = 15;

void CheckAccepted(std::initializer_list<Case> cases) {
  for (const Case& c : cases) {
    for (const int minor : kMinors) {
      const Result<AllocatorSettings> parsed = ParseAllocatorSettings(c.conf, Two(minor));
      EXPECT_EQ(parsed.ok(), minor >= c.first && minor <= c.last) << c.conf << " in 2." << minor;
    }
  }
}

// What is accepted was taken from the real parsers of 2.4 to 2.15 (docs/allocator.md).

TEST(Settings, EachKeyBeginsWithItsRelease) {
  CheckAccepted({
      {"backend:native", kOldest, kLatest},
      {"backend:cudaMallocAsync", kOldest, kLatest},
      {"expandable_segments:True", kOldest, kLatest},
      {"max_split_size_mb:128", kOldest, kLatest},
      {"garbage_collection_threshold:0.8", kOldest, kLatest},
      {"roundup_power2_divisions:4", kOldest, kLatest},
      {"release_lock_on_cudamalloc:True", kOldest, kLatest},
      {"release_lock_on_hipmalloc:True", kOldest, kLatest},
      {"pinned_use_cuda_host_register:True", kOldest, kLatest},
      {"pinned_use_hip_host_register:True", kOldest, kLatest},
      {"pinned_num_register_threads:8", kOldest, kLatest},
      {"max_non_split_rounding_mb:64", 6, kLatest},
      {"pinned_use_background_threads:True", 6, kLatest},
      {"graph_capture_record_stream_reuse:True", 9, kLatest},
      {"per_process_memory_fraction:0.5", 10, kLatest},
      {"pinned_reserve_segment_size_mb:64", 10, kLatest},
      {"large_segment_size_mb:64", 11, kLatest},
      {"throw_on_cudamalloc_oom:True", 12, kLatest},
      {"pinned_free_catch_all:True", 12, kLatest},
      {"pinned_max_round_threshold_mb:64", 13, kLatest},
      {"pinned_max_cached_size_mb:64", 13, kLatest},
      {"expandable_segments_reserve:0.5", 15, kLatest},
      {"expandable_segments_reserve_by_class:[x:0.5,y:40G]", 15, kLatest},
      // The out-of-memory text of some releases advises it, but none reads it.
      {"expandable_segments_handle_type:posix_fd", 0, 0},
      {"no_such_key:1", 0, 0},
  });
}

TEST(Settings, SizesAreBoundedByTheLargeSegment) {
  CheckAccepted({
      {"max_split_size_mb:19", 0, 0},
      {"max_split_size_mb:20", 10, kLatest},
      {"max_split_size_mb:21", kOldest, kLatest},
      {"max_non_split_rounding_mb:19", 0, 0},
      {"max_non_split_rounding_mb:20", 10, kLatest},
      {"max_non_split_rounding_mb:21", 6, kLatest},
      {"large_segment_size_mb:10", 0, 0},
      {"large_segment_size_mb:11", 11, kLatest},
      // In any order.
      {"large_segment_size_mb:64,max_split_size_mb:63", 0, 0},
      {"max_split_size_mb:63,large_segment_size_mb:64", 0, 0},
      {"max_split_size_mb:64,large_segment_size_mb:64", 11, kLatest},
      {"max_split_size_mb:12,large_segment_size_mb:12", 11, kLatest},
      {"max_non_split_rounding_mb:63,large_segment_size_mb:64", 0, 0},
      {"large_segment_size_mb:64,max_non_split_rounding_mb:64", 11, kLatest},
  });
}

TEST(Settings, SharesAndCountsHaveBounds) {
  CheckAccepted({
      {"garbage_collection_threshold:0", 0, 0},
      {"garbage_collection_threshold:0.0001", kOldest, kLatest},
      {"garbage_collection_threshold:0.9999", kOldest, kLatest},
      {"garbage_collection_threshold:1.0", 0, 0},
      {"garbage_collection_threshold:-0.5", 0, 0},
      {"garbage_collection_threshold:nan", 0, 0},
      {"garbage_collection_threshold:high", 0, 0},
      {"per_process_memory_fraction:0", 10, kLatest},
      {"per_process_memory_fraction:1.0", 10, kLatest},
      {"per_process_memory_fraction:1.01", 0, 0},
      {"per_process_memory_fraction:-0.01", 0, 0},
      {"per_process_memory_fraction:nan", 0, 0},
      {"pinned_num_register_threads:0", 0, 0},
      {"pinned_num_register_threads:1", kOldest, kLatest},
      {"pinned_num_register_threads:3", 0, 0},
      {"pinned_num_register_threads:128", kOldest, kLatest},
      {"pinned_num_register_threads:256", 0, 0},
      {"pinned_reserve_segment_size_mb:0", 0, 0},
      {"pinned_max_cached_size_mb:0", 13, kLatest},
  });
}

TEST(Settings, FlagsAreTrueOrFalse) {
  CheckAccepted({
      {"expandable_segments:False", kOldest, kLatest},
      {"expandable_segments:true", 0, 0},
      {"expandable_segments:1", 0, 0},
      {"expandable_segments:", 0, 0},
      {"expandable_segments", 0, 0},
      {"release_lock_on_cudamalloc:yes", 0, 0},
      {"pinned_use_background_threads:on", 0, 0},
      {"graph_capture_record_stream_reuse:true", 0, 0},
      {"throw_on_cudamalloc_oom:true", 0, 0},
      {"pinned_free_catch_all:1", 0, 0},
      {"pinned_use_cuda_host_register:false", 0, 0},
  });
}

TEST(Settings, NumbersAreReadAsTheLibraryReadsThem) {
  CheckAccepted({
      {"max_split_size_mb:abc", 0, 0},
      {"max_split_size_mb:128MB", kOldest, kLatest},
      {"max_split_size_mb:128.9", kOldest, kLatest},
      {"max_split_size_mb:+128", kOldest, kLatest},
      {"max_split_size_mb:1e3", 0, 0},   // 1
      {"max_split_size_mb:0x80", 0, 0},  // 0
      {"max_split_size_mb:2147483647", kOldest, kLatest},
      {"max_split_size_mb:2147483648", 10, kLatest},
      {"max_split_size_mb:18446744073709551616", 0, 0},
      {"garbage_collection_threshold:0.5x", kOldest, kLatest},
      {"garbage_collection_threshold:1e-400", 0, 0},
  });
  EXPECT_EQ(Read("max_split_size_mb:128MB").max_split_size, 128 * kMiB);
  EXPECT_EQ(Read("max_split_size_mb:128.9", 4).max_split_size, 128 * kMiB);
  // PyTorch turns -1 into a number larger than any size.
  EXPECT_EQ(Read("max_split_size_mb:-1", 4).max_split_size, kUnlimited);
  EXPECT_EQ(Read("max_split_size_mb:-1", 11).max_split_size, kUnlimited);
  EXPECT_EQ(Read("max_non_split_rounding_mb:-1").max_non_split_rounding, kLargestSetting);
  EXPECT_EQ(Read("large_segment_size_mb:99999999999999").large_segment_size, kLargestSetting);
  EXPECT_EQ(Read("garbage_collection_threshold:0x1p-1").garbage_collection_threshold, 0.5);
}

TEST(Settings, TheSharedParserLooksAtNoSeparator) {
  CheckAccepted({
      {"", kOldest, kLatest},
      {"  ", kOldest, kLatest},
      {",", 0, 0},
      {",max_split_size_mb:128", 0, 0},
      {"max_split_size_mb:128,", kOldest, kLatest},
      {"max_split_size_mb:128,,", 0, 0},
      {"max_split_size_mb : 128 , expandable_segments : True", kOldest, kLatest},
      {"expandable_\tsegments:True", 10, kLatest},
      {"max_split_size_mb,128", 10, kLatest},
      {"max_split_size_mb:128:expandable_segments]True", 10, kLatest},
      {"max_split_size_mb=128", 0, 0},
      {"max_split_size_mb:128;expandable_segments:True", 0, 0},
      {"max_split_size_mb:[128]", 0, 0},
      {"max_split_size_mb:", 0, 0},
  });
  EXPECT_TRUE(Read("max_split_size_mb:128:expandable_segments]True").expandable_segments);
}

TEST(Settings, OneBackendIsNamed) {
  CheckAccepted({
      {"backend:hipMallocAsync", 0, 0},
      {"backend", 0, 0},
      {"backend:", 0, 0},
      {"backend:native,backend:native", kOldest, kLatest},
      {"backend:native,backend:cudaMallocAsync", 0, 0},
      {"backend:cudaMallocAsync,backend:native", 0, 0},
      {"backend: native", kOldest, kLatest},
      // The loader of the older parser separates at the blank and stays with native.
      {"backend: cudaMallocAsync", 10, kLatest},
      {"max_split_size_mb:128,backend:cudaMallocAsync", kOldest, kLatest},
  });
  EXPECT_FALSE(Read("backend:cudaMallocAsync", 4).native);
  EXPECT_TRUE(Read("backend:native", 4).native);
}

TEST(Settings, EveryFormOfAListOfDivisions) {
  CheckAccepted({
      {"roundup_power2_divisions:0", 0, 0},
      {"roundup_power2_divisions:1", kOldest, kLatest},
      {"roundup_power2_divisions:3", 0, 0},
      {"roundup_power2_divisions:-4", 0, 0},
      {"roundup_power2_divisions:4294967296", 10, kLatest},
      {"roundup_power2_divisions:", 0, 0},
      {"roundup_power2_divisions:[]", kOldest, kLatest},
      {"roundup_power2_divisions:[64:0]", kOldest, kLatest},
      {"roundup_power2_divisions:[64:3]", 0, 0},
      {"roundup_power2_divisions:[64:x]", 0, 0},
      {"roundup_power2_divisions:[63:4]", 0, 0},
      {"roundup_power2_divisions:[0:4]", 0, 0},
      {"roundup_power2_divisions:[x:4]", 0, 0},
      {"roundup_power2_divisions:[64:8,]", kOldest, kLatest},
      {"roundup_power2_divisions:[64:8", 0, 0},
      {"roundup_power2_divisions:[64:8,", kOldest, 9},
      {"roundup_power2_divisions:[", kOldest, 9},
      {"roundup_power2_divisions:[64:", 0, 0},
      {"roundup_power2_divisions:[64", 0, 0},
      {"roundup_power2_divisions:[64,8]", 10, kLatest},
      {"roundup_power2_divisions:[64:8:128:4]", 10, kLatest},
      {"roundup_power2_divisions:[64:8]]", 10, kLatest},
      {"roundup_power2_divisions:[64:8]]],expandable_segments:True", 0, 0},
  });
}

using Divisions = std::array<std::int64_t, 16>;

Divisions DivisionsOf(std::string_view list, int minor) {
  return Read("roundup_power2_divisions:" + std::string(list), minor).roundup_power2_divisions;
}

TEST(Settings, TheFirstSizeOfAListStandsForAllBelow) {
  for (const int minor : kMinors) {
    Divisions all{};
    all.fill(4);
    EXPECT_EQ(DivisionsOf("4", minor), all);
    EXPECT_EQ(DivisionsOf("[32768:4]", minor), all);
    EXPECT_EQ(DivisionsOf("[65536:4]", minor), all);
    EXPECT_EQ(DivisionsOf("[64:8]", minor), (Divisions{8, 8, 8, 8, 8, 8, 8}));
    EXPECT_EQ(DivisionsOf("[64:8,32:2]", minor), (Divisions{8, 8, 8, 8, 8, 2, 8}));
    EXPECT_EQ(DivisionsOf("[1:0,2:2]", minor), (Divisions{0, 2}));
    EXPECT_EQ(DivisionsOf("8,roundup_power2_divisions:[8192:4]", minor)[15], 8);
  }
}

TEST(Settings, GreaterBeginsAfterTheLastSizeSinceTwoTen) {
  for (const int minor : kMinors) {
    const bool after = minor >= 10;
    EXPECT_EQ(DivisionsOf("[256:1,512:2,1024:4,>:8]", minor),
              (Divisions{1, 1, 1, 1, 1, 1, 1, 1, 1, 2, after ? 4 : 8, 8, 8, 8, 8, 8}));
    // Alone it leaves the smallest sizes out.
    EXPECT_EQ(DivisionsOf("[>:8]", minor)[0], after ? 0 : 8);
    EXPECT_EQ(DivisionsOf("[>:8]", minor)[1], 8);
    EXPECT_EQ(DivisionsOf("[32768:2,>:4]", minor)[15], after ? 2 : 4);
  }
}

TEST(Settings, EveryKeyIsKept) {
  const AllocatorSettings s = Read(
      "expandable_segments:True,max_split_size_mb:128,large_segment_size_mb:64,"
      "max_non_split_rounding_mb:96,garbage_collection_threshold:0.8,roundup_power2_divisions:4,"
      "per_process_memory_fraction:0.25,throw_on_cudamalloc_oom:True,"
      "graph_capture_record_stream_reuse:True,expandable_segments_reserve:40G,"
      "pinned_num_register_threads:8,release_lock_on_cudamalloc:True,pinned_num_register_threads:"
      "4");
  EXPECT_TRUE(s.expandable_segments);
  EXPECT_EQ(s.max_split_size, 128 * kMiB);
  EXPECT_EQ(s.large_segment_size, 64 * kMiB);
  EXPECT_EQ(s.max_non_split_rounding, 96 * kMiB);
  EXPECT_EQ(s.garbage_collection_threshold, 0.8);
  EXPECT_EQ(s.roundup_power2_divisions[7], 4);
  EXPECT_EQ(s.per_process_memory_fraction, 0.25);
  EXPECT_TRUE(s.throw_on_cudamalloc_oom);
  EXPECT_TRUE(s.native);
  EXPECT_TRUE(s.graph_capture_record_stream_reuse);
  EXPECT_EQ(s.expandable_segments_reserve, (AddressReserve{.is_share = false, .value = 40}));
  EXPECT_EQ(s.ignored, (std::vector<std::string>{"pinned_num_register_threads",
                                                 "release_lock_on_cudamalloc"}));
}

TEST(Settings, OfAKeyThatIsNamedTwiceTheLastCounts) {
  EXPECT_EQ(Read("max_split_size_mb:128,max_split_size_mb:64", 4).max_split_size, 64 * kMiB);
  EXPECT_EQ(Read("large_segment_size_mb:64,large_segment_size_mb:32").max_non_split_rounding,
            32 * kMiB);
}

TEST(Settings, ReservesThatMakeNoSenseAreIgnored) {
  for (const char* value :
       {"0", "-1", "abc", "0.5x", "G", "nan", "inf", "40GB", "0x1p-1", "1e400"}) {
    const std::string conf = std::string("expandable_segments_reserve:") + value;
    EXPECT_EQ(Read(conf).expandable_segments_reserve, std::nullopt) << value;
  }
  EXPECT_EQ(Read("expandable_segments_reserve:0.5,expandable_segments_reserve:x")
                .expandable_segments_reserve,
            (AddressReserve{.is_share = true, .value = 0.5}));
  for (const char* list : {"", "[", "[x", "[x]", "[x:", "[x:]", "[x:0.5", "[x:0.5:y:1]", "0.5"}) {
    Refusal(std::string("expandable_segments_reserve_by_class:") + list, 15);
  }
}

TEST(Settings, ARefusalSaysWhatPyTorchSaysAndWhatToDo) {
  EXPECT_EQ(Refusal("max_split_size_mb:10", 11),
            "max_split_size_mb:10: PyTorch 2.11 refuses it: too small, must be >= 20; use 20 or "
            "more");
  EXPECT_EQ(
      Refusal("max_split_size_mb:20", 9),
      "max_split_size_mb:20: PyTorch 2.9 refuses it: too small, must be > 20; use 21 or more");
  EXPECT_EQ(Refusal("expandable_segments:true", 11),
            "expandable_segments:true: PyTorch 2.11 refuses it: expected True or False; did you "
            "mean True? write True or False, with a capital");
  EXPECT_EQ(Refusal("large_segment_size_mb:64", 10),
            "large_segment_size_mb: PyTorch 2.10 refuses it: unrecognized key; PyTorch 2.11 and "
            "newer know it");
  EXPECT_EQ(Refusal("max_split_size:64", 11),
            "max_split_size: PyTorch 2.11 refuses it: unrecognized key; did you mean "
            "max_split_size_mb? docs/allocator.md lists the keys of each release");
  EXPECT_EQ(Refusal("expandable_segment:True", 11),
            "expandable_segment: PyTorch 2.11 refuses it: unrecognized key; did you mean "
            "expandable_segments? docs/allocator.md lists the keys of each release");
  EXPECT_EQ(Refusal("max_split_size_mb=64", 11),
            "max_split_size_mb=64: PyTorch 2.11 refuses it: unrecognized key; write "
            "max_split_size_mb:value");
  EXPECT_EQ(Refusal("garbage_collection_threshold:1", 11),
            "garbage_collection_threshold:1: PyTorch 2.11 refuses it: must be in (0.0, 1.0); write "
            "a fraction such as 0.8");
  EXPECT_EQ(Refusal("max_split_size_mb,64", 9),
            "max_split_size_mb: PyTorch 2.9 refuses it: expected : but got ,; write "
            "key:value,key:value or key:[size:value,>:value]");
  EXPECT_EQ(Refusal("max_split_size_mb:[\nx]", 4).find('\n'), std::string::npos);
  EXPECT_EQ(Refusal("roundup_power2_divisions:[64:8]\nx", 4).find('\n'), std::string::npos);
  EXPECT_EQ(Refusal("a\nb:1", 4).find('\n'), std::string::npos);
  EXPECT_LT(Refusal(std::string(10000, 'x'), 4).size(), 200u);
}

TEST(Settings, DefaultsAreWrittenAsNothing) {
  EXPECT_EQ(FormatSettings({}), "");
  EXPECT_EQ(Read(""), AllocatorSettings{});
  EXPECT_EQ(FormatSettings(Read("expandable_segments:False,pinned_num_register_threads:8")), "");
}

TEST(Settings, AreWrittenShort) {
  for (const char* conf : {
           "expandable_segments:True",
           "backend:cudaMallocAsync",
           "max_split_size_mb:128,garbage_collection_threshold:0.8",
           "max_split_size_mb:64,large_segment_size_mb:64",
           "large_segment_size_mb:64,max_non_split_rounding_mb:128",
           "roundup_power2_divisions:8",
           "roundup_power2_divisions:[64:8]",
           "roundup_power2_divisions:[256:1,512:2,1024:4,2048:8,>:8]",
           "roundup_power2_divisions:[16384:0,32768:2]",
           "per_process_memory_fraction:0.5,throw_on_cudamalloc_oom:True",
           "graph_capture_record_stream_reuse:True,expandable_segments_reserve:40G",
       }) {
    EXPECT_EQ(FormatSettings(Read(conf)), conf);
  }
}

/// Settings as any release might accept them.
AllocatorSettings RandomSettings(std::mt19937& random, int minor) {
  const auto chance = [&](int one_in) { return random() % static_cast<unsigned>(one_in) == 0; };
  const auto mib = [&](Bytes least) { return least + static_cast<Bytes>(random() % 500) * kMiB; };
  const auto share = [&] { return std::uniform_real_distribution(1e-6, 1.0)(random); };
  const VersionRules& rules = RulesOf(Two(minor));
  AllocatorSettings s;
  s.native = !chance(4);
  s.expandable_segments = chance(2);
  if (rules.has_large_segment_size && chance(2)) s.large_segment_size = mib(11 * kMiB);
  const Bytes least = s.large_segment_size + (rules.shared_parser ? 0 : kMiB);
  if (chance(2)) s.max_split_size = mib(least);
  s.max_non_split_rounding = s.large_segment_size;
  if (rules.has_max_non_split_rounding && chance(2)) s.max_non_split_rounding = mib(least);
  if (chance(2)) s.garbage_collection_threshold = share();
  const unsigned variety = random() % 4;
  std::int64_t last = 0;
  for (std::int64_t& d : s.roundup_power2_divisions) {
    if (variety > 0 && chance(1 << variety)) last = chance(4) ? 0 : std::int64_t{1} << random() % 6;
    d = last;
  }
  if (rules.has_per_process_memory_fraction && chance(2)) {
    s.per_process_memory_fraction = share();
  }
  s.throw_on_cudamalloc_oom = rules.has_throw_on_cudamalloc_oom && chance(2);
  s.graph_capture_record_stream_reuse = rules.has_graph_capture_record_stream_reuse && chance(2);
  if (rules.has_expandable_segments_reserve && chance(2)) {
    s.expandable_segments_reserve = {.is_share = chance(2), .value = share() * 100};
  }
  return s;
}

TEST(Settings, AreReadBackAsTheyWereWritten) {
  std::mt19937 random(11);
  for (int i = 0; i < 4000; ++i) {
    const int minor = kMinors[i % 8];
    const AllocatorSettings settings = RandomSettings(random, minor);
    EXPECT_EQ(Read(FormatSettings(settings), minor), settings) << FormatSettings(settings);
  }
}

// The allocator_settings of the traces in tests/data, as the readers give them.

RecordedSettings Recorded(std::string conf) {
  RecordedSettings recorded;
  recorded.conf = std::move(conf);
  recorded.max_split_size = -1;
  recorded.garbage_collection_threshold = 0;
  recorded.expandable_segments = false;
  return recorded;
}

TEST(Settings, OfRealRecords) {
  EXPECT_EQ(SettingsFrom(Recorded(""), Two(11)), AllocatorSettings{});

  RecordedSettings r = Recorded("garbage_collection_threshold:0.7,max_split_size_mb:128");
  r.max_split_size = 134217728;
  r.garbage_collection_threshold = 0.7;
  EXPECT_EQ(SettingsFrom(r, Two(11)), Read(r.conf, 11));

  r = Recorded("roundup_power2_divisions:[256:1,512:2,1024:4,>:8]");
  r.roundup_power2_divisions = {1, 1, 1, 1, 1, 1, 1, 1, 1, 2, 4, 8, 8, 8, 8, 8};
  EXPECT_EQ(SettingsFrom(r, Two(11)), Read(r.conf, 11));
  // As recorded, although this release would read the string in another way.
  EXPECT_EQ(SettingsFrom(r, Two(9)), Read(r.conf, 11));

  r = Recorded("expandable_segments:True,garbage_collection_threshold:0.6");
  r.expandable_segments = true;
  r.garbage_collection_threshold = 0.6;
  EXPECT_EQ(SettingsFrom(r, Two(11)), Read(r.conf, 11));
}

TEST(Settings, SomeStandOnlyInTheStringOfARecord) {
  EXPECT_EQ(SettingsFrom(Recorded("large_segment_size_mb:64"), Two(11)).large_segment_size,
            64 * kMiB);
  RecordedSettings r = Recorded("max_split_size_mb:64,max_non_split_rounding_mb:128");
  r.max_split_size = 64 * kMiB;
  EXPECT_EQ(SettingsFrom(r, Two(11)), Read(r.conf, 11));
}

TEST(Settings, TheRecordWinsOverItsString) {
  // A later call of _set_allocator_settings left the string behind, or the other way round.
  RecordedSettings r = Recorded(
      "max_split_size_mb:64,expandable_segments:True,"
      "garbage_collection_threshold:0.5,roundup_power2_divisions:4");
  EXPECT_EQ(SettingsFrom(r, Two(11)), AllocatorSettings{});
  r.large_segment_size = 32 * kMiB;
  EXPECT_EQ(SettingsFrom(r, Two(11)).max_non_split_rounding, 32 * kMiB);
  r.max_non_split_rounding = 48 * kMiB;
  EXPECT_EQ(SettingsFrom(r, Two(11)).max_non_split_rounding, 48 * kMiB);
}

TEST(Settings, AStringAloneCountsAsAWhole) {
  RecordedSettings r;
  r.conf = "max_split_size_mb:64,roundup_power2_divisions:4";
  EXPECT_EQ(SettingsFrom(r, Two(11)), Read(r.conf, 11));
  // From a newer release than was told.
  r.conf = "large_segment_size_mb:64";
  EXPECT_EQ(SettingsFrom(r, Two(4)), Read(r.conf, 15));
  r.conf = "nonsense";
  EXPECT_EQ(SettingsFrom(r, Two(4)), AllocatorSettings{});
}

}  // namespace
}  // namespace plimsoll::settings_test
