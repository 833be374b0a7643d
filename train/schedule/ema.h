// Exponential moving averages of a model's parameters, with which it often does better.
#pragma once

#include <torch/nn/module.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace plimsoll::train {

struct EmaOptions {
  /// After an update the average is decay * average + (1 - decay) * model; in [0, 1).
  double decay = 0.999;
  /// Update n, from 0 on, decays by (1 + n) / (10 + n) at most, so that the first values, which are
  /// of an untrained model, are soon forgotten.
  bool warm_up = true;
};

/// Averages of all parameters and buffers of floating point numbers; other buffers (counters) are
/// copied at each update. Averages are fp32 (fp64 for fp64): with a decay near 1, changes would be
/// lost to rounding in bf16 or fp16. They lie where the model does.
class Ema {
 public:
  /// Begins with the model as it is. Parameters that the model gets later are not in it.
  explicit Ema(torch::nn::Module& model, const EmaOptions& options = {});

  /// After each step of the optimizer. Throws c10::Error while the averages are swapped in,
  /// or where a parameter has changed its size or device since.
  void Update();

  /// RAII guard: the model has the averages for its parameters and buffers, of their own types.
  /// They are the averages themselves where the types agree, so the model must not be trained then.
  /// No memory is taken otherwise. What the model had comes back when this ends, however it ends.
  class Swapped {
   public:
    Swapped(Swapped&&) = default;
    Swapped& operator=(Swapped&&) = delete;
    ~Swapped();

   private:
    friend class Ema;
    Swapped() = default;
    struct Original {
      at::Tensor tensor;
      at::Tensor data;
    };
    std::vector<Original> originals_;
    std::shared_ptr<bool> swapped_;
  };
  /// Throws c10::Error if they are swapped in already.
  [[nodiscard]] Swapped SwapIn();

  /// The averages, named "parameter NAME" and "buffer NAME": to be saved, and to be copied into.
  std::vector<std::pair<std::string, at::Tensor>> tensors() const;
  /// Whether a Swapped lives.
  bool swapped() const { return *swapped_; }
  /// How many updates there were; belongs to what is saved.
  std::int64_t updates() const { return updates_; }
  void set_updates(std::int64_t updates);

 private:
  struct Average {
    std::string name;
    at::Tensor model;
    at::Tensor average;
  };

  void Add(const std::string& name, const at::Tensor& tensor);

  EmaOptions options_;
  std::vector<Average> averages_;
  std::int64_t updates_ = 0;
  std::shared_ptr<bool> swapped_ = std::make_shared<bool>(false);
};

}  // namespace plimsoll::train
