#include "job/transforms/chunked_product.h"

namespace plimsoll {

// Where rows cannot be shared out evenly, a chunk has one more for each sample at most.
ChunkedProduct::ChunkedProduct(const LinearLoss& loss, const Number& rows, int chunks)
    : loss_(loss),
      chunks_(chunks),
      sums_(loss.type == DType::kFloat64 ? DType::kFloat64 : DType::kFloat32),
      rows_(CeilShare(rows, chunks)) {}

void ChunkedProduct::BeginChunks(CallWriter& write) {
  casts_weight_ = write.TypeOf(loss_.weight) != loss_.type;
  weight_ = loss_.read_weight;
  weight_.storage = loss_.weight.storage;
  if (!casts_weight_) return;
  const TensorUse copy = write.Use(loss_.type, {loss_.classes, loss_.width});
  weight_.storage = write.Cast(loss_.weight, copy).storage;
}

void ChunkedProduct::EndChunks(CallWriter& write) {
  if (casts_weight_) write.Free(weight_);
}

TensorUse ChunkedProduct::Logits(CallWriter& write, const TensorUse& hidden) const {
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

ChunkedProduct::Labels ChunkedProduct::ChunkOf(CallWriter& write, const TensorUse& labels) const {
  const TensorUse counts =
      write.Make("aten.ne.Scalar", write.Use(DType::kBool, {rows_}), {{labels}});
  const TensorUse classes =
      write.Where(counts, labels, write.Use(DType::kInt64, {rows_, kOneElement}));
  return {counts, classes};
}

/// Sums over rows are in fp32; one whose gradient is to be so as well is the gradient itself.
TensorUse ChunkedProduct::Sum(CallWriter& write, std::string_view op, const TensorUse& gradient,
                              DType type, const std::vector<Number>& sizes,
                              const TensorUse& like) const {
  if (gradient.storage == kElsewhere) return {};
  const bool is_result = write.TypeOf(gradient) == type;
  return write.Make(op, write.Use(type, sizes, is_result ? gradient.storage : kElsewhere),
                    {{like}});
}

void ChunkedProduct::MakeSums(CallWriter& write, const TensorUse& hidden, const TensorUse& into) {
  if (into.storage != kElsewhere) {
    hidden_sum_ = write.Make("aten.empty_like.default", into, {{hidden}});
  }
  weight_sum_ = Sum(write, "aten.zeros_like.default", loss_.weight_gradient, sums_,
                    {loss_.classes, loss_.width}, loss_.weight);
  bias_sum_ = Sum(write, "aten.zeros_like.default", loss_.bias_gradient, sums_, {loss_.classes},
                  loss_.bias);
}

TensorUse ChunkedProduct::Narrow(CallWriter& write, const TensorUse& gradient) const {
  if (loss_.type == sums_) return gradient;
  const TensorUse narrow = write.Cast(gradient, write.Use(loss_.type, {rows_, loss_.classes}));
  write.Free(gradient);
  return narrow;
}

void ChunkedProduct::AddToWeight(CallWriter& write, const TensorUse& gradient,
                                 const TensorUse& hidden) const {
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

void ChunkedProduct::ScaleSums(CallWriter& write, const TensorUse& factor) const {
  for (const TensorUse& sum : {hidden_sum_, weight_sum_, bias_sum_}) {
    if (sum.storage != kElsewhere) write.InPlace("aten.mul_.Tensor", sum, {{factor}});
  }
}

void ChunkedProduct::FinishSums(CallWriter& write) const {
  const auto finish = [&](const TensorUse& sum, const TensorUse& gradient) {
    if (sum.storage == kElsewhere || sum.storage == gradient.storage) return;
    write.Cast(sum, gradient);
    write.Free(sum);
  };
  finish(weight_sum_, loss_.weight_gradient);
  finish(bias_sum_, loss_.bias_gradient);
}

}  // namespace plimsoll
