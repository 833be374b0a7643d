// Gradients that are NaN or infinite, found before they reach the parameters.
#pragma once

#include <c10/util/Exception.h>
#include <torch/nn/module.h>

#include <optional>
#include <string>

namespace plimsoll::train {

/// What to do when a gradient is not finite. With fp16 the gradient scaler skips the step, whatever
/// is said here: there it is part of how the scale is found.
enum class NotFinite {
  /// NotFiniteError; nothing was changed.
  kStop,
  /// The parameters stay as they are, and the report says which gradient it was.
  kSkip,
  /// Not looked at, as plain training does: it spreads to all parameters.
  kIgnore,
};

class NotFiniteError : public c10::Error {
 public:
  NotFiniteError(std::string tensor, std::int64_t step);
  /// "loss", or the name of the first parameter whose gradient it is.
  const std::string& tensor() const { return tensor_; }

 private:
  std::string tensor_;
};

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

/// The name of the first gradient that is not finite. Takes no memory to speak of; waits for the
/// device once where all are finite.
std::optional<std::string> FindNotFinite(NamedTensors gradients);

}  // namespace plimsoll::train
