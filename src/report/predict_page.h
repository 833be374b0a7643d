// A prediction on the report page. Nothing is computed here.
#pragma once

#include <vector>

#include "report/page.h"
#include "report/predict.h"
#include "step/trade_offs.h"
#include "timeline/history.h"

namespace plimsoll {

PageContent PredictionPage(const PredictAnswer& answer, const History& history,
                           const std::vector<TradeOff>& trade_offs);

}  // namespace plimsoll
