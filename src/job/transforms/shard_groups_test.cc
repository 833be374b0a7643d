#include "job/transforms/shard_groups.h"

#include <gtest/gtest.h>

#include "job/lowering/job_for_tests.h"

namespace plimsoll::shard_groups_test {
namespace {

using testing_job::JobMaker;

JobMaker Model(const std::vector<std::pair<const char*, std::int64_t>>& parameters) {
  JobMaker maker;
  for (const auto& [name, floats] : parameters) {
    maker.Parameter(floats);
    maker.variant().model_tensors.back().name = maker.job.strings.Intern(name);
  }
  return maker;
}

std::vector<std::string> ModulesOf(JobMaker maker) {
  const ShardGroups groups = ShardGroups::AsSharded(maker.job, maker.variant());
  std::vector<std::string> modules;
  for (const ShardGroup& group : groups.all()) {
    modules.push_back(group.module + "=" + std::to_string(group.parameters.size()));
  }
  return modules;
}

using Names = std::vector<std::string>;

TEST(ShardGroups, MembersOfTheOutermostListAreBlocks) {
  EXPECT_EQ(ModulesOf(Model({{"embed", 9},
                             {"model.layers.0.attn.weight", 100},
                             {"model.layers.0.experts.1.weight", 100},
                             {"model.layers.11.attn.weight", 100},
                             {"head.weight", 9}})),
            (Names{"=2", "model.layers.0=2", "model.layers.11=1"}));
}

TEST(ShardGroups, AnEncoderAndItsDecoderBothCount) {
  EXPECT_EQ(ModulesOf(Model({{"encoder.block.0.w", 40}, {"decoder.block.0.w", 100}})),
            (Names{"=0", "encoder.block.0=1", "decoder.block.0=1"}));
}

TEST(ShardGroups, ASmallListBesideALargeOneDoesNot) {
  EXPECT_EQ(ModulesOf(Model({{"layers.0.w", 1000}, {"layers.1.w", 1000}, {"head.0.w", 100}})),
            (Names{"=1", "layers.0=1", "layers.1=1"}));
}

TEST(ShardGroups, AListOfParametersHasNoModules) {
  EXPECT_EQ(ModulesOf(Model({{"scales.0", 1000}, {"scales.1", 1000}})), (Names{"=2"}));
}

TEST(ShardGroups, ASequentialIsAListWithoutAName) {
  EXPECT_EQ(ModulesOf(Model({{"0.weight", 10}, {"0.bias", 1}, {"2.weight", 10}})),
            (Names{"=0", "0=2", "2=1"}));
}

TEST(ShardGroups, WhatTheScriptShardsGoesFirst) {
  JobMaker maker = Model({{"embed.w", 10},
                          {"h.0.attn.w", 10},
                          {"h.0.mlp.w", 10},
                          {"h.1.w", 10},
                          {"norm.w", 1},
                          {"head.w", 10}});
  maker.job.sharded = {{"h.1"}, {"h.0.mlp"}, {"h.0"}, {"norm", "head"}, {"h"}, {""}};
  EXPECT_EQ(ModulesOf(std::move(maker)), (Names{"=1", "h.1=1", "h.0.mlp=1", "h.0=1", "norm=2"}));
}

TEST(ShardGroups, AScriptMayShardTheModelAlone) {
  JobMaker maker = Model({{"h.0.w", 10}, {"h.1.w", 10}});
  maker.job.sharded = {{""}};
  EXPECT_EQ(ModulesOf(std::move(maker)), (Names{"=2"}));
}

TEST(ShardGroups, ModulesOfOneCallAreTogether) {
  JobMaker maker = Model({{"h.0.w", 10}, {"norm.w", 1}, {"head.w", 10}});
  maker.job.sharded = {{"empty"}, {"norm", "head"}, {""}};
  const ShardGroups groups = ShardGroups::AsSharded(maker.job, maker.variant());
  EXPECT_EQ(groups.Of("norm"), 1u);
  EXPECT_EQ(groups.Of("head"), 1u);
  EXPECT_EQ(groups.Of("empty"), ShardGroups::kRoot);
  EXPECT_EQ(groups.Of("h.0"), ShardGroups::kRoot);
}

TEST(ShardGroups, AModuleBelongsToTheBlockAroundIt) {
  JobMaker maker = Model({{"h.1.w", 10}, {"h.10.w", 10}});
  const ShardGroups groups(maker.job, maker.variant());
  EXPECT_EQ(groups.Of("h.1.attn.dropout"), 1u);
  EXPECT_EQ(groups.Of("h.10"), 2u);
  EXPECT_EQ(groups.Of("h.100"), ShardGroups::kRoot);
  EXPECT_EQ(groups.Of("h"), ShardGroups::kRoot);
  EXPECT_EQ(groups.Of(""), ShardGroups::kRoot);
}

}  // namespace
}  // namespace plimsoll::shard_groups_test
