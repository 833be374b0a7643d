#include "train/parallel/pipeline/pipeline_messages.h"

#include <c10/util/Exception.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

namespace plimsoll::train {
namespace {

/// Numbers that tell the forms of a message.
constexpr std::int64_t kHeader = 128;
/// Of one message: the header's, and one for each tensor.
constexpr std::size_t kTags = 16;

at::Tensor HeaderOf(const TensorForms& forms) {
  std::vector<std::int64_t> numbers{static_cast<std::int64_t>(forms.size())};
  for (const TensorForm& form : forms) {
    numbers.push_back(static_cast<std::int64_t>(form.type));
    numbers.push_back(form.wants_gradient ? 1 : 0);
    numbers.push_back(static_cast<std::int64_t>(form.sizes.size()));
    numbers.insert(numbers.end(), form.sizes.begin(), form.sizes.end());
  }
  TORCH_CHECK(forms.size() < kTags && numbers.size() <= static_cast<std::size_t>(kHeader),
              "between two parts of a pipeline go at most ", kTags - 1, " tensors, not ",
              forms.size(), " with so many dimensions.");
  numbers.resize(static_cast<std::size_t>(kHeader));
  return at::tensor(numbers);
}

TensorForms ReadHeader(const at::Tensor& header) {
  const auto* number = header.const_data_ptr<std::int64_t>();
  TensorForms forms(static_cast<std::size_t>(*number++));
  for (TensorForm& form : forms) {
    form.type = static_cast<at::ScalarType>(*number++);
    form.wants_gradient = *number++ != 0;
    const std::int64_t dimensions = *number++;
    form.sizes.assign(number, number + dimensions);
    number += dimensions;
  }
  return forms;
}

bool IsOverNccl(Ranks& ranks, c10::Device device) {
  if (!device.is_cuda() || ranks.alone()) return false;
  return ranks.group()->getBackend(device.type())->getBackendName() != "gloo";
}

}  // namespace

TensorForms FormsOf(const Tensors& tensors) {
  TensorForms forms;
  for (const at::Tensor& tensor : tensors) {
    forms.push_back({tensor.scalar_type(), tensor.sizes().vec(), tensor.requires_grad()});
  }
  return forms;
}

TensorForms FormsOfGradients(const TensorForms& forms) {
  TensorForms gradients;
  for (const TensorForm& form : forms) {
    if (form.wants_gradient) gradients.push_back(form);
  }
  return gradients;
}

PipelineWays::PipelineWays(Ranks& ranks, const std::vector<int>& members, int chunks,
                           c10::Device device)
    : wire_(device) {
  const bool nccl = IsOverNccl(ranks, device);
  if (!nccl) wire_ = c10::kCPU;
  if (!nccl && members.size() == ranks.members().size()) {
    ways_.push_back(&ranks);
    return;
  }
  const int separate = chunks > 1 ? 4 : 2;
  for (int i = 0; i < (nccl ? separate : 1); ++i) {
    own_.push_back(ranks.Some(members));
    ways_.push_back(own_.back().get());
  }
}

void PipelineWays::Connect() {
  for (Ranks* const way : ways_) way->group();
}

PipelineMessages::PipelineMessages(PipelineWays& ways, const PipelineShape& shape,
                                   c10::Device device)
    : ways_(ways), shape_(shape), rank_(ways.all().rank()), device_(device) {
  for (auto& places : places_) {
    places.resize(static_cast<std::size_t>(shape.parts() * shape.micro_batches));
  }
  for (int rank = 0; rank < shape.stages; ++rank) {
    int place = 0;
    for (const PipelineAction& action : Schedule(shape, rank)) {
      const int part = action.chunk * shape.stages + rank;
      const int index = part * shape.micro_batches + action.micro_batch;
      places_[action.backward ? 1 : 0][static_cast<std::size_t>(index)] = place++;
    }
  }
}

int PipelineMessages::PlaceOf(bool backward, int part, int micro_batch) const {
  const auto index = static_cast<std::size_t>(part * shape_.micro_batches + micro_batch);
  return places_[backward ? 1 : 0][index];
}

Ranks& PipelineMessages::WayTo(const PipelineAction& action) {
  return ways_.Of(action.backward, rank_ == (action.backward ? 0 : shape_.stages - 1));
}

Ranks& PipelineMessages::WayFrom(const PipelineAction& action) {
  return ways_.Of(action.backward, rank_ == (action.backward ? shape_.stages - 1 : 0));
}

int PipelineMessages::TagOf(bool backward, int sender, int micro_batch, std::size_t index) const {
  const int message = (micro_batch * shape_.parts() + sender) * 2 + (backward ? 1 : 0);
  return message * static_cast<int>(kTags) + static_cast<int>(index);
}

int PipelineMessages::TagTo(const PipelineAction& action, std::size_t index) const {
  return TagOf(action.backward, PartOf(action), action.micro_batch, index);
}

int PipelineMessages::TagFrom(const PipelineAction& action, std::size_t index) const {
  const int sender = PartOf(action) + (action.backward ? 1 : -1);
  return TagOf(action.backward, sender, action.micro_batch, index);
}

void PipelineMessages::SendForms(const PipelineAction& action, const TensorForms& forms) {
  Message message{{HeaderOf(forms)}, {}};
  message.works.push_back(
      BegunWork::Send(message.tensors[0], action.to, TagTo(action, 0), WayTo(action)));
  Keep(action, std::move(message));
}

void PipelineMessages::Send(const PipelineAction& action, const Tensors& tensors) {
  Message message;
  for (const at::Tensor& tensor : tensors) {
    message.tensors.push_back(tensor.detach().to(ways_.wire()).contiguous());
    message.works.push_back(BegunWork::Send(message.tensors.back(), action.to,
                                            TagTo(action, message.tensors.size()), WayTo(action)));
  }
  Keep(action, std::move(message));
}

void PipelineMessages::Keep(const PipelineAction& action, Message message) {
  const int part = PartOf(action) + (action.backward ? -1 : 1);
  sent_.push_back(
      {std::move(message), action.to, PlaceOf(action.backward, part, action.micro_batch)});
}

TensorForms PipelineMessages::ReceiveForms(const PipelineAction& action) {
  at::Tensor header = at::empty({kHeader}, at::kLong);
  BegunWork::Receive(header, action.from, TagFrom(action, 0), WayFrom(action)).Wait();
  return ReadHeader(header);
}

void PipelineMessages::BeginReceive(const PipelineAction& action, const TensorForms& forms) {
  const auto [place, is_new] = coming_.try_emplace(TagFrom(action, 0));
  if (!is_new) return;
  Message& message = place->second;
  for (const TensorForm& form : forms) {
    message.tensors.push_back(at::empty(form.sizes, at::device(ways_.wire()).dtype(form.type)));
    message.works.push_back(BegunWork::Receive(message.tensors.back(), action.from,
                                               TagFrom(action, message.tensors.size()),
                                               WayFrom(action)));
  }
}

Tensors PipelineMessages::Receive(const PipelineAction& action, const TensorForms& forms) {
  BeginReceive(action, forms);
  const auto place = coming_.find(TagFrom(action, 0));
  for (const BegunWork& work : place->second.works) work.Wait();
  Tensors tensors = std::move(place->second.tensors);
  coming_.erase(place);
  if (!tensors.empty()) LetGoOfArrived(action);
  for (at::Tensor& tensor : tensors) tensor = tensor.to(device_);
  return tensors;
}

/// The rank that sent this had done its actions up to then, so that what they waited for was there.
void PipelineMessages::LetGoOfArrived(const PipelineAction& received) {
  const int part = PartOf(received) + (received.backward ? 1 : -1);
  const int done = PlaceOf(received.backward, part, received.micro_batch);
  std::erase_if(sent_, [&](const Sent& sent) {
    if (sent.to != received.from || sent.awaited_by > done) return false;
    for (const BegunWork& work : sent.message.works) work.Wait();
    return true;
  });
}

void PipelineMessages::FinishSends() {
  for (const Sent& sent : sent_) {
    for (const BegunWork& work : sent.message.works) work.Wait();
  }
  sent_.clear();
}

}  // namespace plimsoll::train
