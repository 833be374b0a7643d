// Weights as safetensors, the format that Hugging Face and others exchange: a length, a JSON
// header, and bytes. Nothing in it is ever run.
#pragma once

#include <map>
#include <string>

#include "base/result.h"
#include "files/input.h"
#include "train/state/state_file.h"

namespace plimsoll::train {

/// By name. Where they are read, the bytes are those of the input, which must live as long; they
/// need not be aligned.
using SafeTensors = std::map<std::string, StateTensor>;

/// The whole file, or why not: offsets must cover the data without gap or overlap, as the format
/// asks. Types other than ElementType's are refused.
Result<SafeTensors> ReadSafetensors(const Input& input);

/// The bytes of a file. Names must be UTF-8.
Result<std::string> WriteSafetensors(const SafeTensors& tensors);

}  // namespace plimsoll::train
