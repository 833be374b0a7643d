// A step of 8-bit Adam for the GPU's compiler, which is asked for it at run time: so that building
// the library needs none. What adam8bit_kernels.cc has for the CPU, equal but for rounding: it
// divides once for an element in place of ten times, which were most of its instructions. A test
// compares them where there is a GPU.
#pragma once

namespace plimsoll::train::adam8bit {

/// The type of the parameter comes in as the macro Number.
inline constexpr char kCudaSource[] = R"cuda(
struct Half { unsigned short bits; };
struct Bfloat16 { unsigned short bits; };

__device__ float Get(float x) { return x; }
__device__ float Get(double x) { return static_cast<float>(x); }
__device__ float Get(Half x) {
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(x.bits));
  return value;
}
__device__ float Get(Bfloat16 x) { return __uint_as_float(static_cast<unsigned>(x.bits) << 16); }

__device__ void Put(float& to, float value) { to = value; }
__device__ void Put(double& to, float value) { to = value; }
__device__ void Put(Half& to, float value) {
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(to.bits) : "f"(value));
}
__device__ void Put(Bfloat16& to, float value) {
  const unsigned bits = __float_as_uint(value);
  // To the nearest, and from the middle to the even one.
  const unsigned rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  to.bits = static_cast<unsigned short>(value != value ? 0x7fc0u : rounded);
}

// As the structs of the same names on the host.
struct Constants {
  float beta1, beta2, rest1, rest2, epsilon, coupled_decay, shrink, rate, root;
};
struct Arguments {
  Number* parameter;
  const Number* gradient;
  void* average;
  float* average_scale;
  void* square;
  float* square_scale;
  long long elements;
  double over_elements;
  double average_dither, square_dither;
  Constants constants;
};

constexpr int kBlock = 256;
constexpr int kWarp = 32;
constexpr int kOfThread = kBlock / kWarp;
constexpr int kAverageCodes = 127;
constexpr int kSquareCodes = 255;
constexpr float kSmallestScale = 1.17549435e-38f;

__device__ float Square(float x) { return x * x; }
__device__ double Fraction(double x) { return x - floor(x); }

__device__ float AverageOf(int code) {
  const float root = static_cast<float>(code) * (1.0f / kAverageCodes);
  return code < 0 ? -Square(root) : Square(root);
}
__device__ float SquareOf(int code) {
  return Square(Square(static_cast<float>(code) * (1.0f / kSquareCodes)));
}

__device__ int Rounded(float share, int below, float low, float high, float dither) {
  return below + (dither * (high - low) < share - low ? 1 : 0);
}
__device__ signed char AverageCode(float share, float dither) {
  const float size = fabsf(share);
  const int below = min(static_cast<int>(kAverageCodes * sqrtf(size)), kAverageCodes - 1);
  const int code = Rounded(size, below, AverageOf(below), AverageOf(below + 1), dither);
  return static_cast<signed char>(share < 0 ? -code : code);
}
__device__ unsigned char SquareCode(float share, float dither) {
  const int below = min(static_cast<int>(kSquareCodes * sqrtf(sqrtf(share))), kSquareCodes - 1);
  const int code = Rounded(share, below, SquareOf(below), SquareOf(below + 1), dither);
  return static_cast<unsigned char>(max(1, code));
}

__device__ float Advance(const Constants& c, float value, float gradient, float& average,
                         float& square) {
  gradient += c.coupled_decay * value;
  average = c.beta1 * average + c.rest1 * gradient;
  square = c.beta2 * square + c.rest2 * gradient * gradient;
  return value * c.shrink - c.rate * average / (sqrtf(square) * (1 / c.root) + c.epsilon);
}

__device__ float LargestOfWarp(float value) {
  for (int distance = kWarp / 2; distance > 0; distance /= 2) {
    value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, distance));
  }
  return value;
}

// What a thread has of a block: every 32nd element.
struct Share {
  float value[kOfThread], gradient[kOfThread], average[kOfThread], square[kOfThread];
};

struct Block {
  long long index, begin;
  int count, lane;
};

#define FOR_EACH_OF_THREAD(k, i, block) \
  _Pragma("unroll") for (int k = 0, i = block.lane; k < kOfThread; ++k, i += kWarp) if (i < block.count)

// All is asked for before the first of it is used.
__device__ void Read(const Arguments& a, const Block& block, Share& share) {
  const signed char* const average_codes = static_cast<signed char*>(a.average) + block.begin;
  const unsigned char* const square_codes = static_cast<unsigned char*>(a.square) + block.begin;
  int average_code[kOfThread], square_code[kOfThread];
  FOR_EACH_OF_THREAD(k, i, block) {
    share.value[k] = Get(a.parameter[block.begin + i]);
    share.gradient[k] = Get(a.gradient[block.begin + i]);
    average_code[k] = average_codes[i];
    square_code[k] = square_codes[i];
  }
  const float average_scale = a.average_scale[block.index];
  const float square_scale = a.square_scale[block.index];
  FOR_EACH_OF_THREAD(k, i, block) {
    share.average[k] = AverageOf(average_code[k]) * average_scale;
    share.square[k] = SquareOf(square_code[k]) * square_scale;
  }
}

__device__ void Encode(const Arguments& a, const Block& block, const Share& share,
                       float average_scale, float square_scale) {
  signed char* const average_codes = static_cast<signed char*>(a.average) + block.begin;
  unsigned char* const square_codes = static_cast<unsigned char*>(a.square) + block.begin;
  const float average_inverse = 1 / average_scale;
  const float square_inverse = 1 / square_scale;
  const double start = Fraction(static_cast<double>(block.begin) * a.over_elements);
  const double average_dither = Fraction(start + a.average_dither);
  const double square_dither = Fraction(start + a.square_dither);
  FOR_EACH_OF_THREAD(k, i, block) {
    const double here = i * a.over_elements;
    average_codes[i] = AverageCode(share.average[k] * average_inverse,
                                   static_cast<float>(Fraction(average_dither + here)));
    square_codes[i] = SquareCode(share.square[k] * square_inverse,
                                 static_cast<float>(Fraction(square_dither + here)));
  }
}

// A warp does a block.
extern "C" __global__ void StepInCodes(const Arguments a) {
  Block block;
  block.index = (static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x) / kWarp;
  block.begin = block.index * kBlock;
  if (block.begin >= a.elements) return;
  const long long left = a.elements - block.begin;
  block.count = left < kBlock ? static_cast<int>(left) : kBlock;
  block.lane = threadIdx.x % kWarp;
  Share share;
  Read(a, block, share);
  float average_scale = kSmallestScale, square_scale = kSmallestScale;
  FOR_EACH_OF_THREAD(k, i, block) {
    const float value = Advance(a.constants, share.value[k], share.gradient[k], share.average[k],
                                share.square[k]);
    Put(a.parameter[block.begin + i], value);
    average_scale = fmaxf(average_scale, fabsf(share.average[k]));
    square_scale = fmaxf(square_scale, share.square[k]);
  }
  average_scale = LargestOfWarp(average_scale);
  square_scale = LargestOfWarp(square_scale);
  if (block.lane == 0) {
    a.average_scale[block.index] = average_scale;
    a.square_scale[block.index] = square_scale;
  }
  Encode(a, block, share, average_scale, square_scale);
}

// Without codes: a small parameter.
extern "C" __global__ void StepExactly(const Arguments a) {
  const long long i = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= a.elements) return;
  float* const average = static_cast<float*>(a.average) + i;
  float* const square = static_cast<float*>(a.square) + i;
  Put(a.parameter[i],
      Advance(a.constants, Get(a.parameter[i]), Get(a.gradient[i]), *average, *square));
}
)cuda";

}  // namespace plimsoll::train::adam8bit
