// What a JSON text of a foreign file may unfold to, looked at before it is parsed.
#pragma once

#include <cstddef>
#include <string_view>

namespace plimsoll::train {

/// Whether no value of the text lies deeper than in `depth` arrays and objects, and there are no
/// more values than any real file has. A parser's tree takes up to a hundred bytes for each of
/// them, and a
/// `[` stands for one. One pass; what is no JSON is for the parser to refuse.
bool WithinJsonLimits(std::string_view text, int depth);

}  // namespace plimsoll::train
