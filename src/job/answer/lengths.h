// What fits of a job over the batch and a length: the longest at a batch, the largest batch at each
// of several lengths, and where most is trained on in a second.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/result.h"
#include "job/answer/max_batch.h"
#include "job/trial/setting.h"

namespace plimsoll {

/// The job at a length, in the setting that is asked about.
using SettingAtLength = std::function<Result<Setting>(std::int64_t length)>;

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
Result<MaxLength> FindMaxLength(const SettingAtLength& at,
                                const std::vector<std::int64_t>& captured);

/// The largest batch that fits at a length.
struct FrontierPoint {
  std::int64_t length = 0;
  /// One that surely fits; where none does, batch 0.
  BatchSpeed sure;
  std::int64_t most = 0;

  /// Of a step: tokens of sequences.
  std::int64_t Tokens() const { return sure.samples * length; }
  double TokensPerSecond() const { return sure.SamplesPerSecond() * double(length); }
};

struct Frontier {
  /// What the user calls a length.
  std::string name;
  /// Growing lengths, as far as a batch of 1 fits.
  std::vector<FrontierPoint> points;

  /// Nothing where no point fits for certain.
  const FrontierPoint* MostTokens() const;
  const FrontierPoint* Fastest() const;
};

Result<Frontier> FindFrontier(const SettingAtLength& at, const std::vector<std::int64_t>& captured,
                              std::string name);

}  // namespace plimsoll
