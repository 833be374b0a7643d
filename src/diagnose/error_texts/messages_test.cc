#include "diagnose/error_texts/messages.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "answer/invariants.h"
#include "answer/shares.h"

namespace plimsoll::messages_test {
namespace {

Bytes GiB(double n) { return static_cast<Bytes>(n * static_cast<double>(kGiB) + 0.5); }
Bytes MiB(double n) { return static_cast<Bytes>(n * static_cast<double>(kMiB) + 0.5); }

/// A message of PyTorch 2.5 on a card of 24 GiB, full of tensors.
OomMessage Full() {
  OomMessage m;
  m.torch = TorchVersions{.first = 205, .last = 210};
  m.device = 0;
  m.requested = GiB(1.5);
  m.capacity = GiB(23.69);
  m.free = MiB(301.44);
  m.allocated = GiB(22.1);
  m.reserved_free = MiB(410.25);
  m.processes = {{.pid = {}, .bytes = GiB(23.06)}};
  return m;
}

Explanation Explain(std::vector<OomMessage> messages) {
  Recording recording;
  recording.file = "run.log";
  recording.format = "error text";
  recording.messages = std::move(messages);
  return ExplainMessages(recording);
}

const Finding* Find(const Explanation& e, std::string_view id) {
  const auto at = std::find_if(e.findings.begin(), e.findings.end(),
                               [&](const Finding& f) { return FindingName(f.id) == id; });
  return at == e.findings.end() ? nullptr : &*at;
}

Bytes Line(const RankReport& rank, std::string_view what) {
  for (const AccountLine& line : rank.account) {
    if (AccountItemName(line.what) == what) return line.bytes;
  }
  return -1;
}

Bytes Total(const RankReport& rank) {
  Bytes total = 0;
  for (const AccountLine& line : rank.account) total += line.bytes;
  return total;
}

bool Excludes(const Explanation& e, std::string_view words) {
  return std::any_of(e.ruled_out.begin(), e.ruled_out.end(),
                     [&](const RuledOut& x) { return x.because.find(words) != std::string::npos; });
}

bool Says(const std::vector<std::string>& lines, std::string_view words) {
  return std::any_of(lines.begin(), lines.end(),
                     [&](const std::string& s) { return s.find(words) != std::string::npos; });
}

TEST(ExplainMessages, AFullDevice) {
  const Explanation e = Explain({Full()});
  ASSERT_EQ(e.ranks.size(), 1u);
  const RankReport& rank = e.ranks[0];
  EXPECT_EQ(rank.capacity, GiB(23.69));
  EXPECT_EQ(rank.instant.kind, InstantKind::kOutOfMemory);
  EXPECT_EQ(rank.instant.allocated, GiB(22.1));
  EXPECT_EQ(rank.instant.reserved, GiB(22.1) + MiB(410.25));
  EXPECT_EQ(rank.torch, "2.5 to 2.10");
  EXPECT_EQ(Line(rank, "unattributed"), GiB(22.1));
  EXPECT_EQ(Line(rank, "fragmented"), MiB(410.25));
  EXPECT_EQ(Line(rank, "free"), MiB(301.44));
  EXPECT_EQ(Total(rank), *rank.capacity);
  ASSERT_EQ(rank.ooms.size(), 1u);
  EXPECT_EQ(rank.ooms[0].why, OomCause::kCapacity);
  EXPECT_EQ(rank.ooms[0].requested, GiB(1.5));
  EXPECT_TRUE(rank.ooms[0].fatal);
  EXPECT_NE(Find(e, "capacity"), nullptr);
  EXPECT_EQ(Find(e, "fragmentation"), nullptr);
  EXPECT_EQ(Find(e, "other_process"), nullptr);
  EXPECT_TRUE(Excludes(e, "Fragmentation"));
  EXPECT_TRUE(Excludes(e, "Other processes"));
  EXPECT_TRUE(Excludes(e, "limit"));
  EXPECT_TRUE(Excludes(e, "outside PyTorch"));
  EXPECT_TRUE(Excludes(e, "larger than the device"));
  EXPECT_TRUE(Says(e.arithmetic, "23.06 GiB in use by this process - 22.50 GiB reserved = 572"));
  EXPECT_TRUE(Says(e.arithmetic, "22.10 GiB allocated + 410.25 MiB reserved but unallocated = "));
  EXPECT_TRUE(Says(e.arithmetic, "1.50 GiB asked for - 301.44 MiB free = 1.21 GiB missing"));
  EXPECT_NE(e.verdict.find("1.50 GiB"), std::string::npos);
  EXPECT_NE(e.verdict.find("22.10 GiB"), std::string::npos);
  EXPECT_TRUE(e.record_next.by_run);
  EXPECT_EQ(e.record_next.Lines().front(), "plimsoll run -- python train.py");
}

TEST(ExplainMessages, MoreThanTheCardHolds) {
  OomMessage m = Full();
  m.requested = GiB(60);
  const Explanation e = Explain({m});
  EXPECT_EQ(e.ranks[0].ooms[0].why, OomCause::kTooLarge);
  EXPECT_NE(Find(e, "capacity"), nullptr);
  EXPECT_FALSE(Excludes(e, "larger than the device"));
}

/// The lines add up to what the shares are of, exactly.
void ExpectAddsUp(const RankReport& rank, ShareBasis of) {
  EXPECT_EQ(WholeOf(rank).basis, of);
  EXPECT_EQ(Total(rank), WholeOf(rank).bytes);
  for (const AccountLine& line : rank.account) EXPECT_TRUE(ShareOf(rank, line));
}

TEST(ExplainMessages, ALimitAndWhatIsInTensorsAlone) {
  OomMessage m = Full();
  m.allowed = GiB(9.2);
  m.allocated = GiB(8.87);
  m.reserved_free.reset();
  m.free = GiB(14);
  m.processes.clear();
  const Explanation e = Explain({m});
  const RankReport& rank = e.ranks[0];
  EXPECT_EQ(rank.ooms[0].why, OomCause::kLimit);
  ExpectAddsUp(rank, ShareBasis::kLimit);
  EXPECT_EQ(Line(rank, "free"), -1);
  EXPECT_EQ(Line(rank, "unknown"), GiB(9.2) - GiB(8.87));
}

TEST(ExplainMessages, ALimitThatWasNotMet) {
  OomMessage m = Full();
  m.allowed = GiB(23.5);
  m.requested = MiB(400);
  const Explanation e = Explain({m});
  EXPECT_TRUE(Excludes(e, "limit of 23.50 GiB"));
  ExpectAddsUp(e.ranks[0], ShareBasis::kCapacity);
}

TEST(ExplainMessages, ALimitAndNothingOfWhatIsHeld) {
  OomMessage m = Full();
  m.allowed = GiB(10);
  m.allocated.reset();
  m.reserved_free.reset();
  m.processes = {{.pid = 4711, .bytes = GiB(20)}};
  const Explanation e = Explain({m});
  EXPECT_FALSE(Excludes(e, "0 bytes"));
  ExpectAddsUp(e.ranks[0], ShareBasis::kCapacity);
  EXPECT_EQ(Line(e.ranks[0], "unnamed"), -1);
  EXPECT_GE(Line(e.ranks[0], "unknown"), GiB(20));
}

TEST(ExplainMessages, ALimitThatWasSet) {
  OomMessage m = Full();
  m.allocated = GiB(9.4);
  m.reserved_free = MiB(300);
  m.free = GiB(13.1);
  m.processes = {{.pid = {}, .bytes = GiB(10.3)}};
  m.requested = GiB(1);
  m.allowed = GiB(10);
  const Explanation e = Explain({m});
  EXPECT_EQ(e.ranks[0].ooms[0].why, OomCause::kLimit);
  EXPECT_EQ(e.ranks[0].limit, GiB(10));
  EXPECT_EQ(e.findings.front().id, FindingId::kLimit);
  // The limit may be meant: what fills it, and what is left of it, as of a card of that size.
  const Finding* fills = Find(e, "capacity");
  ASSERT_NE(fills, nullptr);
  EXPECT_EQ(fills->severity, Severity::kMedium);
  EXPECT_EQ(fills->title, "PyTorch's tensors fill the limit: 9.40 GiB of its 10.00 GiB");
  EXPECT_NE(e.verdict.find(fills->title), std::string::npos);
  EXPECT_EQ(e.ranks[0].account.back().because, "what is left of the limit");
}

TEST(ExplainMessages, FreePiecesWithinALimit) {
  OomMessage m = Full();
  m.allocated = GiB(6);
  m.reserved_free = GiB(3.2);
  m.free = GiB(13.1);
  m.requested = GiB(2);
  m.allowed = GiB(10);
  const Explanation e = Explain({m});
  EXPECT_EQ(e.findings.front().id, FindingId::kLimit);
  ASSERT_NE(Find(e, "fragmentation"), nullptr);
  EXPECT_EQ(Find(e, "other_process"), nullptr);
}

TEST(ExplainMessages, ALimitFarAwayIsNotTheCause) {
  OomMessage m = Full();
  m.allowed = GiB(100);
  const Explanation e = Explain({m});
  EXPECT_EQ(e.ranks[0].ooms[0].why, OomCause::kCapacity);
  EXPECT_EQ(Find(e, "limit"), nullptr);
  EXPECT_TRUE(Excludes(e, "The limit of 100.00 GiB"));
}

TEST(ExplainMessages, FreeMemoryLargerThanTheRequest) {
  OomMessage m = Full();
  m.torch = TorchVersions{.first = 202, .last = 203};
  m.allocated = GiB(5);
  m.free = GiB(9.28);
  m.requested = MiB(12.5);
  const Explanation e = Explain({m});
  EXPECT_EQ(e.ranks[0].ooms[0].why, OomCause::kUnknown);
  EXPECT_EQ(Find(e, "capacity"), nullptr);
  EXPECT_NE(Find(e, "limit"), nullptr);  // this release would not print one
  EXPECT_NE(e.verdict.find("9.28 GiB"), std::string::npos);
  m.torch = TorchVersions{.first = 211};
  const Explanation newer = Explain({m});
  EXPECT_EQ(Find(newer, "limit"), nullptr);
  EXPECT_TRUE(Excludes(newer, "limit"));
}

TEST(ExplainMessages, AFewFreeMegabytesAreAFullDevice) {
  OomMessage m = Full();
  m.requested = MiB(20);
  m.free = MiB(26.69);
  const Explanation e = Explain({m});
  EXPECT_EQ(e.ranks[0].ooms[0].why, OomCause::kCapacity);
  EXPECT_TRUE(Says(e.ranks[0].notes, "the tensor may be as small as 1 MiB"));
}

TEST(ExplainMessages, WindowsLendsHostMemory) {
  OomMessage m = Full();
  m.capacity = GiB(8);
  m.free = 0;
  m.allocated = GiB(22.44);
  m.reserved_free = MiB(3.16);
  m.requested = MiB(64);
  m.processes.clear();
  const Explanation e = Explain({m});
  EXPECT_EQ(e.ranks[0].ooms[0].why, OomCause::kCapacity);
  EXPECT_NE(e.verdict.find("Windows"), std::string::npos);
  EXPECT_TRUE(Says(e.arithmetic, "= 14.44 GiB that cannot be on the device"));
  EXPECT_FALSE(Says(e.arithmetic, "-14.44"));
  ASSERT_NE(Find(e, "capacity"), nullptr);
}

TEST(ExplainMessages, ANeighbour) {
  OomMessage m = Full();
  m.allocated = GiB(10);
  m.reserved_free = MiB(50);
  m.processes = {{.pid = 991, .bytes = GiB(12.4)}, {.pid = {}, .bytes = GiB(10.6)}};
  const Explanation e = Explain({m});
  EXPECT_EQ(e.ranks[0].ooms[0].why, OomCause::kNeighbour);
  ASSERT_NE(Find(e, "other_process"), nullptr);
  EXPECT_TRUE(Says(Find(e, "other_process")->evidence, "process 991 has 12.40 GiB"));
  EXPECT_EQ(Find(e, "other_process")->remedies.at(0).saves, GiB(12.4));
  EXPECT_EQ(Find(e, "stray_context"), nullptr);
  EXPECT_EQ(Line(e.ranks[0], "other_processes"), GiB(12.4));
  EXPECT_EQ(Total(e.ranks[0]), GiB(23.69));
}

TEST(ExplainMessages, ANeighbourWhomNobodyNames) {
  // An old text without process lines: 20 GiB of the card are neither free nor ours.
  OomMessage m = Full();
  m.torch = TorchVersions{.first = 104, .last = 109};
  m.allocated = MiB(304.36);
  m.reserved_free = {};
  m.reserved = MiB(306);
  m.capacity = GiB(47.54);
  m.free = MiB(5.62);
  m.requested = MiB(20);
  m.processes.clear();
  const Explanation e = Explain({m});
  EXPECT_EQ(e.ranks[0].ooms[0].why, OomCause::kNeighbour);
  ASSERT_NE(Find(e, "other_process"), nullptr);
  EXPECT_EQ(Find(e, "other_process")->remedies.at(0).saves, std::nullopt);
  EXPECT_EQ(Total(e.ranks[0]), GiB(47.54));
}

TEST(ExplainMessages, TheContainersOtherPidIsThisProcess) {
  OomMessage m = Full();
  m.processes = {{.pid = 21422, .bytes = GiB(23.06)}};
  const Explanation e = Explain({m});
  EXPECT_EQ(e.ranks[0].ooms[0].why, OomCause::kCapacity);
  EXPECT_EQ(Find(e, "other_process"), nullptr);
  EXPECT_EQ(Line(e.ranks[0], "other_processes"), -1);
  EXPECT_GT(Line(e.ranks[0], "outside"), MiB(500));
  EXPECT_TRUE(Says(e.ranks[0].notes, "Process 21422 is very likely this program itself"));
  EXPECT_TRUE(Says(e.arithmetic, "process 21422, which is this one"));
}

TEST(ExplainMessages, TheArithmeticTellsWhichPidIsOurs) {
  OomMessage m = Full();
  m.allocated = GiB(10);
  m.reserved_free = MiB(50);
  m.processes = {{.pid = 1, .bytes = GiB(12.4)}, {.pid = 2, .bytes = GiB(10.6)}};
  const Explanation e = Explain({m});
  EXPECT_TRUE(Says(e.ranks[0].notes, "Process 2 is very likely"));
  EXPECT_EQ(Line(e.ranks[0], "other_processes"), GiB(12.4));
  EXPECT_EQ(e.ranks[0].ooms[0].why, OomCause::kNeighbour);
}

TEST(ExplainMessages, APidThatHoldsLessThanWeReservedIsAnother) {
  OomMessage m = Full();
  m.allocated = GiB(10);
  m.reserved_free = MiB(50);
  m.processes = {{.pid = 1, .bytes = GiB(5)}};
  const Explanation e = Explain({m});
  EXPECT_NE(Find(e, "other_process"), nullptr);
  EXPECT_FALSE(Says(e.ranks[0].notes, "very likely this program"));
}

TEST(ExplainMessages, StrayContexts) {
  OomMessage m = Full();
  m.allocated = GiB(18.5);
  m.requested = GiB(2);
  m.processes = {{.pid = {}, .bytes = GiB(19.45)}};
  for (int pid = 1; pid <= 7; ++pid) m.processes.push_back({.pid = pid, .bytes = MiB(518)});
  const Explanation e = Explain({m});
  ASSERT_NE(Find(e, "stray_context"), nullptr);
  EXPECT_EQ(Find(e, "other_process"), nullptr);
  EXPECT_EQ(e.ranks[0].ooms[0].why, OomCause::kNeighbour);
  EXPECT_EQ(Find(e, "stray_context")->remedies.at(0).saves, 7 * MiB(518));
}

TEST(ExplainMessages, Fragmentation) {
  OomMessage m = Full();
  m.allocated = GiB(14.2);
  m.reserved_free = GiB(8.1);
  const Explanation e = Explain({m});
  EXPECT_EQ(e.ranks[0].ooms[0].why, OomCause::kFragmentation);
  ASSERT_NE(Find(e, "fragmentation"), nullptr);
  EXPECT_EQ(Find(e, "fragmentation")->severity, Severity::kHigh);
  EXPECT_EQ(Find(e, "fragmentation")->remedies.at(0).basis, Basis::kRule);
  EXPECT_EQ(Find(e, "fragmentation")->remedies.at(0).saves, std::nullopt);
  EXPECT_EQ(Find(e, "capacity"), nullptr);
  EXPECT_EQ(Line(e.ranks[0], "fragmented"), GiB(8.1));
}

TEST(ExplainMessages, MuchOutsidePyTorch) {
  OomMessage m = Full();
  m.allocated = GiB(13);
  m.reserved_free = MiB(100);
  const Explanation e = Explain({m});  // 23.06 GiB in use, 13.1 reserved
  EXPECT_EQ(e.ranks[0].ooms[0].why, OomCause::kOutside);
  ASSERT_NE(Find(e, "outside_pytorch"), nullptr);
  EXPECT_FALSE(Excludes(e, "outside PyTorch"));
}

TEST(ExplainMessages, NeverADifferenceWithinRounding) {
  OomMessage m = Full();
  m.free = MiB(100);
  m.allocated = GiB(23);
  m.reserved_free = MiB(0);
  m.processes = {{.pid = {}, .bytes = GiB(23.0)}};
  m.capacity = GiB(23.1);
  const Explanation e = Explain({m});
  EXPECT_TRUE(Says(e.arithmetic, "= nothing beyond rounding outside PyTorch"));
  EXPECT_TRUE(Says(e.arithmetic, "this process = nothing beyond rounding"));
}

TEST(ExplainMessages, PrivatePoolsAreNotAllocated) {
  OomMessage m = Full();
  m.private_pools = GiB(2);
  const Explanation e = Explain({m});
  EXPECT_EQ(Line(e.ranks[0], "cached"), GiB(2));
  EXPECT_EQ(Line(e.ranks[0], "unattributed"), GiB(22.1) - GiB(2));
  EXPECT_TRUE(Says(e.ranks[0].notes, "private pools"));
  EXPECT_EQ(Total(e.ranks[0]), GiB(23.69));
}

TEST(ExplainMessages, PrivatePoolsAreHeldWhateverIsSaidToBeReserved) {
  OomMessage m = Full();
  m.private_pools = GiB(2);
  m.reserved = GiB(10);
  m.reserved_free.reset();
  const Explanation e = Explain({m});
  ASSERT_TRUE(e.ranks[0].instant.reserved && e.ranks[0].instant.allocated);
  EXPECT_GE(*e.ranks[0].instant.reserved, *e.ranks[0].instant.allocated);
  EXPECT_TRUE(BrokenInvariants(e).empty());
}

TEST(ExplainMessages, OldTextsWithCached) {
  OomMessage m = Full();
  m.processes.clear();
  m.reserved_free = MiB(410.25);
  const Explanation e = Explain({m});
  EXPECT_EQ(e.ranks[0].instant.reserved, GiB(22.1) + MiB(410.25));
  EXPECT_GT(Line(e.ranks[0], "outside"), MiB(500));  // the context, by elimination
  EXPECT_EQ(Total(e.ranks[0]), GiB(23.69));
}

TEST(ExplainMessages, TextsThatAreNotAboutTheDevice) {
  for (auto [source, why] : {std::pair{MessageSource::kHostMemory, "host"},
                             {MessageSource::kVirtualAddress, "address_space"},
                             {MessageSource::kTorchAbsurd, "bug_in_size"}}) {
    OomMessage m;
    m.source = source;
    m.requested = GiB(64);
    const Explanation e = Explain({m});
    EXPECT_EQ(OomCauseName(e.ranks.at(0).ooms.at(0).why), why);
    EXPECT_EQ(Find(e, "capacity"), nullptr);
    EXPECT_TRUE(Excludes(e, "A full GPU"));
  }
}

TEST(ExplainMessages, EverySourceHasAVerdict) {
  for (int s = 0; s <= static_cast<int>(MessageSource::kUnknown); ++s) {
    OomMessage m;
    m.source = static_cast<MessageSource>(s);
    const Explanation e = Explain({m});
    EXPECT_FALSE(e.verdict.empty()) << s;
    EXPECT_FALSE(OomCauseName(e.ranks.at(0).ooms.at(0).why).empty()) << s;
    for (const Finding& finding : e.findings) {
      EXPECT_FALSE(finding.title.empty()) << s;
    }
  }
}

TEST(ExplainMessages, RecordNextFitsTheDevice) {
  OomMessage m = Full();
  m.source = MessageSource::kTorchMps;
  EXPECT_FALSE(Explain({m}).record_next.by_run);
  m.source = MessageSource::kTorchXpu;
  EXPECT_TRUE(Says(Explain({m}).record_next.lines, "torch.xpu.memory._record_memory_history"));
  m.source = MessageSource::kJax;
  EXPECT_TRUE(Says(Explain({m}).record_next.lines, "save_device_memory_profile"));
  m.source = MessageSource::kTorchHip;
  EXPECT_TRUE(Explain({m}).record_next.by_run);
}

TEST(ExplainMessages, JaxNamesItsLargestBuffer) {
  OomMessage m;
  m.source = MessageSource::kJax;
  m.requested = GiB(2);
  m.other = GiB(7.88);
  m.buffers = {{.size = GiB(4.89), .where = "gemma.py:175", .what = "dot_general"}};
  const Explanation e = Explain({m});
  EXPECT_NE(e.verdict.find("gemma.py:175"), std::string::npos);
  EXPECT_TRUE(Says(Find(e, "capacity")->evidence, "4.89 GiB dot_general from gemma.py:175"));
}

TEST(ExplainMessages, OneEntryForEachRankAndOneOomForEachMessage) {
  OomMessage a = Full();
  a.rank = 3;
  a.where = "train.py:57 in main";
  OomMessage b = Full();
  b.rank = 1;
  OomMessage again = a;
  again.requested = GiB(1.25);
  const Explanation e = Explain({a, b, again});
  ASSERT_EQ(e.ranks.size(), 2u);
  EXPECT_EQ(e.ranks[0].rank, 3);
  EXPECT_EQ(e.ranks[0].ooms.size(), 2u);
  EXPECT_EQ(e.ranks[1].rank, 1);
  EXPECT_NE(e.verdict.find("Rank 3, at train.py:57 in main"), std::string::npos);
  EXPECT_NE(e.verdict.find("rank 1"), std::string::npos);
  ASSERT_NE(Find(e, "capacity"), nullptr);
  EXPECT_EQ(Find(e, "capacity")->rank, std::nullopt);
  EXPECT_EQ(std::count_if(e.findings.begin(), e.findings.end(),
                          [](const Finding& f) { return f.id == FindingId::kCapacity; }),
            1);
}

TEST(ExplainMessages, ASurvivedWarningIsNotTheVerdict) {
  OomMessage warning;
  warning.source = MessageSource::kTensorFlow;
  warning.survived = true;
  warning.requested = GiB(1.25);
  warning.device = 0;
  const Explanation alone = Explain({warning});
  EXPECT_FALSE(alone.ranks.at(0).ooms.at(0).fatal);
  EXPECT_NE(Find(alone, "workspace_refused"), nullptr);
  EXPECT_EQ(Find(alone, "capacity"), nullptr);
  OomMessage fatal = Full();
  fatal.device = 1;
  const Explanation both = Explain({warning, fatal});
  EXPECT_EQ(both.ranks.at(0).device, 1);
  EXPECT_TRUE(both.ranks.at(0).ooms.at(0).fatal);
}

TEST(ExplainMessages, WhatAShortageBrokeIsToldBesideIt) {
  OomMessage broken;
  broken.source = MessageSource::kBrokenSegment;
  const Explanation alone = Explain({broken});
  EXPECT_NE(alone.verdict.find("every allocation in this process fails"), std::string::npos);
  const Explanation both = Explain({Full(), broken});
  EXPECT_EQ(both.ranks.at(0).ooms.at(0).why, OomCause::kCapacity);
  ASSERT_NE(Find(both, "none"), nullptr);
  EXPECT_NE(Find(both, "none")->title.find("half mapped"), std::string::npos);
}

TEST(ExplainMessages, WhatIsNoLackOfMemoryStepsBack) {
  OomMessage in_use;
  in_use.source = MessageSource::kHipInUse;
  const Explanation alone = Explain({in_use});
  EXPECT_NE(alone.verdict.find("no lack of memory"), std::string::npos);
  EXPECT_EQ(Find(alone, "none")->remedies.size(), 1u) << "a smaller job cannot help";
  const Explanation both = Explain({in_use, Full()});
  EXPECT_NE(Find(both, "capacity"), nullptr);
}

TEST(ExplainMessages, AnIntegratedGpuIsNamed) {
  OomMessage m;
  m.source = MessageSource::kTorchNvml;
  EXPECT_EQ(Explain({m}).verdict.find("integrated"), std::string::npos);
  m.signs.integrated = true;
  EXPECT_NE(Explain({m}).verdict.find("integrated GPU"), std::string::npos);
}

TEST(ExplainMessages, SegmentsThatExpandAlreadyAreNotAdvised) {
  OomMessage m = Full();
  m.torch = TorchVersions{.first = 204};
  m.allocated = GiB(12);
  m.reserved_free = GiB(10);
  const auto advised = [](const Explanation& e) {
    for (const Finding& finding : e.findings) {
      for (const Remedy& remedy : finding.remedies) {
        if (remedy.change.find("expandable_segments") != std::string::npos) return true;
      }
    }
    return false;
  };
  EXPECT_TRUE(advised(Explain({m})));
  m.expandable_on = true;
  EXPECT_FALSE(advised(Explain({m})));
  EXPECT_TRUE(Says(Explain({m}).ranks.at(0).notes, "leaves out the hint"));
}

}  // namespace
}  // namespace plimsoll::messages_test
