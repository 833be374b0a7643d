// Loss scaling for fp16, as torch.amp.GradScaler does it, which LibTorch lacks.
#pragma once

#include <torch/optim/optimizer.h>

#include <cstdint>
#include <unordered_map>
#include <vector>

namespace plimsoll::train {

struct GradScalerOptions {
  double initial_scale = 65536;
  /// After growth_interval good steps in a row the scale grows by this.
  double growth_factor = 2;
  /// After a step that was not finite the scale falls by this.
  double backoff_factor = 0.5;
  std::int64_t growth_interval = 2000;
  /// Off: everything passes through.
  bool enabled = true;
};

class GradScaler {
 public:
  explicit GradScaler(GradScalerOptions options = {});

  /// Scale and tracker lie there, so that nothing waits for them; else where the first loss is.
  void PlaceOn(c10::Device device);
  /// The loss to go backward from.
  at::Tensor Scale(const at::Tensor& loss);
  /// Divides the gradients by the scale: for clipping before the step. Once a step.
  void Unscale(torch::optim::Optimizer& optimizer);
  /// Steps, unless a gradient is not finite. Unscales first if that was not done. False where the
  /// step was skipped. Whole or not at all: a step that ran out of memory may be repeated.
  bool Step(torch::optim::Optimizer& optimizer);
  /// Whether all gradients that were unscaled since the last Update are finite. Waits for the
  /// device.
  bool FoundFinite() const;
  /// Another rank has found one that is not finite.
  void FoundElsewhere();
  /// After the last optimizer's step: the scale for the next.
  void Update();
  /// Forgets what was unscaled since the last Update: for a step that begins again with other
  /// gradients.
  void Forget() { progress_.clear(); }

  bool enabled() const { return options_.enabled; }
  /// Waits for the device.
  double scale() const;
  const GradScalerOptions& options() const { return options_; }

  /// What is saved with a checkpoint.
  struct State {
    double scale = 0;
    double growth_factor = 0;
    double backoff_factor = 0;
    std::int64_t growth_interval = 0;
    std::int64_t growth_tracker = 0;

    bool operator==(const State&) const = default;
  };
  State state() const;
  void Load(const State& state);

 private:
  /// How far an optimizer has come since the last Update.
  struct Progress {
    /// On each device that has gradients: above 0 where one is not finite.
    std::vector<at::Tensor> found;
    bool stepped = false;
  };

  GradScalerOptions options_;
  double first_scale_;
  std::int32_t first_growth_tracker_ = 0;
  at::Tensor scale_;
  at::Tensor growth_tracker_;
  std::unordered_map<const torch::optim::Optimizer*, Progress> progress_;
};

}  // namespace plimsoll::train
