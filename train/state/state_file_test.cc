#include "train/state/state_file.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cmath>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <limits>
#include <set>

#include "files/output.h"
#include "train/state/layout.h"

namespace plimsoll::train::state_file_test {
namespace {

namespace fs = std::filesystem;

/// The file that `add` gives a writer the content of, or the error instead.
template <class Add>
Result<std::string> Written(Add add) {
  std::string bytes;
  StateWriter writer([&](std::string_view more) { bytes += more; });
  add(writer);
  if (std::optional<Error> error = writer.Finish()) return *std::move(error);
  return bytes;
}

std::string Sample(std::string_view weights = "abcdefgh") {
  return *Written([&](StateWriter& writer) {
    writer.AddTensor("weights", ElementType::kFloat16,
                     {2, static_cast<std::int64_t>(weights.size()) / 4}, weights);
    writer.AddTensor("nothing", ElementType::kInt64, {0, 7}, "");
    writer.AddTensor("one", ElementType::kBool, {}, std::string_view("\1", 1));
    writer.AddValue("steps", std::int64_t{-3});
    writer.AddValue("rate", 0.1);
    writer.AddValue("on", true);
    writer.AddValue("text", "a \"text\"");
  });
}

/// What reading says, or nothing.
std::string Fault(const std::string& bytes) {
  const Result<Input> input = Input::FromMemory("run.state", bytes);
  if (!input) return input.error().ToLine();
  const Result<StateFile> file = ReadState(*input);
  return file ? "" : file.error().ToLine();
}

/// A file with this index, with lengths and checksums that are right.
std::string WithIndex(const std::string& index, const std::string& tensors = {}) {
  const layout::Footer footer{.index_bytes = index.size(),
                              .index_checksum = layout::Checksum(index)};
  std::string bytes = std::string(layout::kBegin) + tensors + index;
  bytes.append(reinterpret_cast<const char*>(&footer), sizeof footer);
  return bytes + std::string(layout::kEnd);
}

std::string WithTensor(const std::string& entry) {
  return WithIndex(
      R"({"tensors":[)" + entry + R"(],"values":{}})",
      std::string(layout::Aligned(layout::kBegin.size()) - layout::kBegin.size(), '\0'));
}

TEST(StateFile, GivesBackWhatWasWritten) {
  const Result<Input> input = Input::FromMemory("run.state", Sample());
  const Result<StateFile> file = ReadState(*input);
  ASSERT_TRUE(file.ok()) << file.error().ToLine();
  ASSERT_EQ(file->tensors.size(), 3u);
  const StateTensor& weights = file->tensors.at("weights");
  EXPECT_EQ(weights.type, ElementType::kFloat16);
  EXPECT_EQ(weights.sizes, (std::vector<std::int64_t>{2, 2}));
  EXPECT_EQ(weights.bytes, "abcdefgh");
  EXPECT_EQ((weights.bytes.data() - input->bytes().data()) % 64, 0);
  EXPECT_EQ(file->tensors.at("nothing").sizes, (std::vector<std::int64_t>{0, 7}));
  EXPECT_EQ(file->tensors.at("one").bytes.size(), 1u);
  const std::map<std::string, StateValue> values = {
      {"steps", std::int64_t{-3}}, {"rate", 0.1}, {"on", true}, {"text", "a \"text\""}};
  EXPECT_EQ(file->values, values);
}

TEST(StateFile, KeepsEveryBitOfANumber) {
  const std::array numbers = {0.1,   1.0,    -0.0, 1e-310, std::numeric_limits<double>::max(),
                              1e300, 1.0 / 3};
  for (const double number : numbers) {
    const Result<Input> input = Input::FromMemory(
        "s", *Written([&](StateWriter& writer) { writer.AddValue("x", number); }));
    const Result<StateFile> file = ReadState(*input);
    ASSERT_TRUE(file.ok());
    const double read = std::get<double>(file->values.at("x"));
    EXPECT_EQ(std::memcmp(&read, &number, sizeof read), 0) << number;
  }
}

TEST(StateFile, RefusesEveryTruncation) {
  const std::string whole = Sample(std::string(4096, 'x'));
  for (std::size_t kept = 0; kept < whole.size(); ++kept) {
    EXPECT_NE(Fault(whole.substr(0, kept)), "") << kept;
  }
}

TEST(StateFile, SaysThatBytesFollowTheEnd) {
  const std::string whole = Sample();
  const std::string where = "run.state: offset " + std::to_string(whole.size()) + ": ";
  const std::string hint =
      " of the state; something was appended to it; cut that off, or use an earlier state";
  EXPECT_EQ(Fault(whole + "x"), where + "1 byte follows the end" + hint);
  EXPECT_EQ(Fault(whole + std::string(5000, '\0')), where + "5000 bytes follow the end" + hint);
  // What follows may look like an end too.
  EXPECT_EQ(Fault(whole + "and this is the end\nof it"), where + "25 bytes follow the end" + hint);
  EXPECT_NE(Fault(whole + whole), "");
  EXPECT_NE(Fault(whole + Sample(std::string(4096, 'x'))), "");
  // A state that was cut short has no end, whatever follows.
  const std::string cut = "run.state: offset " + std::to_string(whole.size() - 1) +
                          ": the end is missing; the state is damaged, use an earlier one";
  EXPECT_EQ(Fault(whole.substr(0, whole.size() - 2) + "x"), cut);
}

TEST(StateFile, RefusesEveryFlippedBit) {
  const std::string whole = Sample();
  ASSERT_EQ(Fault(whole), "");
  for (std::size_t bit = 0; bit < 8 * whole.size(); ++bit) {
    std::string broken = whole;
    broken[bit / 8] = static_cast<char>(broken[bit / 8] ^ (1 << (bit % 8)));
    EXPECT_NE(Fault(broken), "") << bit / 8;
  }
}

TEST(StateFile, RefusesWhatCouldRunCode) {
  EXPECT_EQ(Fault("plimsoll train state 1\nanything"),
            "run.state: offset 0: a state of the former format, which could run code when it was "
            "loaded and is no longer read; train again and save anew");
  const char* const kOther =
      "run.state: offset 0: this is not a training state that plimsoll saved";
  // A TorchScript archive, which is a zip file, and a pickle that would run a command.
  EXPECT_EQ(Fault(std::string("PK\3\4\0\0\10\10archive/code/__torch__.py", 34)), kOther);
  EXPECT_EQ(Fault("\x80\2cposix\nsystem\nq\1U\4idq\2\205q\3Rq\4."), kOther);
  EXPECT_EQ(Fault(""), kOther);
}

TEST(StateFile, RefusesAnIndexThatIsNotOne) {
  EXPECT_EQ(Fault(WithIndex(R"({"tensors":[],"values":{}})")), "");
  for (const char* index :
       {"", "null", "[]", "{}", R"({"tensors":[]})", R"({"tensors":{},"values":{}})",
        R"({"tensors":[],"values":[]})", R"({"tensors":[],"values":{},"more":1})",
        R"({"tensors":[],"values":{"x":null}})", R"({"tensors":[],"values":{"x":[1]}})",
        R"({"tensors":[],"values":{"x":{"y":1}}})",
        R"({"tensors":[],"values":{"x":18446744073709551615}})",
        R"({"tensors":[],"values":{"x":1e999}})", R"({"tensors":[1],"values":{}})",
        R"({"tensors":[{"name":"x","type":"f32","sizes":[[0]],"crc":0}],"values":{}})"}) {
    EXPECT_NE(Fault(WithIndex(index)), "") << index;
  }
  EXPECT_NE(Fault(WithIndex(std::string(1 << 20, '['))), "");
  EXPECT_NE(Fault(WithIndex(R"({"tensors":[],"values":{}})", "more")), "");
}

/// Processor time, which a busy machine does not change much.
double SecondsToRead(int tensors) {
  const std::string bytes = *Written([&](StateWriter& writer) {
    for (int i = 0; i < tensors; ++i) {
      writer.AddTensor("tensor " + std::to_string(i), ElementType::kInt8, {0}, "");
    }
  });
  const std::clock_t begin = std::clock();
  EXPECT_EQ(Fault(bytes), "");
  return static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
}

TEST(StateFile, ReadingTakesTimeInProportionToItsTensors) {
  // Eight times the tensors; the square of it would be 64 times.
  const double few = SecondsToRead(8192);
  EXPECT_LT(SecondsToRead(65536), 24 * few);
}

TEST(StateFile, AnIndexUnfoldsToNothingLarge) {
  for (const std::string part : {"[],", "0,"}) {
    std::string index = "[";
    for (int i = 0; i < 12'000'000; ++i) index += part;
    EXPECT_NE(Fault(WithIndex(index)).find("the index is not a list"), std::string::npos) << part;
  }
}

TEST(StateFile, RefusesTensorsThatCannotBe) {
  EXPECT_EQ(Fault(WithTensor(R"({"name":"x","type":"f32","sizes":[0],"crc":0})")), "");
  EXPECT_EQ(Fault(WithTensor(R"({"name":"x","type":"f32","sizes":[9],"crc":0})")),
            "run.state: offset 23: the tensor 'x' is cut short; the state is damaged, use an "
            "earlier one");
  for (const char* entry : {
           R"({"name":"x","type":"f33","sizes":[0],"crc":0})",
           R"({"name":"x","type":"f32","sizes":[-1],"crc":0})",
           R"({"name":"x","type":"f32","sizes":[0.5],"crc":0})",
           R"({"name":"x","type":"f32","sizes":[18446744073709551615],"crc":0})",
           R"({"name":"x","type":"f32","sizes":[4294967296,4294967296],"crc":0})",
           R"({"name":"x","type":"f32","sizes":[0,4294967296,4294967296],"crc":0})",
           R"({"name":"x","type":"f32","sizes":[0],"crc":1})",
           R"({"name":"x","type":"f32","sizes":[0]})",
           R"({"name":7,"type":"f32","sizes":[0],"crc":0})",
           R"({"name":"x","type":"f32","sizes":0,"crc":0})",
       }) {
    EXPECT_NE(Fault(WithTensor(entry)), "") << entry;
  }
  EXPECT_NE(Fault(*Written([](StateWriter& writer) {
              writer.AddTensor("x", ElementType::kInt8, {1}, "a");
              writer.AddTensor("x", ElementType::kInt8, {1}, "a");
            })),
            "");
  EXPECT_NE(Fault(*Written(
                [](StateWriter& writer) { writer.AddTensor("x", ElementType::kBool, {1}, "\2"); })),
            "");
}

TEST(StateFile, PrintsNoEscapesOfNames) {
  const std::string fault = Fault(*Written(
      [](StateWriter& writer) { writer.AddTensor("\033[2Jx", ElementType::kBool, {1}, "\2"); }));
  EXPECT_NE(fault, "");
  EXPECT_EQ(fault.find('\033'), std::string::npos);
}

TEST(StateFile, SaysWhatCannotBeWritten) {
  const auto fails = [](StateValue value) {
    return !Written([&](StateWriter& writer) { writer.AddValue("x", value); }).ok();
  };
  EXPECT_TRUE(fails(std::numeric_limits<double>::infinity()));
  EXPECT_TRUE(fails(std::nan("")));
  EXPECT_TRUE(fails("\xe9"));
  EXPECT_FALSE(fails("\xc3\xa9"));
}

class StateOnDisk : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() / ("plimsoll_state_" + std::to_string(getpid()));
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }

  std::string path() const { return folder_ / "run.state"; }
  std::string FaultOnDisk() const {
    const Result<Input> input = Input::Open(path());
    if (!input) return input.error().ToLine();
    const Result<StateFile> file = ReadState(*input);
    return file ? "" : file.error().ToLine();
  }

  fs::path folder_;
};

TEST_F(StateOnDisk, KeepsTheOldOneWhenTheDiskIsFull) {
  ASSERT_FALSE(WriteFile(path(), Sample()).has_value());
  signal(SIGXFSZ, SIG_IGN);
  rlimit before;
  getrlimit(RLIMIT_FSIZE, &before);
  const rlimit small{4096, before.rlim_max};
  setrlimit(RLIMIT_FSIZE, &small);
  EXPECT_TRUE(WriteFile(path(), Sample(std::string(400000, 'x'))).has_value());
  setrlimit(RLIMIT_FSIZE, &before);
  EXPECT_EQ(FaultOnDisk(), "");
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_), {}), 1);
}

/// Forks two writers of one path.
TEST_F(StateOnDisk, SurvivesTwoWritersAndAKillAtAnyMoment) {
  const std::array states = {Sample(std::string(200000, 'x')), Sample(std::string(300000, 'y'))};
  ASSERT_FALSE(WriteFile(path(), states[0]).has_value());
  for (int attempt = 0; attempt < 30; ++attempt) {
    std::array<pid_t, 2> children{};
    for (std::size_t i = 0; i < children.size(); ++i) {
      children[i] = fork();
      if (children[i] != 0) continue;
      while (true) {
        if (WriteFile(path(), states[i])) _exit(1);
      }
    }
    usleep(static_cast<useconds_t>(1000 + 700 * attempt));
    for (const pid_t child : children) {
      kill(child, SIGKILL);
      int status = 0;
      waitpid(child, &status, 0);
      EXPECT_TRUE(WIFSIGNALED(status)) << "a writer was disturbed by the other";
    }
    EXPECT_EQ(FaultOnDisk(), "");
  }
}

TEST_F(StateOnDisk, IsAlwaysOneOfTwoWritersWhole) {
  const std::array states = {Sample(std::string(200000, 'x')), Sample(std::string(300000, 'y'))};
  ASSERT_FALSE(WriteFile(path(), states[0]).has_value());
  std::array<pid_t, 2> children{};
  for (std::size_t i = 0; i < children.size(); ++i) {
    children[i] = fork();
    if (children[i] != 0) continue;
    for (int time = 0; time < 50; ++time) {
      if (WriteFile(path(), states[i])) _exit(1);
    }
    _exit(0);
  }
  std::set<std::string> seen;
  std::size_t running = children.size();
  while (running > 0) {
    const Result<Input> input = Input::Open(path());
    ASSERT_TRUE(input.ok()) << input.error().ToLine();
    seen.emplace(input->bytes());
    for (const pid_t child : children) {
      int status = 0;
      if (waitpid(child, &status, WNOHANG) != child) continue;
      EXPECT_EQ(status, 0);
      --running;
    }
  }
  for (const std::string& one : seen) EXPECT_TRUE(one == states[0] || one == states[1]);
  EXPECT_EQ(FaultOnDisk(), "");
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_), {}), 1) << "something is left behind";
}

}  // namespace
}  // namespace plimsoll::train::state_file_test
