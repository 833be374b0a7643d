#include "job/transforms/call_writer.h"

#include <algorithm>
#include <utility>

namespace plimsoll {
namespace {

Number Times(const Number& a, const Number& b) { return Number::Each(BoundedProduct, a, b); }

}  // namespace

TensorUse CallWriter::Use(DType type, const std::vector<Number>& sizes, Storage storage) {
  LayoutRecord layout{.dtype = type, .sizes = sizes, .strides = sizes};
  Number stride = kOneElement;
  for (std::size_t d = sizes.size(); d-- > 0;) {
    layout.strides[d] = stride;
    stride = Times(stride, sizes[d]);
  }
  job_.layouts.push_back(std::move(layout));
  return {.storage = storage == kElsewhere ? edit_.NewStorageNumber() : storage,
          .layout = static_cast<std::uint32_t>(job_.layouts.size() - 1)};
}

TensorUse CallWriter::Part(const TensorUse& of, const std::vector<Number>& sizes) {
  TensorUse part = Use(TypeOf(of), sizes, of.storage);
  part.view = true;
  return part;
}

TensorUse CallWriter::Transposed(const TensorUse& of) {
  LayoutRecord layout = job_.layouts[of.layout];
  std::reverse(layout.sizes.begin(), layout.sizes.end());
  std::reverse(layout.strides.begin(), layout.strides.end());
  job_.layouts.push_back(std::move(layout));
  TensorUse use = of;
  use.view = true;
  use.layout = static_cast<std::uint32_t>(job_.layouts.size() - 1);
  return use;
}

TensorUse CallWriter::Make(std::string_view op, const TensorUse& result,
                           std::vector<Argument> args) {
  CallRecord call = New(op, result, std::move(args));
  const LayoutRecord& layout = job_.layouts[result.layout];
  Number bytes = {ElementSize(layout.dtype), ElementSize(layout.dtype)};
  for (const Number& size : layout.sizes) bytes = Times(bytes, size);
  call.fresh = {{.storage = result.storage, .bytes = bytes}};
  edit_.Call(std::move(call));
  return result;
}

TensorUse CallWriter::Cast(const TensorUse& from, const TensorUse& to) {
  return Make("aten._to_copy.default", to, {{from}});
}

TensorUse CallWriter::Where(const TensorUse& condition, const TensorUse& x,
                            const TensorUse& result) {
  const TensorUse zero = Make("aten.scalar_tensor.default", Use(TypeOf(result), {}));
  Make("aten.where.self", result, {{condition}, {x}, {zero}});
  Free(zero);
  return result;
}

void CallWriter::InPlace(std::string_view op, const TensorUse& into, std::vector<Argument> args) {
  args.insert(args.begin(), {into});
  edit_.Call(New(op, into, std::move(args)));
}

void CallWriter::Out(std::string_view op, const TensorUse& into, std::vector<Argument> args) {
  edit_.Call(New(op, into, std::move(args)));
}

CallRecord CallWriter::New(std::string_view op, const TensorUse& result,
                           std::vector<Argument> args) {
  CallRecord call{.op = job_.strings.Intern(op), .where = like_.where, .thread = like_.thread};
  call.args = std::move(args);
  call.results = {result};
  return call;
}

}  // namespace plimsoll
