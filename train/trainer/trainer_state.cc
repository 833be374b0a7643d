// Save and Load of the trainer: everything that the next step depends on.
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
#include "train/saving/state_tensors.h"
#include "train/trainer/trainer.h"

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
  if (state.scale <= 0 || state.growth_interval > kMost || state.growth_tracker > kMost) {
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

/// The levers, and what they were chosen for.
struct Choice {
  Levers levers;
  std::int64_t made_for = 0;
  std::string within;
  std::vector<Levers> better;
};

Choice TakeChoice(StateLoader& loader) {
  Choice choice{.levers = TakeLevers(loader, "levers "),
                .made_for = loader.Count("levers chosen_for"),
                .within = loader.Text(kChosenWithin)};
  const std::int64_t better = loader.Count("levers better");
  for (std::int64_t i = 0; i < better; ++i) {
    choice.better.push_back(TakeLevers(loader, BetterPrefix(static_cast<std::size_t>(i))));
  }
  return choice;
}

/// What each rank has for itself.
struct Own {
  RandomState random;
  Choice choice;
  std::int64_t patience = 0;
  std::int64_t calm_steps = 0;
};

Own TakeOwn(StateLoader& loader, c10::Device device) {
  return {.random = TakeRandom(loader, device),
          .choice = TakeChoice(loader),
          .patience = loader.Count("patience"),
          .calm_steps = loader.Count("calm_steps")};
}

/// None where fewer ranks were there when it was saved.
std::optional<Own> TakeOwnOf(int rank, StateLoader& loader, c10::Device device) {
  std::optional<Own> own;
  // That of rank 0 is always there, whoever asks.
  Own first = TakeOwn(loader, device);
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

std::string Trainer::ChosenWithin() const {
  const auto text = [](const auto& value) {
    return value ? c10::str(*value) : std::string("free");
  };
  return c10::str(
      options_.device.type(), ", budget ", text(options_.budget), ", precision ",
      PrecisionName(options_.precision), ", micro-batch ", text(options_.micro_batch),
      ", checkpoint ", options_.checkpoint ? options_.checkpoint->ToString() : std::string("free"),
      ", offload ", text(options_.offload), ", chunked loss ", text(options_.chunked_loss),
      team_->ranks().alone() ? std::string() : c10::str(", ranks ", team_->ranks().size()));
}

void Trainer::AddOwn(StateSaver& saver) const {
  const RandomState random = RandomState::Of(options_.device);
  saver.AddTensor(kRandomCpu, random.cpu());
  if (random.cuda().defined()) saver.AddTensor(kRandomCuda, random.cuda());
  AddLevers(saver, "levers ", levers_);
  saver.AddValue("levers chosen_for", chosen_for_);
  saver.AddValue(kChosenWithin, ChosenWithin());
  saver.AddValue("levers better", static_cast<std::int64_t>(better_.size()));
  for (std::size_t i = 0; i < better_.size(); ++i) AddLevers(saver, BetterPrefix(i), better_[i]);
  saver.AddValue("patience", patience_);
  saver.AddValue("calm_steps", calm_steps_);
}

void Trainer::Save(const std::filesystem::path& path, const std::string& extra) const {
  CheckNotSwapped();
  Ranks& ranks = team_->ranks();
  ranks.Doing(c10::str("saving after step ", steps_));
  StateSaver own;
  AddOwn(own);
  const std::vector<std::string> own_of_all =
      ranks.alone() ? std::vector<std::string>(1) : ranks.Tell(own.Bytes());
  StateSaver saver;
  if (const Sharded* const sharded = team_->sharded()) {
    AddRest(saver, extra, own_of_all);
    SaveSharded(path, *sharded, {stepped_.begin(), stepped_.end()}, ranks, saver.Bytes());
    return;
  }
  if (const auto part = team_->part()) {
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

void Trainer::AddModelAndOptimizers(StateSaver& saver) const {
  ForEachTensor(*model_, [&](const std::string& name, const at::Tensor& tensor) {
    saver.AddTensor(name, tensor);
  });
  saver.AddValue("optimizers", static_cast<std::int64_t>(optimizers_.size()));
  for (std::size_t i = 0; i < optimizers_.size(); ++i) {
    AddOptimizer(saver, PrefixOf(i), *optimizers_[i]);
  }
  if (!ema_) return;
  saver.AddValue("ema updates", ema_->updates());
  for (const auto& [name, average] : ema_->tensors()) saver.AddTensor("ema " + name, average);
}

void Trainer::AddRest(StateSaver& saver, const std::string& extra,
                      const std::vector<std::string>& own_of_all) const {
  AddScaler(saver, scaler_.state());
  saver.AddValue(kForm, std::string(form_ ? FormName(*form_) : kGivenForm));
  AddOwn(saver);
  for (std::size_t rank = 1; rank < own_of_all.size(); ++rank) {
    saver.AddBytes(OwnName(static_cast<int>(rank)), own_of_all[rank]);
  }
  saver.AddValue("steps", steps_);
  saver.AddBytes("extra", extra);
}

/// The form that was saved; for another budget the one that takes least first, from which choosing
/// goes on. A state in 8 bits is neither made of one in fp32 nor made one.
std::vector<std::optional<OptimizerForm>> Trainer::FormsToLoad(std::optional<OptimizerForm> saved,
                                                               bool still_good) const {
  if (!form_) return {std::nullopt};
  const OptimizerForm before = saved.value_or(*form_);
  std::vector<std::optional<OptimizerForm>> forms;
  const auto add = [&](OptimizerForm form) {
    constexpr auto kEight = OptimizerForm::kEightBits;
    const bool allowed = std::ranges::count(forms_.allowed, form) > 0;
    const bool same_kind = (form == kEight) == (before == kEight);
    const bool known = std::ranges::count(forms, std::optional(form)) > 0;
    if (allowed && same_kind && !known) forms.emplace_back(form);
  };
  if (still_good) add(before);
  for (auto form = forms_.allowed.rbegin(); form != forms_.allowed.rend(); ++form) add(*form);
  if (forms.empty()) forms.push_back(form_);
  return forms;
}

std::string Trainer::ExtraIn(const std::filesystem::path& path) const {
  return RestIn(path).Bytes("extra");
}

StateLoader Trainer::RestIn(const std::filesystem::path& path) const {
  StateLoader main = StateLoader::Open(path);
  CheckSavedAlike(main);
  if (team_->sharded() != nullptr) return StateLoader::FromBytes(main.Bytes("extra"));
  return team_->part() ? StateLoader::FromBytes(main.Bytes(kRest)) : std::move(main);
}

std::shared_ptr<void> Trainer::WholeModel() { return team_->WholeModel(); }

std::string Trainer::Load(const std::filesystem::path& path) {
  CheckNotSwapped();
  team_->ranks().Doing("loading");
  // What is put in place lies in them.
  std::optional<StateLoader> rest;
  std::optional<StateLoader> own;
  Loaded loaded;
  DoEach(team_->ranks(), [&] {
    if (team_->part()) own.emplace(OwnPartIn(path));
    rest.emplace(RestIn(path));
    if (team_->sharded() != nullptr) {
      TakeFormOfSharded(*rest, loaded);
    } else {
      TakeModelAndOptimizers(own ? *own : *rest, *rest, loaded);
    }
    if (own) own->CheckThatNothingIsLeft();
    TakeRest(*rest, loaded);
  });
  if (Sharded* const sharded = team_->sharded()) {
    if (form_ && loaded.form) UseForm(*loaded.form);
    LoadSharded(path, *sharded, stepped_, team_->ranks());
  }
  // All of it is right on all ranks, and nothing is refused from here on.
  for (const auto& put : loaded.puts) put();
  // Where one had no room for it, ranks may have taken different forms: then all choose anew.
  if (form_) {
    for (const std::string& form : team_->ranks().Tell(std::string(FormName(*form_)))) {
      if (form != FormName(*form_)) chosen_for_ = 0;
    }
  }
  return loaded.extra;
}

void Trainer::CheckSavedAlike(StateLoader& main) const {
  constexpr const char* kWhole = "ranks, or one process, with all of the model each";
  constexpr const char* kShards = "ranks that shard";
  std::string saved = kWhole;
  if (main.HasValue(kSaveInParts)) saved = kShards;
  if (main.HasValue(kCut)) saved = main.Text(kCut);
  std::string here = team_->sharded() != nullptr ? kShards : kWhole;
  if (const auto part = team_->part()) here = part->cut;
  if (saved != here) main.Fail(c10::str("it was saved by ", saved, ", and here are ", here));
}

StateLoader Trainer::OwnPartIn(const std::filesystem::path& path) const {
  StateLoader main = StateLoader::Open(path);
  CheckSavedAlike(main);
  PartsList parts(path, main);
  const auto part = team_->part();
  main.Text(kCut);
  parts.Take(main, part->parts);
  return parts.Load(part->number);
}

void Trainer::TakeFormOfSharded(StateLoader& rest, Loaded& loaded) {
  loaded.form = TakeForm(rest);
  const bool allowed =
      !form_ || !loaded.form || std::ranges::count(forms_.allowed, *loaded.form) > 0;
  if (!allowed) rest.Fail("its optimizer has a form that is not allowed here");
}

void Trainer::TakeModelAndOptimizers(StateLoader& loader, StateLoader& rest, Loaded& loaded) {
  loaded.puts.emplace_back([model = TakeModel(loader, *model_)] { Put(model); });
  const std::int64_t count = loader.Count("optimizers");
  if (count != static_cast<std::int64_t>(optimizers_.size())) {
    loader.Fail(c10::str("it has ", count, " optimizers, and here are ", optimizers_.size()));
  }
  Optimizers optimizers;
  std::vector<std::function<void()>> puts;
  const auto forms = FormsToLoad(TakeForm(rest), rest.Text(kChosenWithin) == ChosenWithin());
  for (std::size_t tried = 0; tried < forms.size(); ++tried) {
    loaded.form = forms[tried];
    optimizers = loaded.form == form_ ? optimizers_ : Optimizers{Made(*loaded.form)};
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
  if (optimizers != optimizers_) {
    loaded.puts.emplace_back([this, optimizers, form = *loaded.form] { Take(optimizers, form); });
  }
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

void Trainer::TakeRest(StateLoader& loader, Loaded& loaded) {
  std::optional<Own> own = TakeOwnOf(team_->ranks().rank(), loader, options_.device);
  const bool still_good = own && own->choice.within == ChosenWithin();
  const GradScaler::State scaler = TakeScaler(loader);
  const std::int64_t steps = loader.Count("steps");
  loaded.extra = loader.Bytes("extra");
  loader.CheckThatNothingIsLeft();
  loaded.puts.emplace_back([=, this, own = std::move(own)] {
    scaler_.Load(scaler);
    Use(still_good ? own->choice.levers : Levers());
    before_trying_.reset();
    better_ = still_good ? own->choice.better : std::vector<Levers>();
    chosen_for_ = still_good ? own->choice.made_for : 0;
    steps_ = steps;
    patience_ = still_good ? own->patience : 0;
    calm_steps_ = still_good ? own->calm_steps : 0;
    if (own) own->random.Restore();
  });
}

}  // namespace plimsoll::train
