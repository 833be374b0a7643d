#include "job/file/step_file.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "job/answer/predict.h"

namespace plimsoll::step_file_test {
namespace {

using Json = nlohmann::json;

/// One of everything that a file may hold.
Json SmallFile() {
  return Json::parse(R"({
    "schema": "plimsoll.step/1", "torch": "2.13.0", "gpu": "H200", "model": "Net", "batches": [2, 3],
    "strings": ["weight", "aten.addmm.default", "train.py:7 in step", "layer", "aten.relu.default"],
    "layouts": [["float32", [10, 10], [10, 1]], ["float32", [[2, 3], 10], [10, 1]],
                ["bool", [], []]],
    "variants": [{"precision": "as_written", "events": [
      ["parameter", 1, 0, 0, true], ["buffer", 2, 2, -1],
      ["step"], ["phase", "forward"],
      ["call", 1, 2, 3, 0,
       [{"t": [1, 0, 6]}, {"n": [2, 3]}, {"text": 3}, 1, 2.5, true, null, [1, [2]]],
       {"alpha": 1}, [{"t": [3, 1, 0]}], [[3, [80, 120], 0]]],
      ["label", "input", [3]],
      ["call", 4, -1, -1, 1, [{"t": [3, 1, 4]}], {}, [{"t": [4, 1, 0]}], [[4, [80, 120], 0]]],
      ["free", 3], ["free", 4]]}],
    "notes": ["assumed something"]})");
}

Result<Job> Read(std::string text) {
  const Result<Input> input = Input::FromMemory("net.step.json", std::move(text));
  return input ? ReadJob(*input) : Result<Job>(input.error());
}

/// The one line that somebody with this file would see; what is usable must go all the way.
std::string Complaint(const std::string& text) {
  const Result<Job> job = Read(text);
  if (job) {
    (void)Predict(*job, *FindGpu("22GiB"), {.batch = 5, .steps = 4});
    return "";
  }
  EXPECT_FALSE(job.error().message.empty());
  EXPECT_EQ(job.error().file, "net.step.json");
  EXPECT_FALSE(job.error().hint.empty()) << "what to do about it";
  return job.error().message;
}

/// The small file with one place changed: a JSON pointer, and what stands there instead.
std::string With(const char* pointer, const char* value) {
  Json file = SmallFile();
  file[Json::json_pointer(pointer)] = Json::parse(value);
  return Complaint(file.dump());
}

TEST(StepFile, EachAssumptionIsSaidOnce) {
  EXPECT_EQ(MergedNotes({"a.py:1 in f: a value is read", "none", "b.py:9 in g: a value is read",
                         "none", "a.py:1 in f: a value is read"}),
            (std::vector<std::string>{"a.py:1 in f, b.py:9 in g: a value is read", "none"}));
  std::vector<std::string> many;
  for (int line = 1; line <= 7; ++line) many.push_back("a.py:" + std::to_string(line) + " in f: X");
  EXPECT_EQ(MergedNotes(many).front(), "a.py:1 in f, a.py:2 in f, a.py:3 in f and 4 more lines: X");
  // No line at their beginning, but a cell of a notebook is one.
  const std::vector<std::string> others = {
      "steps: X",      "in the step: X",           "a: b in c: X",
      "a.py: in f: X", "t.ipynb cell 3:2 in g: X", ""};
  EXPECT_EQ(MergedNotes(others), others);
  Json file = SmallFile();
  file["notes"] = many;
  EXPECT_EQ(Read(file.dump())->notes, MergedNotes(many));
}

TEST(StepFile, MembersMayComeInAnyOrder) {
  const Json file = SmallFile();
  nlohmann::ordered_json turned;
  for (auto member = file.rbegin(); member != file.rend(); ++member) {
    turned[member.key()] = nlohmann::ordered_json::parse(member.value().dump());
  }
  ASSERT_EQ(turned.begin().key(), "variants") << "before the strings, to which its events refer";
  const Result<Job> usual = Read(file.dump());
  const Result<Job> other = Read(turned.dump());
  ASSERT_TRUE(usual && other);
  ASSERT_EQ(other->variants.size(), 1u);
  EXPECT_EQ(other->variants[0].events.size(), usual->variants[0].events.size());
  EXPECT_EQ(other->variants[0].storages, usual->variants[0].storages);
  EXPECT_EQ(other->variants[0].calls[0].args.size(), usual->variants[0].calls[0].args.size());
}

TEST(StepFile, SaysHowManyBatchesAStepTakes) {
  Json file = SmallFile();
  EXPECT_EQ(Read(file.dump())->variants.front().passes, 1);
  file["passes"] = 4;
  EXPECT_EQ(Read(file.dump())->variants.front().passes, 4);
  EXPECT_FALSE(Read(file.dump())->sizes_change);
  file["sizes_change"] = true;
  EXPECT_TRUE(Read(file.dump())->sizes_change);
  for (const char* bad : {"0", "-1", "9999999999", "1.5", "\"2\""}) {
    EXPECT_NE(With("/passes", bad), "") << bad;
  }
}

TEST(StepFile, SaysWhatTheScriptsOwnLoaderAsksFor) {
  Json file = SmallFile();
  EXPECT_FALSE(Read(file.dump())->own_batch);
  file["own_batch"] = 64;
  EXPECT_EQ(Read(file.dump())->own_batch, 64);
  for (const char* bad : {"0", "-1", "1.5", "\"2\""}) {
    EXPECT_NE(With("/own_batch", bad), "") << bad;
  }
}

TEST(StepFile, SaysWhatGrowsEverySoManySteps) {
  Json file = SmallFile();
  EXPECT_TRUE(Read(file.dump())->growing.empty());
  file["growing"] = Json::parse(
      R"([{"branch": "a.py:6 `if i % 50 == 0:`", "where": "a.py:7 in main", "bytes": [80, 120],
           "every": 50, "kept_by": {"name": "kept", "where": "", "most": 9223372036854775807}},
          {"branch": "a.py:9 `if i % 9 == 0:`", "where": "", "bytes": 4, "every": 0}])");
  const Result<Job> job = Read(file.dump());
  ASSERT_TRUE(job) << job.error().ToLine();
  ASSERT_EQ(job->growing.size(), 2u);
  EXPECT_EQ(job->growing[0].branch, "a.py:6 `if i % 50 == 0:`");
  EXPECT_EQ(job->growing[0].bytes, Number(80, 120));
  EXPECT_EQ(job->growing[0].every, 50);
  EXPECT_EQ(job->growing[0].keeper->name, "kept");
  EXPECT_EQ(job->growing[0].keeper->most, 1 << 30) << "one more can be counted";
  EXPECT_FALSE(job->growing[1].keeper.has_value());
  for (const char* bad : {"3", "[3]", "[{}]", R"([{"branch": "a", "where": "b", "bytes": -1}])",
                          R"([{"branch": "a", "where": "b", "bytes": 1, "every": [1, 2]}])",
                          R"([{"branch": "a", "where": "b", "bytes": 1, "every": 1,
                               "kept_by": {"name": "c", "where": "d", "most": 0}}])"}) {
    EXPECT_NE(With("/growing", bad), "") << bad;
  }
}

TEST(StepFile, SaysWhatListsModulesAreGiven) {
  Json file = SmallFile();
  EXPECT_TRUE(Read(file.dump())->lists->to.empty());
  file["lists"] = Json::parse(R"({"given_to": ["h.0", "h.1"], "changed_by": ["h.1"]})");
  const Result<Job> job = Read(file.dump());
  ASSERT_TRUE(job) << job.error().ToLine();
  EXPECT_EQ(job->lists->to, (GivenLists::Paths{"h.0", "h.1"}));
  EXPECT_EQ(job->lists->changed_by, GivenLists::Paths{"h.1"});
  EXPECT_EQ(CopyOf(*job, 0).lists, job->lists);
  for (const char* bad : {"3", "[]", "{}", R"({"given_to": [], "changed_by": 3})",
                          R"({"given_to": [3], "changed_by": []})"}) {
    EXPECT_NE(With("/lists", bad), "") << bad;
  }
}

constexpr const char* kAsked = R"({"gpu": "H200", "cudnn": "9.19.0", "batches": [[1, 2]],
  "convolutions": ["float32 nchw 3,8,8 4,3,3 1,1 1,1 1,1 1\t0\t1:10 2:20\t\t"]})";

TEST(StepFile, HasWhatCudnnWasAsked) {
  Json file = SmallFile();
  EXPECT_EQ(Read(file.dump())->asked, nullptr);
  file["asked"] = Json::parse(kAsked);
  const Result<Job> job = Read(file.dump());
  ASSERT_TRUE(job) << job.error().ToLine();
  ASSERT_NE(job->asked, nullptr);
  EXPECT_EQ(job->asked->gpu, "H200");
  EXPECT_EQ(job->asked->cudnn, "9.19.0");
  EXPECT_EQ(job->asked->table.size(), 1u);
  EXPECT_EQ(job->asked->table.Find("float32 nchw 3,8,8 4,3,3 1,1 1,1 1,1 1", 0).points.size(), 2u);
  EXPECT_EQ(CopyOf(*job, 0).asked, job->asked);
  file["asked"]["gpu"] = "NVIDIA h200";
  EXPECT_EQ(Read(file.dump())->asked->gpu, "H200");
  file["asked"]["gpu"] = "Voodoo 2";
  EXPECT_EQ(Read(file.dump())->asked->gpu, "Voodoo 2");
  const Result<Prediction> here = Predict(*job, *FindGpu("H200"), {.batch = 2});
  const Result<Prediction> elsewhere = Predict(*job, *FindGpu("L4"), {.batch = 2});
  ASSERT_TRUE(here && elsewhere);
  EXPECT_NE(here->assumptions.back().find("as cuDNN 9.19.0 says"), std::string::npos);
  EXPECT_NE(elsewhere->assumptions.back().find("by rule"), std::string::npos);
}

TEST(StepFile, WhatCudnnCannotHaveSaidIsRefused) {
  const auto with = [](const char* pointer, const char* value) {
    Json file = SmallFile();
    file["asked"] = Json::parse(kAsked);
    file[Json::json_pointer(pointer)] = Json::parse(value);
    return Complaint(file.dump());
  };
  EXPECT_EQ(with("/asked/gpu", "\"H200\""), "");
  EXPECT_EQ(with("/asked/convolutions", "[]"), "");
  for (const char* bad : {"7", "[]", "true", "{}"}) EXPECT_NE(with("/asked", bad), "") << bad;
  EXPECT_NE(with("/asked/gpu", "7"), "");
  EXPECT_NE(with("/asked/batches", "[[2, 1]]"), "");
  EXPECT_NE(with("/asked/batches", "[]"), "") << "a line refers to the first";
  EXPECT_NE(with("/asked/convolutions/0", "7"), "");
  EXPECT_EQ(with("/asked/convolutions/0", "\"float32\""),
            "answer 0 of cuDNN is not a shape and its workspaces");
  EXPECT_NE(with("/asked/convolutions/0", "\"k\\t0\\t1:-1\\t\\t\""), "");
  EXPECT_NE(with("/asked/convolutions/0", "\"k\\t0\\t\\t\\t\\nmore\""), "") << "a line is a line";
}

TEST(StepFile, SaysByWhatRanksExchangeAndWhereTheModelEnds) {
  Json file = SmallFile();
  EXPECT_EQ(Read(file.dump())->backend, Backend::kNccl);
  EXPECT_FALSE(Read(file.dump())->names_root);
  file["settings"] = {{"backend", "gloo"}};
  file["names_root"] = true;
  EXPECT_EQ(Read(file.dump())->backend, Backend::kGloo);
  EXPECT_TRUE(Read(file.dump())->names_root);
  EXPECT_EQ(CopyOf(*Read(file.dump()), 0).backend, Backend::kGloo);
  EXPECT_TRUE(CopyOf(*Read(file.dump()), 0).names_root);
  EXPECT_EQ(With("/settings", R"({"backend": 3})"), "");
  file["settings"] = {{"data_parallel", ":views"}, {"sharded", {{"h.0", "h.1"}, {""}}}};
  EXPECT_EQ(CopyOf(*Read(file.dump()), 0).data_parallel, ":views");
  EXPECT_EQ(CopyOf(*Read(file.dump()), 0).sharded,
            (std::vector<std::vector<std::string>>{{"h.0", "h.1"}, {""}}));
  EXPECT_EQ(With("/settings", R"({"data_parallel": 3, "sharded": 3})"), "");
  EXPECT_EQ(With("/settings", R"({"sharded": [3]})"), "\"sharded\" does not hold lists of modules");
  EXPECT_EQ(With("/settings", R"({"sharded": [[3]]})"),
            "\"sharded\" does not hold lists of modules");
  EXPECT_EQ(With("/names_root", "3"), "");
}

TEST(StepFile, SaysWhyThereIsNoAutocast) {
  Json file = SmallFile();
  EXPECT_EQ(Read(file.dump())->no_autocast, "");
  file["no_autocast"] = "the script compiles";
  EXPECT_EQ(CopyOf(*Read(file.dump()), 0).no_autocast, "the script compiles");
  EXPECT_EQ(With("/no_autocast", "3"), "");
}

TEST(StepFile, IsReadAsItIsWritten) {
  const Result<Job> job = Read(SmallFile().dump());
  ASSERT_TRUE(job.ok()) << job.error().ToLine();
  EXPECT_EQ(job->model, "Net");
  EXPECT_EQ(job->gpu, "H200");
  EXPECT_EQ(job->batches[1], 3);
  EXPECT_EQ(job->notes, std::vector<std::string>{"assumed something"});
  ASSERT_EQ(job->variants.size(), 1u);
  const Variant& variant = job->variants[0];
  EXPECT_EQ(variant.precision, "as_written");
  EXPECT_EQ(variant.storages, 5u);
  EXPECT_EQ(variant.events.size(), 9u);
  ASSERT_EQ(variant.model_tensors.size(), 2u);
  EXPECT_TRUE(variant.model_tensors[0].trainable);
  EXPECT_EQ(job->strings[variant.model_tensors[0].name], "weight");
  EXPECT_TRUE(variant.model_tensors[1].buffer);
}

TEST(StepFile, ACallHasItsPartsInOrder) {
  const Result<Job> job = Read(SmallFile().dump());
  ASSERT_TRUE(job.ok());
  const CallRecord& call = job->variants[0].calls[0];
  EXPECT_EQ(job->strings[call.op], "aten.addmm.default");
  EXPECT_EQ(job->strings[call.where], "train.py:7 in step");
  EXPECT_EQ(job->strings[call.module], "layer");
  EXPECT_EQ(job->strings[job->variants[0].calls[1].where], "") << "-1 is none";
  EXPECT_EQ(job->variants[0].calls[1].thread, 1);
  ASSERT_EQ(call.args.size(), 8u);
  const auto& tensor = std::get<TensorUse>(call.args[0].is);
  EXPECT_EQ(tensor.storage, 1u);
  EXPECT_FALSE(tensor.view);
  EXPECT_TRUE(tensor.parameter && tensor.needs_grad) << "flags 2 and 4";
  EXPECT_EQ(std::get<Number>(call.args[1].is).at(1), 3);
  EXPECT_EQ(job->strings[std::get<StringId>(call.args[2].is)], "layer");
  EXPECT_EQ(std::get<Number>(call.args[3].is).least(), 1);
  EXPECT_EQ(std::get<double>(call.args[4].is), 2.5);
  EXPECT_TRUE(std::get<bool>(call.args[5].is));
  EXPECT_TRUE(std::holds_alternative<std::monostate>(call.args[6].is));
  EXPECT_EQ(std::get<Argument::List>(call.args[7].is).size(), 2u);
  EXPECT_EQ(job->strings[call.kwargs.at(0).first], "alpha");
  EXPECT_EQ(call.fresh.at(0).bytes.at(1), 120);
}

TEST(StepFile, OtherFilesAreToldApart) {
  for (const char* text : {"", "[]", "\x80\x04]", "{\"segments\": []}"}) {
    EXPECT_EQ(Complaint(text), "this is not a step file") << text;
  }
  EXPECT_EQ(Complaint(R"({"schema": 7, "note": "plimsoll.step/1"})"), "this is not a step file");
  EXPECT_EQ(Complaint(R"(["plimsoll.step/1"])"), "this is not a step file");
  EXPECT_EQ(With("/schema", "\"plimsoll.step/12\""), "this is not a step file");
}

TEST(StepFile, CutAtAnyByteItIsRefused) {
  const std::string whole = SmallFile().dump();
  for (std::size_t length = 0; length < whole.size(); ++length) {
    EXPECT_NE(Complaint(whole.substr(0, length)), "") << length;
  }
}

TEST(StepFile, AFlippedByteIsReadOrRefused) {
  const std::string whole = SmallFile().dump();
  for (std::size_t at = 0; at < whole.size(); ++at) {
    for (const char with : {'0', '9', '-', '"', '[', '}', '\xff'}) {
      std::string flipped = whole;
      flipped[at] = with;
      (void)Complaint(flipped);
    }
  }
}

TEST(StepFile, AnyValueOfAnyTypeAnywhereIsReadOrRefused) {
  const Json flat = SmallFile().flatten();
  const char* wrong[] = {"null",
                         "true",
                         "-1",
                         "0",
                         "4611686018427387904",
                         "18446744073709551615",
                         "-9223372036854775808",
                         "1e300",
                         "\"text\"",
                         "[]",
                         "[1]",
                         "[2, 3]",
                         "[9007199254740993, -3]",
                         "{}",
                         "{\"t\": 1}",
                         "{\"n\": []}"};
  for (const auto& [pointer, value] : flat.items()) {
    for (const char* instead : wrong) {
      SCOPED_TRACE(pointer + " is " + instead);
      (void)With(pointer.c_str(), instead);
    }
    // And the list or object that it stands in.
    const std::string parent = pointer.substr(0, pointer.rfind('/'));
    for (const char* instead : wrong) (void)With(parent.c_str(), instead);
  }
}

TEST(StepFile, LeftOutKeysAreNamed) {
  for (const char* key : {"strings", "layouts", "variants", "batches"}) {
    Json file = SmallFile();
    file.erase(key);
    EXPECT_EQ(Complaint(file.dump()), std::string("no list \"") + key + "\"");
  }
  EXPECT_EQ(With("/variants", "[]"), "it holds no variant");
  EXPECT_EQ(With("/variants/0", "{}"), "no list \"events\"");
  for (const char* key : {"torch", "gpu", "model", "notes"}) {
    Json file = SmallFile();
    file.erase(key);
    EXPECT_EQ(Complaint(file.dump()), "") << key << " is no need";
  }
}

TEST(StepFile, BatchesMustGrow) {
  const std::string message = "\"batches\" does not hold two growing sizes";
  EXPECT_EQ(With("/batches", "[2, 2]"), message) << "no line goes through them";
  EXPECT_EQ(With("/batches", "[3, 2]"), message);
  EXPECT_EQ(With("/batches", "[0, 2]"), message);
  EXPECT_EQ(With("/batches", "[2, 9000000000000000]"), message);
  EXPECT_EQ(With("/batches", "[2]"), "\"batches\" does not hold two sizes");
  EXPECT_EQ(With("/batches", "[2, 3.5]"), "a number is no integer");
}

TEST(StepFile, IndicesOutOfRangeAreNamedWithTheirEvent) {
  EXPECT_EQ(With("/variants/0/events/0/2", "3"), "event 0: no layout 3");
  EXPECT_EQ(With("/variants/0/events/0/3", "5"), "event 0: no string 5");
  EXPECT_EQ(With("/variants/0/events/4/1", "-2"), "event 4: no string -2");
  EXPECT_EQ(With("/variants/0/events/7/1", "-1"), "event 7: no storage -1");
  EXPECT_EQ(With("/variants/0/events/7/1", "1000000"), "event 7: no storage 1000000");
  EXPECT_EQ(With("/variants/0/events/7/1", "500"), "storage 500 where only a few are there");
  EXPECT_EQ(With("/variants/0/events/4/8/0/2", "1"),
            "event 4: a new storage is that of result 1, which is not there");
  EXPECT_EQ(With("/variants/0/events/4/7", "[]"),
            "event 4: a new storage is that of result 0, which is not there");
}

TEST(StepFile, WhatIsNotKnownIsNamed) {
  EXPECT_EQ(With("/layouts/0/0", "\"float3\""), "dtype \"float3\" is not known");
  EXPECT_EQ(With("/variants/0/events/3/1", "\"sideways\""),
            "event 3: phase \"sideways\" is not known");
  EXPECT_EQ(With("/variants/0/events/2", "[\"stride\"]"),
            "event 2: its kind \"stride\" is not known");
  EXPECT_EQ(With("/variants/0/events/5/1", "\"something new\""), "") << "a label is only a label";
}

TEST(StepFile, SizesBeyondEveryDeviceAreRefused) {
  EXPECT_EQ(With("/layouts/0/1/0", "-1"), "a size of -1");
  EXPECT_EQ(With("/layouts/0/1/0", "9007199254740993"), "a size of 9007199254740993");
  EXPECT_EQ(With("/layouts/0/1", "[1099511627776, 1099511627776]"),
            "layout 0 is larger than any device");
  EXPECT_EQ(With("/layouts/0/1", "[1099511627776, [0, 1099511627776]]"),
            "layout 0 is larger than any device");
  EXPECT_EQ(With("/variants/0/events/4/8/0/1", "[80, 9007199254740993]"),
            "event 4: a size of 9007199254740993");
  EXPECT_EQ(With("/batches/1", "18446744073709551615"), "a number is too large");
  std::string overflow = SmallFile().dump();
  overflow.replace(overflow.find("2.5"), 3, "1e999");
  EXPECT_EQ(Complaint(overflow), "not valid JSON: number overflow parsing '1e999'");
}

TEST(StepFile, AnArgumentMayBeAnyNumber) {
  EXPECT_EQ(With("/variants/0/events/4/5/3", "9223372036854775807"), "") << "the end of a slice";
  EXPECT_EQ(With("/variants/0/events/4/5/3", "18446744073709551615"), "") << "a seed";
}

TEST(StepFile, DeepNestingIsRefused) {
  std::string deep = "1";
  for (int i = 0; i < 20; ++i) deep = "[" + deep + "]";
  EXPECT_EQ(With("/variants/0/events/4/5/0", deep.c_str()), "event 4: arguments nest too deep");
  const std::string open(1'000'000, '[');
  const std::string shut(1'000'000, ']');
  EXPECT_EQ(Complaint("{\"schema\": \"plimsoll.step/1\", \"x\": " + open),
            "the JSON is nested more than 128 deep");
  EXPECT_EQ(Complaint("{\"schema\": \"plimsoll.step/1\", \"x\": " + open + shut + "}"),
            "the JSON is nested more than 128 deep");
}

TEST(StepFile, ReleasesNameEventsOfTheFile) {
  Json file = SmallFile();
  file["variants"][0]["events"][5] = Json::parse(R"(["label", "input", [3, 1]])");
  file["variants"][0]["releases"] =
      Json::parse(R"([{"edits": [["variable", 0, 2]], "frees": [[5, 3], [6, 3], [9, 4]]}])");
  const Result<Job> job = Read(file.dump());
  ASSERT_TRUE(job.ok()) << job.error().ToLine();
  ASSERT_EQ(job->variants[0].releases.size(), 1u);
  const Release& release = job->variants[0].releases[0];
  EXPECT_EQ(job->strings[release.edits[0].name], "weight");
  EXPECT_EQ(job->strings[release.edits[0].where], "train.py:7 in step");
  // The label became two events.
  EXPECT_EQ(release.frees[0].event, 5u);
  EXPECT_EQ(release.frees[1].event, 7u);
  EXPECT_EQ(release.frees[2].event, job->variants[0].events.size());
}

TEST(StepFile, BrokenReleasesAreRefused) {
  const auto with = [](const char* value) { return With("/variants/0/releases", value); };
  EXPECT_EQ(with("[]"), "");
  EXPECT_NE(with("1"), "");
  EXPECT_NE(with("[1]"), "");
  EXPECT_NE(with(R"([{"edits": [], "frees": []}])"), "");
  EXPECT_NE(with(R"([{"edits": [["other", 0, 0]], "frees": []}])"), "");
  EXPECT_NE(with(R"([{"edits": [["batch", 99, 0]], "frees": []}])"), "");
  EXPECT_NE(with(R"([{"edits": [["batch", 0, 0]], "frees": [[10, 1]]}])"), "");
  EXPECT_NE(with(R"([{"edits": [["batch", 0, 0]], "frees": [[-1, 1]]}])"), "");
  EXPECT_NE(with(R"([{"edits": [["batch", 0, 0]], "frees": [[1, 5]]}])"), "");
  EXPECT_NE(with(R"([{"edits": [["batch", 0, 0]], "frees": [[1]]}])"), "");
}

}  // namespace
}  // namespace plimsoll::step_file_test
