#include "diagnose/phases/stack_traits.h"

#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>

#include "base/hash.h"
#include "base/text.h"
#include "diagnose/phases/stack_traits_native.h"
#include "timeline/predicted_run.h"
#include "timeline/torch_folder.h"

namespace plimsoll {
namespace {

bool IsPython(std::string_view file) { return file.ends_with(".py") || file.starts_with("<"); }

bool HasPython(const StackTable& stacks) {
  for (std::size_t f = 0; f < stacks.frame_count(); ++f) {
    if (IsPython(stacks.strings[stacks.frame(FrameId(f)).file])) return true;
  }
  return false;
}

std::string_view WithoutFolders(std::string_view file) {
  const std::size_t slash = file.find_last_of("/\\");
  return slash == std::string_view::npos ? file : file.substr(slash + 1);
}

std::string Joined(const std::vector<std::string>& chain) {
  std::string text;
  for (auto it = chain.rbegin(); it != chain.rend(); ++it) {
    if (!text.empty()) text += " > ";
    text += *it;
  }
  return text;
}

/// A file that torch.compile wrote. Its cache may be anywhere: they are named by a hash of 51
/// digits of base 32 behind a "c", in a folder of two of them.
bool IsWrittenByCompiler(std::string_view file) {
  if (file.find("torchinductor") != std::string_view::npos) return true;
  constexpr std::size_t kName = 52;
  constexpr std::string_view kEnding = ".py";
  if (!file.ends_with(kEnding)) return false;
  const std::string_view name = file.substr(file.rfind('/') + 1);
  if (name.size() != kName + kEnding.size() || name[0] != 'c') return false;
  const std::string_view hash = name.substr(0, kName);
  const bool digits = std::all_of(hash.begin(), hash.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '2' && c <= '7');
  });
  const std::string folder = fmt::format("/{}/{}", name.substr(1, 2), name);
  return digits && file.ends_with(folder);
}

bool IsLibrary(std::string_view file) {
  return file.find("site-packages/") != std::string_view::npos ||
         file.find("dist-packages/") != std::string_view::npos ||
         file.find("/lib/python") != std::string_view::npos || file.starts_with("<frozen") ||
         file.find("/Lib/") != std::string_view::npos ||  // where Windows keeps Python's own
         IsWrittenByCompiler(file);
}

/// What a C++ frame adds to the signs of the frames inside it. A module that is called inside the
/// engine is computed again; so is, or is brought back, what a hook makes for a saved tensor.
std::uint16_t CppSigns(std::uint16_t signs, const StackTraits& inside) {
  const bool nested = (inside.signs & kSignEngine) != 0;
  if ((signs & kSignEngine) != 0 && !nested && (inside.signs & kSignModuleCall) != 0) {
    signs |= kSignCheckpoint;
  }
  if (!inside.user_frame.valid()) signs &= ~kSignUnpack;
  return signs;
}

/// Of functions that are called load_file, _save, persistent_load.
std::uint16_t CheckpointSigns(std::string_view function) {
  if (Contains(function, "load")) return kSignLoad;
  return Contains(function, "save") ? kSignSave : 0;
}

std::uint16_t SignsOf(std::string_view in_torch, std::string_view function) {
  // `in_torch` is the path below PyTorch's folder.
  if (in_torch == "serialization.py") return CheckpointSigns(function);
  if (in_torch.starts_with("distributed/checkpoint/state_dict_")) return CheckpointSigns(function);
  if (in_torch == "optim/optimizer.py" && function == "load_state_dict") {
    return kSignOptimizer | kSignLoad;
  }
  if (in_torch.starts_with("optim/")) {
    // Schedulers and weight averages live there too, but are no optimizer's step.
    const bool other =
        in_torch.starts_with("optim/lr_scheduler") || in_torch.starts_with("optim/swa_utils");
    return other ? 0 : kSignOptimizer;
  }
  if (in_torch == "nn/modules/module.py") {
    if (function == "_apply" || function == "convert") return kSignApply;
    if (function == "load_state_dict") return kSignLoad;
    if (function == "_call_impl" || function == "_wrapped_call_impl") return kSignModuleCall;
    return 0;
  }
  if (in_torch.starts_with("nn/modules/") && function == "__init__") return kSignConstructor;
  if (in_torch.find("fsdp") != std::string_view::npos) return kSignFsdp;
  if (in_torch == "nn/parallel/distributed.py") return kSignDdp;
  if (in_torch.starts_with("nn/parallel/")) return kSignDataParallel;
  if (in_torch == "amp/autocast_mode.py") return kSignAutocast;
  if (in_torch.ends_with("grad_scaler.py")) {
    const bool step = function == "step" || function == "unscale_" || function == "update" ||
                      function == "_unscale_grads_" || function == "_maybe_opt_step";
    return step ? kSignScalerStep : 0;
  }
  if (in_torch == "utils/checkpoint.py") return kSignCheckpoint;
  if (in_torch == "autograd/graph.py" && function == "_engine_run_backward") return kSignEngine;
  return 0;
}

}  // namespace

struct StackAnalysis::Numbers {
  using Map = std::unordered_map<std::uint64_t, std::uint32_t>;
  Map roots;
  Map sites;
  Map callers;
  /// From 1: 0 stands for "none".
  static std::uint32_t Of(Map& map, std::uint64_t hash) {
    return map.emplace(hash, static_cast<std::uint32_t>(map.size() + 1)).first->second;
  }
};

StackAnalysis::FrameKind StackAnalysis::Classify(const Frame& frame) const {
  const StackTable& stacks = timeline_.stacks;
  const std::string_view recorded = stacks.strings[frame.file];
  const bool windows = recorded.find('\\') != std::string_view::npos;
  const std::string written = windows ? ForwardSlashes(recorded) : std::string();
  const std::string_view file = windows ? written : recorded;
  FrameKind kind;
  kind.counts = IsPython(file);
  if (!kind.counts) {
    // Beside Python's frames those of C++ tell one thing: that autograd's engine is at work.
    const NativeFrame native = ClassifyNative(stacks.strings[frame.function]);
    kind.signs = native.signs & kSignEngine;
    kind.torch = native.owner == NativeOwner::kTorch;
    return kind;
  }
  kind.signs = file.ends_with("cache_utils.py") || file.ends_with("kv_cache.py") ? kSignCache : 0;
  if (file.ends_with("/safetensors/torch.py")) {
    kind.signs |= CheckpointSigns(stacks.strings[frame.function]);
  }
  std::string_view in_torch;
  if (!torch_folder_.empty() && file.starts_with(torch_folder_)) {
    in_torch = file.substr(torch_folder_.size());
  } else if (const std::size_t at = file.find("-packages/torch/"); at != std::string_view::npos) {
    in_torch = file.substr(at + 16);
  }
  kind.torch = !in_torch.empty();
  if (kind.torch) kind.signs |= SignsOf(in_torch, stacks.strings[frame.function]);
  kind.optimizer_wrapper = in_torch == "optim/optimizer.py";
  // Launchers start the user's program; they are no sign of autograd's thread.
  if (in_torch.starts_with("multiprocessing/") || in_torch.starts_with("distributed/run") ||
      in_torch.starts_with("distributed/launch") || in_torch.starts_with("distributed/elastic")) {
    kind.torch = false;
  }
  kind.user = in_torch.empty() && !IsLibrary(file);
  kind.written = IsWrittenByCompiler(file);
  return kind;
}

StackAnalysis::FrameKind StackAnalysis::ClassifyCpp(const Frame& frame) const {
  const NativeFrame native = ClassifyNative(timeline_.stacks.strings[frame.function]);
  return {.signs = native.signs,
          .counts = native.owner != NativeOwner::kRuntime,
          .torch = native.owner == NativeOwner::kTorch,
          .user = native.owner == NativeOwner::kUser,
          .optimizer_wrapper = native.own_optimizer,
          .callback = native.callback};
}

StackAnalysis::StackAnalysis(const Timeline& timeline)
    : timeline_(timeline),
      cpp_(!HasPython(timeline.stacks)),
      torch_folder_(FindTorchFolder(timeline.stacks)) {
  const StackTable& stacks = timeline.stacks;
  kinds_.reserve(stacks.frame_count());
  // C++ frames are known by their function alone, and many have the same.
  std::unordered_map<StringId, FrameKind> by_function;
  for (std::size_t f = 0; f < stacks.frame_count(); ++f) {
    const Frame& frame = stacks.frame(FrameId(f));
    if (!cpp_) {
      kinds_.push_back(Classify(frame));
      continue;
    }
    const auto [found, is_new] = by_function.try_emplace(frame.function);
    if (is_new) found->second = ClassifyCpp(frame);
    kinds_.push_back(found->second);
  }
  Numbers numbers;
  traits_.reserve(stacks.stack_count());
  for (std::size_t s = 0; s < stacks.stack_count(); ++s) {
    traits_.push_back(TraitsOf(StackId(s), numbers));
  }
}

/// A line names a place of Python; C++ frames have none, so that only the function does.
std::uint64_t StackAnalysis::PlaceHash(const Frame& frame) const {
  const std::uint64_t line = MixHash(frame.file.value, static_cast<std::uint32_t>(frame.line));
  return cpp_ ? MixHash(line, frame.function.value) : line;
}

StackTraits StackAnalysis::TraitsOf(StackId stack, Numbers& numbers) const {
  StackTraits t;
  std::uint64_t site = 0;
  std::uint64_t caller = 0;
  const Frame* outermost = nullptr;
  bool closure = false;
  bool inner_is_user = false;
  for (FrameId id : timeline_.stacks.stack(stack)) {
    const FrameKind& kind = kinds_[id.index()];
    inner_is_user |= kind.callback;
    if (!kind.counts) {
      if (!cpp_) t.signs |= kind.signs;
      continue;
    }
    const Frame& frame = timeline_.stacks.frame(id);
    // optimizer.step(closure) runs the model inside the optimizer: what a closure does is the
    // user's work, not the optimizer's.
    const bool optimizer = (kind.signs & kSignOptimizer) != 0;
    closure |= optimizer &&
               ((t.signs & kSignModuleCall) != 0 || (inner_is_user && !kind.optimizer_wrapper));
    std::uint16_t signs = closure ? kind.signs & ~kSignOptimizer : kind.signs;
    if (cpp_) signs = CppSigns(signs, t);
    t.signs |= signs;
    inner_is_user = !kind.torch;
    t.root_in_torch = cpp_ ? (t.signs & kSignEngine) != 0 : kind.torch;
    if (kind.user && !t.user_frame.valid()) t.user_frame = id;
    const std::uint64_t place = PlaceHash(frame);
    site = MixHash(site, place);
    // Frames come innermost first: what follows the last module call is outside all of them.
    caller = (kind.signs & kSignModuleCall) != 0 ? 0 : MixHash(caller, place);
    outermost = &frame;
  }
  if (outermost == nullptr) return t;
  t.framed = true;
  t.root = Numbers::Of(numbers.roots, MixHash(outermost->file.value, outermost->function.value));
  if ((t.signs & kSignModuleCall) != 0) t.caller = Numbers::Of(numbers.callers, caller);
  t.site = Numbers::Of(numbers.sites, site);
  return t;
}

std::string StackAnalysis::Where(FrameId id) const {
  const StackTable& stacks = timeline_.stacks;
  const Frame& frame = stacks.frame(id);
  if (cpp_) return CppWhere(id);
  const std::string_view file = WithoutFolders(stacks.strings[frame.file]);
  const std::string_view function = stacks.strings[frame.function];
  if (file.empty() || file == kPredictedFile) return std::string(function);
  if (function.empty()) return fmt::format("{}:{}", file, frame.line);
  return fmt::format("{}:{} in {}", file, frame.line, function);
}

const std::string& StackAnalysis::ShortName(FrameId id) const {
  static const std::string kNone;
  const StringId function = timeline_.stacks.frame(id).function;
  if (!function.valid()) return kNone;
  short_names_.resize(timeline_.stacks.strings.size());
  std::optional<std::string>& name = short_names_[function.index()];
  if (!name) name = ShortNativeName(timeline_.stacks.strings[function]);
  return *name;
}

std::string StackAnalysis::CppWhere(FrameId id) const {
  const Frame& frame = timeline_.stacks.frame(id);
  const std::string_view file = WithoutFolders(timeline_.stacks.strings[frame.file]);
  const std::string& function = ShortName(id);
  if (file.empty() || file.starts_with("??")) return function;
  if (frame.line == 0) return fmt::format("{} in {}", file, function);
  return fmt::format("{}:{} in {}", file, frame.line, function);
}

std::string StackAnalysis::WhereOf(StackId id) const {
  const StackTraits& t = of(id);
  if (t.user_frame.valid()) return Where(t.user_frame);
  FrameId innermost;
  for (FrameId frame : timeline_.stacks.stack(id)) {
    const FrameKind& kind = kinds_[frame.index()];
    if (cpp_ || !kind.counts) continue;
    // Behind a compiler's line torch has put the one that it is for.
    if (!innermost.valid() || kinds_[innermost.index()].written) innermost = frame;
    if (!kind.written) break;
  }
  return innermost.valid() ? Where(innermost) : CppWhereWithoutUser(id);
}

/// In autograd's thread the operator whose gradient is computed; else what was called in PyTorch.
std::string StackAnalysis::CppWhereWithoutUser(StackId id) const {
  const bool backward = (of(id).signs & kSignEngine) != 0;
  std::string called;
  for (FrameId frame : timeline_.stacks.stack(id)) {
    if (!kinds_[frame.index()].torch) continue;
    called = ShortName(frame);
    if (backward && called.starts_with("torch::autograd::") && MemberOf(called) == "apply") {
      return fmt::format("backward ({})", ClassOf(called));
    }
  }
  return backward ? "backward" : called;
}

std::vector<std::string> StackAnalysis::UserFrames(StackId id) const {
  std::vector<std::string> frames;
  for (FrameId frame : timeline_.stacks.stack(id)) {
    if (kinds_[frame.index()].user) frames.push_back(Where(frame));
  }
  return frames;
}

std::vector<CallLine> StackAnalysis::CallLines(StackId id) const {
  const StackTable& stacks = timeline_.stacks;
  std::vector<CallLine> lines;
  FrameId line;
  bool inside_leaf = true;  // the innermost module calls no other
  bool last_was_call = false;
  for (FrameId frame : stacks.stack(id)) {
    const FrameKind& kind = kinds_[frame.index()];
    if (!kind.counts) continue;
    const bool call = (kind.signs & kSignModuleCall) != 0;
    // Module.__call__ is two frames; in C++ the call is the module's own forward.
    if (call && (cpp_ || !last_was_call)) {
      if (!inside_leaf) lines.push_back({line});
      inside_leaf = false;
      line = cpp_ && !kind.torch ? frame : FrameId();
    }
    last_was_call = call;
    // A __call__ of Python is a way to call, not what is called.
    const bool names =
        !call && !kind.torch && stacks.strings[stacks.frame(frame).function] != "__call__";
    if (names && !inside_leaf && !line.valid()) line = frame;
  }
  if (!inside_leaf) lines.push_back({line});
  std::reverse(lines.begin(), lines.end());
  for (std::size_t i = 1; i < lines.size(); ++i) {
    if (!lines[i].frame.valid()) lines[i] = {.frame = lines[i - 1].frame, .through_torch = true};
  }
  std::erase_if(lines, [](const CallLine& l) { return !l.frame.valid(); });
  return lines;
}

/// How well a frame names the module whose call it is part of: its forward, unless that is
/// PyTorch's around one that is not (a wrapper, a Function, checkpointing).
int StackAnalysis::NamesModule(FrameId id) const {
  const bool forward = timeline_.stacks.strings[timeline_.stacks.frame(id).function] == "forward";
  return !forward ? 0 : kinds_[id.index()].torch ? 1 : 2;
}

std::vector<FrameId> StackAnalysis::ModuleFrames(StackId id) const {
  // The frame just inside Module.__call__ is the module's own forward: its file names it as well as
  // a snapshot can (objects have no names there).
  std::vector<FrameId> frames;
  FrameId inner;
  int best = 0;
  for (FrameId frame : timeline_.stacks.stack(id)) {
    const FrameKind& kind = kinds_[frame.index()];
    if (!kind.counts) continue;
    const bool call = (kind.signs & kSignModuleCall) != 0;
    if (cpp_ && call) frames.push_back(frame);
    if (!cpp_ && call && inner.valid()) frames.push_back(inner);
    if (call) {
      inner = FrameId();
      best = 0;
      continue;
    }
    // Decorators and the forwards of wrappers stand between a module's call and its own forward,
    // which is the innermost; what it calls in PyTorch is further in.
    const int names = NamesModule(frame);
    if (names > best || (names == best && names < 2)) inner = frame;
    best = std::max(best, names);
  }
  std::reverse(frames.begin(), frames.end());
  return frames;
}

std::string StackAnalysis::ModuleChain(StackId id) const {
  if (cpp_) return CppModuleChain(id);
  const StackTable& stacks = timeline_.stacks;
  std::string chain;
  for (const FrameId frame : ModuleFrames(id)) {
    std::string_view file = WithoutFolders(stacks.strings[stacks.frame(frame).file]);
    if (file.ends_with(".py")) file.remove_suffix(3);
    chain += fmt::format("{}{}:{}", chain.empty() ? "" : " > ", file, stacks.frame(frame).line);
  }
  return chain;
}

bool StackAnalysis::Tells(FrameId id) const {
  return kinds_[id.index()].counts || kinds_[id.index()].torch;
}

bool StackAnalysis::IsNative(FrameId id) const { return !kinds_[id.index()].counts; }

std::string StackAnalysis::CppModuleChain(StackId id) const {
  std::vector<std::string> chain;
  for (FrameId frame : timeline_.stacks.stack(id)) {
    if ((kinds_[frame.index()].signs & kSignModuleCall) == 0) continue;
    const std::string& name = ShortName(frame);
    const std::string_view module = ClassOf(name);
    // How a Sequential calls its parts; the part's own frame is inside it.
    if (module != "AnyModuleHolder") chain.emplace_back(module);
  }
  return Joined(chain);
}

}  // namespace plimsoll
