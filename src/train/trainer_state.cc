// Save and Load of the trainer: everything that the next step depends on.
#include <torch/serialize.h>

#include <nlohmann/json.hpp>
#include <sstream>

#include "train/random_state.h"
#include "train/state_file.h"
#include "train/trainer.h"

namespace plimsoll::train {
namespace {

std::string OptimizerBytes(const torch::optim::Optimizer& optimizer) {
  torch::serialize::OutputArchive archive;
  optimizer.save(archive);
  std::ostringstream out;
  archive.save_to(out);
  return std::move(out).str();
}

void LoadOptimizer(torch::optim::Optimizer& optimizer, const std::string& bytes,
                   c10::Device device) {
  torch::serialize::InputArchive archive;
  archive.load_from(bytes.data(), bytes.size(), device);
  optimizer.load(archive);
}

/// Calls back with the name that each parameter and buffer has in the file.
template <class Function>
void ForEachTensor(torch::nn::Module& model, Function function) {
  for (auto& item : model.named_parameters()) function("parameter " + item.key(), item.value());
  for (auto& item : model.named_buffers()) function("buffer " + item.key(), item.value());
}

}  // namespace

void Trainer::Save(const std::filesystem::path& path, const std::string& extra) const {
  StateWriter writer(path);
  ForEachTensor(*model_, [&](const std::string& name, const at::Tensor& tensor) {
    writer.AddTensor(name, tensor);
  });
  writer.AddBytes("optimizer", OptimizerBytes(*optimizer_));
  const RandomState random = RandomState::Of(options_.device);
  writer.AddTensor("random cpu", random.cpu());
  if (random.cuda().defined()) writer.AddTensor("random cuda", random.cuda());
  const GradScaler::State scaler = scaler_.state();
  const nlohmann::json numbers = {{"steps", steps_},
                                  {"levers",
                                   {{"micro_batch", levers_.micro_batch},
                                    {"checkpoint", levers_.checkpoint.ToString()},
                                    {"offload", levers_.offload},
                                    {"chosen_for", chosen_for_}}},
                                  {"patience", patience_},
                                  {"calm_steps", calm_steps_},
                                  {"scaler",
                                   {{"scale", scaler.scale},
                                    {"growth_factor", scaler.growth_factor},
                                    {"backoff_factor", scaler.backoff_factor},
                                    {"growth_interval", scaler.growth_interval},
                                    {"growth_tracker", scaler.growth_tracker}}}};
  writer.AddBytes("trainer", numbers.dump());
  writer.AddBytes("extra", extra);
  writer.Commit();
}

std::string Trainer::Load(const std::filesystem::path& path) {
  StateReader reader(path);
  const auto numbers = nlohmann::json::parse(reader.Bytes("trainer"));
  ForEachTensor(
      *model_, [&](const std::string& name, at::Tensor& tensor) { reader.ReadInto(name, tensor); });
  LoadOptimizer(*optimizer_, reader.Bytes("optimizer"), options_.device);
  const auto& scaler = numbers.at("scaler");
  scaler_.Load({.scale = scaler.at("scale"),
                .growth_factor = scaler.at("growth_factor"),
                .backoff_factor = scaler.at("backoff_factor"),
                .growth_interval = scaler.at("growth_interval"),
                .growth_tracker = scaler.at("growth_tracker")});
  const auto& levers = numbers.at("levers");
  Use({.micro_batch = levers.at("micro_batch"),
       .checkpoint = CheckpointPolicy::Parse(levers.at("checkpoint").get<std::string>()),
       .offload = levers.at("offload")});
  chosen_for_ = levers.at("chosen_for");
  steps_ = numbers.at("steps");
  patience_ = numbers.at("patience");
  calm_steps_ = numbers.at("calm_steps");
  RandomState::From(options_.device, reader.Tensor("random cpu"),
                    reader.Has("random cuda") ? reader.Tensor("random cuda") : at::Tensor())
      .Restore();
  return reader.Bytes("extra");
}

}  // namespace plimsoll::train
