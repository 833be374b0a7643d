// Where samples come from.
#pragma once

#include <c10/core/TensorOptions.h>
#include <c10/util/Exception.h>

#include <cstdint>
#include <span>
#include <string>
#include <utility>

#include "train/data/batch.h"

namespace plimsoll::train {

/// A file that cannot be used. One line that names it and says why.
class DataError : public c10::Error {
 public:
  explicit DataError(std::string line) : c10::Error(std::move(line), {}, nullptr) {}
};

class Source {
 public:
  virtual ~Source() = default;

  virtual std::int64_t size() const = 0;
  /// Of one sample, in whatever a batch's budget counts: tokens, pixels. Asked for each sample, so
  /// it should not read them. At least 1.
  virtual std::int64_t Length(std::int64_t /*index*/) const { return 1; }
  /// The samples with these numbers, one row each; always the same for the same numbers. `where`
  /// is host memory, pinned or not, to make the tensors in. A loader calls this from several
  /// threads at once, and each thread that uses torch's operators on large tensors brings its own
  /// pool of threads with it: the sources here fill tensors by loops of their own.
  virtual Batch Get(std::span<const std::int64_t> indices,
                    const at::TensorOptions& where) const = 0;
};

}  // namespace plimsoll::train
