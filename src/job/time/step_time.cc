#include "job/time/step_time.h"

#include <algorithm>

#include "job/time/host_step.h"
#include "job/time/recomputation.h"

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

/// plimsoll.host_step_(parameters, bytes for each element): an optimizer that steps on the host.
double HostStepTime(const Call& call) {
  double elements = 0;
  for (const Tensor& t : call.TensorsArg(0)) elements += double(t.layout->Numel());
  return elements * call.FloatArg(1, 0) / kHostMemoryRate;
}

/// Of a tensor that a hook on saved tensors moves.
bool IsHostCopy(const Call& call) {
  return call.op() == "plimsoll.to_host_" || call.op() == "plimsoll.to_device";
}

double TensorsRead(const Call& call) {
  double count = 0;
  for (std::size_t i = 0; i < call.args(); ++i) {
    count += (call.TensorArg(i) ? 1 : 0) + double(call.TensorsArg(i).size());
  }
  return count;
}

/// Host and GPU side by side: a kernel begins when it has been issued and the one before it is
/// done. Collectives run one after the other in a stream of their own.
class HostPipeline {
 public:
  /// `compiled`: what forward and backward do is written by a compiler.
  HostPipeline(const HostModel& host, bool compiled, StepDuration& duration)
      : host_(host), compiled_(compiled), duration_(duration) {}

  void Begin() {
    duration_ = {};
    issued_ = done_ = joined_ = host_.step;
    ready_.clear();
  }

  void Add(const Call& call, Stage stage, const KernelTime& time, bool recomputed) {
    issued_ += HostTime(call, stage, recomputed);
    if (time.us > 0) done_ = std::max(done_, issued_) + time.us + host_.gap * time.kernels;
    if (Waits(call)) issued_ = std::max(issued_, done_);
    duration_.gpu += time;
    duration_.host_us = issued_;
    duration_.us = std::max({done_, issued_, joined_});
  }

  /// `after_work`: it needs what the kernels before it make.
  void AddCollective(const Call& call, Stage stage, double us, bool after_work) {
    issued_ += HostTime(call, stage, false);
    joined_ = std::max({joined_, issued_, after_work ? done_ : 0}) + us;
    for (std::size_t i = 0; i < call.fresh(); ++i) ready_[call.FreshStorage(i)] = joined_;
    duration_.collectives_us += us;
    duration_.us = std::max({done_, issued_, joined_});
  }
  /// For what a collective makes, or for all of them.
  void Wait(Storage storage) {
    const auto found = ready_.find(storage);
    const double ready = found == ready_.end() ? joined_ : found->second;
    duration_.waited_us += std::max(0.0, ready - std::max(done_, issued_));
    done_ = std::max(done_, ready);
  }

 private:
  double HostTime(const Call& call, Stage stage, bool recomputed) {
    const bool begins = recomputed && !recomputing_;
    recomputing_ = recomputed;
    if (recomputed) {
      return host_.forward + host_.saved * TensorsRead(call) + (begins ? host_.checkpoint : 0);
    }
    if (IsHostCopy(call)) return host_.copy;
    if (compiled_ && (stage == Stage::kForward || stage == Stage::kBackward)) {
      return BaseName(call.op()) == "empty_strided" ? host_.buffer : host_.written;
    }
    switch (stage) {
      case Stage::kForward:
        return host_.forward;
      case Stage::kBackward:
        return host_.backward;
      default:
        if (call.op() == "plimsoll.host_step_") return HostStepTime(call);
        return host_.other + host_.tensor * double(call.TensorsArg(0).size());
    }
  }

  const HostModel& host_;
  bool compiled_ = false;
  StepDuration& duration_;
  double issued_ = 0;
  double done_ = 0;
  /// When the last collective is done, and what each made.
  double joined_ = 0;
  std::map<Storage, double> ready_;
  bool recomputing_ = false;
};

}  // namespace

const HostModel& MeasuredHost() {
  static const HostModel kHost;
  return kHost;
}

StepDuration StepTime(const Job& job, const Variant& variant, const Gpu& gpu, std::int64_t batch,
                      const RefusedCalls& refused, const HostModel& host, const Cluster& cluster) {
  const AtBatch at(job, batch);
  const TimeModel model = TimeModelOf(gpu);
  const TimeContext context{
      .model = model, .gpu = gpu, .torch = {}, .matmul_tf32 = job.matmul_tf32};
  const std::vector<bool> recomputed = FindRecomputed(job, variant);
  StepDuration duration;
  HostPipeline pipeline(host, variant.compiled, duration);
  Stage stage = Stage::kUnknown;
  for (const JobEvent& event : variant.events) {
    if (event.kind == JobEvent::Kind::kStep) pipeline.Begin();
    if (event.kind == JobEvent::Kind::kStage) stage = event.stage;
    if (event.kind != JobEvent::Kind::kCall) continue;
    const CallRecord& record = variant.calls[event.index];
    const Call call(record, at, stage);
    if (const std::optional<Storage> made = WaitsFor(job, record)) {
      pipeline.Wait(*made);
      continue;
    }
    if (const std::optional<Collective> collective = CollectiveOf(job, record)) {
      const auto bytes = static_cast<double>(at.Of(collective->bytes));
      pipeline.AddCollective(call, stage, CollectiveTime(*collective, bytes, gpu, cluster),
                             !BeginsEarly(record));
      continue;
    }
    const auto found = refused.find(event.index);
    pipeline.Add(call, stage, TimeOf(call, context, found == refused.end() ? 0 : found->second),
                 recomputed[event.index]);
  }
  // A step made of snapshots has no operators to time.
  return duration.gpu.us > 0 ? duration : StepDuration{};
}

}  // namespace plimsoll
