// What the frames of a stack say about the moment of an allocation. Computed once for each distinct
// stack. Only PyTorch's own files count as signs; the names of the user's functions mean nothing
// here (a function called forward_metrics makes no activations).
//
// A record without any Python frame comes from a LibTorch program: there C++ frames count, by their
// names (stack_traits_native.h). Beside Python frames they do not.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "timeline/timeline.h"

namespace plimsoll {

/// Which thread made an allocation, told by the outermost frame that counts.
enum class Thread : std::uint8_t {
  kMain,      // the commonest root outside PyTorch
  kBackward,  // autograd's thread: no frame, or a root inside PyTorch
  kOther,     // a loader, a hook, a logger
};

/// Signs in the frames, as bits.
enum Sign : std::uint16_t {
  kSignOptimizer = 1 << 0,    // torch/optim
  kSignApply = 1 << 1,        // Module.to(), .cuda(), .half(): parameters move or are made
  kSignConstructor = 1 << 2,  // a torch.nn module's __init__: parameters are made on the device
  kSignModuleCall = 1 << 3,   // inside Module.__call__
  kSignFsdp = 1 << 4,
  kSignDdp = 1 << 5,
  kSignScalerStep = 1 << 6,     // GradScaler.step, unscale_, update
  kSignCheckpoint = 1 << 7,     // torch.utils.checkpoint
  kSignEngine = 1 << 8,         // inside the autograd engine: Python's call of it, C++'s own frames
  kSignUnpack = 1 << 9,         // C++ only: a hook of the user's makes a saved tensor anew
  kSignCache = 1 << 10,         // the keys and values that generation keeps of earlier tokens
  kSignDataParallel = 1 << 11,  // nn.DataParallel: one process, several devices
  kSignAutocast = 1 << 12,
  kSignLoad = 1 << 13,  // a checkpoint is read, or goes to its place
  kSignSave = 1 << 14,
};

/// A line that calls a module.
struct CallLine {
  FrameId frame;
  /// It calls a module of PyTorch's that calls this one, such as nn.Sequential.
  bool through_torch = false;

  friend auto operator<=>(const CallLine&, const CallLine&) = default;
};

struct StackTraits {
  std::uint16_t signs = 0;
  /// Whether it has a frame that counts.
  bool framed = false;
  bool root_in_torch = false;
  /// Identifies (file, function) of the outermost frame that counts; 0 where there is none.
  std::uint32_t root = 0;
  /// Identifies the sequence of frames with their lines: one place in the program.
  std::uint32_t site = 0;
  /// Identifies the frames outside the outermost module call: who called the model. 0: nobody.
  std::uint32_t caller = 0;
  /// The innermost frame of the user's own code; invalid where there is none.
  FrameId user_frame;
};

class StackAnalysis {
 public:
  explicit StackAnalysis(const Timeline& timeline);

  const StackTraits& of(StackId id) const { return id.valid() ? traits_[id.index()] : none_; }
  /// "train.py:57 in forward": the file without its folders. C++ often has no line and no file:
  /// "net.cc in ns::Net::forward", "ns::Net::forward".
  std::string Where(FrameId id) const;
  /// Where() of the user's innermost frame, else of the innermost frame that counts, else "".
  std::string WhereOf(StackId id) const;
  /// The user's frames, innermost first.
  std::vector<std::string> UserFrames(StackId id) const;
  /// The modules that were being called, outermost first, each by the file and line of its forward
  /// ("resnet:285 > batchnorm:194": a snapshot has no names of objects) or, in C++, by its class
  /// ("Net > LinearImpl"); "" where there is none.
  std::string ModuleChain(StackId id) const;
  /// The forwards behind ModuleChain(), outermost first.
  std::vector<FrameId> ModuleFrames(StackId id) const;
  /// The lines that call from module to module, outermost first; the first calls the model. Of the
  /// frames between two modules the innermost outside PyTorch is the line: those further out are
  /// wrappers and decorators, which only call on.
  std::vector<CallLine> CallLines(StackId id) const;
  /// Whether a frame is the user's own code, neither PyTorch's nor a library's.
  bool IsUser(FrameId id) const { return kinds_[id.index()].user; }
  /// Whether the record comes from a program of C++ alone.
  bool IsCpp() const { return cpp_ && !kinds_.empty(); }
  /// Whether a frame says anything to a person: the interpreter's own do not.
  bool Tells(FrameId id) const;
  /// Whether it is one of C++ in a record of a Python program.
  bool IsNative(FrameId id) const;

 private:
  struct FrameKind {
    std::uint16_t signs = 0;
    bool counts = false;  // Python's; in a record without any, C++'s except the runtime's
    bool torch = false;
    bool user = false;
    bool optimizer_wrapper = false;  // around every optimizer's step, the user's own ones too
    bool callback = false;           // C++: calls what the user handed over
    bool written = false;            // by a compiler: says less than the line that it is for
  };
  /// Numbers for hashes, in the order in which they come.
  struct Numbers;
  FrameKind Classify(const Frame& frame) const;
  FrameKind ClassifyCpp(const Frame& frame) const;
  StackTraits TraitsOf(StackId id, Numbers& numbers) const;
  std::uint64_t PlaceHash(const Frame& frame) const;
  int NamesModule(FrameId id) const;
  std::string CppWhere(FrameId id) const;
  /// The short form of a C++ name. It takes long to find, and a name stands in many stacks.
  const std::string& ShortName(FrameId id) const;
  std::string CppWhereWithoutUser(StackId id) const;
  std::string CppModuleChain(StackId id) const;

  const Timeline& timeline_;
  bool cpp_;  // no frame is Python's
  std::string torch_folder_;
  std::vector<FrameKind> kinds_;
  std::vector<StackTraits> traits_;
  mutable std::vector<std::optional<std::string>> short_names_;  // by name, as far as asked for
  StackTraits none_;
};

}  // namespace plimsoll
