#include "train/trainer/trainer_state.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <utility>
#include <vector>

#include "train/budget/host_memory.h"
#include "train/checkpointing/random_state.h"
#include "train/optimizers/memory_order.h"
#include "train/optimizers/optimizer_state.h"
#include "train/parallel/ranks/agreement.h"
#include "train/parallel/sharded/saved_in_parts.h"
#include "train/parallel/sharded/sharded_state.h"

namespace plimsoll::train {
namespace {

/// One has the name it always had.
std::string PrefixOf(std::size_t optimizer) {
  return optimizer == 0 ? "optimizer " : c10::str("optimizer ", optimizer, " ");
}
/// Of rank 0 it lies among the rest.
std::string OwnName(int rank) { return c10::str("rank ", rank); }
constexpr const char* kChosenWithin = "levers chosen_within";
/// Of a save in parts: how the model is cut; and all that is in no part.
constexpr const char* kCut = "cut";
constexpr const char* kRest = "rest";
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
  const bool counts = state.growth_interval <= kMost && state.growth_tracker <= kMost;
  const bool factors =
      state.growth_factor > 1 && state.backoff_factor > 0 && state.backoff_factor < 1;
  if (state.scale <= 0 || !counts || !factors) {
    loader.Fail("its gradient scaler is not one");
  }
  return state;
}

void AddLevers(StateSaver& saver, const std::string& prefix, const Levers& levers) {
  saver.AddValue(prefix + "micro_batch", levers.micro_batch);
  saver.AddValue(prefix + "checkpoint", levers.checkpoint.ToString());
  saver.AddValue(prefix + "offload", levers.offload);
  saver.AddValue(prefix + "chunked_loss", levers.chunked_loss);
}

Levers TakeLevers(StateLoader& loader, const std::string& prefix) {
  Levers levers{.micro_batch = loader.Count(prefix + "micro_batch"),
                .offload = loader.Flag(prefix + "offload"),
                .chunked_loss = loader.Flag(prefix + "chunked_loss")};
  const std::string policy = loader.Text(prefix + "checkpoint");
  try {
    levers.checkpoint = CheckpointPolicy::Parse(policy);
  } catch (const c10::Error& error) {
    loader.Fail(error.what_without_backtrace());
  }
  return levers;
}

/// That a model of so many blocks can have them.
void CheckLevers(const StateLoader& loader, const Levers& levers, int blocks) {
  if (levers.checkpoint.last() < blocks) return;
  loader.Fail(
      c10::str("it checkpoints block ", levers.checkpoint.last(), ", and the model has ", blocks));
}

constexpr const char* kForm = "optimizer form";
/// Of an optimizer that was given, and not chosen.
constexpr const char* kGivenForm = "given";

std::optional<OptimizerForm> TakeForm(StateLoader& loader) {
  const std::string form = loader.Text(kForm);
  if (form == kGivenForm) return std::nullopt;
  try {
    return ParseForm(form);
  } catch (const c10::Error& error) {
    loader.Fail(error.what_without_backtrace());
  }
}

std::string BetterPrefix(std::size_t index) { return c10::str("levers better ", index, " "); }

RandomState TakeRandom(StateLoader& loader, c10::Device device) {
  const RandomState now = RandomState::Of(device);
  // Copies: they may outlive the file.
  const at::Tensor cpu =
      loader.Tensor(kRandomCpu, now.cpu().sizes(), now.cpu().scalar_type()).clone();
  at::Tensor cuda;
  if (now.cuda().defined() && loader.HasTensor(kRandomCuda)) {
    cuda = loader.Tensor(kRandomCuda, now.cuda().sizes(), now.cuda().scalar_type()).clone();
  } else if (loader.HasTensor(kRandomCuda)) {
    // Saved on a GPU, goes on without one.
    loader.Bytes(kRandomCuda);
  }
  const RandomState saved = RandomState::From(device, cpu, cuda);
  if (!saved.IsPossible()) loader.Fail("its state of the random numbers is not one");
  return saved;
}

/// What each rank has for itself.
struct OwnState {
  RandomState random;
  Levers levers;
  /// What these were chosen within.
  std::string within;
  LeverChoice::History history;
};

OwnState TakeOwn(StateLoader& loader, c10::Device device) {
  OwnState own{.random = TakeRandom(loader, device),
               .levers = TakeLevers(loader, "levers "),
               .within = loader.Text(kChosenWithin),
               .history = {.chosen_for = loader.Count("levers chosen_for"),
                           .better = {},
                           .patience = loader.Count("patience"),
                           .calm_steps = loader.Count("calm_steps")}};
  const std::int64_t better = loader.Count("levers better");
  for (std::int64_t i = 0; i < better; ++i) {
    own.history.better.push_back(TakeLevers(loader, BetterPrefix(static_cast<std::size_t>(i))));
  }
  return own;
}

/// None where fewer ranks were there when it was saved.
std::optional<OwnState> TakeOwnOf(int rank, StateLoader& loader, c10::Device device) {
  std::optional<OwnState> own;
  // That of rank 0 is always there, whoever asks.
  OwnState first = TakeOwn(loader, device);
  if (rank == 0) own = std::move(first);
  for (int other = 1; loader.HasTensor(OwnName(other)); ++other) {
    std::string bytes = loader.Bytes(OwnName(other));
    if (other != rank) continue;
    StateLoader part = StateLoader::FromBytes(std::move(bytes));
    own = TakeOwn(part, device);
    part.CheckThatNothingIsLeft();
  }
  return own;
}

}  // namespace

void TrainerState::AddOwn(StateSaver& saver) {
  const RandomState random = RandomState::Of(engine_.options().device);
  saver.AddTensor(kRandomCpu, random.cpu());
  if (random.cuda().defined()) saver.AddTensor(kRandomCuda, random.cuda());
  AddLevers(saver, "levers ", engine_.levers());
  const auto& [chosen_for, better, patience, calm_steps] = choice_.history();
  saver.AddValue("levers chosen_for", chosen_for);
  saver.AddValue(kChosenWithin, choice_.ChosenWithin());
  saver.AddValue("levers better", static_cast<std::int64_t>(better.size()));
  for (std::size_t i = 0; i < better.size(); ++i) AddLevers(saver, BetterPrefix(i), better[i]);
  saver.AddValue("patience", patience);
  saver.AddValue("calm_steps", calm_steps);
}

void TrainerState::Save(const std::filesystem::path& path, const std::string& extra) {
  Ranks& ranks = engine_.team().ranks();
  ranks.Doing(c10::str("saving after step ", steps_));
  StateSaver own;
  AddOwn(own);
  const std::vector<std::string> own_of_all =
      ranks.alone() ? std::vector<std::string>(1) : ranks.Tell(own.Bytes());
  StateSaver saver;
  if (const Sharded* const sharded = engine_.team().sharded()) {
    AddRest(saver, extra, own_of_all);
    const auto& stepped = optimizers_.stepped();
    SaveSharded(path, *sharded, {stepped.begin(), stepped.end()}, ranks, saver.Bytes());
    return;
  }
  if (const auto part = engine_.team().part()) {
    AddRest(saver, extra, own_of_all);
    SaveInParts(
        path, ranks, part->parts, part->first ? std::optional(part->number) : std::nullopt,
        [this](StateSaver& own_part) { AddModelAndOptimizers(own_part); },
        [&](StateSaver& main) {
          main.AddValue(kCut, part->cut);
          main.AddBytes(kRest, saver.Bytes());
        });
    return;
  }
  DoEach(ranks, [&] {
    if (ranks.rank() != 0) return;
    AddModelAndOptimizers(saver);
    AddRest(saver, extra, own_of_all);
    saver.Write(path);
  });
}

void TrainerState::AddModelAndOptimizers(StateSaver& saver) {
  ForEachTensor(engine_.model(), [&](const std::string& name, const at::Tensor& tensor) {
    saver.AddTensor(name, tensor);
  });
  const TrainedOptimizers::List& optimizers = optimizers_.list();
  saver.AddValue("optimizers", static_cast<std::int64_t>(optimizers.size()));
  for (std::size_t i = 0; i < optimizers.size(); ++i) {
    AddOptimizer(saver, PrefixOf(i), *optimizers[i]);
  }
  if (!ema_) return;
  saver.AddValue("ema updates", ema_->updates());
  for (const auto& [name, average] : ema_->tensors()) saver.AddTensor("ema " + name, average);
}

void TrainerState::AddRest(StateSaver& saver, const std::string& extra,
                           const std::vector<std::string>& own_of_all) {
  AddScaler(saver, engine_.scaler().state());
  const std::optional<OptimizerForm> form = optimizers_.form();
  saver.AddValue(kForm, std::string(form ? FormName(*form) : kGivenForm));
  AddOwn(saver);
  for (std::size_t rank = 1; rank < own_of_all.size(); ++rank) {
    saver.AddBytes(OwnName(static_cast<int>(rank)), own_of_all[rank]);
  }
  saver.AddValue("steps", steps_);
  saver.AddBytes("extra", extra);
}

std::string TrainerState::ExtraIn(const std::filesystem::path& path) {
  return RestIn(path).Bytes("extra");
}

StateLoader TrainerState::RestIn(const std::filesystem::path& path) {
  StateLoader main = StateLoader::Open(path);
  CheckSavedAlike(main);
  if (engine_.team().sharded() != nullptr) return StateLoader::FromBytes(main.Bytes("extra"));
  return engine_.team().part() ? StateLoader::FromBytes(main.Bytes(kRest)) : std::move(main);
}

std::string TrainerState::Load(const std::filesystem::path& path) {
  Ranks& ranks = engine_.team().ranks();
  ranks.Doing("loading");
  // What is put in place lies in them.
  std::optional<StateLoader> rest;
  std::optional<StateLoader> own;
  Loaded loaded;
  DoEach(ranks, [&] {
    if (engine_.team().part()) own.emplace(OwnPartIn(path));
    rest.emplace(RestIn(path));
    if (engine_.team().sharded() != nullptr) {
      TakeFormOfSharded(*rest, loaded);
    } else {
      TakeModelAndOptimizers(own ? *own : *rest, *rest, loaded);
    }
    if (own) own->CheckThatNothingIsLeft();
    TakeRest(*rest, loaded);
  });
  if (Sharded* const sharded = engine_.team().sharded()) {
    if (optimizers_.form() && loaded.form) optimizers_.Use(*loaded.form);
    LoadSharded(path, *sharded, optimizers_.stepped(), ranks);
  }
  // All of it is right on all ranks, and nothing is refused from here on.
  for (const auto& put : loaded.puts) put();
  // Where one had no room for it, ranks may have taken different forms: then all choose anew.
  if (const std::optional<OptimizerForm> own_form = optimizers_.form()) {
    for (const std::string& form : ranks.Tell(std::string(FormName(*own_form)))) {
      if (form != FormName(*own_form)) choice_.ChooseAnew();
    }
  }
  return loaded.extra;
}

void TrainerState::CheckSavedAlike(StateLoader& main) {
  constexpr const char* kWhole = "ranks, or one process, with all of the model each";
  constexpr const char* kShards = "ranks that shard";
  std::string saved = kWhole;
  if (main.HasValue(kSaveInParts)) saved = kShards;
  if (main.HasValue(kCut)) saved = main.Text(kCut);
  std::string here = engine_.team().sharded() != nullptr ? kShards : kWhole;
  if (const auto part = engine_.team().part()) here = part->cut;
  if (saved != here) main.Fail(c10::str("it was saved by ", saved, ", and here are ", here));
}

StateLoader TrainerState::OwnPartIn(const std::filesystem::path& path) {
  StateLoader main = StateLoader::Open(path);
  CheckSavedAlike(main);
  PartsList parts(path, main);
  const auto part = engine_.team().part();
  main.Text(kCut);
  parts.Take(main, part->parts);
  return parts.Load(part->number);
}

void TrainerState::TakeFormOfSharded(StateLoader& rest, Loaded& loaded) {
  loaded.form = TakeForm(rest);
  const bool allowed = !optimizers_.form() || !loaded.form ||
                       std::ranges::count(optimizers_.allowed(), *loaded.form) > 0;
  if (!allowed) rest.Fail("its optimizer has a form that is not allowed here");
}

void TrainerState::TakeModelAndOptimizers(StateLoader& loader, StateLoader& rest, Loaded& loaded) {
  loaded.puts.emplace_back([model = TakeModel(loader, engine_.model())] { Put(model); });
  TakeOptimizers(loader, rest, loaded);
  if (!ema_) return;
  const std::int64_t updates = loader.Count("ema updates");
  Copies averages;
  for (const auto& [name, average] : ema_->tensors()) {
    averages.emplace_back(average,
                          loader.Tensor("ema " + name, average.sizes(), average.scalar_type()));
  }
  loaded.puts.emplace_back([this, averages, updates] {
    Put(averages);
    ema_->set_updates(updates);
  });
}

void TrainerState::TakeOptimizers(StateLoader& loader, StateLoader& rest, Loaded& loaded) {
  using List = TrainedOptimizers::List;
  const List& here = optimizers_.list();
  const std::int64_t count = loader.Count("optimizers");
  if (count != static_cast<std::int64_t>(here.size())) {
    loader.Fail(c10::str("it has ", count, " optimizers, and here are ", here.size()));
  }
  List optimizers;
  std::vector<std::function<void()>> puts;
  const bool still_good = rest.Text(kChosenWithin) == choice_.ChosenWithin();
  const auto forms = optimizers_.FormsToLoad(TakeForm(rest), still_good);
  for (std::size_t tried = 0; tried < forms.size(); ++tried) {
    loaded.form = forms[tried];
    optimizers = loaded.form == optimizers_.form() ? here : List{optimizers_.Make(*loaded.form)};
    puts.clear();
    try {
      for (std::size_t i = 0; i < optimizers.size(); ++i) {
        puts.push_back(TakeOptimizer(loader, PrefixOf(i), *optimizers[i]));
      }
      break;
    } catch (const c10::OutOfMemoryError&) {
      if (tried + 1 == forms.size()) throw;
    }
  }
  std::ranges::copy(puts, std::back_inserter(loaded.puts));
  if (optimizers == here) return;
  loaded.puts.emplace_back(
      [this, optimizers, form = *loaded.form] { optimizers_.Take(optimizers, form); });
}

void TrainerState::TakeRest(StateLoader& loader, Loaded& loaded) {
  std::optional<OwnState> own =
      TakeOwnOf(engine_.team().ranks().rank(), loader, engine_.options().device);
  const bool still_good = own && own->within == choice_.ChosenWithin();
  if (still_good) CheckLevers(loader, own->levers, engine_.blocks().size());
  const GradScaler::State scaler = TakeScaler(loader);
  const std::int64_t steps = loader.Count("steps");
  loaded.extra = loader.Bytes("extra");
  loader.CheckThatNothingIsLeft();
  loaded.puts.emplace_back([=, this, own = std::move(own)] {
    engine_.scaler().Load(scaler);
    choice_.GoOnFrom(still_good ? own->levers : Levers(),
                     still_good ? own->history : LeverChoice::History());
    steps_ = steps;
    if (own) own->random.Restore();
  });
}

}  // namespace plimsoll::train
