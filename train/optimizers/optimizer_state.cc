#include "train/optimizers/optimizer_state.h"

#include <ATen/ops/empty_like.h>
#include <c10/util/StringUtil.h>
#include <c10/util/Type.h>
#include <torch/csrc/autograd/grad_mode.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/rmsprop.h>

#include <memory>
#include <typeindex>
#include <utility>
#include <vector>

#include "train/optimizers/adam8bit.h"
#include "train/optimizers/fused_adam.h"
#include "train/optimizers/host_optimizer.h"

namespace plimsoll::train {
namespace {

namespace optim = torch::optim;

using StateMap = std::decay_t<decltype(std::declval<optim::Optimizer&>().state())>;

/// What torch's constructors and kernels expect of a number. A state may have come from anywhere.
enum class NumberRange { kAny, kFromZero, kFromZeroBelowOne };

bool IsWithin(double number, NumberRange range) {
  if (range == NumberRange::kAny) return true;
  return number >= 0 && (range == NumberRange::kFromZero || number < 1);
}

/// Goes through the members of a state or of options, to save or to load them.
class Fields {
 public:
  virtual ~Fields() = default;
  virtual void Number(const char* name, double& number, NumberRange range) = 0;
  virtual void Flag(const char* name, bool& flag) = 0;
  virtual void Count(const char* name, std::int64_t& count) = 0;
  /// Which must be the same when it is loaded.
  virtual void Same(const char* name, const std::string& text) = 0;
  /// With the sizes and type of `like`. None where `like` is none, or where it may be missing.
  virtual void Tensor(const char* name, at::Tensor& tensor, const at::Tensor& like,
                      bool may_be_missing = false) = 0;
};

class SavedFields final : public Fields {
 public:
  SavedFields(StateSaver& saver, std::string prefix) : saver_(saver), prefix_(std::move(prefix)) {}

  void Number(const char* name, double& number, NumberRange) override { Add(name, number); }
  void Flag(const char* name, bool& flag) override { Add(name, flag); }
  void Count(const char* name, std::int64_t& count) override { Add(name, count); }
  void Same(const char* name, const std::string& text) override { Add(name, text); }
  void Tensor(const char* name, at::Tensor& tensor, const at::Tensor&, bool) override {
    if (tensor.defined()) saver_.AddTensor(prefix_ + name, tensor);
  }

 private:
  void Add(const char* name, StateValue value) {
    saver_.AddValue(prefix_ + name, std::move(value));
  }

  StateSaver& saver_;
  std::string prefix_;
};

/// Makes room for a tensor like another.
using Place = std::function<at::Tensor(const at::Tensor& like)>;

class LoadedFields final : public Fields {
 public:
  LoadedFields(StateLoader& loader, std::string prefix, Place place = {})
      : loader_(loader), prefix_(std::move(prefix)), place_(std::move(place)) {}

  void Number(const char* name, double& number, NumberRange range) override {
    number = loader_.Number(prefix_ + name);
    if (IsWithin(number, range)) return;
    loader_.Fail(c10::str("'", prefix_, name, "' is ", number, ", which no optimizer works with"));
  }
  void Flag(const char* name, bool& flag) override { flag = loader_.Flag(prefix_ + name); }
  void Count(const char* name, std::int64_t& count) override {
    count = loader_.Count(prefix_ + name);
  }
  void Same(const char* name, const std::string& text) override {
    const std::string saved = loader_.Text(prefix_ + name);
    if (saved == text) return;
    loader_.Fail("'" + prefix_ + name + "' is " + saved + " in it, and " + text + " here");
  }
  void Tensor(const char* name, at::Tensor& tensor, const at::Tensor& like,
              bool may_be_missing) override {
    if (!like.defined() || (may_be_missing && !loader_.HasTensor(prefix_ + name))) return;
    const at::Tensor room = place_(like);
    tensor = room.copy_(loader_.Tensor(prefix_ + name, like.sizes(), room.scalar_type()));
  }

 private:
  StateLoader& loader_;
  std::string prefix_;
  Place place_;
};

template <class Options>
void VisitAdamOptions(Options& options, Fields& fields) {
  auto& [beta1, beta2] = options.betas();
  fields.Number("lr", options.lr(), NumberRange::kFromZero);
  fields.Number("beta1", beta1, NumberRange::kFromZeroBelowOne);
  fields.Number("beta2", beta2, NumberRange::kFromZeroBelowOne);
  fields.Number("eps", options.eps(), NumberRange::kFromZero);
  fields.Number("weight_decay", options.weight_decay(), NumberRange::kFromZero);
  fields.Flag("amsgrad", options.amsgrad());
}
void Visit(optim::AdamOptions& options, Fields& fields) { VisitAdamOptions(options, fields); }
void Visit(optim::AdamWOptions& options, Fields& fields) { VisitAdamOptions(options, fields); }

void Visit(optim::SGDOptions& options, Fields& fields) {
  fields.Number("lr", options.lr(), NumberRange::kFromZero);
  fields.Number("momentum", options.momentum(), NumberRange::kFromZero);
  fields.Number("dampening", options.dampening(), NumberRange::kAny);
  fields.Number("weight_decay", options.weight_decay(), NumberRange::kFromZero);
  fields.Flag("nesterov", options.nesterov());
}

void Visit(optim::RMSpropOptions& options, Fields& fields) {
  fields.Number("lr", options.lr(), NumberRange::kFromZero);
  fields.Number("alpha", options.alpha(), NumberRange::kFromZero);
  fields.Number("eps", options.eps(), NumberRange::kFromZero);
  fields.Number("weight_decay", options.weight_decay(), NumberRange::kFromZero);
  fields.Number("momentum", options.momentum(), NumberRange::kFromZero);
  fields.Flag("centered", options.centered());
}

void Visit(optim::AdagradOptions& options, Fields& fields) {
  fields.Number("lr", options.lr(), NumberRange::kFromZero);
  fields.Number("lr_decay", options.lr_decay(), NumberRange::kFromZero);
  fields.Number("weight_decay", options.weight_decay(), NumberRange::kFromZero);
  fields.Number("initial_accumulator_value", options.initial_accumulator_value(),
                NumberRange::kFromZero);
  fields.Number("eps", options.eps(), NumberRange::kFromZero);
}

// A tensor may be missing only where the options, as saved beside it, have no use for it: torch and
// the kernels do not look.

template <class State, class Options>
void VisitAdamState(State& state, const Options& options, const at::Tensor& parameter,
                    Fields& fields) {
  fields.Count("step", state.step());
  fields.Tensor("exp_avg", state.exp_avg(), parameter);
  fields.Tensor("exp_avg_sq", state.exp_avg_sq(), parameter);
  fields.Tensor("max_exp_avg_sq", state.max_exp_avg_sq(), parameter, !options.amsgrad());
}
void Visit(optim::AdamParamState& state, const optim::AdamOptions& options,
           const at::Tensor& parameter, Fields& fields) {
  VisitAdamState(state, options, parameter, fields);
}
void Visit(optim::AdamWParamState& state, const optim::AdamWOptions& options,
           const at::Tensor& parameter, Fields& fields) {
  VisitAdamState(state, options, parameter, fields);
}

void Visit(optim::SGDParamState& state, const optim::SGDOptions&, const at::Tensor& parameter,
           Fields& fields) {
  fields.Tensor("momentum_buffer", state.momentum_buffer(), parameter);
}

void Visit(optim::RMSpropParamState& state, const optim::RMSpropOptions& options,
           const at::Tensor& parameter, Fields& fields) {
  fields.Count("step", state.step());
  fields.Tensor("square_avg", state.square_avg(), parameter);
  fields.Tensor("momentum_buffer", state.momentum_buffer(), parameter, options.momentum() <= 0);
  fields.Tensor("grad_avg", state.grad_avg(), parameter, !options.centered());
}

void Visit(optim::AdagradParamState& state, const optim::AdagradOptions&,
           const at::Tensor& parameter, Fields& fields) {
  fields.Count("step", state.step());
  fields.Tensor("sum", state.sum(), parameter);
}

template <class Options>
void Visit(Adam8bitParamState& state, const Options&, const at::Tensor& parameter, Fields& fields) {
  const auto like = NewAdam8bitState(parameter, c10::kMeta);
  if (!state.average().defined()) state.strides(like->strides());
  fields.Count("step", state.step());
  fields.Same("strides", "[" + c10::Join(", ", state.strides()) + "]");
  fields.Tensor("average", state.average(), like->average());
  fields.Tensor("average_scale", state.average_scale(), like->average_scale());
  fields.Tensor("square", state.square(), like->square());
  fields.Tensor("square_scale", state.square_scale(), like->square_scale());
}

/// Optimizers with the same options and the same state.
struct Kind {
  const char* name;
  std::vector<std::type_index> optimizers;
  void (*visit_options)(optim::OptimizerOptions& options, Fields& fields);
  std::unique_ptr<optim::OptimizerParamState> (*new_state)();
  void (*visit_state)(optim::OptimizerParamState& state, const optim::OptimizerOptions& options,
                      const at::Tensor& parameter, Fields& fields);
};

template <class State, class Options>
Kind KindOf(const char* name, std::vector<std::type_index> optimizers) {
  return {.name = name,
          .optimizers = std::move(optimizers),
          .visit_options = [](optim::OptimizerOptions& options,
                              Fields& fields) { Visit(static_cast<Options&>(options), fields); },
          .new_state = []() -> std::unique_ptr<optim::OptimizerParamState> {
            return std::make_unique<State>();
          },
          .visit_state =
              [](optim::OptimizerParamState& state, const optim::OptimizerOptions& options,
                 const at::Tensor& parameter, Fields& fields) {
                Visit(static_cast<State&>(state), static_cast<const Options&>(options), parameter,
                      fields);
              }};
}

const std::vector<Kind>& Kinds() {
  static const std::vector<Kind> kinds = {
      KindOf<optim::SGDParamState, optim::SGDOptions>("SGD",
                                                      {typeid(optim::SGD), typeid(FusedSgd)}),
      KindOf<optim::AdamParamState, optim::AdamOptions>(
          "Adam", {typeid(optim::Adam), typeid(FusedAdam), typeid(HostAdam)}),
      KindOf<optim::AdamWParamState, optim::AdamWOptions>(
          "AdamW", {typeid(optim::AdamW), typeid(FusedAdamW), typeid(HostAdamW)}),
      KindOf<optim::RMSpropParamState, optim::RMSpropOptions>("RMSprop", {typeid(optim::RMSprop)}),
      KindOf<optim::AdagradParamState, optim::AdagradOptions>("Adagrad", {typeid(optim::Adagrad)}),
      KindOf<Adam8bitParamState, optim::AdamOptions>("Adam8bit", {typeid(Adam8bit)}),
      KindOf<Adam8bitParamState, optim::AdamWOptions>("AdamW8bit", {typeid(AdamW8bit)})};
  return kinds;
}

const Kind& KindFor(const optim::Optimizer& optimizer) {
  const std::type_index type = typeid(optimizer);
  for (const Kind& kind : Kinds()) {
    for (const std::type_index& known : kind.optimizers) {
      if (known == type) return kind;
    }
  }
  TORCH_CHECK(
      false, "the state of the optimizer ", c10::demangle(type.name()),
      " can be neither saved nor loaded: known are SGD, Adam, AdamW, RMSprop and Adagrad of "
      "torch, not what is derived from them, and the optimizers of plimsoll::train");
}

std::string GroupPrefix(const std::string& prefix, std::size_t group) {
  return c10::str(prefix, "group ", group, " ");
}
std::string ParameterPrefix(const std::string& prefix, std::size_t index) {
  return c10::str(prefix, "parameter ", index, " ");
}

constexpr const char* kMaster = "master";

/// A count that must be the same.
void TakeSameCount(StateLoader& loader, const std::string& name, std::size_t here) {
  const std::int64_t saved = loader.Count(name);
  if (static_cast<std::size_t>(saved) == here) return;
  loader.Fail(c10::str("'", name, "' is ", saved, " in it, and ", here, " here"));
}

/// All that a load puts into an optimizer.
struct Loaded {
  std::vector<std::unique_ptr<optim::OptimizerOptions>> options;
  StateMap state;
  MastersOnHost::Masters masters;
};

Place PlaceFor(const optim::Optimizer& optimizer, const at::Tensor& parameter) {
  if (dynamic_cast<const MastersOnHost*>(&optimizer) != nullptr) return HostLike;
  return [device = parameter.device()](const at::Tensor& like) {
    return at::empty_like(like, like.options().device(device).requires_grad(false));
  };
}

void TakeParameter(StateLoader& loader, const std::string& prefix, const Kind& kind,
                   const optim::Optimizer& optimizer, const at::Tensor& parameter, Loaded& loaded) {
  if (loader.Flag(prefix + "has_state")) {
    auto state = kind.new_state();
    LoadedFields fields(loader, prefix, PlaceFor(optimizer, parameter));
    kind.visit_state(*state, *loaded.options.back(), parameter, fields);
    loaded.state[parameter.unsafeGetTensorImpl()] = std::move(state);
  }
  const bool on_host = dynamic_cast<const MastersOnHost*>(&optimizer) != nullptr;
  if (!on_host || !loader.HasTensor(prefix + kMaster)) return;
  const at::Tensor room = HostLike(parameter);
  room.copy_(loader.Tensor(prefix + kMaster, parameter.sizes(), room.scalar_type()));
  loaded.masters.emplace_back(parameter, room);
}

void Put(optim::Optimizer& optimizer, Loaded& loaded) {
  optimizer.state() = std::move(loaded.state);
  for (std::size_t i = 0; i < loaded.options.size(); ++i) {
    optimizer.param_groups()[i].set_options(std::move(loaded.options[i]));
  }
  if (auto* host = dynamic_cast<MastersOnHost*>(&optimizer)) host->SetMasters(loaded.masters);
}

}  // namespace

void AddOptimizer(StateSaver& saver, const std::string& prefix, const optim::Optimizer& optimizer) {
  const Kind& kind = KindFor(optimizer);
  const auto* host = dynamic_cast<const MastersOnHost*>(&optimizer);
  saver.AddValue(prefix + "kind", kind.name);
  saver.AddValue(prefix + "groups", static_cast<std::int64_t>(optimizer.param_groups().size()));
  std::size_t index = 0;
  for (std::size_t i = 0; i < optimizer.param_groups().size(); ++i) {
    const optim::OptimizerParamGroup& group = optimizer.param_groups()[i];
    const std::string group_prefix = GroupPrefix(prefix, i);
    saver.AddValue(group_prefix + "parameters", static_cast<std::int64_t>(group.params().size()));
    const std::unique_ptr<optim::OptimizerOptions> options = group.options().clone();
    SavedFields option_fields(saver, group_prefix);
    kind.visit_options(*options, option_fields);
    for (const at::Tensor& parameter : group.params()) {
      const std::string name = ParameterPrefix(prefix, index++);
      const auto state = optimizer.state().find(parameter.unsafeGetTensorImpl());
      const bool has_state = state != optimizer.state().end();
      saver.AddValue(name + "has_state", has_state);
      SavedFields fields(saver, name);
      if (has_state) kind.visit_state(*state->second, *options, parameter, fields);
      const at::Tensor master = host != nullptr ? host->MasterOf(parameter) : at::Tensor();
      if (master.defined()) saver.AddTensor(name + kMaster, master);
    }
  }
}

std::function<void()> TakeOptimizer(StateLoader& loader, const std::string& prefix,
                                    optim::Optimizer& optimizer) {
  const torch::NoGradGuard no_grad;
  const Kind& kind = KindFor(optimizer);
  const std::string saved = loader.Text(prefix + "kind");
  if (saved != kind.name) {
    loader.Fail("it is the state of the optimizer " + saved + ", and here is " + kind.name);
  }
  TakeSameCount(loader, prefix + "groups", optimizer.param_groups().size());
  // Shared, since the function that is returned can be copied.
  const auto loaded = std::make_shared<Loaded>();
  std::size_t index = 0;
  for (std::size_t i = 0; i < optimizer.param_groups().size(); ++i) {
    const optim::OptimizerParamGroup& group = optimizer.param_groups()[i];
    const std::string group_prefix = GroupPrefix(prefix, i);
    TakeSameCount(loader, group_prefix + "parameters", group.params().size());
    LoadedFields fields(loader, group_prefix);
    kind.visit_options(*loaded->options.emplace_back(group.options().clone()), fields);
    for (const at::Tensor& parameter : group.params()) {
      TakeParameter(loader, ParameterPrefix(prefix, index++), kind, optimizer, parameter, *loaded);
    }
  }
  return [loaded, &optimizer] { Put(optimizer, *loaded); };
}

void SaveOptimizer(const std::filesystem::path& path, const optim::Optimizer& optimizer) {
  StateSaver saver;
  AddOptimizer(saver, "optimizer ", optimizer);
  saver.Write(path);
}

void LoadOptimizer(const std::filesystem::path& path, optim::Optimizer& optimizer) {
  StateLoader loader = StateLoader::Open(path);
  const auto put = TakeOptimizer(loader, "optimizer ", optimizer);
  loader.CheckThatNothingIsLeft();
  put();
}

}  // namespace plimsoll::train
