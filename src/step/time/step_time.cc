#include "step/time/step_time.h"

#include <algorithm>

namespace plimsoll {
namespace {

/// Whether the host needs what the call gives before it goes on: a value that is read, the gradient
/// scaler's question whether to step, a copy that is not asynchronous.
bool Waits(const Call& call) {
  const std::string_view op = call.op();
  return op.starts_with("aten._local_scalar_dense") || op == "plimsoll.to_host_" ||
         op.starts_with("aten._amp_foreach_non_finite_check_and_unscale_") ||
         (op == "plimsoll.optimizer_step_" && call.BoolArg(3, false));
}

/// Host and GPU side by side: a kernel begins when it has been issued and the one before it is
/// done.
class Pipeline {
 public:
  Pipeline(const HostModel& host, StepDuration& duration) : host_(host), duration_(duration) {}

  void Begin() {
    duration_ = {};
    issued_ = done_ = host_.step;
  }

  void Add(const Call& call, Phase phase, const KernelTime& time) {
    issued_ += HostTime(call, phase);
    if (time.us > 0) done_ = std::max(done_, issued_) + time.us + host_.gap * time.kernels;
    if (Waits(call)) issued_ = std::max(issued_, done_);
    duration_.gpu += time;
    duration_.host_us = issued_;
    duration_.us = std::max(done_, issued_);
  }

 private:
  double HostTime(const Call& call, Phase phase) const {
    switch (phase) {
      case Phase::kForward:
        return host_.forward;
      case Phase::kBackward:
        return host_.backward;
      default:
        return host_.other + host_.tensor * double(call.TensorsArg(0).size());
    }
  }

  const HostModel& host_;
  StepDuration& duration_;
  double issued_ = 0;
  double done_ = 0;
};

}  // namespace

const HostModel& MeasuredHost() {
  static const HostModel kHost;
  return kHost;
}

StepDuration StepTime(const Step& step, const Variant& variant, const Gpu& gpu, std::int64_t batch,
                      const RefusedCalls& refused, const HostModel& host) {
  const AtBatch at(step, batch);
  const TimeModel model = TimeModelOf(gpu);
  const TimeContext context{
      .model = model, .gpu = gpu, .torch = {}, .matmul_tf32 = step.matmul_tf32};
  StepDuration duration;
  Pipeline pipeline(host, duration);
  Phase phase = Phase::kOther;
  for (const StepEvent& event : variant.events) {
    if (event.kind == StepEvent::Kind::kStep) pipeline.Begin();
    if (event.kind == StepEvent::Kind::kPhase) phase = event.phase;
    if (event.kind != StepEvent::Kind::kCall) continue;
    const Call call(variant.calls[event.index], at, phase);
    const auto found = refused.find(event.index);
    pipeline.Add(call, phase, TimeOf(call, context, found == refused.end() ? 0 : found->second));
  }
  // A step made of snapshots has no operators to time.
  return duration.gpu.us > 0 ? duration : StepDuration{};
}

}  // namespace plimsoll
