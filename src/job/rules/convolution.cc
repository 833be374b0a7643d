// Convolutions: cuDNN's workspace after each direction's output, and the copies that bring tensors
// into one memory format.
#include <algorithm>
#include <array>
#include <numeric>
#include <vector>

#include "job/cudnn/convolution_workspace.h"
#include "job/rules/calibration.h"
#include "job/rules/common.h"
#include "job/rules/reduction.h"
#include "job/rules/rules.h"
#include "job/rules/workspace_lookup.h"

namespace plimsoll {
namespace {

/// Whether torch takes a tensor for channels-last by its strides (is_channels_last_strides_2d):
/// unlike IsChannelsLast also a slice of one.
bool LikeChannelsLast(const Layout& layout) {
  if (layout.dims() != 4 || layout.strides[1] == 0) return false;
  std::int64_t least = 0;
  for (const std::size_t d : {1u, 3u, 2u, 0u}) {
    if (layout.sizes[d] == 0 || layout.strides[d] < least) return false;
    if (d == 0 && least == layout.strides[1]) return false;
    least = layout.strides[d] * std::max<std::int64_t>(layout.sizes[d], 1);
  }
  return true;
}

struct Convolution {
  Layout input, weight, output;
  std::vector<std::int64_t> stride, padding, dilation;
  std::int64_t groups = 1;
  bool transposed = false;
  bool channels_last = false;
};

bool InFormat(const Layout& layout, bool channels_last) {
  return channels_last && layout.dims() == 4 ? layout.IsContiguousIn({0, 2, 3, 1})
                                             : layout.IsContiguous();
}
Slot CopyToFormat(const Layout& layout, bool channels_last, Emitter& emit) {
  return InFormat(layout, channels_last) ? Slot{} : emit.Take(layout.bytes());
}

/// Of a list with one entry a dimension, the last first; one entry holds for all.
std::int64_t OfDimension(const std::vector<std::int64_t>& list, std::size_t i,
                         std::int64_t otherwise) {
  if (list.empty()) return otherwise;
  return list.size() > i ? list[list.size() - 1 - i] : list.front();
}

ConvVolume VolumeOf(const Convolution& c) {
  ConvVolume volume;
  for (std::size_t i = 0; i < volume.input.size(); ++i) {
    const std::size_t from_last = volume.input.size() - 1 - i;
    volume.input[i] = c.input.sizes[2 + i];
    volume.kernel[i] = c.weight.sizes[2 + i];
    volume.stride[i] = OfDimension(c.stride, from_last, 1);
    volume.padding[i] = OfDimension(c.padding, from_last, 0);
    volume.dilation[i] = OfDimension(c.dilation, from_last, 1);
  }
  return volume;
}

/// Convolutions of one dimension are those of two with a height of 1; of three, the depth goes to
/// the height.
ConvShape ShapeOf(const Convolution& c) {
  ConvShape shape;
  shape.element_bytes = static_cast<int>(ElementSize(c.input.dtype));
  shape.is_fp16 = c.input.dtype == DType::kFloat16;
  shape.channels_last = c.channels_last;
  shape.n = c.input.sizes[0];
  shape.c = c.input.sizes[1];
  shape.k = c.output.sizes[1];
  shape.w = c.input.sizes.back();
  shape.wo = c.output.sizes.back();
  shape.kw = c.weight.sizes.back();
  for (std::size_t d = 2; d + 1 < c.input.dims(); ++d) {
    shape.h *= c.input.sizes[d];
    shape.ho *= c.output.sizes[d];
    shape.kh *= c.weight.sizes[d];
  }
  const std::size_t dims = c.input.dims() - 2;
  shape.stride_w = OfDimension(c.stride, 0, 1);
  shape.pad_w = OfDimension(c.padding, 0, 0);
  shape.dilation_w = OfDimension(c.dilation, 0, 1);
  for (std::size_t i = 1; i < dims; ++i) {
    shape.stride_h = std::max(shape.stride_h, OfDimension(c.stride, i, 1));
    shape.pad_h = std::max(shape.pad_h, OfDimension(c.padding, i, 0));
    shape.dilation_h = std::max(shape.dilation_h, OfDimension(c.dilation, i, 1));
  }
  shape.groups = c.groups;
  shape.transposed = c.transposed;
  if (dims == 3) shape.volume = VolumeOf(c);
  return shape;
}

/// What was measured goes before what cuDNN was asked for, and that before the rules.
Workspace WorkspaceOf(const ConvShape& shape, ConvDirection direction, const Emitter& emit) {
  const int multiprocessors = emit.gpu().multiprocessors;
  const WorkspaceSources sources = emit.sources();
  std::optional<Workspace> known;
  if (sources.measured) known = sources.measured->Find(shape, direction);
  if (sources.asked && !known) {
    known = FindAsked(*sources.asked, shape, direction, multiprocessors);
  }
  return known ? *known : ConvolutionWorkspace(shape, direction, multiprocessors);
}

void BorrowWorkspace(const Convolution& c, ConvDirection direction, int thread, Emitter& emit) {
  const ConvShape shape = ShapeOf(c);
  if (const AskedWorkspaces* asked = emit.sources().asked) {
    const std::optional<PlanSearch> search = FindSearch(*asked, shape, direction);
    if (search) emit.Search(search->key, thread, search->largest);
  }
  emit.Borrow(WorkspaceOf(shape, direction, emit));
}

/// Input and weight stand at `first` and after, the settings at `settings` and after.
std::optional<Convolution> Read(const Call& call, std::size_t first, std::size_t settings) {
  const auto input = call.TensorArg(first);
  const auto weight = call.TensorArg(first + 1);
  if (!input || !weight || (*input)->dims() < 3 || (*weight)->dims() != (*input)->dims()) {
    return std::nullopt;
  }
  Convolution c;
  c.input = **input;
  c.weight = **weight;
  c.stride = call.IntsArg(settings);
  c.padding = call.IntsArg(settings + 1);
  c.dilation = call.IntsArg(settings + 2);
  c.transposed = call.BoolArg(settings + 3, false);
  c.groups = call.IntArg(settings + 5).value_or(1);
  c.channels_last = LikeChannelsLast(c.input) || LikeChannelsLast(c.weight);
  return c;
}

// convolution(input, weight, bias, stride, padding, dilation, transposed, output_padding, groups).
// The bias is added in place. A weight in another format than the input is copied after the output
// (in 20 of 20 rows with an NHWC input, an NCHW weight and a kernel above 1).
void ConvolutionForward(const Call& call, Emitter& emit) {
  std::optional<Convolution> c = Read(call, 0, 3);
  if (!c || call.results() == 0) return MakeAll(call, emit);
  c->output = *call.Result(0);
  if (c->output.dims() != c->input.dims()) return MakeAll(call, emit);
  const Slot input = CopyToFormat(c->input, c->channels_last, emit);
  MakeAll(call, emit);
  const Slot weight = CopyToFormat(c->weight, c->channels_last, emit);
  BorrowWorkspace(*c, ConvDirection::kForward, call.thread(), emit);
  emit.Give(weight);
  emit.Give(input);
}

// convolution_backward(grad_output, input, weight, bias_sizes, stride, padding, dilation,
// transposed,
//                      output_padding, groups, output_mask)
void ConvolutionBackward(const Call& call, Emitter& emit) {
  std::optional<Convolution> c = Read(call, 1, 4);
  const auto gradient = call.TensorArg(0);
  const std::vector<bool> wants = call.BoolsArg(10);
  if (!c || !gradient || wants.size() != 3 || (*gradient)->dims() != c->input.dims()) {
    return MakeAll(call, emit);
  }
  c->output = **gradient;
  const Slot input = wants[1] ? CopyToFormat(c->input, c->channels_last, emit) : Slot{};
  const Slot grad_output = CopyToFormat(**gradient, c->channels_last, emit);
  std::size_t fresh = 0;
  if (wants[0]) {
    emit.Make(fresh++);
    const Slot weight = CopyToFormat(c->weight, c->channels_last, emit);
    BorrowWorkspace(*c, ConvDirection::kBackwardData, call.thread(), emit);
    emit.Give(weight);
  }
  if (wants[1]) {
    emit.Make(fresh++);
    BorrowWorkspace(*c, ConvDirection::kBackwardWeight, call.thread(), emit);
  }
  emit.Give(grad_output);
  emit.Give(input);
  MakeAll(call, emit);
  if (!wants[2]) return;
  // The gradient of the bias: a sum over all but the channels.
  std::vector<std::int64_t> dims(c->input.dims());
  std::iota(dims.begin(), dims.end(), 0);
  dims.erase(dims.begin() + 1);
  Reduce(emit, **gradient, dims);
}

constexpr std::array kConvolutionRules = std::to_array<RuleEntry>({
    {"convolution", ConvolutionForward},
    {"convolution_overrideable", ConvolutionForward},
    {"convolution_backward", ConvolutionBackward},
    {"convolution_backward_overrideable", ConvolutionBackward},
});

}  // namespace

std::span<const RuleEntry> ConvolutionRules() { return kConvolutionRules; }

std::optional<ConvolutionCall> ReadConvolution(const Call& call) {
  const bool backward = call.op().find("convolution_backward") != std::string_view::npos;
  std::optional<Convolution> c = backward ? Read(call, 1, 4) : Read(call, 0, 3);
  const std::optional<Tensor> output = backward             ? call.TensorArg(0)
                                       : call.results() > 0 ? std::optional(call.Result(0))
                                                            : std::nullopt;
  if (!c || !output || (*output)->dims() != c->input.dims()) return std::nullopt;
  c->output = **output;
  ConvolutionCall read{.shape = ShapeOf(*c), .dtype = c->input.dtype, .backward = backward};
  if (!backward) return read;
  std::vector<bool> wants = call.BoolsArg(10);
  wants.resize(3, false);
  read.wants_input = wants[0];
  read.wants_weight = wants[1];
  read.wants_bias = wants[2];
  return read;
}

}  // namespace plimsoll
