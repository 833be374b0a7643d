// The arithmetic of 8-bit Adam: one step of one parameter, with its state in blocks of 256 codes of
// a byte, each block with its own scale.
//
// Both states have their codes closer together near zero, where most values lie: an average is
// sign(c) (c/127)^2 times the largest of its block, a mean square is (c/255)^4 times. A mean square
// changes by a thousandth in a step, which is less than the distance of two codes: rounded to the
// nearest it would never move. So a value between two codes becomes either of them, as often as it
// is close to it. What decides is no random number, but a sequence that fills the unit interval
// evenly, over the elements and over the steps: the same each time, and no state of a generator.
// The smallest mean square is code 1, not 0: a step divides by it.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace plimsoll::train::adam8bit {

inline constexpr std::int64_t kBlock = 256;

constexpr std::int64_t BlocksOf(std::int64_t elements) { return (elements + kBlock - 1) / kBlock; }

struct Step {
  /// Flat, the same number of elements on the same device.
  at::Tensor parameter;
  at::Tensor gradient;
  /// Codes (int8, uint8) in whole blocks, with a scale (fp32) a block; or fp32 for each element,
  /// and no scales.
  at::Tensor average, average_scale;
  at::Tensor square, square_scale;

  /// Of this step: the first is 1.
  std::int64_t number = 1;
  double learning_rate = 0;
  double beta1 = 0;
  double beta2 = 0;
  double epsilon = 0;
  double weight_decay = 0;
  /// Weight decay as AdamW has it.
  bool decoupled = false;

  bool in_codes() const { return average_scale.defined(); }
};

/// All that is the same for each element. The CUDA kernel takes it as it lies here.
struct Constants {
  explicit Constants(const Step& step);

  float beta1, beta2, rest1, rest2, epsilon, coupled_decay, shrink;
  float rate, root;
};

/// Fractions whose multiples fill the unit interval evenly: of the golden ratio, and of the plastic
/// number, its like in two dimensions.
inline constexpr double kOverElements = 0.6180339887498949;
inline constexpr double kOverSteps = 0.7548776662466927;
/// Averages go through the sequence out of step with mean squares.
inline constexpr double kAverageOffset = 0.5698402909980532;

/// On the CPU; block by block, so that it needs no memory.
void RunOnCpu(const Step& step);

/// Whether there is a kernel of our own for parameters such as this one: on a CUDA device, where
/// it could be compiled, which the first question for a device and type does. The answer stays.
bool HasCudaKernel(const at::Tensor& parameter);
/// Where there is one. On the current stream; needs no memory.
void RunOnCuda(const Step& step);

/// For any device by tensor operations, one chunk of elements after the other.
class Workspace {
 public:
  /// Enough for parameters of so many elements.
  Workspace(c10::Device device, std::int64_t elements);
  /// Allocates nothing on the device.
  void Run(const Step& step);
  c10::Device device() const { return average_.device(); }

 private:
  static constexpr std::int64_t kChunk = std::int64_t{1} << 20;

  void RunChunk(const Step& step, std::int64_t begin, std::int64_t count);

  at::Tensor average_, square_, gradient_, scratch_, other_, dither_;
};

}  // namespace plimsoll::train::adam8bit
