#include "job/transforms/chunked_log_probs.h"

namespace plimsoll {
namespace {

Argument Dimension(std::int64_t d) { return {Argument::List{{Number::Always(d)}}}; }

}  // namespace

void LogProbsWriter::Forward(CallWriter& write) {
  hidden_ = loss_.hidden;
  labels_ = loss_.labels;
  if (slices()) {
    hidden_ = write.Make("aten.clone.default",
                         write.Use(write.TypeOf(loss_.hidden), {kind_.rows, loss_.width}),
                         {{loss_.hidden}});
    labels_ =
        write.Make("aten.clone.default", write.Use(DType::kInt64, {kind_.rows}), {{loss_.labels}});
  }
  product_.BeginChunks(write);
  made_ = Result(write, kind_.own);
  write.Make("aten.zeros.default", made_);
  if (has_entropy()) {
    entropy_ = Result(write, kind_.entropy);
    write.Make("aten.zeros_like.default", entropy_, {{made_}});
  }
  for (int i = 0; i < product_.chunks(); ++i) ForwardChunk(write);
  product_.EndChunks(write);
  GiveResult(write, made_, kind_.own);
  if (made_.storage != kind_.own.storage) write.Free(made_);
  if (has_entropy()) GiveResult(write, entropy_, kind_.entropy);
  if (!loss_.backward) FreeOwn(write);
}

void LogProbsWriter::Backward(CallWriter& write) {
  product_.BeginChunks(write);
  TensorUse into;
  if (loss_.hidden_gradient.storage != kElsewhere) {
    into = write.Use(write.TypeOf(loss_.hidden_gradient), {kind_.rows, loss_.width},
                     slices() ? kElsewhere : loss_.hidden_gradient.storage);
  }
  product_.MakeSums(write, hidden_, into);
  for (int i = 0; i < product_.chunks(); ++i) BackwardChunk(write);
  product_.FinishSums(write);
  product_.EndChunks(write);
  FreeOwn(write);
  if (!slices() || into.storage == kElsewhere) return;
  write.Make("aten.slice_backward.default", loss_.hidden_gradient, {{into}});
  write.Free(into);
}

/// What waits for the backward and is not the job's.
void LogProbsWriter::FreeOwn(CallWriter& write) const {
  if (has_entropy() && entropy_.storage != kind_.entropy.storage) write.Free(entropy_);
  if (!slices()) return;
  write.Free(hidden_);
  write.Free(labels_);
}

/// In the type of the sums; the result itself where it has that.
TensorUse LogProbsWriter::Result(CallWriter& write, const TensorUse& result) const {
  const bool is_result = write.TypeOf(result) == product_.sums();
  return write.Use(product_.sums(), {kind_.rows}, is_result ? result.storage : kElsewhere);
}

void LogProbsWriter::GiveResult(CallWriter& write, const TensorUse& made,
                                const TensorUse& result) const {
  if (made.storage != result.storage) write.Cast(made, result);
}

void LogProbsWriter::ForwardChunk(CallWriter& write) const {
  const auto [counts, classes] = product_.ChunkOf(write, labels_);
  const TensorUse logs = LogProbs(write);
  const TensorUse own =
      write.Make("aten.gather.default", write.Use(product_.sums(), {product_.rows(), kOneElement}),
                 {{logs}, {kOneElement}, {classes}});
  AddRows(write, counts, own, made_);
  if (has_entropy()) AddEntropy(write, logs, counts);
  for (const TensorUse& done : {logs, counts, classes}) write.Free(done);
}

/// Of a chunk, in the memory of its logits.
TensorUse LogProbsWriter::LogProbs(CallWriter& write) const {
  const TensorUse hidden = Hidden(write);
  const TensorUse logits = product_.Logits(write, hidden);
  if (hidden.storage != hidden_.storage) write.Free(hidden);
  if (kind_.scaled) write.InPlace("aten.div_.Tensor", logits);
  write.Out("aten._log_softmax.out", logits, {{logits}, {kOneElement}, {false}});
  return logits;
}

/// A chunk of the hidden states in the type of the products.
TensorUse LogProbsWriter::Hidden(CallWriter& write) const {
  const std::vector<Number> sizes = {product_.rows(), loss_.width};
  const TensorUse part = write.Part(hidden_, sizes);
  if (write.TypeOf(part) == loss_.type) return part;
  return write.Cast(part, write.Use(loss_.type, sizes));
}

/// Those that count, into a result; they are freed.
void LogProbsWriter::AddRows(CallWriter& write, const TensorUse& counts, const TensorUse& rows,
                             const TensorUse& into) const {
  const TensorUse counted =
      write.Where(counts, rows, write.Use(product_.sums(), {product_.rows()}));
  write.Free(rows);
  write.InPlace("aten.copy_.default", write.Part(into, {product_.rows()}), {{counted}});
  write.Free(counted);
}

void LogProbsWriter::AddEntropy(CallWriter& write, const TensorUse& logs,
                                const TensorUse& counts) const {
  const std::vector<Number> sizes = {product_.rows(), loss_.classes};
  const TensorUse terms =
      write.Make("aten.exp.default", write.Use(product_.sums(), sizes), {{logs}});
  write.InPlace("aten.clamp_min_.default", logs);
  write.InPlace("aten.mul_.Tensor", terms, {{logs}});
  const TensorUse sum =
      write.Make("aten.sum.dim_IntList", write.Use(product_.sums(), {product_.rows()}),
                 {{terms}, Dimension(1)});
  write.Free(terms);
  const TensorUse entropy =
      write.Make("aten.neg.default", write.Use(product_.sums(), {product_.rows()}), {{sum}});
  write.Free(sum);
  AddRows(write, counts, entropy, entropy_);
}

void LogProbsWriter::BackwardChunk(CallWriter& write) const {
  const auto [counts, classes] = product_.ChunkOf(write, labels_);
  const TensorUse of_own = OuterOf(write, counts, kind_.of_own);
  const TensorUse gradient = LogProbs(write);
  if (has_entropy()) {
    WithEntropy(write, gradient, of_own, counts);
  } else {
    OfOwn(write, gradient, of_own);
  }
  write.InPlace("aten.scatter_add_.default", gradient, {{kOneElement}, {classes}, {of_own}});
  if (kind_.scaled) write.InPlace("aten.div_.Tensor", gradient);
  AddGradients(write, gradient);
  for (const TensorUse& done : {counts, classes, of_own}) write.Free(done);
}

/// Rows of a gradient that the chunk is given; of none they are 0.
TensorUse LogProbsWriter::OuterOf(CallWriter& write, const TensorUse& counts,
                                  const TensorUse& outer) const {
  const std::vector<Number> sizes = {product_.rows()};
  const TensorUse given = outer.storage == kElsewhere ? TensorUse{} : write.Part(outer, sizes);
  return write.Where(counts, given, write.Use(product_.sums(), sizes));
}

void LogProbsWriter::OfOwn(CallWriter& write, const TensorUse& logs,
                           const TensorUse& of_own) const {
  write.InPlace("aten.exp_.default", logs);
  const TensorUse negated = write.Make(
      "aten.neg.default", write.Use(product_.sums(), {product_.rows(), kOneElement}), {{of_own}});
  write.InPlace("aten.mul_.Tensor", logs, {{negated}});
  write.Free(negated);
}

void LogProbsWriter::WithEntropy(CallWriter& write, const TensorUse& logs, const TensorUse& of_own,
                                 const TensorUse& counts) const {
  const TensorUse of_entropy = OuterOf(write, counts, kind_.of_entropy);
  const std::vector<Number> sizes = {product_.rows(), loss_.classes};
  const TensorUse p = write.Make("aten.exp.default", write.Use(product_.sums(), sizes), {{logs}});
  write.InPlace("aten.clamp_min_.default", logs);
  write.InPlace("aten.add_.Tensor", logs, {{write.Part(entropy_, {product_.rows()})}});
  write.InPlace("aten.mul_.Tensor", logs, {{of_entropy}});
  write.InPlace("aten.add_.Tensor", logs, {{of_own}});
  write.InPlace("aten.mul_.Tensor", logs, {{p}});
  write.InPlace("aten.neg_.default", logs);
  write.Free(p);
  write.Free(of_entropy);
}

/// Of hidden states, weight and bias, from those of a chunk's logits, which are freed.
void LogProbsWriter::AddGradients(CallWriter& write, const TensorUse& gradient) const {
  if (product_.bias_sum().storage != kElsewhere) {
    const TensorUse part =
        write.Make("aten.sum.dim_IntList", write.Use(product_.sums(), {loss_.classes}),
                   {{gradient}, Dimension(0)});
    write.InPlace("aten.add_.Tensor", product_.bias_sum(), {{part}});
    write.Free(part);
  }
  const TensorUse narrow = product_.Narrow(write, gradient);
  if (product_.hidden_sum().storage != kElsewhere) {
    const std::vector<Number> sizes = {product_.rows(), loss_.width};
    const TensorUse made = write.Make("aten.mm.default", write.Use(loss_.type, sizes),
                                      {{narrow}, {write.Transposed(product_.weight())}});
    write.InPlace("aten.copy_.default", write.Part(product_.hidden_sum(), sizes), {{made}});
    write.Free(made);
  }
  if (loss_.weight_gradient.storage != kElsewhere) {
    const TensorUse hidden = Hidden(write);
    product_.AddToWeight(write, narrow, hidden);
    if (hidden.storage != hidden_.storage) write.Free(hidden);
  }
  write.Free(narrow);
}

}  // namespace plimsoll
