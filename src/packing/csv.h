// Reads and writes problems as CSV, in the format of MiniMalloc:
//
//   id,lower,upper,size
//   b1,0,3,4
//   b2,3,9,4
#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "files/input.h"
#include "packing/problem.h"

namespace plimsoll {

struct PackingCsv {
  Problem problem;
  /// The id of each buffer, as written.
  std::vector<std::string> ids;
  /// Buffers with gaps in their lifetimes. A gap is time in which others might use the buffer's
  /// place; here nobody does, so a packing is valid, but may be higher than needed.
  std::size_t with_gaps = 0;
};

/// The first row names the columns, in any order: id, lower (or start, begin), upper (or end, which
/// is inclusive), size, and optionally alignment. Other columns (hint, gaps, offset) are not used.
Result<PackingCsv> ReadPackingCsv(const Input& input);

/// The rows id,lower,upper,size,offset; with alignment where a buffer has one.
std::string WritePackingCsv(const PackingCsv& csv, const Packing& packing);

}  // namespace plimsoll
