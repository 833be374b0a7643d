#include "train/parallel/pipeline/pipeline_step.h"

#include <ATen/ops/ones_like.h>
#include <ATen/ops/zeros_like.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/variable.h>

namespace plimsoll::train {

namespace autograd = torch::autograd;

PipelineStep::PipelineStep(const PipelineStage& stage, PipelineMessages& messages,
                           const PipelineShape& shape, const std::vector<MicroBatch>& micro_batches,
                           std::function<at::Tensor(const at::Tensor&)> for_backward)
    : stage_(stage),
      messages_(messages),
      shape_(shape),
      micro_batches_(micro_batches),
      for_backward_(std::move(for_backward)) {}

at::Tensor PipelineStep::Run(const std::vector<PipelineAction>& actions) {
  for (std::size_t i = 0; i < actions.size(); ++i) {
    Tensors given = Given(actions[i]);
    // So that it comes while this one is computed.
    if (i + 1 < actions.size()) ReceiveAhead(actions[i + 1]);
    if (actions[i].backward) {
      Backward(actions[i], std::move(given));
    } else {
      Forward(actions[i], std::move(given));
    }
  }
  messages_.FinishSends();
  return loss_;
}

const Batch& PipelineStep::RowsOf(const PipelineAction& action) const {
  return micro_batches_[static_cast<std::size_t>(action.micro_batch)].rows;
}

PipelineStep::Kind PipelineStep::KindOf(const PipelineAction& action) const {
  return {action.chunk, RowsOf(action).size()};
}

Tensors PipelineStep::Given(const PipelineAction& action) {
  if (action.from < 0) return {};
  const Kind kind = KindOf(action);
  if (action.backward) return messages_.Receive(action, FormsOfGradients(result_forms_.at(kind)));
  if (!given_forms_.contains(kind)) given_forms_[kind] = messages_.ReceiveForms(action);
  const TensorForms& forms = given_forms_.at(kind);
  Tensors given = messages_.Receive(action, forms);
  for (std::size_t i = 0; i < given.size(); ++i) given[i].requires_grad_(forms[i].wants_gradient);
  return given;
}

void PipelineStep::ReceiveAhead(const PipelineAction& action) {
  if (action.from < 0) return;
  const auto& known = action.backward ? result_forms_ : given_forms_;
  const auto found = known.find(KindOf(action));
  if (found == known.end()) return;
  messages_.BeginReceive(action, action.backward ? FormsOfGradients(found->second) : found->second);
}

void PipelineStep::Forward(const PipelineAction& action, Tensors given) {
  Alive alive;
  const Tensors result = stage_.Forward(action.chunk, given, RowsOf(action));
  alive.given = std::move(given);
  if (action.to < 0) {
    CountLoss(action, result, alive);
  } else {
    Give(action, result, alive);
  }
  if (at::GradMode::is_enabled()) {
    alive_[{action.chunk, action.micro_batch}] = std::move(alive);
  }
}

void PipelineStep::Give(const PipelineAction& action, const Tensors& result, Alive& alive) {
  TensorForms forms = FormsOf(result);
  const auto [known, is_new] = result_forms_.try_emplace(KindOf(action), forms);
  if (is_new) messages_.SendForms(action, forms);
  TORCH_CHECK(
      known->second == forms,
      "what goes between two parts of a pipeline must have the same sizes and types for all "
      "micro-batches of a step with ",
      RowsOf(action).size(), " rows.");
  messages_.Send(action, result);
  for (const at::Tensor& tensor : result) {
    if (tensor.requires_grad()) alive.roots.push_back(autograd::impl::gradient_edge(tensor));
  }
}

void PipelineStep::CountLoss(const PipelineAction& action, const Tensors& result, Alive& alive) {
  TORCH_CHECK(result.size() == 1 && result[0].numel() == 1,
              "the last layer must give the loss, one number.");
  const double share = micro_batches_[static_cast<std::size_t>(action.micro_batch)].share;
  const at::Tensor value = share == 1 ? result[0] : result[0] * share;
  loss_ = loss_.defined() ? loss_ + value.detach() : value.detach();
  if (!at::GradMode::is_enabled()) return;
  const at::Tensor root = for_backward_(value);
  alive.roots.push_back(autograd::impl::gradient_edge(root));
  alive.gradients.push_back(at::ones_like(root));
}

void PipelineStep::Backward(const PipelineAction& action, Tensors gradients) {
  const auto place = alive_.find({action.chunk, action.micro_batch});
  Alive alive = std::move(place->second);
  alive_.erase(place);
  if (action.from < 0) gradients = std::move(alive.gradients);
  if (!alive.roots.empty()) {
    autograd::Engine::get_default_engine().execute(alive.roots, gradients,
                                                   /*keep_graph=*/false, /*create_graph=*/false,
                                                   /*accumulate_grad=*/true);
  }
  if (action.to < 0) return;
  gradients.clear();
  for (const at::Tensor& given : alive.given) {
    if (!given.requires_grad()) continue;
    gradients.push_back(given.grad().defined() ? given.grad() : at::zeros_like(given));
  }
  messages_.Send(action, gradients);
}

}  // namespace plimsoll::train
