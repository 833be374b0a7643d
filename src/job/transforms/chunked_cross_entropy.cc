#include "job/transforms/chunked_cross_entropy.h"

namespace plimsoll {

void CrossEntropyWriter::Forward(CallWriter& write) {
  product_.BeginChunks(write);
  write.Make("aten.zeros.default", kind_.loss);
  const TensorUse& gradient = loss_.hidden_gradient;
  product_.MakeSums(
      write, loss_.hidden,
      gradient.storage == kElsewhere
          ? TensorUse{}
          : write.Use(write.TypeOf(gradient), {loss_.rows, loss_.width}, gradient.storage));
  for (int i = 0; i < product_.chunks(); ++i) Chunk(write);
  product_.EndChunks(write);
  scale_ = write.Use(product_.sums(), {});
  const TensorUse counts =
      write.Make("aten.ne.Scalar", write.Use(DType::kBool, {loss_.rows}), {{loss_.labels}});
  write.Make("aten.sum.default", scale_, {{counts}});
  write.Free(counts);
  write.InPlace("aten.mul_.Tensor", kind_.loss, {{scale_}});
}

void CrossEntropyWriter::Backward(CallWriter& write) {
  const TensorUse factor =
      write.Make("aten.mul.Tensor", write.Use(product_.sums(), {}), {{kind_.outer}, {scale_}});
  product_.ScaleSums(write, factor);
  product_.FinishSums(write);
  write.Free(factor);
  write.Free(scale_);
}

void CrossEntropyWriter::Chunk(CallWriter& write) {
  const auto [counts, classes] = product_.ChunkOf(write, loss_.labels);
  const TensorUse hidden = Hidden(write, counts);
  const TensorUse logits = product_.Logits(write, hidden);
  write.Out("aten._log_softmax.out", logits, {{logits}, {kOneElement}, {false}});
  const TensorUse own =
      write.Make("aten.gather.default", write.Use(product_.sums(), {product_.rows(), kOneElement}),
                 {{logits}, {kOneElement}, {classes}});
  AddLoss(write, counts, own);
  write.InPlace("aten.exp_.default", logits);
  write.InPlace("aten.expm1_.default", own);
  write.InPlace("aten.scatter_.src", logits, {{kOneElement}, {classes}, {own}});
  if (product_.bias_sum().storage != kElsewhere) {
    write.InPlace("aten.addmv_.default", product_.bias_sum(),
                  {{write.Transposed(logits)}, {counts}});
  }
  const TensorUse gradient = product_.Narrow(write, logits);
  AddHiddenGradient(write, gradient, counts);
  product_.AddToWeight(write, gradient, hidden);
  for (const TensorUse& done : {counts, classes, hidden, own, gradient}) write.Free(done);
}

/// A chunk of the hidden states, rows that do not count set to 0.
TensorUse CrossEntropyWriter::Hidden(CallWriter& write, const TensorUse& counts) const {
  const DType type = write.TypeOf(loss_.hidden);
  const std::vector<Number> sizes = {product_.rows(), loss_.width};
  const TensorUse masked =
      write.Where(counts, write.Part(loss_.hidden, sizes), write.Use(type, sizes));
  if (type == loss_.type) return masked;
  const TensorUse narrow = write.Cast(masked, write.Use(loss_.type, sizes));
  write.Free(masked);
  return narrow;
}

void CrossEntropyWriter::AddLoss(CallWriter& write, const TensorUse& counts,
                                 const TensorUse& own) const {
  const TensorUse counted = write.Where(counts, own, write.Use(product_.sums(), {product_.rows()}));
  const TensorUse sum = write.Make("aten.sum.default", write.Use(product_.sums(), {}), {{counted}});
  write.Free(counted);
  write.InPlace("aten.sub_.Tensor", kind_.loss, {{sum}});
  write.Free(sum);
}

void CrossEntropyWriter::AddHiddenGradient(CallWriter& write, const TensorUse& gradient,
                                           const TensorUse& counts) const {
  if (product_.hidden_sum().storage == kElsewhere) return;
  const std::vector<Number> sizes = {product_.rows(), loss_.width};
  const TensorUse part = write.Part(product_.hidden_sum(), sizes);
  const TensorUse back = write.Transposed(product_.weight());
  if (write.TypeOf(part) == loss_.type) {
    write.Out("aten.mm.out", part, {{gradient}, {back}});
  } else {
    const TensorUse made =
        write.Make("aten.mm.default", write.Use(loss_.type, sizes), {{gradient}, {back}});
    write.InPlace("aten.copy_.default", part, {{made}});
    write.Free(made);
  }
  const TensorUse ignored = write.Make("aten.logical_not.default",
                                       write.Use(DType::kBool, {product_.rows()}), {{counts}});
  write.InPlace("aten.masked_fill_.Scalar", part, {{ignored}});
  write.Free(ignored);
}

}  // namespace plimsoll
