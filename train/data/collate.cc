#include "train/data/collate.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>

#include <algorithm>
#include <cstring>

#include "train/data/source.h"

namespace plimsoll::train {
namespace {

std::vector<std::int64_t> LargestSizes(const std::vector<Sample>& samples, std::size_t tensor) {
  const at::Tensor& first = samples[0][tensor];
  std::vector<std::int64_t> sizes = first.sizes().vec();
  for (const Sample& sample : samples) {
    const at::Tensor& other = sample[tensor];
    if (other.dim() != first.dim() || other.scalar_type() != first.scalar_type()) {
      throw DataError("samples of different dimensions or types cannot be one batch");
    }
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      sizes[i] = std::max(sizes[i], other.size(static_cast<std::int64_t>(i)));
    }
  }
  return sizes;
}

/// By loops of its own: torch's copy would bring a pool of threads to each thread that loads.
void CopyInto(char* to, at::IntArrayRef to_sizes, const char* from, at::IntArrayRef from_sizes,
              std::size_t element) {
  if (to_sizes == from_sizes) {
    std::memcpy(to, from, static_cast<std::size_t>(c10::multiply_integers(from_sizes)) * element);
    return;
  }
  const auto to_rest = to_sizes.slice(1);
  const auto from_rest = from_sizes.slice(1);
  const auto to_stride = static_cast<std::size_t>(c10::multiply_integers(to_rest)) * element;
  const auto from_stride = static_cast<std::size_t>(c10::multiply_integers(from_rest)) * element;
  if (from_stride == 0) return;
  for (std::int64_t i = 0; i < from_sizes[0]; ++i) {
    CopyInto(to, to_rest, from, from_rest, element);
    to += to_stride;
    from += from_stride;
  }
}

double PaddingOf(const std::vector<double>& padding, std::size_t tensor) {
  return padding.empty() ? 0 : padding[std::min(tensor, padding.size() - 1)];
}

}  // namespace

Batch Collate(const std::vector<Sample>& samples, const std::vector<double>& padding,
              const at::TensorOptions& where) {
  if (samples.empty()) throw DataError("a batch needs a sample");
  for (const Sample& sample : samples) {
    if (sample.size() != samples[0].size()) {
      throw DataError("samples of different numbers of tensors cannot be one batch");
    }
  }
  Batch batch;
  for (std::size_t i = 0; i < samples[0].size(); ++i) {
    const std::vector<std::int64_t> row = LargestSizes(samples, i);
    std::vector<std::int64_t> sizes = row;
    sizes.insert(sizes.begin(), static_cast<std::int64_t>(samples.size()));
    const auto options = where.dtype(samples[0][i].scalar_type());
    const bool same = std::all_of(samples.begin(), samples.end(), [&](const Sample& sample) {
      return sample[i].sizes() == at::IntArrayRef(row);
    });
    const at::Tensor all =
        same ? at::empty(sizes, options) : at::full(sizes, PaddingOf(padding, i), options);
    const auto bytes = static_cast<std::size_t>(c10::multiply_integers(row)) * all.element_size();
    auto* to = static_cast<char*>(all.data_ptr());
    for (const Sample& sample : samples) {
      const at::Tensor from = sample[i].contiguous();
      CopyInto(to, row, static_cast<const char*>(from.const_data_ptr()), from.sizes(),
               all.element_size());
      to += bytes;
    }
    batch.tensors.push_back(all);
  }
  return batch;
}

}  // namespace plimsoll::train
