#include "diagnose/phases/stack_traits_native.h"

#include <algorithm>
#include <array>
#include <cctype>

#include "diagnose/phases/stack_traits.h"

namespace plimsoll {
namespace {

constexpr std::string_view kAnonymous = "(anonymous namespace)";
constexpr std::string_view kOperator = "operator";
constexpr std::string_view kDecltype = "decltype";

constexpr std::array<std::string_view, 10> kTorchPrefixes = {"torch::",
                                                             "at::",
                                                             "c10::",
                                                             "c10d::",
                                                             "caffe2::",
                                                             "sdp::",
                                                             "PyTorchMemEffAttention::",
                                                             "THP",
                                                             "pytorch_flash",
                                                             "dispatch_cutlass"};

constexpr std::array<std::string_view, 15> kRuntimePrefixes = {
    "std::",     "__",    "_start",  "start_thread", "pthread_", "execute_native_thread",
    "GOMP_",     "gomp_", "omp_",    "cudnn",        "cublas",   "nccl",
    "cutlass::", "cub::", "thrust::"};

/// Optimizers that are no class of torch::optim, told by their class's name.
constexpr std::array<std::string_view, 8> kOptimizerNames = {
    "Adam", "SGD", "Sgd", "Optimizer", "Adagrad", "Adafactor", "RMSprop", "LBFGS"};

/// Functions of PyTorch by which one can tell what goes on, wherever they are called from.
struct TorchSign {
  std::string_view prefix;
  std::uint16_t sign;
};
constexpr std::array<TorchSign, 19> kTorchSigns = {{
    {"torch::autograd::Engine::thread_main", kSignEngine},
    {"torch::autograd::Engine::evaluate_function", kSignEngine},
    {"torch::autograd::SavedVariable::unpack", kSignUnpack},
    // Schedulers live there too, but are no optimizer's step.
    {"torch::optim::LRScheduler", 0},
    {"torch::optim::StepLR", 0},
    {"torch::optim::ReduceLROnPlateau", 0},
    {"torch::optim::", kSignOptimizer},
    {"at::_ops::_fused_ada", kSignOptimizer},
    {"at::_ops::_fused_sgd", kSignOptimizer},
    {"at::_ops::_amp_foreach_non_finite", kSignScalerStep},
    {"at::_ops::_amp_update_scale", kSignScalerStep},
    {"c10d::Reducer::initialize_buckets", kSignDdp},
    {"torch::nn::Module::to", kSignApply},
    {"torch::nn::Module::clone", kSignApply},
    {"torch::nn::Cloneable", kSignApply},
    {"torch::jit::Module::to", kSignApply},
    {"torch::jit::load", kSignApply},
    {"torch::nn::Module::register_", kSignConstructor},
    {"torch::nn::init::", kSignConstructor},
}};

bool IsIdentifier(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }

template <std::size_t N>
bool StartsWithAny(std::string_view text, const std::array<std::string_view, N>& prefixes) {
  return std::any_of(prefixes.begin(), prefixes.end(),
                     [&](std::string_view prefix) { return text.starts_with(prefix); });
}

/// `word` begins at `at` and is a word of its own.
bool IsWordAt(std::string_view text, std::size_t at, std::string_view word) {
  if (!text.substr(at).starts_with(word)) return false;
  const bool begins = at == 0 || !IsIdentifier(text[at - 1]);
  const std::size_t end = at + word.size();
  return begins && (end == text.size() || !IsIdentifier(text[end]));
}

/// Past the bracket that closes the one at `open`; brackets of all kinds count alike.
std::size_t PastBracket(std::string_view text, std::size_t open) {
  int depth = 0;
  for (std::size_t i = open; i < text.size(); ++i) {
    const char c = text[i];
    // "->" closes nothing.
    const bool arrow = c == '>' && i > 0 && text[i - 1] == '-';
    if (c == '<' || c == '(' || c == '{' || c == '[') ++depth;
    if ((c == '>' && !arrow) || c == ')' || c == '}' || c == ']') --depth;
    if (depth == 0) return i + 1;
  }
  return text.size();
}

/// The end of an operator's name, which may have brackets and spaces in it.
std::size_t PastOperator(std::string_view text, std::size_t at) {
  std::size_t end = at + kOperator.size();
  if (text.substr(end).starts_with("()")) return end + 2;
  while (end < text.size() && text[end] != '(') ++end;
  return end;
}

/// Compilers write a lambda as "f()::{lambda(int)#1}", "f()::$_0" or "f()::'lambda'(int)".
bool LambdaFollows(std::string_view rest) {
  return rest.starts_with("::{") || rest.starts_with("::$") || rest.starts_with("::'");
}

std::uint16_t TorchSigns(std::string_view name) {
  for (const TorchSign& known : kTorchSigns) {
    if (name.starts_with(known.prefix)) return known.sign;
  }
  if (!name.starts_with("torch::nn::")) return 0;
  const std::string_view member = MemberOf(name);
  if (member == "forward") return kSignModuleCall;
  const bool makes = member == "reset" || member == "reset_parameters" || member == ClassOf(name);
  return makes ? kSignConstructor : 0;
}

/// Unscaling and stepping, not scaling: that is part of the forward.
bool IsScalerStep(std::string_view class_name, std::string_view member) {
  if (class_name.find("Scaler") == std::string_view::npos) return false;
  std::string lower(member);
  std::transform(lower.begin(), lower.end(), lower.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return lower.starts_with("unscale") || lower.starts_with("step") || lower.starts_with("update");
}

bool IsOptimizerName(std::string_view class_name) {
  return std::any_of(kOptimizerNames.begin(), kOptimizerNames.end(), [&](std::string_view known) {
    return class_name.find(known) != std::string_view::npos;
  });
}

/// A LibTorch module is called by its `forward`, which the holder's operator() calls and compilers
/// inline: unlike in Python, the name of the user's own function is the only sign.
void AddUserSigns(std::string_view name, NativeFrame& frame) {
  const std::string_view class_name = ClassOf(name);
  const std::string_view member = MemberOf(name);
  if (class_name.empty()) return;
  if (member == "forward") frame.signs |= kSignModuleCall;
  // TORCH_MODULE(Net) holds a NetImpl.
  if (member == class_name && class_name.ends_with("Impl")) frame.signs |= kSignConstructor;
  if (IsScalerStep(class_name, member)) frame.signs |= kSignScalerStep;
  frame.own_optimizer = IsOptimizerName(class_name);
  if (frame.own_optimizer) frame.signs |= kSignOptimizer;
}

}  // namespace

std::string_view NativeName(std::string_view text) {
  // The name ends at its parameters; what stands before it, up to a space, is the type that it
  // returns.
  std::size_t start = 0;
  std::size_t i = 0;
  while (i < text.size()) {
    const std::string_view rest = text.substr(i);
    if (rest.starts_with(kAnonymous)) {
      i += kAnonymous.size();
    } else if (IsWordAt(text, i, kOperator)) {
      i = PastOperator(text, i);
      break;
    } else if (IsWordAt(text, i, kDecltype)) {
      i = PastBracket(text, std::min(text.find('(', i), text.size()));
    } else if (text[i] == '(' || (i > start && LambdaFollows(rest))) {
      break;
    } else if (text[i] == '<') {
      i = PastBracket(text, i);
    } else {
      if (text[i] == ' ' && !rest.starts_with(" [")) start = i + 1;
      if (rest.starts_with(" [")) break;
      ++i;
    }
  }
  return text.substr(start, i - start);
}

std::string ShortNativeName(std::string_view demangled) {
  const std::string_view name = NativeName(demangled);
  std::string out;
  for (std::size_t i = 0; i < name.size();) {
    const std::string_view rest = name.substr(i);
    if (rest.starts_with(kAnonymous)) {
      i += kAnonymous.size();
      if (name.substr(i).starts_with("::")) i += 2;
    } else if (IsWordAt(name, i, kOperator)) {
      out += rest;
      break;
    } else if (name[i] == '<' || name[i] == '[') {
      i = PastBracket(name, i);
    } else {
      out += name[i++];
    }
  }
  return out;
}

std::string_view MemberOf(std::string_view short_name) {
  const std::size_t colons = short_name.rfind("::");
  return colons == std::string_view::npos ? short_name : short_name.substr(colons + 2);
}

std::string_view ClassOf(std::string_view short_name) {
  const std::size_t colons = short_name.rfind("::");
  return colons == std::string_view::npos ? "" : MemberOf(short_name.substr(0, colons));
}

NativeFrame ClassifyNative(std::string_view demangled) {
  NativeFrame frame;
  const std::string name = ShortNativeName(demangled);
  if (name.empty() || name == "??") {
    frame.owner = NativeOwner::kUnknown;
  } else if (StartsWithAny(name, kTorchPrefixes)) {
    frame.owner = NativeOwner::kTorch;
    frame.signs = TorchSigns(name);
  } else if (StartsWithAny(name, kRuntimePrefixes) || name == "clone" || name == "clone3") {
    frame.callback = name.starts_with("std::_Function_handler");
  } else {
    frame.owner = NativeOwner::kUser;
    AddUserSigns(name, frame);
  }
  return frame;
}

}  // namespace plimsoll
