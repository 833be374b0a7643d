// Which optimizers are known, how people name them, and what each allocates.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace plimsoll {

std::vector<std::string_view> OptimizerNames();

/// How an optimizer's step is computed.
enum class OptimizerForm : std::uint8_t {
  kForeach,
  /// One parameter after the other.
  kLoop,
  kFused,
  /// On the host, where the state lies too (train/optimizers/host_optimizer.h,
  /// python/plimsoll/applying/host_optimizer.py).
  kHost,
};
/// "foreach", "for", "fused", "host"
std::string_view OptimizerFormName(OptimizerForm form);

/// An optimizer to take the place of the captured one.
struct OtherOptimizer {
  /// One of OptimizerNames.
  std::string name;
  /// What the optimizer does unless told, where none is given.
  std::optional<OptimizerForm> form = {};
  /// Each parameter is updated as soon as its gradient is complete, which is then dropped.
  bool in_backward = false;
};

/// "adamw", "sgd", "adam8bit", "adamw:fused", "adam:for", "adam:host", "adamw:fused:in_backward".
Result<OtherOptimizer> ParseOptimizer(std::string_view text);
/// As ParseOptimizer takes it.
std::string OptimizerText(const OtherOptimizer& optimizer);

/// What an optimizer allocates for parameters in fp32, measured on an H200 with torch 2.11
/// (docs/prediction.md, "Optimizers"): 42 optimizers and forms, three steps each.
struct OptimizerFacts {
  std::string_view name;
  /// Tensors of state for each parameter, each of the parameter's size.
  int states = 0;
  /// The foreach form: full lists that are held until its end.
  int lists = 0;
  bool can_fuse = false;
  /// Bytes of state for each element, where it is not the parameter's type; 0 where it is.
  int state_element = 0;
  /// The state comes in blocks of so many elements with a 4-byte scale each; 0 for none.
  int state_block = 0;
  /// The state of a matrix is a row and a column.
  bool factored = false;
  /// For the time of a step: bytes read and written for each element of a parameter, in fp32, by
  /// the foreach form (in so many calls) and by the fused one. Of Adam and SGD as PyTorch calls
  /// them; of the others by their definitions.
  double foreach_bytes = 0;
  int foreach_calls = 1;
  double fused_bytes = 0;
  /// It reads values from the device, and the host waits for them.
  bool waits = false;
};

struct ChosenOptimizer {
  OptimizerFacts facts;
  OptimizerForm form = OptimizerForm::kForeach;
  bool in_backward = false;
};
/// Refuses what ParseOptimizer would.
Result<ChosenOptimizer> ChooseOptimizer(const OtherOptimizer& asked);

}  // namespace plimsoll
