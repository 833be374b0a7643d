#include "diagnose/stack_traits.h"

#include <fmt/format.h>

#include <array>
#include <unordered_map>

#include "base/hash.h"

namespace plimsoll {
namespace {

/// Files that only PyTorch has; the first one found tells where it is installed.
constexpr std::array<std::string_view, 6> kTorchFiles = {
    "torch/nn/modules/module.py", "torch/_tensor.py",           "torch/optim/optimizer.py",
    "torch/autograd/graph.py",    "torch/autograd/function.py", "torch/utils/checkpoint.py"};

std::string FindTorchFolder(const StackTable& stacks) {
  for (std::size_t f = 0; f < stacks.frame_count(); ++f) {
    const std::string_view file = stacks.strings[stacks.frame(FrameId(f)).file];
    for (std::string_view known : kTorchFiles) {
      if (!file.ends_with(known)) continue;
      return std::string(file.substr(0, file.size() - known.size())) + "torch/";
    }
  }
  return "";
}

bool IsLibrary(std::string_view file) {
  return file.find("site-packages/") != std::string_view::npos ||
         file.find("dist-packages/") != std::string_view::npos ||
         file.find("/lib/python") != std::string_view::npos || file.starts_with("<frozen") ||
         file.find("torchinductor") != std::string_view::npos;
}

std::uint16_t SignsOf(std::string_view in_torch, std::string_view function) {
  // `in_torch` is the path below PyTorch's folder.
  if (in_torch.starts_with("optim/")) {
    // Schedulers and weight averages live there too, but are no optimizer's step.
    const bool other =
        in_torch.starts_with("optim/lr_scheduler") || in_torch.starts_with("optim/swa_utils");
    return other ? 0 : kSignOptimizer;
  }
  if (in_torch == "nn/modules/module.py") {
    if (function == "_apply" || function == "convert") return kSignApply;
    if (function == "_call_impl" || function == "_wrapped_call_impl") return kSignModuleCall;
    return 0;
  }
  if (in_torch.starts_with("nn/modules/") && function == "__init__") return kSignConstructor;
  if (in_torch.find("fsdp") != std::string_view::npos) return kSignFsdp;
  if (in_torch == "nn/parallel/distributed.py") return kSignDdp;
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

StackAnalysis::FrameKind StackAnalysis::Classify(const Frame& frame) const {
  const StackTable& stacks = timeline_.stacks;
  const std::string_view file = stacks.strings[frame.file];
  FrameKind kind;
  kind.python = file.ends_with(".py") || file.starts_with("<");
  if (!kind.python) return kind;
  std::string_view in_torch;
  if (!torch_folder_.empty() && file.starts_with(torch_folder_)) {
    in_torch = file.substr(torch_folder_.size());
  } else if (const std::size_t at = file.find("-packages/torch/"); at != std::string_view::npos) {
    in_torch = file.substr(at + 16);
  }
  kind.torch = !in_torch.empty();
  if (kind.torch) kind.signs = SignsOf(in_torch, stacks.strings[frame.function]);
  kind.optimizer_wrapper = in_torch == "optim/optimizer.py";
  // Launchers start the user's program; they are no sign of autograd's thread.
  if (in_torch.starts_with("multiprocessing/") || in_torch.starts_with("distributed/run") ||
      in_torch.starts_with("distributed/launch") || in_torch.starts_with("distributed/elastic")) {
    kind.torch = false;
  }
  kind.user = in_torch.empty() && !IsLibrary(file);
  return kind;
}

StackAnalysis::StackAnalysis(const Timeline& timeline)
    : timeline_(timeline), torch_folder_(FindTorchFolder(timeline.stacks)) {
  const StackTable& stacks = timeline.stacks;
  kinds_.reserve(stacks.frame_count());
  for (std::size_t f = 0; f < stacks.frame_count(); ++f) {
    kinds_.push_back(Classify(stacks.frame(FrameId(f))));
  }
  std::unordered_map<std::uint64_t, std::uint32_t> roots;
  std::unordered_map<std::uint64_t, std::uint32_t> sites;
  std::unordered_map<std::uint64_t, std::uint32_t> callers;
  traits_.resize(stacks.stack_count());
  for (std::size_t s = 0; s < stacks.stack_count(); ++s) {
    StackTraits& t = traits_[s];
    std::uint64_t site = 0;
    std::uint64_t caller = 0;
    const Frame* outermost = nullptr;
    bool closure = false;
    bool inner_is_user = false;
    for (FrameId id : stacks.stack(StackId(s))) {
      const FrameKind& kind = kinds_[id.index()];
      if (!kind.python) continue;
      const Frame& frame = stacks.frame(id);
      t.has_python = true;
      // optimizer.step(closure) runs the model inside the optimizer: what a closure does is the
      // user's work, not the optimizer's.
      const bool optimizer = (kind.signs & kSignOptimizer) != 0;
      closure |= optimizer &&
                 ((t.signs & kSignModuleCall) != 0 || (inner_is_user && !kind.optimizer_wrapper));
      t.signs |= closure ? kind.signs & ~kSignOptimizer : kind.signs;
      inner_is_user = !kind.torch;
      t.root_in_torch = kind.torch;
      if (kind.user && !t.user_frame.valid()) t.user_frame = id;
      const std::uint64_t line = MixHash(frame.file.value, static_cast<std::uint32_t>(frame.line));
      site = MixHash(site, line);
      // Frames come innermost first: what follows the last module call is outside all of them.
      caller = (kind.signs & kSignModuleCall) != 0 ? 0 : MixHash(caller, line);
      outermost = &frame;
    }
    if (outermost == nullptr) continue;
    const std::uint64_t root = MixHash(outermost->file.value, outermost->function.value);
    t.root = roots.emplace(root, static_cast<std::uint32_t>(roots.size() + 1)).first->second;
    if ((t.signs & kSignModuleCall) != 0) {
      t.caller =
          callers.emplace(caller, static_cast<std::uint32_t>(callers.size() + 1)).first->second;
    }
    t.site = sites.emplace(site, static_cast<std::uint32_t>(sites.size() + 1)).first->second;
  }
}

std::string StackAnalysis::Where(FrameId id) const {
  const StackTable& stacks = timeline_.stacks;
  const Frame& frame = stacks.frame(id);
  std::string_view file = stacks.strings[frame.file];
  if (const std::size_t slash = file.rfind('/'); slash != std::string_view::npos) {
    file.remove_prefix(slash + 1);
  }
  const std::string_view function = stacks.strings[frame.function];
  if (file.empty()) return std::string(function);
  if (function.empty()) return fmt::format("{}:{}", file, frame.line);
  return fmt::format("{}:{} in {}", file, frame.line, function);
}

std::string StackAnalysis::WhereOf(StackId id) const {
  const StackTraits& t = of(id);
  if (t.user_frame.valid()) return Where(t.user_frame);
  FrameId native;
  for (FrameId frame : timeline_.stacks.stack(id)) {
    if (kinds_[frame.index()].python) return Where(frame);
    // Frames of C++ without a file say nothing to anybody.
    const std::string_view file = timeline_.stacks.strings[timeline_.stacks.frame(frame).file];
    if (!native.valid() && !file.starts_with("??")) native = frame;
  }
  return native.valid() ? Where(native) : "";
}

std::vector<std::string> StackAnalysis::UserFrames(StackId id) const {
  std::vector<std::string> frames;
  for (FrameId frame : timeline_.stacks.stack(id)) {
    if (kinds_[frame.index()].user) frames.push_back(Where(frame));
  }
  return frames;
}

std::string StackAnalysis::ModuleChain(StackId id) const {
  // The frame just inside Module.__call__ is the module's own forward: its file names it as well as
  // a snapshot can (objects have no names there).
  const StackTable& stacks = timeline_.stacks;
  std::vector<std::string> chain;
  FrameId inner;
  for (FrameId frame : stacks.stack(id)) {
    if (!kinds_[frame.index()].python) continue;
    const bool call = (kinds_[frame.index()].signs & kSignModuleCall) != 0;
    if (call && inner.valid()) {
      std::string_view file = stacks.strings[stacks.frame(inner).file];
      if (const std::size_t slash = file.rfind('/'); slash != std::string_view::npos) {
        file.remove_prefix(slash + 1);
      }
      if (file.ends_with(".py")) file.remove_suffix(3);
      chain.push_back(fmt::format("{}:{}", file, stacks.frame(inner).line));
    }
    inner = call ? FrameId() : frame;
  }
  std::string text;
  for (auto it = chain.rbegin(); it != chain.rend(); ++it) {
    if (!text.empty()) text += " > ";
    text += *it;
  }
  return text;
}

}  // namespace plimsoll
