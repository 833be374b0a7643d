// Settings of the caching allocator, above all segments that grow, so that free pieces of different
// segments do not add up to nothing.
#include "plan/lever.h"

namespace plimsoll {
namespace {

/// Which settings there are depends on the release that will train, which is not known here: the
/// string is judged when the run is set up.
struct AllocatorConf {
  std::string conf;
};

constexpr std::string_view kExpandable = "expandable_segments:True";

LeverValue ConfValue(std::string_view conf) {
  return {std::string(conf), AllocatorConf{.conf = std::string(conf)}};
}

}  // namespace

const PlanLever kAllocatorLever = {
    .name = "allocator",
    .values = "a PYTORCH_CUDA_ALLOC_CONF string: expandable_segments:True",
    .parse = [](std::string_view text) -> Result<LeverValue> { return ConfValue(text); },
    .numerics = SameResults,
    .worth_trying = [](const PlanRequest&, const Variant&) -> std::vector<LeverValue> {
      return {ConfValue(kExpandable)};
    },
    .of_compiled = true,
    .describe =
        [](const Job&, const Choice&, const LeverValue& value) {
          const std::string& conf = value.As<AllocatorConf>().conf;
          return conf == kExpandable ? "expandable segments" : conf;
        },
    .fields = [](const Job&, const LeverValue& value) -> LeverFields {
      return {{"conf", value.As<AllocatorConf>().conf}};
    },
    .code = [](const Job&, const Choice&, const LeverValue& value) -> std::vector<std::string> {
      return {"export PYTORCH_CUDA_ALLOC_CONF=" + value.As<AllocatorConf>().conf +
              "  # before Python starts"};
    },
    .configure = [](PredictOptions& options, const LeverValue& value) -> std::optional<Error> {
      options.conf = value.As<AllocatorConf>().conf;
      return std::nullopt;
    },
};

}  // namespace plimsoll
