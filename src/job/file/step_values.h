// The small values of a step file. What cannot be used is thrown as Unusable, inside this room
// only: ReadJob turns it into an Error.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "files/json.h"
#include "job/file/job.h"

namespace plimsoll::step_file {

struct Unusable {
  std::string message;
};
[[noreturn]] void Refuse(std::string message);

std::span<const Json> Array(const Json& object, const char* key);
inline bool IsTrue(const Json& value) { return value.boolean().value_or(false); }
std::int64_t Int(const Json& value);
Number ReadNumber(const Json& value);
/// Of a size, a stride or a count of bytes.
Number ReadCount(const Json& value);

}  // namespace plimsoll::step_file
