// Save and Load of the trainer: everything that the next step depends on.
#include <limits>
#include <utility>
#include <vector>

#include "train/budget/host_memory.h"
#include "train/checkpointing/random_state.h"
#include "train/optimizers/memory_order.h"
#include "train/optimizers/optimizer_state.h"
#include "train/state_tensors.h"
#include "train/trainer.h"

namespace plimsoll::train {
namespace {

constexpr const char* kOptimizer = "optimizer ";
constexpr const char* kRandomCpu = "random cpu";
constexpr const char* kRandomCuda = "random cuda";

/// Calls back with the name that each parameter and buffer has in the file.
template <class Function>
void ForEachTensor(torch::nn::Module& model, Function function) {
  for (auto& item : model.named_parameters()) function("parameter " + item.key(), item.value());
  for (auto& item : model.named_buffers()) function("buffer " + item.key(), item.value());
}

/// Tensors of the model, and what they become.
using Copies = std::vector<std::pair<at::Tensor, at::Tensor>>;

Copies TakeModel(StateLoader& loader, torch::nn::Module& model) {
  Copies copies;
  ForEachTensor(model, [&](const std::string& name, const at::Tensor& tensor) {
    copies.emplace_back(tensor, loader.Tensor(name, tensor.sizes(), tensor.scalar_type()));
  });
  return copies;
}

void Put(const Copies& copies) {
  const torch::NoGradGuard no_grad;
  for (const auto& [to, from] : copies) {
    // Another order would be changed on the device, which takes memory there.
    const bool as_it_is = to.is_cpu() || SameOrder(to, from) || !to.is_non_overlapping_and_dense();
    if (as_it_is) {
      to.copy_(from);
      continue;
    }
    const at::Tensor ordered = HostTensor({from.numel()}, from.scalar_type(), /*pinned=*/false)
                                   .as_strided(to.sizes(), to.strides());
    to.copy_(ordered.copy_(from));
  }
}

void AddScaler(StateSaver& saver, const GradScaler::State& state) {
  saver.AddValue("scaler scale", state.scale);
  saver.AddValue("scaler growth_factor", state.growth_factor);
  saver.AddValue("scaler backoff_factor", state.backoff_factor);
  saver.AddValue("scaler growth_interval", state.growth_interval);
  saver.AddValue("scaler growth_tracker", state.growth_tracker);
}

GradScaler::State TakeScaler(StateLoader& loader) {
  const GradScaler::State state{.scale = loader.Number("scaler scale"),
                                .growth_factor = loader.Number("scaler growth_factor"),
                                .backoff_factor = loader.Number("scaler backoff_factor"),
                                .growth_interval = loader.Count("scaler growth_interval"),
                                .growth_tracker = loader.Count("scaler growth_tracker")};
  // The kernel counts in 32 bits.
  constexpr auto kMost = std::numeric_limits<std::int32_t>::max();
  if (state.scale <= 0 || state.growth_interval > kMost || state.growth_tracker > kMost) {
    loader.Fail("its gradient scaler is not one");
  }
  return state;
}

Levers TakeLevers(StateLoader& loader) {
  return {.micro_batch = loader.Count("levers micro_batch"),
          .checkpoint = CheckpointPolicy::Parse(loader.Text("levers checkpoint")),
          .offload = loader.Flag("levers offload")};
}

RandomState TakeRandom(StateLoader& loader, c10::Device device) {
  const RandomState now = RandomState::Of(device);
  const at::Tensor cpu = loader.Tensor(kRandomCpu, now.cpu().sizes(), now.cpu().scalar_type());
  at::Tensor cuda;
  if (now.cuda().defined() && loader.HasTensor(kRandomCuda)) {
    cuda = loader.Tensor(kRandomCuda, now.cuda().sizes(), now.cuda().scalar_type());
  } else if (loader.HasTensor(kRandomCuda)) {
    // Saved on a GPU, goes on without one.
    loader.Bytes(kRandomCuda);
  }
  const RandomState saved = RandomState::From(device, cpu, cuda);
  if (!saved.IsPossible()) loader.Fail("its state of the random numbers is not one");
  return saved;
}

}  // namespace

void Trainer::Save(const std::filesystem::path& path, const std::string& extra) const {
  StateSaver saver;
  ForEachTensor(*model_, [&](const std::string& name, const at::Tensor& tensor) {
    saver.AddTensor(name, tensor);
  });
  AddOptimizer(saver, kOptimizer, *optimizer_);
  const RandomState random = RandomState::Of(options_.device);
  saver.AddTensor(kRandomCpu, random.cpu());
  if (random.cuda().defined()) saver.AddTensor(kRandomCuda, random.cuda());
  AddScaler(saver, scaler_.state());
  saver.AddValue("levers micro_batch", levers_.micro_batch);
  saver.AddValue("levers checkpoint", levers_.checkpoint.ToString());
  saver.AddValue("levers offload", levers_.offload);
  saver.AddValue("levers chosen_for", chosen_for_);
  saver.AddValue("steps", steps_);
  saver.AddValue("patience", patience_);
  saver.AddValue("calm_steps", calm_steps_);
  saver.AddBytes("extra", extra);
  saver.Write(path);
}

std::string Trainer::Load(const std::filesystem::path& path) {
  StateLoader loader = StateLoader::Open(path);
  const Copies model = TakeModel(loader, *model_);
  const auto put_optimizer = TakeOptimizer(loader, kOptimizer, *optimizer_);
  const RandomState random = TakeRandom(loader, options_.device);
  const GradScaler::State scaler = TakeScaler(loader);
  const Levers levers = TakeLevers(loader);
  const std::int64_t chosen_for = loader.Count("levers chosen_for");
  const std::int64_t steps = loader.Count("steps");
  const std::int64_t patience = loader.Count("patience");
  const std::int64_t calm_steps = loader.Count("calm_steps");
  std::string extra = loader.Bytes("extra");
  loader.CheckThatNothingIsLeft();
  // All of it is right. Nothing was changed so far, and nothing is refused from here on.
  Put(model);
  put_optimizer();
  scaler_.Load(scaler);
  Use(levers);
  before_trying_.reset();
  chosen_for_ = chosen_for;
  steps_ = steps;
  patience_ = patience;
  calm_steps_ = calm_steps;
  random.Restore();
  return extra;
}

}  // namespace plimsoll::train
