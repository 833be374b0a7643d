#include "job/answer/prediction_invariants.h"

#include <algorithm>
#include <string_view>

namespace plimsoll {
namespace {

class Broken {
 public:
  void Expect(bool holds, std::string_view what) {
    if (!holds) list_.emplace_back(what);
  }
  std::vector<std::string> Take() { return std::move(list_); }

 private:
  std::vector<std::string> list_;
};

bool InOrder(const Range& r) { return 0 <= r.low && r.low <= r.best && r.best <= r.high; }

bool Same(const Range& a, const Range& b) {
  return a.low == b.low && a.best == b.best && a.high == b.high;
}

void ExpectFigures(const Needs& f, Broken& broken) {
  broken.Expect(InOrder(f.allocated), "allocated: low <= best <= high");
  broken.Expect(InOrder(f.reserved), "reserved: low <= best <= high");
  broken.Expect(InOrder(f.device), "device: low <= best <= high");
  broken.Expect(f.allocated.best <= f.reserved.best, "what is allocated is reserved");
  broken.Expect(f.reserved.best <= f.device.best, "what is reserved is on the device");
  broken.Expect(f.reserved.high <= f.device.high, "what may be reserved may be on the device");
}

/// The verdict and the figures beside it are of one run.
void ExpectVerdict(const Prediction& prediction, Broken& broken) {
  const TrialResult& p = prediction.trial;
  const std::optional<Bytes> limit = prediction.limit;
  broken.Expect(!limit || p.room <= *limit, "the room is within the limit");
  broken.Expect(p.room <= p.most, "what may be asked for can be held");
  if (p.fits) {
    broken.Expect(p.needs.reserved.best <= p.most, "what fits is within what can be held");
    broken.Expect(p.needs.device.best <= prediction.gpu.memory,
                  "what fits is within the card's memory");
  } else {
    broken.Expect(!p.surely_fits, "what does not fit does not surely fit");
    broken.Expect(Same(p.needs.allocated, p.unlimited.allocated) &&
                      Same(p.needs.reserved, p.unlimited.reserved) &&
                      Same(p.needs.device, p.unlimited.device),
                  "what does not fit is shown without limits");
  }
  broken.Expect(!p.beyond_count || !p.fits, "what is beyond count does not fit");
  // Garbage collection changes a run within its limits.
  const bool collects = prediction.settings.find("garbage_collection") != std::string::npos;
  if (p.surely_fits) {
    broken.Expect(p.needs.reserved.high <= p.most,
                  "what surely fits is within what can be held at its highest");
    broken.Expect(p.needs.device.high <= prediction.gpu.memory,
                  "what surely fits is within the card's memory");
    broken.Expect(p.workspaces_refused == 0, "what surely fits is refused nothing");
  } else if (!collects && !p.beyond_count) {
    broken.Expect(p.needs.device.high > prediction.gpu.memory || p.needs.reserved.high > p.room,
                  "what may not fit exceeds the room at its highest");
  }
  broken.Expect(p.fits || collects || p.beyond_count || p.unlimited.reserved.best > p.room,
                "what does not fit would take more than the room");
}

void ExpectAccount(const Prediction& p, Broken& broken) {
  Bytes sum = 0;
  Bytes held = 0;
  for (const AccountLine& line : p.account) {
    sum += line.bytes;
    const bool besides = line.what == AccountItem::kRounding || line.what == AccountItem::kCached ||
                         line.what == AccountItem::kOutside || line.what == AccountItem::kNccl;
    if (!besides) held += line.bytes;
    broken.Expect(line.bytes > 0, "every line of the account is above 0");
  }
  for (const Holder& holder : p.holders) held -= holder.bytes;
  broken.Expect(sum == p.trial.needs.device.best, "the account adds up to the device's figure");
  broken.Expect(held == 0, "the holders add up to what is requested");
  const std::vector<Bytes>& steps = p.reserved_after_step;
  broken.Expect(std::is_sorted(steps.begin(), steps.end()), "a peak does not go down");
  // What follows the steps may take more.
  broken.Expect(steps.empty() || steps.back() == p.trial.needs.reserved.best ||
                    (!p.stages.empty() && steps.back() < p.trial.needs.reserved.best),
                "the last step ends at the peak of reserved memory");
  for (const StageNeeds& stage : p.stages) {
    broken.Expect(stage.allocated <= p.trial.needs.allocated.best &&
                      stage.reserved <= p.trial.needs.reserved.best,
                  "no stage takes more than the whole");
  }
}

}  // namespace

std::vector<std::string> BrokenInvariants(const Prediction& p) {
  Broken broken;
  ExpectFigures(p.trial.needs, broken);
  ExpectFigures(p.trial.unlimited, broken);
  ExpectVerdict(p, broken);
  ExpectAccount(p, broken);
  broken.Expect(p.unlimited_step_us <= p.trial.step_us, "what is refused makes nothing faster");
  broken.Expect(p.trial.gpu_busy_us <= p.trial.step_us,
                "the GPU is busy no longer than the step takes");
  return broken.Take();
}

}  // namespace plimsoll
