#include "readers/error_text/error_text.h"

namespace plimsoll {

bool RecogniseErrorText(std::string_view) { return false; }
Result<Recording> ReadErrorText(const Input&) { return Error{.message = "not read yet"}; }

}  // namespace plimsoll
