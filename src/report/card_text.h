// What several processes held of one card, as tables.
#pragma once

#include "answer/card.h"
#include "report/format/writer.h"

namespace plimsoll {

void WriteCard(Writer& w, const CardReport& card);

}  // namespace plimsoll
