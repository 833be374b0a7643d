// What fits of a job over the batch and a length: the longest at a batch, the largest batch at each
// of several lengths, and where most is trained on in a second.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "job/answer/max_batch.h"
#include "job/answer/rank_set.h"

namespace plimsoll {

/// The ranks of the job at a length, in the setting that is asked about.
using RanksAtLength = std::function<Result<RankSet>(std::int64_t length)>;

struct MaxLength {
  /// It fits even if everything takes as much as it may; 0: none does.
  std::int64_t sure = 0;
  /// The longest that may fit.
  std::int64_t most = 0;
  /// Lengths so far apart were tried: at those every size is a whole number.
  std::int64_t apart = 1;
};

/// How far lengths are apart at which sizes are whole numbers as they are at those of a capture.
std::int64_t LengthsApart(const std::vector<std::int64_t>& captured);

/// At the batch of the setting. `captured`: the lengths of the capture.
Result<MaxLength> FindMaxLength(const RanksAtLength& at, const std::vector<std::int64_t>& captured);

/// What samples of a length are counted in.
struct SampleUnit {
  /// "tokens", "pixels"
  std::string_view name;
  /// The length is the side of an image: a sample has its square.
  bool squared = false;

  /// A double, since squares of hostile lengths are beyond an integer.
  double OfSample(std::int64_t length) const {
    return double(length) * (squared ? double(length) : 1);
  }
};

/// By what the user calls the length.
SampleUnit UnitOf(std::string_view length_name);

/// The largest batch that fits at a length.
struct FrontierPoint {
  std::int64_t length = 0;
  /// One that surely fits; where none does, batch 0.
  BatchSpeed sure;
  std::int64_t most = 0;
  /// The unit's in a sample.
  double in_sample = 0;

  double InStep() const { return double(sure.samples) * in_sample; }
  double PerSecond() const { return sure.SamplesPerSecond() * in_sample; }
};

struct Frontier {
  /// What the user calls a length.
  std::string name;
  /// Growing lengths, as far as a batch of 1 fits.
  std::vector<FrontierPoint> points;

  SampleUnit Unit() const { return UnitOf(name); }
  /// In a step. Nothing where no point fits for certain.
  const FrontierPoint* Most() const;
  /// In a second.
  const FrontierPoint* Fastest() const;
};

Result<Frontier> FindFrontier(const RanksAtLength& at, const std::vector<std::int64_t>& captured,
                              std::string name);

}  // namespace plimsoll
