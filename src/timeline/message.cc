#include "timeline/message.h"

#include <array>

namespace plimsoll {

Signs& Signs::operator|=(const Signs& other) {
  constexpr auto kAll = std::to_array<bool Signs::*>(
      {&Signs::windows, &Signs::wsl, &Signs::communicates, &Signs::data_parallel,
       &Signs::pins_memory, &Signs::tpu, &Signs::went_on, &Signs::transformers, &Signs::autocast,
       &Signs::checkpoints, &Signs::offloads_optimizer, &Signs::stepped_before,
       &Signs::joins_predictions, &Signs::attention_scores, &Signs::deep_copy, &Signs::integrated});
  for (bool Signs::*sign : kAll) this->*sign |= other.*sign;
  frameworks |= other.frameworks;
  return *this;
}

}  // namespace plimsoll
