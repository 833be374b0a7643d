#include "train/trainer/options.h"

#include <c10/util/Exception.h>

namespace plimsoll::train {

Precision ParsePrecision(std::string_view text) {
  if (text == "fp32") return Precision::kFloat32;
  if (text == "bf16") return Precision::kBfloat16;
  TORCH_CHECK(text == "fp16", "precision '", text, "' is not one of fp32, bf16, fp16");
  return Precision::kFloat16;
}

std::string_view PrecisionName(Precision precision) {
  switch (precision) {
    case Precision::kFloat32:
      return "fp32";
    case Precision::kBfloat16:
      return "bf16";
    case Precision::kFloat16:
      return "fp16";
  }
  return {};
}

}  // namespace plimsoll::train
