// A prediction on the report page. Nothing is computed here.
#pragma once

#include <string_view>
#include <vector>

#include "report/page.h"
#include "report/predict.h"
#include "timeline/history.h"

namespace plimsoll {

/// The predicted run in the place of a recorded one, without a verdict; `how` ends the title.
PageContent RunPage(const Answer& answer, const History& history, std::string_view how);

/// Of an answer with what the page needs (Question::trade_offs).
PageContent PredictionPage(Answer answer, const History& history);

}  // namespace plimsoll
