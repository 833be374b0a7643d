// Causes that need a whole run to be seen: a budget, graphs that nobody uses.
#include <gtest/gtest.h>

#include <set>

#include "answer/invariants.h"
#include "answer/shares.h"
#include "diagnose/training_run_for_tests.h"

namespace plimsoll::findings_test {
namespace {

using testing_run::Blocks;
using testing_run::Pass;
using testing_run::TrainingRun;

std::vector<const Finding*> OfKind(const Explanation& e, FindingId id) {
  std::vector<const Finding*> found;
  for (const Finding& f : e.findings) {
    if (f.id == id) found.push_back(&f);
  }
  return found;
}

/// Four steps, and one that runs out with much left on the device.
Explanation RunOutAtALimit(std::optional<Bytes> budget) {
  TrainingRun run({.unit = 40 * kMiB});
  run.timeline().settings.budget = budget;
  return run.Explain([&] {
    for (int i = 0; i < 4; ++i) run.Step();
    run.Leave(300 * kMiB, 100 * kGiB);
    run.Step();
  });
}

TEST(Budget, IsTheCard) {
  const Explanation e = RunOutAtALimit(2 * kGiB);
  EXPECT_TRUE(OfKind(e, FindingId::kLimit).empty());
  const auto full = OfKind(e, FindingId::kCapacity);
  ASSERT_EQ(full.size(), 1u);
  EXPECT_TRUE(full[0]->title.starts_with("the budget of 2.00 GiB is full")) << full[0]->title;
  for (const Finding& f : e.findings) {
    for (const Remedy& r : f.remedies) EXPECT_NE(r.lever, Lever::kMemoryLimit) << r.change;
  }
  const RankReport& rank = e.ranks[0];
  EXPECT_NE(rank.ooms.back().why, OomCause::kLimit);
  EXPECT_EQ(WholeOf(rank).basis, ShareBasis::kBudget);
  EXPECT_EQ(BytesOf(rank.account, AccountItem::kFree), 2 * kGiB - *rank.instant.reserved);
  double shares = 0;
  for (const AccountLine& line : rank.account) shares += ShareOf(rank, line).value_or(0);
  EXPECT_NEAR(shares, 1, 1e-9);
  EXPECT_EQ(e.verdict.find("device"), std::string::npos) << e.verdict;
  EXPECT_TRUE(BrokenInvariants(e).empty());
}

TEST(Limit, ThatTheProgramSetIsAFinding) {
  const Explanation e = RunOutAtALimit(std::nullopt);
  ASSERT_EQ(OfKind(e, FindingId::kLimit).size(), 1u);
  EXPECT_TRUE(OfKind(e, FindingId::kCapacity).empty());
  EXPECT_EQ(WholeOf(e.ranks[0]).basis, ShareBasis::kHeld);
}

TEST(Limit, IsToldOnceOfATraceAndItsErrorText) {
  for (const bool budget : {false, true}) {
    std::vector<Explanation> parts = {
        RunOutAtALimit(budget ? std::optional(2 * kGiB) : std::nullopt)};
    Explanation text;
    text.ranks.emplace_back();
    text.ranks[0].capacity = 140 * kGiB;
    text.ranks[0].limit = 2 * kGiB;
    text.ranks[0].instant.kind = InstantKind::kOutOfMemory;
    text.findings.push_back({.id = FindingId::kLimit,
                             .severity = Severity::kHigh,
                             .title = "A limit of 2.00 GiB is set for this program"});
    parts.push_back(text);
    const Explanation e = Join(std::move(parts));
    EXPECT_EQ(OfKind(e, FindingId::kLimit).size(), budget ? 0u : 1u);
    EXPECT_EQ(OfKind(e, FindingId::kCapacity).size(), budget ? 1u : 0u);
    EXPECT_NE(e.verdict.find(budget ? "budget of 2.00 GiB" : "limit of 2.00 GiB"),
              std::string::npos)
        << e.verdict;
    EXPECT_LT(BytesOf(e.ranks[0].account, AccountItem::kFree), 2 * kGiB);
    EXPECT_TRUE(BrokenInvariants(e).empty());
  }
}

/// A student that learns from a teacher, whose forward is called at line 40.
Explanation Distil(int steps, const std::function<void(TrainingRun&)>& teach,
                   Bytes room = Bytes{1} << 40) {
  TrainingRun run({.unit = 40 * kMiB});
  return run.Explain([&] {
    run.AddModel(6, 30 * kMiB);
    for (int i = 0; i < steps; ++i) {
      if (i == steps - 1) run.Leave(room);
      teach(run);
      run.Step();
    }
  });
}

void WithItsGraph(TrainingRun& run) { run.Assign("targets", run.Forward(40).All()); }

TEST(UnusedGraph, OfATeacherIsFound) {
  for (const Bytes room : {Bytes{1} << 40, 700 * kMiB}) {
    const Explanation e = Distil(5, WithItsGraph, room);
    const auto found = OfKind(e, FindingId::kUnusedGraph);
    ASSERT_EQ(found.size(), 1u) << e.verdict;
    EXPECT_NE(found[0]->title.find("train.py:40"), std::string::npos) << found[0]->title;
    EXPECT_EQ(found[0]->severity, Severity::kHigh);
    ASSERT_EQ(found[0]->remedies.size(), 1u);
    EXPECT_NE(found[0]->remedies[0].change.find("no_grad"), std::string::npos);
    EXPECT_GT(*found[0]->remedies[0].saves, 400 * kMiB);
    EXPECT_TRUE(OfKind(e, FindingId::kLeak).empty());
    EXPECT_TRUE(OfKind(e, FindingId::kLongestBatch).empty());
    EXPECT_TRUE(BrokenInvariants(e).empty());
  }
}

TEST(UnusedGraph, OfAModelThatNoOptimizerHasIsFound) {
  TrainingRun run({.unit = 40 * kMiB});
  const Explanation e = run.Explain([&] {
    run.AddModel(6, 30 * kMiB);
    for (int i = 0; i < 4; ++i) {
      run.Assign("batch", run.Batch(10));
      Pass teacher = run.Forward(40);
      Pass student = run.Forward(20);
      // One backward through both: the student's part first, which was made last.
      run.Backward(student);
      run.Backward(teacher, false, 6);
      run.OptimizerStep();
      run.ZeroGradients();
      run.Assign("results", {teacher.logits, teacher.loss, student.logits, student.loss});
    }
  });
  const auto found = OfKind(e, FindingId::kUnusedGraph);
  ASSERT_EQ(found.size(), 1u) << e.verdict;
  EXPECT_NE(found[0]->title.find("no optimizer updates, called at train.py:40"), std::string::npos)
      << found[0]->title;
}

TEST(UnusedGraph, IsNotSeenWhereThereIsNone) {
  const auto without_gradients = [](TrainingRun& run) {
    const Pass pass = run.Forward(40, 1, false);
    run.Assign("targets", pass.All());
  };
  EXPECT_TRUE(OfKind(Distil(5, without_gradients), FindingId::kUnusedGraph).empty());
  EXPECT_TRUE(OfKind(Distil(5, [](TrainingRun&) {}), FindingId::kUnusedGraph).empty());
  // A generator's graph is used by the second backward of the step.
  TrainingRun run({.unit = 40 * kMiB});
  const Explanation e = run.Explain([&] {
    run.AddModel(6, 30 * kMiB);
    for (int i = 0; i < 5; ++i) {
      Pass fake = run.Forward(40);
      run.Step();
      run.Backward(fake, false, 6);
      run.OptimizerStep(31);
      run.ZeroGradients(6);
      run.Assign("fake", {fake.logits, fake.loss});
    }
  });
  EXPECT_TRUE(OfKind(e, FindingId::kUnusedGraph).empty()) << e.verdict;
}

TEST(Holders, AreTheUsersLinesWithTheirModulesBelow) {
  TrainingRun run({.unit = 40 * kMiB});
  const Explanation e = run.Explain([&] {
    for (int i = 0; i < 4; ++i) run.Step();
    run.Leave(500 * kMiB);
    run.Step();
  });
  std::set<std::pair<std::string, Category>> seen;
  for (const Holder& holder : e.ranks[0].holders) {
    EXPECT_TRUE(seen.insert({holder.where, holder.category}).second) << holder.where;
    Bytes parts = 0;
    for (const HolderPart& part : holder.parts) parts += part.bytes;
    EXPECT_TRUE(holder.parts.empty() || parts == holder.bytes) << holder.where;
  }
}

}  // namespace
}  // namespace plimsoll::findings_test
