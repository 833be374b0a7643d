#include "train/state_file.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <torch/torch.h>
#include <unistd.h>

#include <fstream>

namespace plimsoll::train {
namespace {

namespace fs = std::filesystem;

class StateFile : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() / ("plimsoll_state_" + std::to_string(getpid()));
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }

  void Save(const at::Tensor& tensor, const std::string& text) {
    StateWriter writer(path());
    writer.AddTensor("weights", tensor);
    writer.AddBytes("text", text);
    writer.Commit();
  }
  fs::path path() const { return folder_ / "run.state"; }
  std::string ErrorOfReading() {
    try {
      StateReader reader(path());
      reader.Tensor("weights");
    } catch (const c10::Error& error) {
      return error.what_without_backtrace();
    }
    return {};
  }

  fs::path folder_;
};

TEST_F(StateFile, ComesBackAsItWas) {
  for (const auto type : {at::kFloat, at::kHalf, at::kBFloat16, at::kLong, at::kByte, at::kBool}) {
    const at::Tensor tensor = torch::randn({3, 5}).mul(20).abs().to(type).t();
    Save(tensor, std::string("a\0b", 3));
    StateReader reader(path());
    EXPECT_TRUE(torch::equal(reader.Tensor("weights"), tensor));
    EXPECT_EQ(reader.Bytes("text"), std::string("a\0b", 3));
    at::Tensor into = torch::empty({5, 3}, type);
    reader.ReadInto("weights", into);
    EXPECT_TRUE(torch::equal(into, tensor));
    EXPECT_THROW(reader.Tensor("other"), c10::Error);
  }
}

TEST_F(StateFile, SaysWhenItIsNotWhole) {
  Save(torch::randn({100}), "x");
  const auto size = fs::file_size(path());
  std::ifstream in(path(), std::ios::binary);
  const std::string whole{std::istreambuf_iterator<char>(in), {}};
  for (std::size_t kept = 0; kept < size; kept += 7) {
    std::ofstream(path(), std::ios::binary) << whole.substr(0, kept);
    EXPECT_NE(ErrorOfReading(), "") << kept;
  }
  for (std::size_t at = 0; at < size; at += 5) {
    std::string broken = whole;
    broken[at] = static_cast<char>(broken[at] ^ 0x41);
    std::ofstream(path(), std::ios::binary) << broken;
    // What is not looked at (the text, eight unused bits) may be anything; nothing may crash.
    ErrorOfReading();
  }
}

TEST_F(StateFile, KeepsTheOldOneWhenTheDiskIsFull) {
  Save(torch::ones({10}), "old");
  signal(SIGXFSZ, SIG_IGN);
  rlimit before;
  getrlimit(RLIMIT_FSIZE, &before);
  const rlimit small{4096, before.rlim_max};
  setrlimit(RLIMIT_FSIZE, &small);
  EXPECT_THROW(Save(torch::ones({100000}), "new"), c10::Error);
  setrlimit(RLIMIT_FSIZE, &before);
  StateReader reader(path());
  EXPECT_EQ(reader.Bytes("text"), "old");
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_), {}), 1);
}

TEST_F(StateFile, SurvivesAKillAtAnyMoment) {
  Save(torch::zeros({50000}), "0");
  for (int attempt = 0; attempt < 20; ++attempt) {
    const pid_t child = fork();
    if (child == 0) {
      for (int i = 0;; ++i) Save(torch::full({50000}, i), std::to_string(i));
    }
    usleep(static_cast<useconds_t>(1000 + 700 * attempt));
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
    StateReader reader(path());
    const at::Tensor weights = reader.Tensor("weights");
    EXPECT_TRUE(torch::equal(
        weights, torch::full({50000}, std::stoi(reader.Bytes("text"))).to(weights.dtype())));
  }
}

}  // namespace
}  // namespace plimsoll::train
