// From traces of torch 2.11 (docs/prediction.md, "Context parallelism"). Causal attention is
// balanced: a rank has two pieces of the sequence, and of what comes from another rank either the
// first half of the keys counts, or the second half of its own queries.
#include "job/parallel/ring_attention.h"

#include <array>
#include <utility>

#include "job/parallel/cut.h"

namespace plimsoll {
namespace {

/// [batch, heads, positions, size of a head]
constexpr std::size_t kPositionsDimension = 2;
constexpr std::size_t kGradients = 3;

const TensorUse& TensorOf(const CallRecord& call, std::size_t argument) {
  return std::get<TensorUse>(call.args[argument].is);
}

bool IsDense(const LayoutRecord& layout) {
  Number stride = Number::Always(1);
  for (std::size_t d = layout.sizes.size(); d-- > 0;) {
    if (layout.sizes[d].least() != 1 && layout.strides[d] != stride) return false;
    stride = Number::Each(BoundedProduct, stride, layout.sizes[d]);
  }
  return true;
}

}  // namespace

std::uint32_t RingAttention::Dense(std::uint32_t layout) {
  LayoutRecord dense = job_.layouts[layout];
  Number stride = Number::Always(1);
  for (std::size_t d = dense.sizes.size(); d-- > 0;) {
    dense.strides[d] = stride;
    stride = Number::Each(BoundedProduct, stride, dense.sizes[d]);
  }
  job_.layouts.push_back(std::move(dense));
  return static_cast<std::uint32_t>(job_.layouts.size() - 1);
}

std::uint32_t RingAttention::Halved(std::uint32_t layout) {
  job_.layouts.push_back(PartOf(job_.layouts[layout], kPositionsDimension, 2));
  return static_cast<std::uint32_t>(job_.layouts.size() - 1);
}

std::uint32_t RingAttention::InFull(std::uint32_t layout) {
  if (!IsHalf(job_.layouts[layout].dtype)) return layout;
  LayoutRecord full = job_.layouts[layout];
  full.dtype = DType::kFloat32;
  job_.layouts.push_back(std::move(full));
  return static_cast<std::uint32_t>(job_.layouts.size() - 1);
}

/// So many of them in a row.
std::uint32_t RingAttention::Flat(const TensorUse& one, std::int64_t times) {
  LayoutRecord flat{.dtype = job_.layouts[one.layout].dtype};
  const Number bytes = BytesAtPoints(job_.layouts[one.layout]);
  const Bytes element = ElementSize(flat.dtype);
  flat.sizes = {
      Number::Each([&](std::int64_t n) { return BoundedProduct(n / element, times); }, bytes)};
  flat.strides = {Number::Always(1)};
  job_.layouts.push_back(std::move(flat));
  return static_cast<std::uint32_t>(job_.layouts.size() - 1);
}

Storage RingAttention::Make(std::string_view op, std::uint32_t layout, Storage into) {
  return MakeUse(op, layout, into).storage;
}

TensorUse RingAttention::MakeUse(std::string_view op, std::uint32_t layout, Storage into) {
  const Storage storage = into == kElsewhere ? edit_.NewStorageNumber() : into;
  CallRecord call{.op = job_.strings.Intern(op),
                  .where = job_.strings.Intern("context parallel"),
                  .module = module_};
  call.results = {{.storage = storage, .layout = layout}};
  call.fresh = {{.storage = storage, .bytes = BytesAtPoints(job_.layouts[layout])}};
  edit_.Call(std::move(call));
  return {.storage = storage, .layout = layout};
}

Storage RingAttention::Exchange(Collective::Kind kind, std::uint32_t layout) {
  const Number bytes = BytesAtPoints(job_.layouts[layout]);
  CallRecord call =
      CallOf(job_, {.kind = kind, .bytes = bytes, .ranks = ring_.ranks, .apart = ring_.apart});
  call.where = job_.strings.Intern("context parallel");
  call.module = module_;
  const Storage storage = edit_.NewStorageNumber();
  call.results = {{.storage = storage, .layout = layout}};
  call.fresh = {{.storage = storage, .bytes = bytes}};
  edit_.Call(std::move(call));
  return storage;
}

TensorUse RingAttention::Contiguous(const TensorUse& use) {
  if (IsDense(job_.layouts[use.layout])) return use;
  return MakeUse("aten.clone.default", Dense(use.layout));
}

void RingAttention::HandOn(const Part& own, std::int64_t step, Storage& buffer) {
  if (step + 1 >= ring_.ranks) return;
  const Storage both = Make("aten.cat.default", Flat(own.key, 2));
  const Storage before = buffer;
  if (ring_.hands_on) {
    buffer = Exchange(Collective::Kind::kAllToAll, Flat(own.key, 2));
  } else if (step == 0) {
    buffer = Exchange(Collective::Kind::kAllGather, Flat(own.key, 2 * ring_.ranks));
  }
  edit_.Free(both);
  if (before != buffer) edit_.Free(before);
}

RingAttention::Part RingAttention::PartOfStep(const Part& own, std::int64_t step) {
  Part part = own;
  if (step == 0 || !causal_) return part;
  part.half_queries = step > ring_.rank;
  if (part.half_queries) {
    part.query.layout = Halved(own.query.layout);
  } else {
    part.key.layout = Halved(own.key.layout);
    part.value.layout = Halved(own.value.layout);
  }
  return part;
}

RingAttention::Merged RingAttention::Attend(const CallRecord& call, const Part& part) {
  CallRecord step = call;
  step.args[0] = {part.query};
  step.args[1] = {part.key};
  step.args[2] = {part.value};
  Merged made;
  step.fresh.clear();
  for (std::size_t r = 0; r < step.results.size(); ++r) {
    TensorUse& use = step.results[r];
    if (part.half_queries) use.layout = Halved(use.layout);
    use.storage = edit_.NewStorageNumber();
    step.fresh.push_back({.storage = use.storage,
                          .bytes = BytesAtPoints(job_.layouts[use.layout]),
                          .result = static_cast<std::uint32_t>(r)});
    (r == 0 ? made.output : made.logsumexp) = use;
  }
  edit_.Call(std::move(step));
  return made;
}

/// out - sigmoid(lse' - lse) * (out - out'), and the logsumexp likewise.
void RingAttention::Merge(Merged& sum, const Merged& next, const Part& part) {
  const std::uint32_t lse = next.logsumexp.layout;
  const std::uint32_t out = InFull(next.output.layout);
  const Storage difference = Make("aten.sub.Tensor", lse);
  const Storage weight = Make("aten.sigmoid.default", lse);
  edit_.Free(difference);
  const Storage apart = Make("aten.sub.Tensor", out);
  const Storage weighed = Make("aten.mul.Tensor", out);
  edit_.Free(weight);
  edit_.Free(apart);
  const TensorUse merged = MakeUse("aten.sub.Tensor", out);
  edit_.Free(weighed);
  const Storage first = Make("aten.sub.Tensor", lse);
  const Storage second = Make("aten.log_sigmoid_forward.default", lse);
  edit_.Free(first);
  const TensorUse merged_lse = MakeUse("aten.sub.Tensor", lse);
  edit_.Free(second);
  if (part.half_queries) {
    const TensorUse whole_lse = MakeUse("aten.cat.default", sum.logsumexp.layout);
    edit_.Free(sum.logsumexp.storage);
    const TensorUse whole = MakeUse("aten.cat.default", sum.output.layout);
    edit_.Free(sum.output.storage);
    edit_.Free(merged_lse.storage);
    edit_.Free(merged.storage);
    sum = {.output = whole, .logsumexp = whole_lse};
    return;
  }
  edit_.Free(sum.logsumexp.storage);
  edit_.Free(sum.output.storage);
  sum = {.output = merged, .logsumexp = merged_lse};
}

void RingAttention::Forward(const CallRecord& call) {
  module_ = call.module;
  const auto* causal = call.args.size() > 5 ? std::get_if<bool>(&call.args[5].is) : nullptr;
  causal_ = causal != nullptr && *causal;
  Part own{.query = TensorOf(call, 0), .key = TensorOf(call, 1), .value = TensorOf(call, 2)};
  own.key = Contiguous(own.key);
  own.value = Contiguous(own.value);
  Storage buffer = kElsewhere;
  HandOn(own, 0, buffer);
  Merged last = Attend(call, own);
  Merged sum = last;
  if (InFull(last.output.layout) != last.output.layout) {
    sum.output = MakeUse("aten._to_copy.default", InFull(last.output.layout));
  }
  const bool widened = sum.output.storage != last.output.storage;
  if (own.key.storage != TensorOf(call, 1).storage) edit_.Free(own.key.storage);
  if (own.value.storage != TensorOf(call, 2).storage) edit_.Free(own.value.storage);
  for (std::int64_t step = 1; step < ring_.ranks; ++step) {
    HandOn(own, step, buffer);
    const Part part = PartOfStep(own, step);
    const Merged next = Attend(call, part);
    if (step > 1 || widened) edit_.Free(last.output.storage);
    if (step > 1) edit_.Free(last.logsumexp.storage);
    last = next;
    Merged full = next;
    if (widened) full.output = MakeUse("aten._to_copy.default", InFull(next.output.layout));
    Merge(sum, full, part);
    if (widened) edit_.Free(full.output.storage);
  }
  // As the captured storages, which all that follows knows.
  MakeUse(widened ? "aten._to_copy.default" : "aten.clone.default", Dense(call.results[0].layout),
          call.results[0].storage);
  edit_.Free(sum.output.storage);
  MakeUse("aten.clone.default", call.results[1].layout, call.results[1].storage);
  edit_.Free(sum.logsumexp.storage);
  edit_.Free(buffer);
  edit_.Free(last.output.storage);
  edit_.Free(last.logsumexp.storage);
}

void RingAttention::Backward(const CallRecord& call) {
  module_ = call.module;
  const auto* causal = call.args.size() > 8 ? std::get_if<bool>(&call.args[8].is) : nullptr;
  causal_ = causal != nullptr && *causal;
  Part own{.query = TensorOf(call, 1), .key = TensorOf(call, 2), .value = TensorOf(call, 3)};
  std::array<TensorUse, kGradients> sums = {
      MakeUse("aten.zeros_like.default", InFull(own.query.layout)),
      MakeUse("aten.zeros_like.default", InFull(own.key.layout)),
      MakeUse("aten.zeros_like.default", InFull(own.value.layout))};
  own.key = Contiguous(own.key);
  own.value = Contiguous(own.value);
  const Storage both = Make("aten.cat.default", Flat(own.key, 2));
  Storage buffer = ring_.hands_on
                       ? Exchange(Collective::Kind::kAllToAll, Flat(own.key, 2))
                       : Exchange(Collective::Kind::kAllGather, Flat(own.key, 2 * ring_.ranks));
  const std::uint32_t pair = Flat(sums[1], 2);
  Storage received = kElsewhere;
  Storage sent = kElsewhere;
  std::vector<Storage> last;
  for (std::int64_t step = 0; step < ring_.ranks; ++step) {
    const Part part = PartOfStep(own, step);
    CallRecord backward = call;
    backward.args[1] = {part.query};
    backward.args[2] = {part.key};
    backward.args[3] = {part.value};
    if (part.half_queries) {
      for (const std::size_t a : {std::size_t{0}, std::size_t{5}, std::size_t{6}}) {
        auto* use = std::get_if<TensorUse>(&backward.args[a].is);
        if (use != nullptr) use->layout = Halved(use->layout);
      }
    }
    backward.fresh.clear();
    backward.results.clear();
    std::vector<Storage> made;
    for (const TensorUse& like : {part.query, part.key, part.value}) {
      const Storage storage = edit_.NewStorageNumber();
      backward.fresh.push_back({.storage = storage,
                                .bytes = BytesAtPoints(job_.layouts[like.layout]),
                                .result = static_cast<std::uint32_t>(made.size())});
      backward.results.push_back({.storage = storage, .layout = like.layout});
      made.push_back(storage);
    }
    if (step == 1) {
      if (own.key.storage != TensorOf(call, 2).storage) edit_.Free(own.key.storage);
      if (own.value.storage != TensorOf(call, 3).storage) edit_.Free(own.value.storage);
    }
    edit_.Call(std::move(backward));
    for (const Storage storage : std::exchange(last, made)) edit_.Free(storage);
    if (step > 0) {
      edit_.FreeNow(sent);
      if (step == 1) {
        edit_.Free(sums[1].storage);
        edit_.Free(sums[2].storage);
      }
    }
    const Storage before = received;
    sent = Make("aten.cat.default", pair);
    received = Exchange(Collective::Kind::kAllToAll, pair);
    edit_.Free(before);
    if (part.half_queries) {
      const TensorUse whole = MakeUse("aten.cat.default", sums[0].layout);
      edit_.Free(std::exchange(sums[0], whole).storage);
    }
  }
  edit_.Free(sent);
  edit_.Free(both);
  for (std::size_t g = 0; g < call.results.size() && g < kGradients; ++g) {
    if (call.fresh.size() <= g) break;
    MakeUse("aten.clone.default", call.results[g].layout, call.results[g].storage);
    if (g == 0) edit_.Free(sums[0].storage);
  }
  edit_.Free(received);
  for (const Storage storage : last) edit_.Free(storage);
  edit_.Free(buffer);
}

}  // namespace plimsoll
