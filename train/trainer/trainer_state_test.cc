// What Trainer::Load takes, and that it changes nothing where it refuses.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <torch/torch.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <thread>

#include "files/output.h"
#include "train/checkpointing/random_state.h"
#include "train/common/nightly_for_tests.h"
#include "train/common/wait_for_tests.h"
#include "train/optimizers/adam8bit.h"
#include "train/optimizers/fused_adam.h"
#include "train/optimizers/host_optimizer.h"
#include "train/optimizers/optimizer_state.h"
#include "train/trainer/trainer.h"

namespace plimsoll::train::trainer_state_test {
namespace {

namespace fs = std::filesystem;
namespace nn = torch::nn;
namespace optim = torch::optim;

using MakeOptimizer = std::function<std::shared_ptr<optim::Optimizer>(std::vector<at::Tensor>)>;

struct NamedOptimizer {
  std::string name;
  MakeOptimizer make;
};
void PrintTo(const NamedOptimizer& optimizer, std::ostream* out) { *out << optimizer.name; }

template <class Optimizer, class Options>
NamedOptimizer Named(const char* name, Options options) {
  return {name, [options](std::vector<at::Tensor> parameters) {
            return std::make_shared<Optimizer>(std::move(parameters), options);
          }};
}

std::vector<NamedOptimizer> Optimizers() {
  const auto adam = optim::AdamOptions(0.01);
  const auto adamw = optim::AdamWOptions(0.01);
  const auto sgd = optim::SGDOptions(0.01).momentum(0.9);
  return {Named<optim::SGD>("Sgd", sgd),
          Named<optim::SGD>("PlainSgd", optim::SGDOptions(0.01)),
          Named<FusedSgd>("FusedSgd", sgd),
          Named<optim::Adam>("Adam", adam),
          Named<optim::Adam>("AdamAmsgrad", optim::AdamOptions(0.01).amsgrad(true)),
          Named<FusedAdam>("FusedAdam", adam),
          Named<HostAdam>("HostAdam", adam),
          Named<Adam8bit>("Adam8bit", adam),
          Named<optim::AdamW>("AdamW", adamw),
          Named<FusedAdamW>("FusedAdamW", adamw),
          Named<HostAdamW>("HostAdamW", adamw),
          Named<AdamW8bit>("AdamW8bit", adamw),
          Named<optim::RMSprop>("RMSprop", optim::RMSpropOptions(0.01)),
          Named<optim::RMSprop>("RMSpropCentered",
                                optim::RMSpropOptions(0.01).momentum(0.9).centered(true)),
          Named<optim::Adagrad>("Adagrad", optim::AdagradOptions(0.01))};
}

/// Convolutions in channels-last order, batch normalization with its buffers, dropout; large enough
/// for 8-bit codes.
nn::Sequential Net(std::int64_t width) {
  torch::manual_seed(5);
  nn::Sequential net(nn::Conv2d(nn::Conv2dOptions(3, width, 3).padding(1)), nn::BatchNorm2d(width),
                     nn::ReLU(), nn::Dropout(0.1), nn::Flatten(), nn::Linear(width * 64, 10));
  for (at::Tensor& parameter : net->parameters()) {
    if (parameter.dim() == 4) {
      parameter.set_data(parameter.detach().contiguous(at::MemoryFormat::ChannelsLast));
    }
  }
  return net;
}

struct TrainingRun {
  explicit TrainingRun(const MakeOptimizer& make, std::int64_t width = 8) : net(Net(width)) {
    optimizer = make(net->parameters());
    const auto loss = [this](const Batch& rows) {
      return nn::functional::cross_entropy(net->forward(rows.tensors[0]), rows.tensors[1]);
    };
    trainer = std::make_unique<Trainer>(net.ptr(), optimizer, loss, TrainerOptions{});
  }

  std::vector<double> Steps(int count) {
    std::vector<double> losses;
    for (int i = 0; i < count; ++i) {
      auto generator = at::detail::createCPUGenerator(static_cast<std::uint64_t>(trainer->steps()));
      const at::Tensor images = torch::randn({4, 3, 8, 8}, generator, torch::kFloat);
      const at::Tensor labels = torch::randint(0, 10, {4}, generator, at::kLong);
      losses.push_back(trainer->Step({{images, labels}}).loss);
    }
    return losses;
  }

  nn::Sequential net;
  std::shared_ptr<optim::Optimizer> optimizer;
  std::unique_ptr<Trainer> trainer;
};

class TrainerState : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() / ("plimsoll_trainer_state_" + std::to_string(getpid()));
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }

  std::string Saved(const TrainingRun& run) const {
    run.trainer->Save(folder_ / "saved", "where");
    std::ifstream in(folder_ / "saved", std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }

  /// What loading these bytes says, and that it changed nothing.
  std::string Refusal(TrainingRun& run, const std::string& bytes) const {
    const std::string before = Saved(run);
    EXPECT_FALSE(WriteFile(folder_ / "bad", bytes).has_value());
    std::string refusal;
    try {
      run.trainer->Load(folder_ / "bad");
      ADD_FAILURE() << "it was loaded";
    } catch (const c10::Error& error) {
      refusal = error.what_without_backtrace();
    }
    EXPECT_TRUE(Saved(run) == before) << refusal;
    EXPECT_EQ(refusal.find('\n'), std::string::npos) << refusal;
    return refusal.substr(refusal.find(": ") + 2);
  }

  fs::path folder_;
};

class EveryOptimizer : public TrainerState, public testing::WithParamInterface<NamedOptimizer> {};
INSTANTIATE_TEST_SUITE_P(TrainerState, EveryOptimizer, testing::ValuesIn(Optimizers()),
                         [](const auto& chosen) { return chosen.param.name; });

TEST_P(EveryOptimizer, ResumesBitForBit) {
  TrainingRun whole(GetParam().make);
  const auto losses = whole.Steps(6);
  const std::string at_the_end = Saved(whole);
  TrainingRun first(GetParam().make);
  first.Steps(3);
  first.trainer->Save(folder_ / "state", std::string("three\0\xff", 7));
  TrainingRun second(GetParam().make);
  second.Steps(1);
  torch::manual_seed(99);
  EXPECT_EQ(second.trainer->Load(folder_ / "state"), std::string("three\0\xff", 7));
  EXPECT_EQ(second.Steps(3), std::vector<double>(losses.begin() + 3, losses.end()));
  EXPECT_TRUE(Saved(second) == at_the_end);
}

TEST_F(TrainerState, RefusesOtherOptimizers) {
  const auto optimizers = Optimizers();
  const auto find = [&](const char* name) {
    return std::ranges::find(optimizers, name, &NamedOptimizer::name)->make;
  };
  TrainingRun adamw(find("FusedAdamW"));
  adamw.Steps(2);
  const std::string saved = Saved(adamw);
  TrainingRun sgd(find("FusedSgd"));
  sgd.Steps(1);
  EXPECT_EQ(Refusal(sgd, saved), "it is the state of the optimizer AdamW, and here is SGD");
  for (const char* other : {"Adam", "Adam8bit", "AdamW8bit", "RMSprop", "Adagrad", "HostAdam"}) {
    TrainingRun run(find(other));
    EXPECT_NE(Refusal(run, saved), "") << other;
  }
  // These have the same state.
  for (const char* same : {"AdamW", "HostAdamW"}) {
    TrainingRun run(find(same));
    EXPECT_FALSE(WriteFile(folder_ / "same", saved).has_value());
    EXPECT_EQ(run.trainer->Load(folder_ / "same"), "where") << same;
  }
}

TEST_F(TrainerState, RefusesOtherModels) {
  const auto make = Named<FusedAdamW>("", optim::AdamWOptions()).make;
  TrainingRun run(make);
  run.Steps(1);
  TrainingRun wider(make, 16);
  wider.Steps(1);
  EXPECT_EQ(Refusal(run, Saved(wider)),
            "'parameter 0.weight' is f32 [16, 3, 3, 3] in it, and Float [8, 3, 3, 3] here; it is "
            "the state of another model or another optimizer");
  // With a layer less, and with one more, whose tensors nobody would ask for.
  struct Small : TrainingRun {
    explicit Small(const MakeOptimizer& maker) : TrainingRun(maker) {
      net->push_back(nn::Linear(10, 10));
      optimizer = maker(net->parameters());
      trainer = std::make_unique<Trainer>(
          net.ptr(), optimizer, [](const Batch&) { return at::Tensor(); }, TrainerOptions{});
    }
  };
  Small more(make);
  EXPECT_EQ(Refusal(more, Saved(run)),
            "there is no 'parameter 6.weight' in it; it is the state of another model or another "
            "optimizer");
  EXPECT_NE(Refusal(run, Saved(more)), "");
}

TEST_F(TrainerState, RefusesDamage) {
  TrainingRun run(Named<AdamW8bit>("", optim::AdamWOptions()).make);
  run.Steps(1);
  const std::string saved = Saved(run);
  run.Steps(1);
  for (int percent = 0; percent < 100; percent += Nightly(1, 5)) {
    const std::size_t at = saved.size() * static_cast<std::size_t>(percent) / 100;
    EXPECT_NE(Refusal(run, saved.substr(0, at)), "") << percent;
    std::string flipped = saved;
    flipped[at] = static_cast<char>(flipped[at] ^ (1 << (percent % 8)));
    EXPECT_NE(Refusal(run, flipped), "") << percent;
  }
  EXPECT_NE(Refusal(run, saved + "more").find("4 bytes follow the end of the state"),
            std::string::npos);
}

TEST_F(TrainerState, KillsWhileSavingLeaveAGoodState) {
  const auto make = Named<FusedAdamW>("", optim::AdamWOptions(0.01)).make;
  // Two states, saved in turn, and the loss of the step that follows each.
  std::array<std::unique_ptr<TrainingRun>, 2> runs;
  std::array<double, 2> next_losses{};
  const fs::path path = folder_ / "state";
  const auto save = [&](int i) {
    torch::manual_seed(static_cast<std::uint64_t>(i));
    runs[i]->trainer->Save(path, std::to_string(i));
  };
  for (int i = 0; i < 2; ++i) {
    runs[i] = std::make_unique<TrainingRun>(make);
    runs[i]->Steps(i + 1);
    save(i);
    next_losses[i] = runs[i]->Steps(1)[0];
    runs[i]->trainer->Load(path);
  }
  TrainingRun again(make);
  // A kill between two saves shows nothing.
  int in_the_middle = 0;
  int attempt = 0;
  const auto saving = [&] { return std::distance(fs::directory_iterator(folder_), {}) > 1; };
  const int kills = Nightly(30, 8);
  for (; in_the_middle < kills && attempt < 10000; ++attempt) {
    const pid_t child = fork();
    if (child == 0) {
      for (int i = attempt;; ++i) save(i % 2);
    }
    EXPECT_TRUE(WaitUntil(saving));
    usleep(static_cast<useconds_t>(53 * (attempt % 30)));
    kill(child, SIGKILL);
    int status = 0;
    waitpid(child, &status, 0);
    EXPECT_TRUE(WIFSIGNALED(status)) << "it could not save";
    const std::string which = again.trainer->Load(path);
    ASSERT_TRUE(which == "0" || which == "1");
    EXPECT_EQ(again.Steps(1)[0], next_losses[which == "1" ? 1 : 0]) << attempt;
    for (const auto& entry : fs::directory_iterator(folder_)) {
      if (entry.path() == path) continue;
      ++in_the_middle;
      fs::remove(entry.path());
    }
  }
  std::printf("killed %d times, %d of them with a file half written\n", attempt, in_the_middle);
  EXPECT_EQ(in_the_middle, kills);
}

TEST_F(TrainerState, TwoThreadsMaySaveToOnePath) {
  const auto make = Named<FusedAdamW>("", optim::AdamWOptions(0.01)).make;
  const fs::path path = folder_ / "state";
  TrainingRun narrow(make, 8);
  TrainingRun wide(make, 16);
  const auto save = [&](const TrainingRun& run, const char* extra) {
    return std::thread([&run, extra, &path] {
      for (int i = 0; i < 20; ++i) run.trainer->Save(path, extra);
    });
  };
  std::thread one = save(narrow, "narrow");
  std::thread other = save(wide, "wide");
  one.join();
  other.join();
  TrainingRun& last = wide.trainer->ExtraIn(path) == "wide" ? wide : narrow;
  EXPECT_NO_THROW(last.trainer->Load(path));
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_), {}), 1);
}

TEST_F(TrainerState, SaysHowManyOptimizersItHas) {
  TrainingRun run(Named<FusedAdamW>("", optim::AdamWOptions(0.01)).make);
  const std::string one = Saved(run);
  const auto parameters = run.net->parameters();
  const Trainer::Optimizers two = {
      std::make_shared<FusedAdamW>(std::vector(parameters.begin(), parameters.begin() + 2)),
      std::make_shared<FusedAdamW>(std::vector(parameters.begin() + 2, parameters.end()))};
  run.trainer =
      std::make_unique<Trainer>(run.net.ptr(), two, [](const Batch&) { return at::Tensor(); });
  EXPECT_EQ(Refusal(run, one), "it has 1 optimizers, and here are 2");
}

TEST_F(TrainerState, RefusesWhatCouldRunCode) {
  const auto make = Named<FusedAdamW>("", optim::AdamWOptions()).make;
  TrainingRun run(make);
  run.Steps(1);
  // What LibTorch itself writes: a zip file with TorchScript and pickles.
  torch::serialize::OutputArchive archive;
  run.optimizer->save(archive);
  std::ostringstream zip;
  archive.save_to(zip);
  EXPECT_EQ(Refusal(run, zip.str()), "offset 0: this is not a training state that plimsoll saved");
  const std::vector<char> pickle = torch::pickle_save(torch::ones({2}));
  EXPECT_NE(Refusal(run, {pickle.begin(), pickle.end()}), "");
  EXPECT_EQ(Refusal(run, "plimsoll train state 1\n" + zip.str()),
            "offset 0: a state of the former format, which could run code when it was loaded and "
            "is no longer read; train again and save anew");
}

/// Loads a state that was changed in one place, with checksums that are right.
class ChangedState : public TrainerState {
 protected:
  static TrainingRun MakeRun() {
    return TrainingRun(Named<FusedAdamW>("", optim::AdamWOptions().amsgrad(true)).make);
  }

  template <class Change>
  std::string RefusalOf(Change change) {
    TrainingRun run = MakeRun();
    run.Steps(1);
    const Result<plimsoll::Input> input = plimsoll::Input::FromMemory("saved", Saved(run));
    StateFile file = *ReadState(*input);
    change(file);
    std::string changed;
    StateWriter writer([&](std::string_view more) { changed += more; });
    for (const auto& [name, tensor] : file.tensors) {
      writer.AddTensor(name, tensor.type, tensor.sizes, tensor.bytes);
    }
    for (const auto& [name, value] : file.values) writer.AddValue(name, value);
    EXPECT_FALSE(writer.Finish().has_value());
    return Refusal(run, changed);
  }
};

TEST_F(ChangedState, IsRefused) {
  const std::string parameter = "optimizer parameter 0 ";
  const auto without = [&](const char* name) {
    return RefusalOf([&](StateFile& file) { EXPECT_EQ(file.tensors.erase(parameter + name), 1u); });
  };
  EXPECT_NE(without("exp_avg"), "");
  EXPECT_NE(without("max_exp_avg_sq"), "");
  const auto with = [&](const std::string& name, StateValue value) {
    return RefusalOf([&](StateFile& file) {
      EXPECT_TRUE(file.values.contains(name)) << name;
      file.values[name] = std::move(value);
    });
  };
  EXPECT_NE(with(parameter + "step", std::int64_t{-1}), "");
  EXPECT_NE(with(parameter + "step", std::numeric_limits<std::int64_t>::max()), "");
  EXPECT_NE(with(parameter + "step", 1.5), "");
  EXPECT_NE(with("optimizer group 0 lr", "fast"), "");
  EXPECT_NE(with("optimizer group 0 parameters", std::int64_t{1}), "");
  EXPECT_NE(with("optimizer groups", std::int64_t{2}), "");
  EXPECT_NE(with("levers checkpoint", "\033[2J"), "");
  EXPECT_NE(with("levers micro_batch", std::int64_t{-4}), "");
  EXPECT_NE(with("levers checkpoint", "plan:99"), "");
  EXPECT_NE(with("scaler scale", 0.0), "");
  EXPECT_NE(with("steps", true), "");
  // A parameter without state leaves what the file holds of it.
  EXPECT_NE(with(parameter + "has_state", false), "");
  EXPECT_NE(RefusalOf([](StateFile& file) { file.values["more"] = true; }), "");
  EXPECT_NE(RefusalOf([](StateFile& file) { file.values.erase("steps"); }), "");
}

TEST_F(ChangedState, WithNumbersThatNoOptimizerWorksWithIsRefused) {
  const std::map<std::string, std::vector<double>> wrong = {
      {"optimizer group 0 lr", {-0.1}},         {"optimizer group 0 beta1", {-0.1, 1, 1e300}},
      {"optimizer group 0 beta2", {-0.1, 1}},   {"optimizer group 0 eps", {-1e-8}},
      {"optimizer group 0 weight_decay", {-1}}, {"scaler growth_factor", {1, -2}},
      {"scaler backoff_factor", {0, 1, -0.5}}};
  for (const auto& [name, values] : wrong) {
    for (const double value : values) {
      EXPECT_NE(RefusalOf([&, &key = name](StateFile& file) {
                  EXPECT_TRUE(file.values.contains(key)) << key;
                  file.values[key] = value;
                }),
                "")
          << name << ' ' << value;
    }
  }
  EXPECT_NE(RefusalOf([](StateFile& file) {
              file.values["optimizer group 0 lr"] = -1.0;
            }).find("'optimizer group 0 lr' is -1, which no optimizer works with"),
            std::string::npos);
}

TEST_F(ChangedState, WithImpossibleRandomNumbersIsRefused) {
  std::string random;
  const auto with = [&](std::size_t at, char byte) {
    return RefusalOf([&](StateFile& file) {
      StateTensor& tensor = file.tensors.at("random cpu");
      random = tensor.bytes;
      random[at] = byte;
      tensor.bytes = random;
    });
  };
  // Numbers left, seeded, the next one, and whether a normal one waits.
  EXPECT_EQ(with(11, '\x80'), "its state of the random numbers is not one");
  EXPECT_EQ(with(12, '\2'), "its state of the random numbers is not one");
  EXPECT_EQ(with(17, '\7'), "its state of the random numbers is not one");
  EXPECT_EQ(with(random.size() - 4, '\2'), "its state of the random numbers is not one");
}

TEST(RandomState, EveryRealOneIsPossible) {
  torch::manual_seed(3);
  EXPECT_TRUE(RandomState::Of(c10::kCPU).IsPossible());
  for (int i = 0; i < 700; ++i) {
    torch::randn({i % 3 + 1});
    torch::rand({1});
    ASSERT_TRUE(RandomState::Of(c10::kCPU).IsPossible()) << i;
  }
}

struct OfTheUser : optim::AdamW {
  using AdamW::AdamW;
};

TEST_F(TrainerState, SaysWhichOptimizersCannotBeSaved) {
  for (const auto& make : {Named<OfTheUser>("", optim::AdamWOptions()).make,
                           Named<optim::LBFGS>("", optim::LBFGSOptions()).make}) {
    const TrainingRun run(make);
    EXPECT_THROW(run.trainer->Save(folder_ / "never"), c10::Error);
    EXPECT_FALSE(fs::exists(folder_ / "never"));
  }
}

TEST_F(TrainerState, NamesAFolderThatIsNotThere) {
  const TrainingRun run(Named<FusedAdamW>("", optim::AdamWOptions()).make);
  try {
    run.trainer->Save(folder_ / "missing" / "state");
    FAIL();
  } catch (const c10::Error& error) {
    EXPECT_NE(std::string(error.what()).find("missing/state"), std::string::npos);
  }
}

}  // namespace
}  // namespace plimsoll::train::trainer_state_test
