// Weights that were left whole beside others that are kept in 4 or 8 bits.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "job/trial/setting.h"

namespace plimsoll {

struct WholeWeights {
  /// The weights' name, with a star for the number of a layer.
  std::string name;
  std::int64_t count = 0;
  Bytes bytes = 0;
  /// What they would take less, quantized as the others are.
  Bytes saves = 0;
};

struct Unquantized {
  /// 4 or 8.
  int bits = 4;
  Bytes quantized = 0;
  /// Of all weights that are not trained, by their number and not their bytes, how many are whole.
  double share = 0;
  /// The largest first.
  std::vector<WholeWeights> whole;

  Bytes bytes() const;
  Bytes saves() const;
};

/// Nothing where no weight is quantized, or where what is left is little.
std::optional<Unquantized> FindUnquantized(const Setting& setting);

}  // namespace plimsoll
