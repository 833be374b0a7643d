// The pieces of plimsoll::train that docs/train_pieces.md shows, each by itself. The tests run it,
// and compare the document's blocks with the lines here.
#include <torch/torch.h>

#include <cstdio>
#include <filesystem>
#include <random>

#include "train/data/loader.h"
#include "train/light/channels.h"
#include "train/light/lora.h"
#include "train/light/masks.h"
#include "train/light/separable.h"
#include "train/models/cross_entropy.h"
#include "train/schedule/ema.h"
#include "train/schedule/learning_rate.h"

using namespace plimsoll::train;

namespace {

// A convolution that can become separable, though a module of one's own holds it by its type.
class EdgesImpl : public torch::nn::Module {
 public:
  torch::Tensor forward(const torch::Tensor& x) { return torch::relu(conv_(x)); }

 private:
  LightConv2d conv_ = register_module("conv", LightConv2d(8, 16, 3));
};
TORCH_MODULE(Edges);

void SeparableConvolutions() {
  torch::nn::Sequential model(torch::nn::Conv2d(3, 8, 3), torch::nn::ReLU(), Edges());
  LightReport report = ReplaceConvolutions(*model);
  std::fputs(report.ToString().c_str(), stdout);
}

torch::nn::Sequential Net() {
  return torch::nn::Sequential(torch::nn::Linear(32, 64), torch::nn::ReLU(),
                               torch::nn::Linear(64, 4));
}

void Adapters(const std::filesystem::path& file) {
  torch::nn::Sequential model = Net();
  QuantizeWeights(*model);
  LightReport report = AddLora(*model, {.adapter = {.rank = 4, .alpha = 8}, .layers = {"*"}});
  torch::optim::AdamW optimizer(TrainedParameters(*model), 1e-3);
  model->forward(torch::randn({8, 32})).square().mean().backward();
  optimizer.step();
  SaveTuned(file, *model);
  LoadTuned(file, *model);
  std::fputs(report.ToString().c_str(), stdout);
}

void Pruning() {
  torch::nn::Sequential model = Net();
  PruneChannels(*model, {.fraction = 0.5, .multiple = 8});
  torch::optim::AdamW optimizer(model->parameters(), 1e-3);
  WeightMasks masks(*model);
  MaskReport report = masks.Prune(0.3);
  model->forward(torch::randn({8, 32})).square().mean().backward();
  optimizer.step();
  masks.Apply();
  std::fputs(report.ToString().c_str(), stdout);
}

void Loss() {
  const torch::Tensor hidden = torch::randn({64, 32}).requires_grad_();
  const torch::Tensor weight = torch::randn({1000, 32}).requires_grad_();
  const torch::Tensor targets = torch::randint(1000, {64});
  torch::Tensor loss = LinearCrossEntropy(hidden, weight, std::nullopt, targets,
                                          {.label_smoothing = 0.1, .z_loss = 1e-4, .soft_cap = 30});
  loss.backward();
  std::printf("loss %.3f\n", loss.item<double>());
}

void Schedules() {
  torch::nn::Sequential model = Net();
  torch::optim::AdamW optimizer(model->parameters(), 1e-3);
  LearningRate rate(optimizer,
                    {.shape = ScheduleOptions::Shape::kCosine, .warm_up = 10, .steps = 50});
  Ema ema(*model, {.decay = 0.99});
  for (std::int64_t step = 0; step < 50; ++step) {
    rate.Set(step);
    optimizer.zero_grad();
    model->forward(torch::randn({8, 32})).square().mean().backward();
    optimizer.step();
    ema.Update();
  }
  {
    auto averaged = ema.SwapIn();
    torch::NoGradGuard no_grad;
    std::printf("averaged %.4f\n", model->forward(torch::ones({1, 32})).norm().item<double>());
  }
}

// Sentences of 1 to 30 tokens, of which one cannot be read.
class Sentences : public Source {
 public:
  std::int64_t size() const override { return 100; }
  std::int64_t Length(std::int64_t index) const override { return 1 + index % 30; }
  Batch Get(std::span<const std::int64_t> indices, const at::TensorOptions& where) const override {
    if (indices[0] == 17) throw DataError("sentence 17: cannot be read");
    return {{torch::full({1, Length(indices[0])}, indices[0], where.dtype(torch::kLong))}};
  }
};

void Loading() {
  LoaderOptions options;
  options.batch = 0;
  options.budget = 256;
  options.bucket = 8;
  options.padding = {-100};
  options.max_broken = 5;
  options.augment = [](Sample& sample, std::int64_t /*epoch*/, Random& random) {
    if (random.Uniform() < 0.1) sample[0] = sample[0].flip(0);
  };
  Loader loader(std::make_shared<Sentences>(), options);
  for (std::int64_t i = 0; i < loader.batches_per_epoch(); ++i) {
    Batch batch = loader.Next();
    TORCH_CHECK(batch.tensors[0].numel() <= 256);
  }
  std::int64_t position =
      loader.position();  // to be saved; loader.Seek(position) goes on from there
  std::printf("%lld batches, %lld sample left out\n", static_cast<long long>(position),
              static_cast<long long>(loader.broken().count));
}

}  // namespace

int main() {
  torch::manual_seed(1);
  const std::filesystem::path file = std::filesystem::temp_directory_path() /
                                     ("train_pieces_" + std::to_string(std::random_device()()));
  SeparableConvolutions();
  Adapters(file);
  std::filesystem::remove(file);
  Pruning();
  Loss();
  Schedules();
  Loading();
  return 0;
}
