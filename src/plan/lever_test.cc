#include "plan/lever.h"

#include <gtest/gtest.h>

#include <map>

#include "base/text.h"
#include "files/input.h"
#include "job/file/step_file.h"
#include "job/lowering/job_for_tests.h"
#include "plan/choice_for_tests.h"

namespace plimsoll::lever_test {
namespace {

using Texts = std::vector<std::string_view>;

/// What each lever may be set to.
const std::map<std::string_view, Texts> kGood = {
    {"accumulation", {"1", "2", "4096"}},
    {"allocator", {"expandable_segments:True", "max_split_size_mb:128,backend:native"}},
    {"checkpointing",
     {"all", "every:2", "sqrt", "h.0", "h.0,h.1,ln_f", "all[addmm+attention]", "every:2[mm@1]",
      "h.0[mul.Tensor@0],h.1,h.2[host:h.3]", "sqrt[mm]"}},
    {"loss", {"chunked", "chunked:2", "chunked:8"}},
    {"offload", {"activations"}},
    {"optimizer",
     {"sgd", "adamw", "adamw:fused", "adamw:fused:in_backward", "adam:for", "adamw:host",
      "adamw:foreach", "adam8bit", "adafactor"}},
    {"parallel",
     {"ddp", "ddp:4", "ddp:4:views", "ddp:4:views:bucket100:gloo", "zero1:4", "zero2:4", "fsdp:4",
      "fsdp:4:keep", "fsdp:4:keep_last:meta", "fsdp:4:bf16:reduce_half:nccl", "pipeline:4:16",
      "mesh:fsdp=4:bf16,tensor=2:sequence:loss,pipeline=2:8:stage1", "mesh:context=2",
      "pipeline:4:16:interleaved2"}},
    {"precision", {"amp_bf16", "bf16", "amp_bf16+channels_last", "channels_last", "my_own"}},
    {"tf32", {"on", "off"}},
    {"evaluation", {"no_grad", "host", "batch/4", "no_grad+host+batch/2"}},
};

/// What makes no sense, whatever the job.
const std::map<std::string_view, Texts> kBad = {
    {"accumulation", {"0", "-1", "4097", "two", "2x", "99999999999"}},
    {"checkpointing",
     {"every:", "every:0", "every:x", ",", "h.0,,h.1", "all[", "all[]", "h.0[mm", "h.0[mm@]",
      "h.0[mm@x]", "h.0[mm++mm]", "[mm]", "h.0[@1]", "h.0[host:]"}},
    {"loss", {"whole", "chunked:", "chunked:1", "chunked:x", "chunked:99999999"}},
    {"offload", {"weights"}},
    {"optimizer", {"adamm", "adamw:quick", "nadam:fused", "adamw:host:in_backward"}},
    {"parallel",
     {"dpp:4", "ddp:1", "fsdp", "fsdp:4:often", "zero3:4", "pipeline:4", "zero2:4:views"}},
    {"tf32", {"perhaps", "On"}},
    {"evaluation", {"", "grad", "host+", "batch/1", "batch/x", "batch/9999"}},
};

TEST(PlanLevers, WhatIsReadIsPrintedTheSame) {
  for (const PlanLever* lever : Levers()) {
    ASSERT_TRUE(kGood.contains(lever->name)) << lever->name << " needs a row";
    for (const std::string_view text : kGood.at(lever->name)) {
      const Result<LeverValue> value = lever->parse(text);
      ASSERT_TRUE(value.ok()) << lever->name << ": " << value.error().ToLine();
      EXPECT_EQ(value->text(), text);
    }
  }
}

TEST(PlanLevers, AWrongValueIsRefusedInOneLineWhenItIsRead) {
  for (const auto& [lever, texts] : kBad) {
    for (const std::string_view text : texts) {
      Choice choice;
      const std::string setting = std::string(lever) + "=" + std::string(text);
      const std::optional<Error> error = ReadSetting(setting, choice);
      ASSERT_TRUE(error.has_value()) << setting;
      EXPECT_FALSE(error->message.empty() || error->hint.empty()) << setting;
      EXPECT_EQ(error->ToLine().find('\n'), std::string::npos) << setting;
      EXPECT_TRUE(choice.set.empty()) << setting;
    }
  }
}

TEST(PlanLevers, OtherSpellingsOfTheSameAreTheSame) {
  const std::pair<const char*, const char*> same[] = {
      {"accumulation=02", "accumulation=2"},
      {"checkpointing=every:1", "checkpointing=all"},
      {"checkpointing=h.0,", "checkpointing=h.0"},
      {"checkpointing=h.0[addmm.default]", "checkpointing=h.0[addmm]"},
      {"optimizer=adamw:in_backward:fused", "optimizer=adamw:fused:in_backward"},
      {"parallel=ddp:4:bucket25", "parallel=ddp:4"},
      {"parallel=fsdp:4:gloo:meta:keep", "parallel=fsdp:4:keep:meta:gloo"},
  };
  for (const auto& [one, other] : same) {
    EXPECT_EQ(WithSettings({}, {one}), WithSettings({}, {other})) << one;
  }
}

TEST(PlanLevers, SettingsThatAreNoneAreRefused) {
  Choice choice;
  EXPECT_TRUE(ReadSetting("chekpointing=all", choice).has_value());
  EXPECT_TRUE(ReadSetting("tf32=", choice).has_value());
  EXPECT_TRUE(ReadSetting("tf32", choice).has_value());
}

TEST(PlanLevers, WhatTheSearchSetsIsWhatCanBeTyped) {
  EXPECT_EQ(MicroBatchesValue(4), *kAccumulationLever.parse("4"));
  EXPECT_EQ(ModulesValue({"h.0", "h.1"}), *kCheckpointingLever.parse("h.0,h.1"));
  EXPECT_EQ(DataParallelValue(4), *kParallelLever.parse("ddp:4"));
  EXPECT_EQ(DataParallelAsWritten(), *kParallelLever.parse("ddp"));
}

TEST(PlanLevers, ADropoutOfImagesInAnotherFormatHasAnotherMask) {
  const auto numerics = [](std::vector<Number> sizes, const char* precision) {
    testing_job::JobMaker maker;
    maker.Make("aten.native_dropout.default", Number{1, 1}, {Arg(maker.Floats(1, sizes))});
    return kPrecisionLever.numerics(maker.job, *kPrecisionLever.parse(precision));
  };
  const Number n{8, 8};
  EXPECT_EQ(numerics({n, n, n, n}, "amp_bf16+channels_last"), Numerics::kOther);
  EXPECT_EQ(numerics({n, n, n, n}, "amp_bf16"), Numerics::kRounding);
  EXPECT_EQ(numerics({n, n}, "amp_bf16+channels_last"), Numerics::kRounding);
}

TEST(PlanLevers, AnswerWhatOthersAskOfThem) {
  EXPECT_FALSE(SetsAccumulation({}));
  EXPECT_TRUE(SetsAccumulation(WithSettings({}, {"accumulation=3"})));
  EXPECT_FALSE(StepsInBackward({}));
  EXPECT_TRUE(StepsInBackward(WithSettings({}, {"optimizer=sgd:in_backward:fused"})));
  EXPECT_FALSE(SplitsTheModel(WithSettings({}, {"parallel=zero2:4"})));
  EXPECT_TRUE(SplitsTheModel(WithSettings({}, {"parallel=pipeline:4:16"})));
  EXPECT_FALSE(ComputesUnderAPolicy(WithSettings({}, {"parallel=fsdp:4"})));
  EXPECT_TRUE(ComputesUnderAPolicy(WithSettings({}, {"parallel=fsdp:4:bf16"})));
  EXPECT_EQ(RanksOf({}), 1);
  EXPECT_EQ(RanksOf(WithSettings({}, {"parallel=zero1:4"})), 4);
  EXPECT_EQ(RanksOf(WithSettings({}, {"parallel=fsdp:8:keep"})), 8);
  EXPECT_EQ(RanksOf(WithSettings({}, {"parallel=ddp"})), 0);
  EXPECT_EQ(RanksOf(WithSettings({}, {"parallel=pipeline:4:16"})), 0);
  EXPECT_EQ(RanksOf(WithSettings({}, {"parallel=mesh:fsdp=4,tensor=2"})), 8);
}

TEST(PlanLevers, APrecisionIsTypedWhereItIsSet) {
  Job job;
  job.variants = {{.precision = "as_written"}, {.precision = "amp_bf16"}};
  const auto code = [&] {
    const LeverValue value = *kPrecisionLever.parse("amp_bf16");
    return kPrecisionLever.code(job, {}, value).front();
  };
  EXPECT_NE(code().find("torch.autocast(\"cuda\", dtype=torch.bfloat16)"), std::string::npos);
  job.variants[1].set_by = "accelerate";
  EXPECT_NE(code().find("bf16=True"), std::string::npos);
  job.variants[1].set_by = "lightning";
  EXPECT_NE(code().find("Trainer(..., precision=\"bf16-mixed\")"), std::string::npos);
}

TEST(PlanLevers, ListsAreCopiedWhereABlockIsGivenSome) {
  Job job = *ReadJob(*Input::Open(PLIMSOLL_TEST_DATA "/steps/gpt2_adamw_fp32.step.json.gz"));
  const auto code = [&](std::string_view text) {
    return Joined(kCheckpointingLever.code(job, {}, *kCheckpointingLever.parse(text)), "\n");
  };
  const std::string plain = code("transformer.h.0,transformer.h.1[addmm]");
  EXPECT_EQ(plain.find("pre_hook"), std::string::npos) << plain;
  job.lists = std::make_shared<const GivenLists>(
      GivenLists{.to = {"transformer.h.1", "transformer.h.2", "transformer.h.3.mlp"},
                 .changed_by = {"transformer.h.2", "transformer.h.3.mlp"}});
  const std::string copying = code("transformer.h.0,transformer.h.1[addmm]");
  ASSERT_TRUE(copying.starts_with(plain)) << copying;
  EXPECT_NE(copying.find("for n in [\"transformer.h.1\"]:"), std::string::npos) << copying;

  for (const auto& [text, refused] : {std::pair("all", "'transformer.h.2' changes a list"),
                                      {"transformer.h.3.mlp", "'transformer.h.3.mlp' changes"}}) {
    const std::optional<Error> error =
        kCheckpointingLever.rewrite(job, job.variants.front(), *kCheckpointingLever.parse(text));
    ASSERT_TRUE(error.has_value()) << text;
    EXPECT_NE(error->message.find(refused), std::string::npos) << error->message;
  }
}

TEST(PlanLevers, WhatDoesNotGoTogetherIsSaidInTheirOwnWords) {
  const std::optional<Error> error =
      Contradiction(WithSettings({}, {"accumulation=2", "optimizer=adamw:in_backward:fused"}));
  ASSERT_TRUE(error.has_value());
  EXPECT_NE(
      error->message.find("accumulation=2 does not go with optimizer=adamw:fused:in_backward"),
      std::string::npos);
  EXPECT_FALSE(Contradiction(WithSettings({}, {"accumulation=1", "optimizer=sgd:in_backward"})));
}

TEST(PlanLevers, AValueOfOneLeverIsNoneOfAnother) {
  EXPECT_DEATH(kLossLever.fields({}, MicroBatchesValue(2)), "internal error");
}

}  // namespace
}  // namespace plimsoll::lever_test
