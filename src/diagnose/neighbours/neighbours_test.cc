// Processes of one card, written event by event: who takes turns, who keeps what, and who is a
// rank.
#include <gtest/gtest.h>

#include <map>
#include <memory>

#include "answer/invariants.h"
#include "diagnose/explain.h"
#include "diagnose/neighbours/presence.h"
#include "diagnose/neighbours/same_card.h"
#include "diagnose/phases/marks.h"

namespace plimsoll::neighbours_test {
namespace {

constexpr TimeUs kSecond = 1'000'000;
constexpr TimeUs kStart = 1'794'893'000 * kSecond;

/// One process: every request has a segment of its own, which stays when it is freed.
class Process {
 public:
  explicit Process(std::string script) : script_(std::move(script)) { timeline.streams = {0}; }

  Timeline timeline;

  Process& At(double seconds) {
    now_ = kStart + static_cast<TimeUs>(seconds * double(kSecond));
    return *this;
  }
  Process& Mark(const std::string& name, bool start) {
    timeline.annotations.push_back(
        {.name = timeline.stacks.strings.Intern(name), .start = start, .time_us = now_});
    return *this;
  }
  /// So many tensors of a size, from a line.
  Process& Take(int line, Bytes size, int count = 1) {
    for (int i = 0; i < count; ++i) TakeOne(line, size);
    return *this;
  }
  Process& Free(int line) {
    for (const auto& [address, size] : live_[line]) {
      Add(Action::kFreeRequested, address, size, StackId());
      Add(Action::kFreeCompleted, address, size, StackId());
      free_.emplace(size, address);
    }
    live_[line].clear();
    return *this;
  }
  Process& EmptyCache() {
    for (const auto& [size, address] : free_) {
      Add(Action::kSegmentFree, address, size, StackId());
    }
    free_.clear();
    return *this;
  }
  Process& Refuse(int line, Bytes size, Bytes device_free) {
    Add(Action::kOutOfMemory, static_cast<Address>(device_free), size, StackOf(line));
    return *this;
  }
  /// Once: the timeline goes into it.
  Recording Record(const std::string& file) {
    Recording recording;
    recording.file = file;
    recording.format = "PyTorch memory snapshot (test)";
    recording.timelines.push_back(std::move(timeline));
    return recording;
  }

 private:
  void TakeOne(int line, Bytes size) {
    Address at = next_;
    if (const auto found = free_.find(size); found != free_.end()) {
      at = found->second;
      free_.erase(found);
    } else {
      next_ += Address{1} << 36;
      Add(Action::kSegmentAlloc, at, size, StackId());
    }
    Add(Action::kAlloc, at, size, StackOf(line));
    live_[line].emplace_back(at, size);
  }
  void Add(Action action, Address at, Bytes size, StackId stack) {
    timeline.events.push_back(
        {.address = at, .size = size, .time_us = now_, .stack = stack, .action = action});
    now_ += 100;
  }
  StackId StackOf(int line) {
    const auto [at, fresh] = stacks_.try_emplace(line);
    if (fresh) {
      StackTable& stacks = timeline.stacks;
      const FrameId frame = stacks.AddFrame({.function = stacks.strings.Intern("main"),
                                             .file = stacks.strings.Intern("/me/" + script_),
                                             .line = line});
      at->second = stacks.AddStack(std::vector{frame});
    }
    return at->second;
  }

  std::string script_;
  TimeUs now_ = kStart;
  Address next_ = Address{1} << 40;
  std::map<int, std::vector<std::pair<Address, Bytes>>> live_;
  std::multimap<Bytes, Address> free_;
  std::map<int, StackId> stacks_;
};

/// Weights that stay, and a pool that comes and goes.
Process Server(bool sleeps = true) {
  Process p("serve.py");
  p.At(0).Take(5, 256 * kMiB, 4);
  p.At(10).Mark("wake up", true).Take(9, 1024 * kMiB, 20).Mark("wake up", false);
  p.At(10.5).Mark("sleep", true);
  if (sleeps) p.Free(9).EmptyCache();
  p.Mark("sleep", false);
  return p;
}

/// A model, and activations that come and go.
Process Trainer(bool empties) {
  Process p("train.py");
  p.At(20).Take(5, 128 * kMiB, 8);
  p.At(21).Mark("update", true).Take(12, 512 * kMiB, 40).Free(12).Mark("update", false);
  if (empties) p.EmptyCache();
  return p;
}

struct Records {
  std::vector<std::unique_ptr<Recording>> recordings;
  std::vector<AnalysedRecording> analysed;
  std::vector<Explanation> parts;

  void Add(Process&& process, const std::string& file) { Add(process, file); }
  void Add(Process& process, const std::string& file) {
    recordings.push_back(std::make_unique<Recording>(process.Record(file)));
    analysed.push_back(AnalyseRecording(*recordings.back()));
    parts.push_back(*ExplainRecording(analysed.back(), {}));
  }
  SharedCards Shared() const { return FindSharedCards(parts); }
  CardStudy Study(const CardFacts& facts = {}) const {
    std::vector<CardTrace> traces;
    for (const AnalysedRecording& a : analysed) {
      std::string name = a.recording.file.substr(0, a.recording.file.find('.'));
      traces.push_back({{name, a.recording.file}, *a.traces.front()});
    }
    return StudyCard(traces, facts);
  }
  Explanation Joined() {
    std::vector<CardStudy> studies = {Study()};
    return Join(parts, std::move(studies));
  }
};

TEST(Neighbours, WhoGivesEverythingBackIsSaidTo) {
  Records r;
  r.Add(Server().At(22).Mark("wake up", true).Take(9, 1024 * kMiB, 20).Mark("wake up", false),
        "server.pickle");
  r.Add(Trainer(true), "trainer.pickle");
  ASSERT_EQ(r.Shared().cards.size(), 1u);
  const CardStudy study = r.Study();
  EXPECT_TRUE(study.findings.empty());
  ASSERT_EQ(study.report.hand_overs.size(), 2u);
  EXPECT_EQ(study.report.MostKept(), 0);
  EXPECT_EQ(study.report.peak, 22 * kGiB) << "the pool beside the trainer's model";
  EXPECT_EQ(study.report.hand_overs[0].after, "after sleep");
  EXPECT_EQ(study.report.hand_overs[0].before, "before update");
  EXPECT_EQ(study.report.hand_overs[1].before, "in wake up");
  const Explanation joined = r.Joined();
  EXPECT_NE(
      joined.verdict.find("Everything that can be given back was given back at each of the 2"),
      std::string::npos)
      << joined.verdict;
  EXPECT_TRUE(BrokenInvariants(joined).empty());
  for (const RankReport& rank : joined.ranks) EXPECT_FALSE(rank.rank) << "they are no ranks";
}

/// The server wakes up beside the trainer's cache: 1 + 11 of its own, 21 of the trainer's.
Process ServerThatFails() {
  Process p = Server();
  p.At(23).Mark("wake up", true).Take(9, 1024 * kMiB, 10).Refuse(9, 1024 * kMiB, 0);
  return p;
}

TEST(Neighbours, WhoKeepsItsCacheIsNamed) {
  Records r;
  r.Add(Trainer(false), "trainer.pickle");
  r.Add(ServerThatFails(), "server.pickle");
  const Explanation joined = r.Joined();
  ASSERT_FALSE(joined.findings.empty());
  const Finding& kept = joined.findings.front();
  EXPECT_EQ(kept.id, FindingId::kNeighbours);
  EXPECT_EQ(kept.title,
            "at the hand-over from trainer (after update) to server (in wake up), 23.00 s after "
            "the records begin, trainer did not give back 20.00 GiB");
  ASSERT_GE(kept.remedies.size(), 2u);
  EXPECT_EQ(kept.remedies[0].saves, 20 * kGiB);
  EXPECT_EQ(kept.remedies[0].basis, Basis::kReplayed);
  EXPECT_EQ(kept.remedies[0].effect, Effect::kFits) << kept.remedies[0].remark;
  EXPECT_EQ(kept.remedies[1].change,
            "a smaller pool in server: 10.00 GiB at serve.py:9 in main, in place of 20.00 GiB");
  EXPECT_EQ(kept.remedies[1].basis, Basis::kReplayed);
  EXPECT_NE(joined.verdict.find("1 of 2 processes ran out of memory: server"), std::string::npos);
  EXPECT_EQ(joined.ranks[joined.shown].process, "server");
  EXPECT_TRUE(BrokenInvariants(joined).empty());
}

TEST(Neighbours, WhoKeepsItsPoolIsNamed) {
  Records r;
  r.Add(Server(false).At(24).Take(30, 20 * kMiB), "server.pickle");
  Process trainer = Trainer(true);
  r.Add(trainer.At(22).Take(12, 512 * kMiB, 4).Refuse(12, 512 * kMiB, 0), "trainer.pickle");
  const CardStudy study = r.Study();
  ASSERT_EQ(study.findings.size(), 1u);
  const Finding& kept = study.findings.front();
  EXPECT_NE(kept.title.find("server kept 21.00 GiB of tensors"), std::string::npos) << kept.title;
  ASSERT_FALSE(kept.remedies.empty());
  EXPECT_EQ(kept.remedies[0].saves, 20 * kGiB);
  EXPECT_EQ(kept.remedies[0].basis, Basis::kReplayed);
}

TEST(Neighbours, WithoutMarksTimeAndLineNameTheHandOver) {
  Records r;
  Process server = ServerThatFails();
  Process trainer = Trainer(false);
  server.timeline.annotations.clear();
  trainer.timeline.annotations.clear();
  r.Add(server, "server.pickle");
  r.Add(trainer, "trainer.pickle");
  const CardStudy study = r.Study();
  ASSERT_EQ(study.findings.size(), 1u);
  EXPECT_NE(study.findings[0].title.find("to server (at serve.py:9 in main), 23.00 s after"),
            std::string::npos)
      << study.findings[0].title;
}

TEST(Neighbours, ThreeOfOneCardAreJoined) {
  Records r;
  Process judge("judge.py");
  judge.At(12).Take(3, 2048 * kMiB, 2).At(13).Take(4, 64 * kMiB).Free(4);
  r.Add(judge.At(30).Take(4, 64 * kMiB), "judge.pickle");
  r.Add(ServerThatFails(), "server.pickle");
  r.Add(Trainer(false), "trainer.pickle");
  const SharedCards shared = r.Shared();
  ASSERT_EQ(shared.cards.size(), 1u);
  EXPECT_EQ(shared.cards[0].members.size(), 3u);
  const CardStudy study = r.Study();
  ASSERT_EQ(study.findings.size(), 1u);
  EXPECT_NE(study.findings[0].title.find("trainer did not give back 20.00 GiB"), std::string::npos)
      << study.findings[0].title;
}

TEST(SameCard, OtherDevicesRanksAndHostsAreNotJoined) {
  const auto shared = [](const std::string& one, const std::string& other, int device = 0) {
    Records r;
    r.Add(ServerThatFails(), one);
    Process trainer = Trainer(false);
    trainer.timeline.device = device;
    r.Add(trainer, other);
    const SharedCards found = r.Shared();
    EXPECT_TRUE(found.apart.empty());
    return !found.cards.empty();
  };
  EXPECT_TRUE(shared("a.pickle", "b.pickle"));
  EXPECT_TRUE(shared("server.rank0.pickle", "trainer.rank0.pickle"));
  EXPECT_TRUE(shared("node0/server.pickle", "node0/trainer.pickle"));
  EXPECT_FALSE(shared("a.pickle", "b.pickle", 1));
  EXPECT_FALSE(shared("job.rank0.pickle", "job.rank1.pickle"));
  EXPECT_FALSE(shared("node0/server.pickle", "node1/trainer.pickle"));
}

TEST(SameCard, ClocksThatDoNotOverlapAreSaid) {
  Records r;
  r.Add(ServerThatFails(), "server.pickle");
  Process later("train.py");
  r.Add(later.At(3600).Take(5, 128 * kMiB, 8), "trainer.pickle");
  const SharedCards shared = r.Shared();
  EXPECT_TRUE(shared.cards.empty());
  ASSERT_EQ(shared.apart.size(), 1u);
  EXPECT_NE(shared.apart[0].find("their clocks do not overlap"), std::string::npos);
}

TEST(SameCard, OneProgramAtTheSameTimeIsRanks) {
  Records r;
  r.Add(Trainer(true), "a.pickle");
  r.Add(Trainer(true), "b.pickle");
  EXPECT_TRUE(r.Shared().cards.empty());
  EXPECT_TRUE(r.Shared().apart.empty());
}

TEST(SameCard, MoreThanTheCardHasIsNoCard) {
  Records r;
  r.Add(ServerThatFails(), "server.pickle");
  r.Add(Trainer(false), "trainer.pickle");
  EXPECT_TRUE(r.Study({.capacity = 40 * kGiB}).contradiction.empty());
  EXPECT_NE(r.Study({.capacity = 24 * kGiB}).contradiction.find("the card has 24.00 GiB"),
            std::string::npos);
}

TEST(SameCard, HostsAreTakenFromPaths) {
  EXPECT_EQ(HostFromPath("runs/node3/trainer.pickle"), "node3");
  EXPECT_EQ(HostFromPath("hostB.trainer.pickle"), "hostb");
  EXPECT_EQ(HostFromPath("localhost/ghost.pickle"), "");
  EXPECT_EQ(HostFromPath("hostname.pickle"), "");
}

TEST(Presence, PausesDivideIt) {
  const Process p = Server();
  const std::vector<TimeRange> busy = BusyTimes(p.timeline, 0);
  ASSERT_EQ(busy.size(), 3u) << "loading, waking up, going to sleep";
  EXPECT_EQ(ShareAtOnce(busy, busy), 1.0);
  EXPECT_EQ(ShareAtOnce(busy, BusyTimes(Trainer(true).timeline, 0)), 0.0);
}

TEST(Marks, AreRangesWithinEachOther) {
  Process p("train.py");
  p.At(1).Mark("step", true).At(2).Mark("forward", true).At(3).Mark("forward", false);
  p.At(4).Mark("step", false).At(5).Mark("save", true);
  const std::vector<MarkRange> marks = MarkRanges(p.timeline);
  ASSERT_EQ(marks.size(), 3u);
  EXPECT_EQ(marks[0].depth, 0);
  EXPECT_EQ(marks[1].depth, 1);
  EXPECT_EQ(marks[1].end, kStart + 3 * kSecond);
  EXPECT_EQ(marks[2].end, MarkRange::kOpen);
}

TEST(Marks, TellWhatTheyTookAndWhichStepsThereAre) {
  Process p("infer.py");
  for (int i = 0; i < 3; ++i) {
    const std::string step = "plimsoll.step#" + std::to_string(i);
    p.At(10 * i + 1).Mark(step, true).Mark("evaluate " + std::to_string(i), true);
    p.Take(7, 32 * kMiB, 4).Free(7).Take(8, 64 * kMiB).At(10 * i + 5);
    p.Mark("evaluate " + std::to_string(i), false).Mark(step, false);
  }
  const Recording recording = p.Record("infer.pickle");
  const Explanation answer = *ExplainRecording(recording, {});
  const RankReport& rank = answer.ranks.front();
  ASSERT_EQ(rank.marks.size(), 1u) << "the number does not count, and steps are steps";
  EXPECT_EQ(rank.marks[0].name, "evaluate");
  EXPECT_EQ(rank.marks[0].stage, Stage::kEvaluation);
  EXPECT_EQ(rank.marks[0].times, 3);
  EXPECT_EQ(rank.marks[0].left, 64 * kMiB);
  EXPECT_EQ(rank.steps, 3);
  ASSERT_EQ(rank.step_table.size(), 3u);
  EXPECT_EQ(rank.step_table[1].end_allocated, 128 * kMiB);
  EXPECT_TRUE(rank.phase.starts_with("in evaluate")) << rank.phase;
}

TEST(Groups, AreTheFirstMatchInFramesThenInTextsThenInMarks) {
  Process p("train.py");
  p.At(1).Mark("warm up", true).Take(7, 32 * kMiB, 2).Mark("warm up", false).Take(8, 64 * kMiB);
  // A text that the program ties to a block: 2.14 and newer.
  Timeline& t = p.timeline;
  const Address block = t.events.back().address;
  t.notes.push_back({static_cast<EventIndex>(t.events.size()), t.stacks.strings.Intern("cache A")});
  t.events.push_back(
      {.address = block, .time_us = kStart + 2 * kSecond, .action = Action::kAnnotate});
  const Recording recording = p.Record("train.pickle");
  const auto groups = [&](const std::string& regex) {
    std::map<std::string, Bytes> found;
    const Explanation answer = *ExplainRecording(recording, {.group = *GroupPattern::Parse(regex)});
    for (const HolderGroup& g : answer.ranks.front().groups) found[g.name] = g.bytes;
    return found;
  };
  using Found = std::map<std::string, Bytes>;
  EXPECT_EQ(groups("(train)\\.py"), (Found{{"train", 128 * kMiB}}));
  EXPECT_EQ(groups("cache|warm"), (Found{{"warm", 64 * kMiB}, {"cache", 64 * kMiB}}));
  EXPECT_EQ(groups("warm"), (Found{{"warm", 64 * kMiB}, {"", 64 * kMiB}}));
  EXPECT_FALSE(GroupPattern::Parse("("));
}

}  // namespace
}  // namespace plimsoll::neighbours_test
