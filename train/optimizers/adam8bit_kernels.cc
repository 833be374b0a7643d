#include "train/optimizers/adam8bit_kernels.h"

#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <c10/util/TypeCast.h>
#include <torch/types.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace plimsoll::train::adam8bit {
namespace {

constexpr int kAverageCodes = 127;
constexpr int kSquareCodes = 255;

double Fraction(double x) { return x - std::floor(x); }

/// The sequence from element `begin` on.
double DitherOffset(std::int64_t begin, std::int64_t step, bool of_average) {
  return Fraction(Fraction(static_cast<double>(begin) * kOverElements) +
                  static_cast<double>(step) * kOverSteps + (of_average ? kAverageOffset : 0));
}

float Square(float x) { return x * x; }

float AverageOf(int code) {
  const float root = static_cast<float>(code) / kAverageCodes;
  return code < 0 ? -Square(root) : Square(root);
}

float SquareOf(int code) { return Square(Square(static_cast<float>(code) / kSquareCodes)); }

/// The code below, or the one above if the value has come far enough towards it.
template <class Value>
int Rounded(float share, int below, Value value_of, float dither) {
  const float low = value_of(below);
  const float high = value_of(below + 1);
  return below + (dither < (share - low) / (high - low) ? 1 : 0);
}

std::int8_t AverageCode(float share, float dither) {
  const float size = std::abs(share);
  const int below = std::min(static_cast<int>(kAverageCodes * std::sqrt(size)), kAverageCodes - 1);
  const int code = Rounded(size, below, AverageOf, dither);
  return static_cast<std::int8_t>(share < 0 ? -code : code);
}

std::uint8_t SquareCode(float share, float dither) {
  const float root = std::sqrt(std::sqrt(share));
  const int below = std::min(static_cast<int>(kSquareCodes * root), kSquareCodes - 1);
  return static_cast<std::uint8_t>(std::max(1, Rounded(share, below, SquareOf, dither)));
}

/// One element. The step is made of the exact values; only what is kept is rounded.
template <class Number>
void Advance(const Constants& constants, Number& parameter, Number gradient_in, float& average,
             float& square) {
  auto value = static_cast<float>(parameter);
  const float gradient = static_cast<float>(gradient_in) + constants.coupled_decay * value;
  average = constants.beta1 * average + constants.rest1 * gradient;
  square = constants.beta2 * square + constants.rest2 * gradient * gradient;
  value *= constants.shrink;
  value -= constants.rate * average / (std::sqrt(square) / constants.root + constants.epsilon);
  parameter = c10::convert<Number>(value);
}

/// What a block is divided by. Codes of a block of zeros mean nothing; dividing by its scale must
/// not make them NaN, nor infinite where there is hardly more than zero.
float ScaleOf(const float* values, std::int64_t count) {
  float largest = std::numeric_limits<float>::min();
  for (std::int64_t i = 0; i < count; ++i) largest = std::max(largest, std::abs(values[i]));
  return largest;
}

template <class Number>
class Block {
 public:
  Block(const Step& step, const Constants& constants, std::int64_t index)
      : step_(step),
        constants_(constants),
        index_(index),
        begin_(index * kBlock),
        count_(std::min(kBlock, step.parameter.numel() - begin_)) {}

  void Run() {
    std::int8_t* const average_codes = step_.average.data_ptr<std::int8_t>() + begin_;
    std::uint8_t* const square_codes = step_.square.data_ptr<std::uint8_t>() + begin_;
    float& average_scale = step_.average_scale.data_ptr<float>()[index_];
    float& square_scale = step_.square_scale.data_ptr<float>()[index_];
    for (std::int64_t i = 0; i < count_; ++i) {
      average_[i] = AverageOf(average_codes[i]) * average_scale;
      square_[i] = SquareOf(square_codes[i]) * square_scale;
    }
    Number* const parameter = step_.parameter.data_ptr<Number>() + begin_;
    const Number* const gradient = step_.gradient.data_ptr<Number>() + begin_;
    for (std::int64_t i = 0; i < count_; ++i) {
      Advance(constants_, parameter[i], gradient[i], average_[i], square_[i]);
    }
    average_scale = ScaleOf(average_, count_);
    square_scale = ScaleOf(square_, count_);
    const float average_inverse = 1 / average_scale;
    const float square_inverse = 1 / square_scale;
    for (std::int64_t i = 0; i < count_; ++i) {
      average_codes[i] = AverageCode(average_[i] * average_inverse, Dither(i, true));
      square_codes[i] = SquareCode(square_[i] * square_inverse, Dither(i, false));
    }
  }

 private:
  float Dither(std::int64_t i, bool of_average) const {
    const double offset = of_average ? average_offset_ : square_offset_;
    return static_cast<float>(Fraction(offset + static_cast<double>(i) * kOverElements));
  }

  const Step& step_;
  const Constants& constants_;
  std::int64_t index_;
  std::int64_t begin_;
  std::int64_t count_;
  double average_offset_ = DitherOffset(begin_, step_.number, true);
  double square_offset_ = DitherOffset(begin_, step_.number, false);
  float average_[kBlock];
  float square_[kBlock];
};

/// Without codes: a small parameter.
template <class Number>
void RunExactly(const Step& step, const Constants& constants) {
  auto* const parameter = step.parameter.data_ptr<Number>();
  const auto* const gradient = step.gradient.data_ptr<Number>();
  auto* const average = step.average.data_ptr<float>();
  auto* const square = step.square.data_ptr<float>();
  for (std::int64_t i = 0; i < step.parameter.numel(); ++i) {
    Advance(constants, parameter[i], gradient[i], average[i], square[i]);
  }
}

}  // namespace

Constants::Constants(const Step& step)
    : beta1(static_cast<float>(step.beta1)),
      beta2(static_cast<float>(step.beta2)),
      rest1(static_cast<float>(1 - step.beta1)),
      rest2(static_cast<float>(1 - step.beta2)),
      epsilon(static_cast<float>(step.epsilon)),
      coupled_decay(step.decoupled ? 0 : static_cast<float>(step.weight_decay)),
      shrink(step.decoupled ? static_cast<float>(1 - step.learning_rate * step.weight_decay) : 1) {
  const auto number = static_cast<double>(step.number);
  rate = static_cast<float>(step.learning_rate / (1 - std::pow(step.beta1, number)));
  root = static_cast<float>(std::sqrt(1 - std::pow(step.beta2, number)));
}

void RunOnCpu(const Step& step) {
  const Constants constants(step);
  AT_DISPATCH_FLOATING_TYPES_AND2(
      at::kHalf, at::kBFloat16, step.parameter.scalar_type(), "adam8bit", [&] {
        if (!step.in_codes()) return RunExactly<scalar_t>(step, constants);
        constexpr std::int64_t kBlocksAtOnce = 64;
        at::parallel_for(0, BlocksOf(step.parameter.numel()), kBlocksAtOnce,
                         [&](std::int64_t begin, std::int64_t end) {
                           for (std::int64_t i = begin; i < end; ++i) {
                             Block<scalar_t>(step, constants, i).Run();
                           }
                         });
      });
}

namespace {

at::Tensor InBlocks(const at::Tensor& flat) { return flat.view({-1, kBlock}); }

/// How many of whole blocks.
std::int64_t Padded(std::int64_t count) { return BlocksOf(count) * kBlock; }

/// values = (code / codes)^power with the code's sign, times the block's scale.
void Decode(at::Tensor values, at::Tensor scratch, const at::Tensor& codes, const at::Tensor& scale,
            int largest_code) {
  values.copy_(codes).div_(largest_code);
  at::abs_out(scratch, values);
  values.mul_(scratch);
  if (largest_code == kSquareCodes) values.mul_(values);
  InBlocks(values).mul_(scale.unsqueeze(1));
}

/// level = (code / codes)^power for codes without sign.
void LevelOf(at::Tensor& level, int largest_code) {
  level.div_(largest_code);
  level.mul_(level);
  if (largest_code == kSquareCodes) level.mul_(level);
}

/// The inverse of Decode, as Rounded does it. Destroys `values` and uses three more of their size.
void Encode(at::Tensor values, const at::Tensor& dither, double dither_offset, at::Tensor below,
            at::Tensor low, at::Tensor high, at::Tensor codes, at::Tensor scale, int largest_code) {
  const bool is_square = largest_code == kSquareCodes;
  if (!is_square) {
    // Kept where the result will be, until it is there.
    at::sign_out(below, values);
    codes.copy_(below);
    values.abs_();
  }
  at::amax_out(scale, InBlocks(values), 1);
  // As ScaleOf.
  InBlocks(values).div_(scale.clamp_min_(std::numeric_limits<float>::min()).unsqueeze(1));
  at::sqrt_out(below, values);
  if (is_square) below.sqrt_();
  below.mul_(largest_code).floor_().clamp_max_(largest_code - 1);
  low.copy_(below);
  high.copy_(below).add_(1);
  LevelOf(low, largest_code);
  LevelOf(high, largest_code);
  high.sub_(low);
  // low becomes how far the value is on its way to the code above.
  low.neg_().add_(values).div_(high);
  high.copy_(dither).add_(dither_offset).frac_().lt_(low);
  below.add_(high);
  if (is_square) {
    below.clamp_min_(1);
  } else {
    below.mul_(codes);
  }
  codes.copy_(below);
}

}  // namespace

Workspace::Workspace(c10::Device device, std::int64_t elements) {
  const std::int64_t size = std::min(Padded(elements), kChunk);
  const auto options = at::TensorOptions(at::kFloat).device(device);
  dither_ = at::arange(size, options.dtype(at::kDouble)).mul_(kOverElements).frac_().to(at::kFloat);
  for (at::Tensor* const buffer : {&average_, &square_, &gradient_, &scratch_, &other_}) {
    *buffer = at::empty({size}, options);
  }
}

void Workspace::RunChunk(const Step& step, std::int64_t begin, std::int64_t count) {
  const Constants constants(step);
  const std::int64_t padded = step.in_codes() ? Padded(count) : count;
  const auto part = [&](const at::Tensor& buffer) { return buffer.narrow(0, 0, padded); };
  at::Tensor average = part(average_), square = part(square_), gradient = part(gradient_),
             scratch = part(scratch_), other = part(other_);
  const auto codes = [&](const at::Tensor& all) { return all.narrow(0, begin, padded); };
  const auto scales = [&](const at::Tensor& all) {
    return all.narrow(0, begin / kBlock, padded / kBlock);
  };
  if (step.in_codes()) {
    Decode(average, scratch, codes(step.average), scales(step.average_scale), kAverageCodes);
    Decode(square, scratch, codes(step.square), scales(step.square_scale), kSquareCodes);
  } else {
    average.copy_(codes(step.average));
    square.copy_(codes(step.square));
  }
  at::Tensor kept = step.parameter.narrow(0, begin, count);
  const bool in_place = kept.scalar_type() == at::kFloat;
  at::Tensor parameter = in_place ? kept : other.narrow(0, 0, count).copy_(kept);
  gradient.narrow(0, count, padded - count).zero_();
  at::Tensor whole = gradient.narrow(0, 0, count).copy_(step.gradient.narrow(0, begin, count));
  if (constants.coupled_decay != 0) whole.add_(parameter, constants.coupled_decay);
  average.mul_(constants.beta1).add_(gradient, constants.rest1);
  square.mul_(constants.beta2).addcmul_(gradient, gradient, constants.rest2);
  at::sqrt_out(scratch, square).div_(constants.root).add_(constants.epsilon);
  if (constants.shrink != 1) parameter.mul_(constants.shrink);
  parameter.addcdiv_(average.narrow(0, 0, count), scratch.narrow(0, 0, count), -constants.rate);
  if (!in_place) kept.copy_(parameter);
  if (!step.in_codes()) {
    codes(step.average).copy_(average);
    codes(step.square).copy_(square);
    return;
  }
  const at::Tensor dither = part(dither_);
  Encode(square, dither, DitherOffset(begin, step.number, false), gradient, scratch, other,
         codes(step.square), scales(step.square_scale), kSquareCodes);
  Encode(average, dither, DitherOffset(begin, step.number, true), gradient, scratch, other,
         codes(step.average), scales(step.average_scale), kAverageCodes);
}

void Workspace::Run(const Step& step) {
  const std::int64_t elements = step.parameter.numel();
  for (std::int64_t begin = 0; begin < elements; begin += kChunk) {
    RunChunk(step, begin, std::min(kChunk, elements - begin));
  }
}

}  // namespace plimsoll::train::adam8bit
