// A History as bytes for the page: columns of numbers, each as short as it gets, then compressed.
// web/history.js reads them; docs/formats/page.md describes them.
#pragma once

#include <string>

#include "timeline/history.h"

namespace plimsoll {

std::string PackHistory(const History& history);

}  // namespace plimsoll
