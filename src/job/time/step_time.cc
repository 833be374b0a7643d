#include "job/time/step_time.h"

#include <algorithm>
#include <array>
#include <utility>

#include "job/cudnn/convolution_workspace.h"
#include "job/time/host_step.h"
#include "job/time/recomputation.h"
#include "job/transforms/block_offload.h"

namespace plimsoll {
namespace {

/// The card whose kernels were timed.
constexpr std::string_view kTimedOn = "H200";

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

double InLists(const Call& call) {
  double count = 0;
  for (std::size_t i = 0; i < call.args(); ++i) count += double(call.TensorsArg(i).size());
  return count;
}

double TensorsRead(const Call& call) {
  double count = 0;
  for (std::size_t i = 0; i < call.args(); ++i) {
    count += (call.TensorArg(i) ? 1 : 0) + double(call.TensorsArg(i).size());
  }
  return count;
}

/// How many times longer something may take than it is said to.
struct Pace {
  double low = 1, high = 1;

  Pace operator*(const Pace& other) const { return {low * other.low, high * other.high}; }
};
/// On a card whose kernels were not measured, but scaled by its data sheet.
constexpr Pace kScaled = {0.8, 1.35};
/// Of machines of one kind two were a third apart, a third took more than twice as long. Calls of a
/// whole model take longer than those of the small ones that calibrations measure: on that machine
/// by a quarter in transformers, four fifths in networks of convolutions.
constexpr Pace kUnknownPace = {0.65, 2.2};
constexpr Pace kMeasuredPace = {0.85, 1.8};

/// Of groups of several channels it is not known which kernels cuDNN takes; volumes are off by more
/// than planes are.
Pace ConvolutionPace(const Call& call) {
  const std::optional<ConvolutionCall> read = ReadConvolution(call);
  if (read && read->shape.groups > 1) return {0.7, 2.2};
  if (read && read->shape.volume) return {0.8, 1.35};
  return {0.85, 1.25};
}

/// Of a call's kernels, by the group of constants that times it: kernels of one group err together.
Pace KernelPace(const Call& call) {
  const std::string_view group = TimeGroupOf(call);
  if (group == "product") return {0.92, 1.08};
  if (group == "attention" || group == "normalization") return {0.88, 1.15};
  if (group == "convolution") return ConvolutionPace(call);
  if (group == "recurrent") return {0.65, 1.5};
  if (group == "depthwise") return {0.7, 1.5};
  if (group == "reduction" || group == "other") return {0.75, 1.3};
  if (group == "pool" || group == "interpolation") return {0.75, 1.3};
  return {0.82, 1.12};
}

/// Host and GPU side by side: a kernel begins when it has been issued and the one before it is
/// done. Collectives run one after the other in a stream of their own.
class HostPipeline {
 public:
  /// `compiled`: what forward and backward do is written by a compiler.
  /// `pace`: so many times what the host takes.
  HostPipeline(const HostModel& host, bool compiled, double pace)
      : host_(host), compiled_(compiled), pace_(pace) {}

  void Begin() {
    duration_ = {};
    issued_ = done_ = joined_ = copied_ = pace_ * host_.step;
    ready_.clear();
  }
  const StepDuration& duration() const { return duration_; }

  /// A micro-batch ends, and is repeated so often: each time takes as long.
  void EndRound(double times) {
    const Clocks now = {issued_, done_, joined_, copied_, duration_};
    issued_ += times * (now.issued - round_.issued);
    done_ += times * (now.done - round_.done);
    joined_ += times * (now.joined - round_.joined);
    copied_ += times * (now.copied - round_.copied);
    duration_.gpu.us += times * (now.duration.gpu.us - round_.duration.gpu.us);
    duration_.gpu.kernels += times * (now.duration.gpu.kernels - round_.duration.gpu.kernels);
    duration_.collectives_us +=
        times * (now.duration.collectives_us - round_.duration.collectives_us);
    duration_.waited_us += times * (now.duration.waited_us - round_.duration.waited_us);
    duration_.host_us = issued_;
    duration_.us = std::max({done_, issued_, joined_});
    round_ = {issued_, done_, joined_, copied_, duration_};
  }

  void Add(const Call& call, Stage stage, const KernelTime& time, bool recomputed) {
    const double policy = call.record().watched ? host_.policy : 0;
    issued_ += pace_ * (HostTime(call, stage, recomputed) + policy);
    if (time.us > 0) done_ = std::max(done_, issued_) + time.us + host_.gap * time.kernels;
    if (Waits(call)) issued_ = std::max(issued_, done_);
    duration_.gpu += time;
    duration_.host_us = issued_;
    duration_.us = std::max({done_, issued_, joined_});
  }

  /// `after_work`: it needs what the kernels before it make.
  void AddCollective(const Call& call, Stage stage, double us, bool after_work) {
    issued_ += pace_ * HostTime(call, stage, false);
    joined_ = std::max({joined_, issued_, after_work ? done_ : 0}) + us;
    for (std::size_t i = 0; i < call.fresh(); ++i) ready_[call.FreshStorage(i)] = joined_;
    duration_.collectives_us += us;
    duration_.us = std::max({done_, issued_, joined_});
  }
  /// Beside the kernels, in a stream of copies: when what they make is there.
  void AddCopy(const SideCopy& copy, double us) {
    issued_ += pace_ * host_.copy * double(copy.storages.size());
    copied_ = std::max({copied_, issued_, done_}) + us;
    for (const Storage storage : copy.storages) ready_[storage] = copied_;
  }
  /// For what a collective makes, or for all of them.
  void Wait(Storage storage) {
    const auto found = ready_.find(storage);
    const double ready = found == ready_.end() ? joined_ : found->second;
    duration_.waited_us += std::max(0.0, ready - std::max(done_, issued_));
    done_ = std::max(done_, ready);
  }

 private:
  /// As a micro-batch begins.
  struct Clocks {
    double issued = 0, done = 0, joined = 0, copied = 0;
    StepDuration duration;
  };

  double HostTime(const Call& call, Stage stage, bool recomputed) {
    const bool replayed = in_graph_;
    if (call.op() == "inductor.graph") in_graph_ = true;
    if (call.op() == "inductor.graph_end") in_graph_ = false;
    // A graph is launched as a whole.
    if (replayed) return 0;
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
      case Stage::kBackward:
        return host_.backward;
      case Stage::kOptimizer: {
        if (call.op() == "plimsoll.host_step_") return HostStepTime(call);
        const double entries = InLists(call);
        return entries > 0 ? host_.list + host_.entry * entries : host_.loop;
      }
      default:
        // Most casts are autocast's, which makes them without Python.
        return BaseName(call.op()) == "_to_copy" ? host_.backward : host_.forward;
    }
  }

  const HostModel& host_;
  bool compiled_ = false;
  double pace_ = 1;
  StepDuration duration_;
  double issued_ = 0;
  double done_ = 0;
  /// When the last collective is done, and what each made.
  double joined_ = 0;
  double copied_ = 0;
  std::map<Storage, double> ready_;
  Clocks round_;
  bool recomputing_ = false;
  /// Between the calls that say where a CUDA graph begins and ends.
  bool in_graph_ = false;
};

}  // namespace

StepDuration StepTime(const Job& job, const Variant& variant, const Gpu& gpu, std::int64_t batch,
                      const RefusedCalls& refused, const HostModel& host, const Cluster& cluster) {
  const AtBatch at(job, batch);
  const TimeModel model = TimeModelOf(gpu);
  const TimeContext context{
      .model = model, .gpu = gpu, .torch = {}, .matmul_tf32 = job.matmul_tf32};
  const std::vector<bool> recomputed = FindRecomputed(job, variant);
  const Pace card = gpu.name == kTimedOn ? Pace{} : kScaled;
  const Pace pace = host.measured ? kMeasuredPace : kUnknownPace;
  HostPipeline likely(host, variant.compiled, 1);
  HostPipeline quick(host, variant.compiled, pace.low);
  HostPipeline slow(host, variant.compiled, pace.high);
  const std::array<HostPipeline*, 3> pipelines = {&likely, &quick, &slow};
  const TimedStep last = LastStepOf(variant);
  Stage stage = last.stage;
  for (const JobEvent& event : last.events) {
    if (event.kind == JobEvent::Kind::kStep) {
      for (HostPipeline* pipeline : pipelines) pipeline->Begin();
    }
    if (event.kind == JobEvent::Kind::kRound) {
      for (HostPipeline* pipeline : pipelines) pipeline->EndRound(event.index);
    }
    if (event.kind == JobEvent::Kind::kStage) stage = event.stage;
    if (event.kind != JobEvent::Kind::kCall) continue;
    const CallRecord& record = variant.calls[event.index];
    const Call call(record, at, stage);
    std::optional<Storage> waited_for = WaitsFor(job, record);
    if (!waited_for) waited_for = CopyWaitedFor(job, record);
    if (waited_for) {
      for (HostPipeline* pipeline : pipelines) pipeline->Wait(*waited_for);
      continue;
    }
    if (const std::optional<SideCopy> copy = SideCopyOf(job, record)) {
      double bytes = 0;
      for (const Number& each : copy->bytes) bytes += static_cast<double>(at.Of(each));
      const double us = HostCopyTime(bytes, double(copy->storages.size()), context);
      for (HostPipeline* pipeline : pipelines) pipeline->AddCopy(*copy, us);
      continue;
    }
    if (const std::optional<Collective> collective = CollectiveOf(job, record)) {
      const auto bytes = static_cast<double>(at.Of(collective->bytes));
      const double us = CollectiveTime(*collective, bytes, gpu, cluster);
      for (HostPipeline* pipeline : pipelines) {
        pipeline->AddCollective(call, stage, us, !BeginsEarly(record));
      }
      continue;
    }
    const auto found = refused.find(event.index);
    const KernelTime time = TimeOf(call, context, found == refused.end() ? 0 : found->second);
    const Pace kernel = time.us > 0 ? KernelPace(call) * card : Pace{};
    likely.Add(call, stage, time, recomputed[event.index]);
    quick.Add(call, stage, {kernel.low * time.us, time.kernels}, recomputed[event.index]);
    slow.Add(call, stage, {kernel.high * time.us, time.kernels}, recomputed[event.index]);
  }
  // A step made of snapshots has no operators to time.
  StepDuration duration = likely.duration();
  if (duration.gpu.us <= 0) return {};
  duration.low_us = std::min(quick.duration().us, duration.us);
  duration.high_us = std::max(slow.duration().us, duration.us);
  return duration;
}

}  // namespace plimsoll
