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
/// `job` has the forms, if there are any.
Number ReadNumber(const Json& value, const Job& job);
/// Of a size, a stride or a count of bytes.
Number ReadCount(const Json& value, const Job& job);
/// The dimensions, the points and the numbers of a job over more than the batch.
std::shared_ptr<const Forms> ReadForms(const Json& document);
/// A point by its number, or the sizes of a step that is none.
SequenceStep ReadSequenceStep(const Json& value, const Forms& forms);

}  // namespace plimsoll::step_file
