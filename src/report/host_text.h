// The host's memory in an answer, as text and as JSON.
#pragma once

#include "answer/host.h"
#include "files/json.h"
#include "report/format/writer.h"

namespace plimsoll {

void WriteHost(Writer& w, const HostReport& host);
/// The key "host" of plimsoll.explain/1.
Json HostJson(const HostReport& host);

}  // namespace plimsoll
