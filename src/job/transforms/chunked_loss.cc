#include "job/transforms/chunked_loss.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "job/transforms/job_editor.h"
#include "job/transforms/linear_loss.h"
#include "job/transforms/tensors_of_call.h"

namespace plimsoll {
namespace {

constexpr Number kOne = {1, 1};

Number Times(const Number& a, const Number& b) { return Number::Each(BoundedProduct, a, b); }

/// Writes calls of one place in the code and of one thread.
class CallWriter {
 public:
  CallWriter(Job& job, JobEditor& edit, const CallRecord& like)
      : job_(job), edit_(edit), like_(like) {}

  TensorUse Use(DType type, const std::vector<Number>& sizes, Storage storage = kElsewhere) {
    LayoutRecord layout{.dtype = type, .sizes = sizes, .strides = sizes};
    Number stride = kOne;
    for (std::size_t d = sizes.size(); d-- > 0;) {
      layout.strides[d] = stride;
      stride = Times(stride, sizes[d]);
    }
    job_.layouts.push_back(std::move(layout));
    return {.storage = storage == kElsewhere ? edit_.NewStorageNumber() : storage,
            .layout = static_cast<std::uint32_t>(job_.layouts.size() - 1)};
  }
  /// A matrix the other way round, in the same memory.
  TensorUse Transposed(const TensorUse& of) {
    LayoutRecord layout = job_.layouts[of.layout];
    std::reverse(layout.sizes.begin(), layout.sizes.end());
    std::reverse(layout.strides.begin(), layout.strides.end());
    job_.layouts.push_back(std::move(layout));
    TensorUse use = of;
    use.view = true;
    use.layout = static_cast<std::uint32_t>(job_.layouts.size() - 1);
    return use;
  }
  DType TypeOf(const TensorUse& use) const { return job_.layouts[use.layout].dtype; }

  /// Makes `result`, and gives it back.
  TensorUse Make(std::string_view op, const TensorUse& result, std::vector<Argument> args = {}) {
    CallRecord call = New(op, result, std::move(args));
    const LayoutRecord& layout = job_.layouts[result.layout];
    Number bytes = {ElementSize(layout.dtype), ElementSize(layout.dtype)};
    for (const Number& size : layout.sizes) bytes = Times(bytes, size);
    call.fresh = {{.storage = result.storage, .bytes = bytes}};
    edit_.Call(std::move(call));
    return result;
  }
  /// The same, to be freed soon.
  TensorUse Cast(const TensorUse& from, const TensorUse& to) {
    return Make("aten._to_copy.default", to, {{from}});
  }
  void InPlace(std::string_view op, const TensorUse& into, std::vector<Argument> args = {}) {
    args.insert(args.begin(), {into});
    edit_.Call(New(op, into, std::move(args)));
  }
  /// Into memory that is there, which is no argument by position.
  void Out(std::string_view op, const TensorUse& into, std::vector<Argument> args) {
    edit_.Call(New(op, into, std::move(args)));
  }
  void Free(const TensorUse& use) { edit_.Free(use.storage); }

 private:
  CallRecord New(std::string_view op, const TensorUse& result, std::vector<Argument> args) {
    CallRecord call{.op = job_.strings.Intern(op), .where = like_.where, .thread = like_.thread};
    call.args = std::move(args);
    call.results = {result};
    return call;
  }

  Job& job_;
  JobEditor& edit_;
  const CallRecord like_;
};

/// One loss, written anew: the calls of plimsoll.chunked_cross_entropy, in their order.
class Writer {
 public:
  Writer(Job& job, JobEditor& edit, const LinearLoss& loss, int chunks)
      : job_(job), edit_(edit), loss_(loss), chunks_(chunks) {
    sums_ = loss.type == DType::kFloat64 ? DType::kFloat64 : DType::kFloat32;
    // Where rows cannot be shared out evenly, a chunk has one more for each sample at most.
    rows_ = CeilShare(loss.rows, chunks);
  }

  void Forward(const CallRecord& like) {
    CallWriter write(job_, edit_, like);
    const bool narrows = write.TypeOf(loss_.weight) != loss_.type;
    weight_ = loss_.read_weight;
    if (narrows) {
      const TensorUse copy = write.Use(loss_.type, {loss_.classes, loss_.width});
      write.Cast(loss_.weight, copy);
      weight_.storage = copy.storage;
    } else {
      weight_.storage = loss_.weight.storage;
    }
    MakeSums(write);
    for (int i = 0; i < chunks_; ++i) Chunk(write);
    if (narrows) write.Free(weight_);
    scale_ = write.Use(sums_, {});
    const TensorUse counts =
        write.Make("aten.ne.Scalar", write.Use(DType::kBool, {loss_.rows}), {{loss_.labels}});
    write.Make("aten.sum.default", scale_, {{counts}});
    write.Free(counts);
    write.InPlace("aten.mul_.Tensor", loss_.loss, {{scale_}});
  }

  void Backward(const CallRecord& like) {
    CallWriter write(job_, edit_, like);
    const TensorUse factor =
        write.Make("aten.mul.Tensor", write.Use(sums_, {}), {{loss_.outer}, {scale_}});
    const TensorUse sums[] = {hidden_sum_, weight_sum_, bias_sum_};
    for (const TensorUse& sum : sums) {
      if (sum.storage != kElsewhere) write.InPlace("aten.mul_.Tensor", sum, {{factor}});
    }
    Narrow(write, weight_sum_, loss_.weight_gradient);
    Narrow(write, bias_sum_, loss_.bias_gradient);
    write.Free(factor);
    write.Free(scale_);
  }

 private:
  /// Sums over rows are in fp32; one whose gradient is to be so as well is the gradient itself.
  TensorUse Sum(CallWriter& write, std::string_view op, const TensorUse& gradient, DType type,
                const std::vector<Number>& sizes, const TensorUse& like) {
    if (gradient.storage == kElsewhere) return {};
    const bool is_result = write.TypeOf(gradient) == type;
    return write.Make(op, write.Use(type, sizes, is_result ? gradient.storage : kElsewhere),
                      {{like}});
  }

  void MakeSums(CallWriter& write) {
    write.Make("aten.zeros.default", loss_.loss);
    hidden_sum_ = Sum(write, "aten.empty_like.default", loss_.hidden_gradient,
                      write.TypeOf(loss_.hidden_gradient), {loss_.rows, loss_.width}, loss_.hidden);
    weight_sum_ = Sum(write, "aten.zeros_like.default", loss_.weight_gradient, sums_,
                      {loss_.classes, loss_.width}, loss_.weight);
    bias_sum_ = Sum(write, "aten.zeros_like.default", loss_.bias_gradient, sums_, {loss_.classes},
                    loss_.bias);
  }

  void Chunk(CallWriter& write) {
    const TensorUse counts =
        write.Make("aten.ne.Scalar", write.Use(DType::kBool, {rows_}), {{loss_.labels}});
    const TensorUse classes = write.Make("aten.where.self", write.Use(DType::kInt64, {rows_, kOne}),
                                         {{counts}, {loss_.labels}});
    const TensorUse hidden = Hidden(write, counts);
    const TensorUse logits = Logits(write, hidden);
    write.Out("aten._log_softmax.out", logits, {{logits}, {kOne}, {false}});
    const TensorUse own = write.Make("aten.gather.default", write.Use(sums_, {rows_, kOne}),
                                     {{logits}, {kOne}, {classes}});
    AddLoss(write, counts, own);
    write.InPlace("aten.exp_.default", logits);
    write.InPlace("aten.expm1_.default", own);
    write.InPlace("aten.scatter_.src", logits, {{kOne}, {classes}, {own}});
    if (bias_sum_.storage != kElsewhere) {
      write.InPlace("aten.addmv_.default", bias_sum_, {{write.Transposed(logits)}, {counts}});
    }
    const TensorUse gradient = Gradient(write, logits);
    AddHiddenGradient(write, gradient, counts);
    AddWeightGradient(write, gradient, hidden);
    for (const TensorUse& done : {counts, classes, hidden, own, gradient}) write.Free(done);
  }

  /// A chunk of the hidden states, rows that do not count set to 0.
  TensorUse Hidden(CallWriter& write, const TensorUse& counts) {
    const DType type = write.TypeOf(loss_.hidden);
    const std::vector<Number> sizes = {rows_, loss_.width};
    TensorUse part = write.Use(type, sizes, loss_.hidden.storage);
    part.view = true;
    const TensorUse masked =
        write.Make("aten.where.self", write.Use(type, sizes), {{counts}, {part}});
    if (type == loss_.type) return masked;
    const TensorUse narrow = write.Cast(masked, write.Use(loss_.type, sizes));
    write.Free(masked);
    return narrow;
  }

  TensorUse Logits(CallWriter& write, const TensorUse& hidden) {
    const std::vector<Number> sizes = {rows_, loss_.classes};
    TensorUse logits = write.Use(loss_.type, sizes);
    if (loss_.bias.storage == kElsewhere) {
      write.Make("aten.mm.default", logits, {{hidden}, {weight_}});
    } else {
      write.Make("aten.addmm.default", logits, {{loss_.bias}, {hidden}, {weight_}});
    }
    if (loss_.type == sums_) return logits;
    const TensorUse wide = write.Cast(logits, write.Use(sums_, sizes));
    write.Free(logits);
    return wide;
  }

  void AddLoss(CallWriter& write, const TensorUse& counts, const TensorUse& own) {
    const TensorUse counted =
        write.Make("aten.where.self", write.Use(sums_, {rows_}), {{counts}, {own}});
    const TensorUse sum = write.Make("aten.sum.default", write.Use(sums_, {}), {{counted}});
    write.Free(counted);
    write.InPlace("aten.sub_.Tensor", loss_.loss, {{sum}});
    write.Free(sum);
  }

  /// In the type of the products.
  TensorUse Gradient(CallWriter& write, const TensorUse& logits) {
    if (loss_.type == sums_) return logits;
    const TensorUse narrow = write.Cast(logits, write.Use(loss_.type, {rows_, loss_.classes}));
    write.Free(logits);
    return narrow;
  }

  void AddHiddenGradient(CallWriter& write, const TensorUse& gradient, const TensorUse& counts) {
    if (hidden_sum_.storage == kElsewhere) return;
    const DType type = write.TypeOf(hidden_sum_);
    const std::vector<Number> sizes = {rows_, loss_.width};
    TensorUse part = write.Use(type, sizes, hidden_sum_.storage);
    part.view = true;
    const TensorUse back = write.Transposed(weight_);
    if (type == loss_.type) {
      write.Out("aten.mm.out", part, {{gradient}, {back}});
    } else {
      const TensorUse made =
          write.Make("aten.mm.default", write.Use(loss_.type, sizes), {{gradient}, {back}});
      write.InPlace("aten.copy_.default", part, {{made}});
      write.Free(made);
    }
    const TensorUse ignored =
        write.Make("aten.logical_not.default", write.Use(DType::kBool, {rows_}), {{counts}});
    write.InPlace("aten.masked_fill_.Scalar", part, {{ignored}});
    write.Free(ignored);
  }

  void AddWeightGradient(CallWriter& write, const TensorUse& gradient, const TensorUse& hidden) {
    if (weight_sum_.storage == kElsewhere) return;
    const TensorUse columns = write.Transposed(gradient);
    if (loss_.type == sums_) {
      write.InPlace("aten.addmm_.default", weight_sum_, {{columns}, {hidden}});
      return;
    }
    const TensorUse part =
        write.Make("aten.mm.default", write.Use(loss_.type, {loss_.classes, loss_.width}),
                   {{columns}, {hidden}});
    write.InPlace("aten.add_.Tensor", weight_sum_, {{part}});
    write.Free(part);
  }

  void Narrow(CallWriter& write, const TensorUse& sum, const TensorUse& gradient) {
    if (sum.storage == kElsewhere || sum.storage == gradient.storage) return;
    write.Cast(sum, gradient);
    write.Free(sum);
  }

  Job& job_;
  JobEditor& edit_;
  const LinearLoss& loss_;
  const int chunks_;
  /// Where sums over rows, and the loss, are made.
  DType sums_ = DType::kFloat32;
  /// Of a chunk.
  Number rows_;
  /// As products read it.
  TensorUse weight_;
  TensorUse hidden_sum_, weight_sum_, bias_sum_;
  /// One over the number of rows that count; waits for the backward.
  TensorUse scale_;
};

/// The step with its losses written anew.
class Chunker {
 public:
  Chunker(Job& job, const Variant& old, const std::vector<LinearLoss>& losses, int chunks)
      : old_(old), edit_(job, old, "plimsoll.loss") {
    for (const LinearLoss& loss : losses) {
      writers_.emplace_back(job, edit_, loss, chunks);
      for (const std::size_t event : loss.events) dropped_.insert(event);
      for (const Storage storage : loss.inner) inner_.insert(storage);
    }
    for (std::size_t i = 0; i < losses.size(); ++i) {
      forward_[losses[i].forward] = &writers_[i];
      backward_[losses[i].backward] = &writers_[i];
      MoveFrees(losses[i]);
    }
  }

  Variant Run() {
    for (std::size_t i = 0; i < old_.events.size(); ++i) {
      const JobEvent& event = old_.events[i];
      const auto forward = forward_.find(i);
      const auto backward = backward_.find(i);
      if (forward != forward_.end()) {
        forward->second->Forward(old_.calls[event.index]);
        for (const Storage storage : frees_after_[i]) edit_.Free(storage);
      } else if (backward != backward_.end()) {
        backward->second->Backward(old_.calls[event.index]);
      } else if (!dropped_.contains(i) && !OfInner(event)) {
        edit_.Copy(event);
      }
    }
    return edit_.Take();
  }

 private:
  bool OfInner(const JobEvent& event) const {
    const bool names_storage =
        event.kind == JobEvent::Kind::kFree || event.kind == JobEvent::Kind::kLabel;
    return names_storage && inner_.contains(event.index);
  }

  /// The hidden states and the labels are needed until the loss is there, and, where only its
  /// backward would have read them, no longer.
  void MoveFrees(const LinearLoss& loss) {
    for (const Storage storage : {loss.hidden.storage, loss.labels.storage}) {
      std::size_t used = 0;
      std::size_t freed = 0;
      for (std::size_t i = 0; i < old_.events.size(); ++i) {
        const JobEvent& event = old_.events[i];
        if (event.kind == JobEvent::Kind::kFree && event.index == storage) freed = i;
        if (event.kind != JobEvent::Kind::kCall || dropped_.contains(i)) continue;
        ForEachArgument(old_.calls[event.index], [&](const TensorUse& use) {
          if (use.storage == storage) used = i;
        });
      }
      if (freed == 0 || used > loss.forward) continue;
      if (freed > loss.forward && freed < loss.backward) continue;
      dropped_.insert(freed);
      frees_after_[loss.forward].push_back(storage);
    }
  }

  const Variant& old_;
  JobEditor edit_;
  std::vector<Writer> writers_;
  std::set<std::size_t> dropped_;
  std::set<Storage> inner_;
  std::map<std::size_t, Writer*> forward_;
  std::map<std::size_t, Writer*> backward_;
  std::map<std::size_t, std::vector<Storage>> frees_after_;
};

std::optional<Error> TooFewRows(const std::vector<LinearLoss>& losses, int chunks) {
  for (const LinearLoss& loss : losses) {
    if (loss.rows.rise() >= chunks) continue;
    return Error{
        .message = fmt::format("the loss has fewer rows for each sample than {} chunks", chunks),
        .hint = "leave out loss=chunked"};
  }
  return std::nullopt;
}

/// The layer is replaced by one whose logits are computed in chunks: a checkpoint around it would
/// compute nothing again.
std::optional<Error> IsCheckpointed(const Job& job, const Variant& variant,
                                    const std::vector<LinearLoss>& losses) {
  for (const LinearLoss& loss : losses) {
    const std::string_view layer = job.strings[loss.layer];
    if (layer.empty()) continue;
    for (const CallRecord& call : variant.calls) {
      if (!call.recomputed || call.module != loss.layer) continue;
      return Error{.message = fmt::format("{} makes the logits: it cannot be checkpointed where "
                                          "the loss goes in chunks",
                                          layer),
                   .hint = "leave it, and the modules around it, out of checkpointing"};
    }
  }
  return std::nullopt;
}

Result<std::vector<LinearLoss>> LossesFor(const Job& job, const Variant& variant, int chunks) {
  Result<std::vector<LinearLoss>> losses = FindLinearLosses(job, variant);
  if (!losses) return losses;
  if (std::optional<Error> error = TooFewRows(*losses, chunks)) return *error;
  if (std::optional<Error> error = IsCheckpointed(job, variant, *losses)) return *error;
  return losses;
}

Bytes LogitsOf(const LinearLoss& loss) {
  return BoundedProduct(BoundedProduct(loss.rows.least(), loss.classes.least()),
                        ElementSize(loss.type));
}

}  // namespace

Result<Variant> ChunkLoss(Job& job, const Variant& variant, int chunks) {
  const Result<std::vector<LinearLoss>> losses = LossesFor(job, variant, chunks);
  if (!losses) return losses.error();
  return Chunker(job, variant, *losses, chunks).Run();
}

std::vector<std::string> LogitLayers(const Job& job, const Variant& variant, int chunks) {
  std::vector<std::string> layers;
  const Result<std::vector<LinearLoss>> losses = LossesFor(job, variant, chunks);
  if (!losses) return layers;
  for (const LinearLoss& loss : *losses) {
    const std::string_view layer = job.strings[loss.layer];
    const bool known = std::find(layers.begin(), layers.end(), layer) != layers.end();
    if (!layer.empty() && !known) layers.emplace_back(layer);
  }
  return layers;
}

std::optional<std::string> WhyNotChunked(const Job& job, const Variant& variant, int chunks,
                                         Bytes least) {
  const LinearLosses losses = LookForLinearLosses(job, variant);
  const auto large = [&](const LinearLoss& loss) { return LogitsOf(loss) >= least; };
  if (std::any_of(losses.found.begin(), losses.found.end(), large)) {
    const std::optional<Error> error = TooFewRows(losses.found, chunks);
    return error ? std::optional(error->message) : std::nullopt;
  }
  for (const LinearLosses::Refused& refused : losses.refused) {
    if (refused.logits >= least) return refused.why.message;
  }
  return std::nullopt;
}

Bytes LogitsOf(const Job& job, const Variant& variant, int chunks) {
  const Result<std::vector<LinearLoss>> losses = LossesFor(job, variant, chunks);
  if (!losses) return 0;
  Bytes most = 0;
  for (const LinearLoss& loss : *losses) most = std::max(most, LogitsOf(loss));
  return most;
}

}  // namespace plimsoll
