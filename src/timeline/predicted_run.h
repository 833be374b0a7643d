// The words that a predicted run has beyond those of a memory snapshot: who writes it and who reads
// it agree on them here.
#pragma once

#include <string_view>

namespace plimsoll {

/// Of the document: what was predicted, as a sentence has it.
inline constexpr std::string_view kPredictionKey = "plimsoll_prediction";
/// And the release that it is for.
inline constexpr std::string_view kPredictedTorchKey = "plimsoll_torch";
/// Of an event: what the block is for, by CategoryName.
inline constexpr std::string_view kPredictedCategoryKey = "plimsoll_category";
/// The file of frames that are none of the user's.
inline constexpr std::string_view kPredictedFile = "<predicted>";
/// What names the module in the metadata of an event; `plimsoll run --modules` notes it too
/// (python/plimsoll/recording/hook).
inline constexpr std::string_view kModuleNote = "plimsoll.module:";

}  // namespace plimsoll
