// A prediction on the report page. Nothing is computed here.
#pragma once

#include <string_view>
#include <vector>

#include "job/answer/trade_offs.h"
#include "report/page.h"
#include "report/predict.h"
#include "timeline/history.h"

namespace plimsoll {

/// The predicted run in the place of a recorded one, without a verdict; `how` ends the title.
PageContent RunPage(const PredictAnswer& answer, const History& history, std::string_view how);

PageContent PredictionPage(const PredictAnswer& answer, const History& history,
                           const TradeOffTable& trade_offs);

}  // namespace plimsoll
