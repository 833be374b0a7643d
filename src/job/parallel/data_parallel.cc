// As a trace of four ranks shows it (FCN-ResNet-50, torch 2.11; with these rules its peak reserved
// is met to the byte, its peak allocated to 0.34 %, above): DDP begins with one bucket for all
// gradients, since the order in which they become ready is not known yet. The second forward lays
// out buckets in that order, of 1 MiB for the first and 25 MiB for the others, each closed by the
// gradient that fills it. Every forward sends the buffers of rank 0 to the others, and the
// constructor the parameters too, in pieces of 250 MiB of one type, each closed by the tensor that
// fills it, two at a time. A tensor that is a piece by itself is sent as it is.
//
// Gloo copies what it has sent back to the GPU in a stream of its own, and the host does not wait
// for it: the last piece's memory is still in use when the constructor makes the bucket. So it was
// on four of four ranks of a GPT (302 MiB in one piece); FCN-ResNet-50 ends with a piece of 432
// bytes, and on seven of eight ranks the bucket took the memory of the large one before it.
//
// A bucket is reduced as soon as its last gradient is there, beside the rest of the backward. Where
// gradients are views of the buckets, each is copied in and let go at once.
//
// ZeRO-1: the optimizer sees a part of every parameter, and the parameters are gathered after it.
// ZeRO-2: there is a bucket only while its gradients are copied in and reduced to the rank's part.
#include "job/parallel/data_parallel.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <deque>
#include <map>
#include <set>

#include "job/parallel/collective.h"
#include "job/parallel/shard_layouts.h"
#include "job/transforms/job_editor.h"
#include "job/transforms/tensors_of_call.h"

namespace plimsoll {
namespace {

constexpr Bytes kFirstBucket = kMiB;
constexpr Bytes kPiece = 250 * kMiB;
constexpr std::size_t kPiecesAtOnce = 2;
constexpr std::int64_t kLargestBucketInMiB = 1 << 20;

constexpr std::string_view kWhere = "DistributedDataParallel";

/// A gradient of the capture.
struct Gradient {
  Bytes bytes = 0;
  /// The last event of its backward that has to do with it.
  std::size_t last_use = 0;
};

/// Tensors that are sent together.
struct Piece {
  /// The place of the first among all that are sent.
  std::size_t first = 0;
  std::size_t tensors = 0;
  Bytes bytes = 0;

  void Add(std::size_t place, Bytes more) {
    if (tensors++ == 0) first = place;
    bytes += more;
  }
};

class Ddp {
 public:
  Ddp(Job& job, const Variant& old, const DataParallel& options)
      : job_(job),
        old_(old),
        options_(options),
        layouts_(job, old, {.ranks = options.ranks}),
        edit_(job, old, "plimsoll.data_parallel") {
    FindGradients();
  }

  Variant Run() {
    for (at_ = 0; at_ < old_.events.size(); ++at_) RunEvent(old_.events[at_]);
    Begin(Stage::kUnknown);
    return edit_.Take();
  }

 private:
  void RunEvent(const JobEvent& event) {
    const bool begins = event.kind == JobEvent::Kind::kStep;
    if (begins && steps_++ == 0) Construct();
    if (event.kind == JobEvent::Kind::kStage || begins) {
      Begin(begins ? Stage::kUnknown : event.stage);
    }
    if (!IsGone(event)) edit_.Copy(event);
    if (begins) first_forward_ = true;
    if (event.kind == JobEvent::Kind::kCall) AfterCall(event.index);
    if (event.kind != JobEvent::Kind::kStage || event.stage != Stage::kForward) return;
    if (steps_ == 2 && first_forward_) Rebuild();
    first_forward_ = false;
    edit_.Free(Send(true));
  }

  bool SplitsState() const { return options_.zero != DataParallel::Zero::kNothing; }
  bool SplitsGradients() const { return options_.zero == DataParallel::Zero::kGradients; }

  void Begin(Stage stage) {
    if (stage_ == Stage::kBackward) EndBackward();
    if (stage_ == Stage::kOptimizer && SplitsState() && std::exchange(updated_, false)) {
      Join(Collective::Kind::kAllGather, TrainableBytes());
      edit_.Call(WaitCall(job_));
    }
    stage_ = stage;
  }

  void AfterCall(std::uint32_t index) {
    if (stage_ == Stage::kBackward) AfterBackwardCall();
    if (stage_ != Stage::kOptimizer || !SplitsState()) return;
    updated_ = true;
    layouts_.ShardCall(edit_.variant().calls[index]);
  }

  /// Whether an event is about a gradient that was let go when it had been copied to its bucket.
  bool IsGone(const JobEvent& event) {
    const bool free = event.kind == JobEvent::Kind::kFree;
    if (!free && event.kind != JobEvent::Kind::kLabel) return false;
    if (SplitsGradients() && free) FreePartOf(event.index);
    return (options_.views || SplitsGradients()) && gradients_.contains(event.index);
  }
  /// The part goes with the last of the gradients that it is of.
  void FreePartOf(Storage gradient) {
    const auto found = part_of_.find(gradient);
    if (found == part_of_.end()) return;
    const Storage part = found->second;
    part_of_.erase(found);
    if (--whole_of_[part] == 0) edit_.Free(part);
  }

  Bytes TrainableBytes() const {
    Bytes sum = 0;
    for (const ModelTensor& tensor : old_.model_tensors) {
      if (tensor.trainable) sum += BytesOf(job_, tensor);
    }
    return sum;
  }
  void Join(Collective::Kind kind, Bytes bytes) {
    CallRecord call = CallOf(job_, {kind, {bytes, bytes}, options_.ranks});
    call.where = job_.strings.Intern(kWhere);
    edit_.Call(std::move(call));
  }

  Storage MakeBucket(Bytes bytes) { return edit_.Make(kWhere, bytes, Category::kGradients); }

  /// Sends all that the model holds, or its buffers alone. What comes back is the memory of the
  /// last piece.
  Storage Send(bool buffers_only) {
    std::deque<Storage> sent;
    for (const Piece& piece : PiecesOf(buffers_only)) {
      if (sent.size() == kPiecesAtOnce) {
        edit_.Free(sent.front());
        sent.pop_front();
      }
      sent.push_back(piece.tensors == 1 ? kElsewhere : edit_.Make(kWhere, piece.bytes));
    }
    if (sent.empty()) return kElsewhere;
    if (sent.size() == kPiecesAtOnce) edit_.Free(sent.front());
    return sent.back();
  }

  /// What is sent together: parameters first, then buffers.
  std::vector<Piece> PiecesOf(bool buffers_only) const {
    std::vector<Piece> full;
    std::map<DType, Piece> open;
    for (const bool buffer : {false, true}) {
      if (buffers_only && !buffer) continue;
      for (std::size_t i = 0; i < old_.model_tensors.size(); ++i) {
        const ModelTensor& tensor = old_.model_tensors[i];
        if (tensor.buffer != buffer) continue;
        Piece& piece = open[job_.layouts[tensor.layout].dtype];
        piece.Add(buffer * old_.model_tensors.size() + i, BytesOf(job_, tensor));
        if (piece.bytes >= kPiece) full.push_back(std::exchange(piece, {}));
      }
    }
    for (const auto& [dtype, piece] : open) {
      if (piece.tensors > 0) full.push_back(piece);
    }
    std::ranges::sort(full, {}, &Piece::first);
    return full;
  }

  void Construct() {
    Storage last = Send(false);
    if (job_.backend == Backend::kNccl) edit_.FreeNow(last);
    if (!SplitsGradients()) whole_ = MakeBucket(TrainableBytes());
    edit_.Free(last);
  }

  // Gradients of the capture.

  void FindGradients() {
    for (const JobEvent& event : old_.events) {
      if (event.kind == JobEvent::Kind::kLabel && event.category == Category::kGradients) {
        gradients_[event.index];
      }
    }
    Stage stage = Stage::kBuild;
    for (std::size_t i = 0; i < old_.events.size(); ++i) {
      const JobEvent& event = old_.events[i];
      if (event.kind == JobEvent::Kind::kStage) stage = event.stage;
      if (event.kind == JobEvent::Kind::kCall) NoteCall(i, old_.calls[event.index], stage);
    }
  }
  void NoteCall(std::size_t event, CallRecord call, Stage stage) {
    for (const NewStorage& fresh : call.fresh) {
      const auto gradient = gradients_.find(fresh.storage);
      if (gradient != gradients_.end()) gradient->second = {fresh.bytes.least(), event};
    }
    if (stage != Stage::kBackward) return;
    ForEachArgument(call, [&](const TensorUse& tensor) {
      const auto gradient = gradients_.find(tensor.storage);
      if (gradient != gradients_.end()) gradient->second.last_use = event;
    });
  }

  void AfterBackwardCall() {
    const CallRecord& call = old_.calls[old_.events[at_].index];
    for (const NewStorage& fresh : call.fresh) {
      if (gradients_.contains(fresh.storage)) waiting_.insert(fresh.storage);
    }
    for (auto storage = waiting_.begin(); storage != waiting_.end();) {
      const Gradient& gradient = gradients_.at(*storage);
      if (gradient.last_use > at_) {
        ++storage;
        continue;
      }
      Fill(*storage, gradient.bytes);
      storage = waiting_.erase(storage);
    }
  }

  /// The first backward of DDP has one bucket for all.
  void Fill(Storage storage, Bytes gradient) {
    if (SplitsGradients()) {
      in_bucket_.push_back(storage);
    } else if (options_.views) {
      edit_.Free(storage);
    }
    filled_ += gradient;
    const bool one_for_all = steps_ == 1 && !SplitsGradients();
    if (one_for_all) order_.push_back(gradient);
    if (one_for_all || filled_ < limit_) return;
    Reduce();
    limit_ = options_.bucket;
  }
  void Reduce() {
    const Bytes bytes = std::exchange(filled_, 0);
    if (bytes == 0) return;
    if (!SplitsGradients()) return Join(Collective::Kind::kAllReduce, bytes);
    const Storage bucket = MakeBucket(bytes);
    for (const Storage gradient : in_bucket_) edit_.Free(gradient);
    Join(Collective::Kind::kReduceScatter, bytes);
    const Storage part = MakeBucket((bytes + options_.ranks - 1) / options_.ranks);
    edit_.Free(bucket);
    whole_of_[part] = in_bucket_.size();
    for (const Storage gradient : std::exchange(in_bucket_, {})) part_of_[gradient] = part;
  }
  void EndBackward() {
    Reduce();
    edit_.Call(WaitCall(job_));
    limit_ = kFirstBucket;
  }

  void Rebuild() {
    if (whole_ == kElsewhere) return;
    edit_.Free(whole_);
    Bytes bucket = 0;
    Bytes limit = kFirstBucket;
    for (const Bytes gradient : order_) {
      bucket += gradient;
      if (bucket < limit) continue;
      MakeBucket(bucket);
      bucket = 0;
      limit = options_.bucket;
    }
    MakeBucket(bucket);
  }

  Job& job_;
  const Variant& old_;
  const DataParallel options_;
  ShardLayouts layouts_;
  JobEditor edit_;
  /// By captured storage.
  std::map<Storage, Gradient> gradients_;
  /// Made in this backward, and not complete yet.
  std::set<Storage> waiting_;
  /// Those of the first step, in the order in which they are complete.
  std::vector<Bytes> order_;
  /// What is in the bucket that is being filled, and when it is full.
  Bytes filled_ = 0;
  Bytes limit_ = kFirstBucket;
  /// Under ZeRO-2: the gradients in it, the part that came of each, and of how many it is.
  std::vector<Storage> in_bucket_;
  std::map<Storage, Storage> part_of_;
  std::map<Storage, std::size_t> whole_of_;
  Storage whole_ = kElsewhere;
  bool updated_ = false;
  std::size_t at_ = 0;
  Stage stage_ = Stage::kBuild;
  int steps_ = 0;
  bool first_forward_ = false;
};

/// ":views", ":bucket100", ":gloo"
bool ReadForm(std::string_view form, DataParallel& to) {
  if (form == ":views") return to.views = true;
  if (const auto backend = ParseBackend(form); backend && !to.backend) {
    to.backend = backend;
    return true;
  }
  constexpr std::string_view kBucket = ":bucket";
  if (!form.starts_with(kBucket)) return false;
  form.remove_prefix(kBucket.size());
  std::int64_t mib = 0;
  const char* const end = form.data() + form.size();
  const auto [at, error] = std::from_chars(form.data(), end, mib);
  to.bucket = mib * kMiB;
  return error == std::errc() && at == end && mib >= 1 && mib <= kLargestBucketInMiB;
}

}  // namespace

Result<DataParallel> ParseDataParallel(std::string_view text) {
  DataParallel options;
  const std::string_view given = text;
  for (const auto& [word, zero] : {std::pair{"zero1:", DataParallel::Zero::kState},
                                   std::pair{"zero2:", DataParallel::Zero::kGradients}}) {
    if (!text.starts_with(word)) continue;
    text.remove_prefix(std::string_view(word).size());
    options.zero = zero;
  }
  const char* const end = text.data() + text.size();
  auto [at, error] = std::from_chars(text.data(), end, options.ranks);
  std::string_view rest(at, static_cast<std::size_t>(end - at));
  bool good = error == std::errc() && options.ranks >= 2 && options.ranks <= kMostRanks;
  while (good && !rest.empty()) {
    const std::string_view form = rest.substr(0, rest.find(':', 1));
    good = ReadForm(form, options);
    rest.remove_prefix(form.size());
  }
  if (good && !(options.views && options.zero == DataParallel::Zero::kGradients)) return options;
  return Error{.message = fmt::format("'{}' does not say how many ranks, and how", given),
               .hint =
                   "2 or more, zero1: or zero2: before it, then :views for "
                   "gradient_as_bucket_view=True, :bucket100 for "
                   "bucket_cap_mb=100, :gloo or :nccl where they apply"};
}

std::string DataParallelText(const DataParallel& options) {
  const std::string_view zero = options.zero == DataParallel::Zero::kNothing ? ""
                                : options.zero == DataParallel::Zero::kState ? "zero1:"
                                                                             : "zero2:";
  std::string text = fmt::format("{}{}", zero, options.ranks);
  if (options.views) text += ":views";
  if (options.bucket != DataParallel{}.bucket) {
    text += fmt::format(":bucket{}", options.bucket / kMiB);
  }
  return text + std::string(BackendText(options.backend));
}

std::string DescribeDataParallel(const DataParallel& options) {
  switch (options.zero) {
    case DataParallel::Zero::kNothing:
      return {};
    case DataParallel::Zero::kState:
      return fmt::format(
          "ZeRO-1: the optimizer's state in {} equal parts; gradients and buckets as under DDP",
          options.ranks);
    case DataParallel::Zero::kGradients:
      return fmt::format(
          "ZeRO-2: the optimizer's state and the gradients in {} equal parts; gradients are "
          "reduced in buckets of {}",
          options.ranks, FormatBytes(options.bucket));
  }
  return {};
}

Variant AddDataParallel(Job& job, const Variant& variant, const DataParallel& options) {
  job.backend = options.backend.value_or(job.backend);
  return Ddp(job, variant, options).Run();
}

}  // namespace plimsoll
