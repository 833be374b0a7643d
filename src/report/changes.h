// What grew, by category and by source line, as every command that compares shows it.
#pragma once

#include <string>
#include <vector>

#include "answer/change.h"
#include "files/json.h"
#include "report/format/writer.h"

namespace plimsoll {

/// "+1.20 GiB", "-300.00 MiB"
std::string SignedBytes(Bytes n);

/// Both tables; nothing where nothing changed. Of the lines the largest twelve.
void WriteChanges(Writer& w, const std::vector<Change>& categories,
                  const std::vector<Change>& holders);

Json PeakJson(const Change& peak);
Json CategoriesJson(const std::vector<Change>& categories);
Json HoldersJson(const std::vector<Change>& holders);

}  // namespace plimsoll
