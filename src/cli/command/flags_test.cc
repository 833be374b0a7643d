#include "cli/command/flags.h"

#include <gtest/gtest.h>

namespace plimsoll::flags_test {
namespace {

struct Declared {
  Flags flags{"tune", "settings"};
  std::string file;
  std::optional<Bytes> capacity;
  std::optional<std::int64_t> device;
  std::string format = "html";
  bool json = false;

  Declared() {
    flags.Argument("FILE", file, "a snapshot");
    flags.Size("--capacity", capacity, "how much");
    flags.Count("--device", "N", device, "which", 0, 255);
    flags.Choice("--format", "F", format, {"html", "perfetto"}, "as what");
    flags.Switch("--json", json, "as JSON");
    flags.Examples(
        "  plimsoll tune run.pickle   what suits it\n"
        "  plimsoll tune -\n"
        "Exit code 1: nothing fits.");
  }
  /// "" where all is well.
  std::string Parse(std::vector<std::string> words) {
    const std::optional<Error> error = flags.Parse(std::move(words));
    return error ? error->ToLine() : "";
  }
};

TEST(Flags, AreReadInAnyOrder) {
  Declared d;
  EXPECT_EQ(d.Parse({"--capacity", "22GiB", "run.pickle", "--format=perfetto", "--json"}), "");
  EXPECT_EQ(d.file, "run.pickle");
  EXPECT_EQ(d.capacity, 22 * kGiB);
  EXPECT_EQ(d.format, "perfetto");
  EXPECT_TRUE(d.json);
  EXPECT_FALSE(d.device);
}

TEST(Flags, AMistypedOneIsNamedWithTheNearest) {
  EXPECT_EQ(Declared().Parse({"a", "--capcity", "22GiB"}),
            "tune has no flag --capcity; did you mean --capacity? see plimsoll tune --help");
  EXPECT_EQ(Declared().Parse({"--jsn"}),
            "tune has no flag --jsn; did you mean --json? see plimsoll tune --help");
  EXPECT_EQ(Declared().Parse({"a", "-z"}), "tune has no flag -z; see plimsoll tune --help");
}

TEST(Flags, AValueThatCannotBeUsedSaysWhatCan) {
  EXPECT_EQ(Declared().Parse({"a", "--capacity", "12"}),
            "--capacity: '12' has no unit; write 12GiB, 12MiB or 12B");
  EXPECT_EQ(Declared().Parse({"a", "--device", "-1"}),
            "--device: '-1' cannot be used; give 0 to 255");
  EXPECT_EQ(Declared().Parse({"a", "--device", "2x"}),
            "--device: '2x' cannot be used; give 0 to 255");
  EXPECT_EQ(Declared().Parse({"a", "--format", "perfeto"}),
            "--format: 'perfeto' is not known; did you mean perfetto? give html, perfetto");
}

TEST(Flags, AreGivenOnceAndWithTheirValue) {
  EXPECT_EQ(Declared().Parse({"a", "--capacity"}),
            "--capacity needs SIZE after it; see plimsoll tune --help");
  EXPECT_EQ(Declared().Parse({"a", "--capacity", "1GiB", "--capacity", "2GiB"}),
            "--capacity is given more than once; see plimsoll tune --help");
}

TEST(Flags, SomeAreGivenAgainForEach) {
  Declared d;
  std::vector<std::string> bases;
  d.flags.Texts("--compare", "BASE", bases, "with what");
  EXPECT_EQ(d.Parse({"--compare", "a", "run.pickle", "--compare", "b"}), "");
  EXPECT_EQ(bases, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(d.file, "run.pickle");
  EXPECT_EQ(d.flags.Describe().flags.back().type, "BASE");
}

TEST(Flags, ArgumentsAreCounted) {
  EXPECT_EQ(Declared().Parse({"a", "b"}), "'b' is one argument too many; see plimsoll tune --help");
  EXPECT_EQ(Declared().Parse({}), "FILE is required; see plimsoll tune --help");
}

TEST(Flags, AreDescribedForHelpAndCompletion) {
  const CommandInfo info = Declared().flags.Describe();
  EXPECT_EQ(info.name, "tune");
  ASSERT_EQ(info.arguments.size(), 1u);
  EXPECT_EQ(info.arguments[0].name, "FILE");
  ASSERT_EQ(info.flags.size(), 4u);
  EXPECT_EQ(info.flags[0].names, (std::vector<std::string>{"--capacity"}));
  EXPECT_EQ(info.flags[0].type, "SIZE");
  EXPECT_EQ(info.flags[2].choices, (std::vector<std::string>{"html", "perfetto"}));
  EXPECT_EQ(info.flags[3].type, "");
  ASSERT_EQ(info.examples.size(), 2u);
  EXPECT_EQ(info.examples[0].line, "plimsoll tune run.pickle");
  EXPECT_EQ(info.examples[0].purpose, "what suits it");
  EXPECT_EQ(info.examples[1].purpose, "");
  EXPECT_EQ(info.remarks, (std::vector<std::string>{"Exit code 1: nothing fits."}));
}

TEST(Flags, ACommandLineMayDependOnASwitch) {
  Flags flags{"predict", "before it runs"};
  std::vector<std::string> files;
  std::vector<std::string> command;
  bool run = false;
  flags.Arguments("STEP", files, "a file", /*required=*/false);
  flags.Switch("--run", run, "a script");
  flags.CommandLine("COMMAND", command, "the script", "--run");
  EXPECT_FALSE(flags.Parse({"--run", "--", "python", "train.py", "--run"}));
  EXPECT_TRUE(run);
  EXPECT_EQ(command, (std::vector<std::string>{"python", "train.py", "--run"}));
  EXPECT_TRUE(files.empty());
}

TEST(Flags, WithoutItsSwitchTheWordsAreArguments) {
  Flags flags{"predict", "before it runs"};
  std::vector<std::string> files;
  std::vector<std::string> command;
  bool run = false;
  flags.Arguments("STEP", files, "a file", /*required=*/false);
  flags.Switch("--run", run, "a script");
  flags.CommandLine("COMMAND", command, "the script", "--run");
  EXPECT_FALSE(flags.Parse({"--", "a.step.json"}));
  EXPECT_EQ(files, std::vector<std::string>{"a.step.json"});
  const std::optional<Error> error = flags.Parse({"--run"});
  ASSERT_TRUE(error);
  EXPECT_EQ(error->ToLine(),
            "predict --run needs a command after --; plimsoll predict --run -- python train.py "
            "--batch-size {batch}");
}

}  // namespace
}  // namespace plimsoll::flags_test
