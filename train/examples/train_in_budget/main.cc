// A model of one's own, trained within a budget on the CPU: train_in_budget [MiB]
#include <plimsoll/train/checkpointing/checkpoint_policy.h>
#include <plimsoll/train/optimizers/optimizer_forms.h>
#include <plimsoll/train/trainer/trainer.h>
#include <torch/torch.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

namespace train = plimsoll::train;

/// Says of each position of a sequence which class it has.
///
/// Three things make a model checkpointable: the second base class, checkpoint_blocks(), and
/// RunChain() over the blocks. Trainer then chooses which of them to compute again in backward.
class PositionClassifier : public torch::nn::Module, public train::Checkpointable {
 public:
  PositionClassifier(std::int64_t inputs, std::int64_t width, int blocks, std::int64_t classes)
      : widen_(register_module("widen", torch::nn::Linear(inputs, width))),
        classify_(register_module("classify", torch::nn::Linear(width, classes))) {
    for (int i = 0; i < blocks; ++i) {
      const torch::nn::Sequential block(torch::nn::Linear(width, 4 * width), torch::nn::GELU(),
                                        torch::nn::Linear(4 * width, width));
      blocks_.push_back(register_module("block" + std::to_string(i), block));
    }
  }

  int checkpoint_blocks() const override { return static_cast<int>(blocks_.size()); }

  torch::Tensor forward(const torch::Tensor& inputs) {
    std::vector<Block> chain;
    for (torch::nn::Sequential& block : blocks_) {
      chain.push_back([&block](const torch::Tensor& x) { return x + block->forward(x); });
    }
    return classify_->forward(RunChain(chain, widen_->forward(inputs)));
  }

 private:
  torch::nn::Linear widen_, classify_;
  std::vector<torch::nn::Sequential> blocks_;
};

/// Five steps. Throws DoesNotFit where no way to train fits into the budget.
void TrainWithin(plimsoll::Bytes budget) {
  torch::manual_seed(1);
  const auto model = std::make_shared<PositionClassifier>(32, 64, 8, 8);
  const auto loss = [&](const train::Batch& rows) {
    return torch::nn::functional::cross_entropy(model->forward(rows.tensors[0]).flatten(0, 1),
                                                rows.tensors[1].flatten());
  };
  train::Trainer trainer(model, train::AdamWForms(model->parameters()), loss, {.budget = budget});

  const torch::Tensor inputs = torch::randn({4, 1024, 32});
  const torch::Tensor labels = inputs.slice(2, 0, 8).argmax(2);
  for (int i = 0; i < 5; ++i) {
    const train::StepReport report = trainer.Step({{inputs, labels}});
    std::printf("loss %.4f, at most %s held, %s\n", report.loss,
                plimsoll::FormatBytes(report.memory.peak_reserved).c_str(),
                report.levers.ToString().c_str());
  }
}

int main(int argc, char** argv) {
  try {
    TrainWithin((argc > 1 ? std::atoi(argv[1]) : 16) * plimsoll::kMiB);
  } catch (const train::DoesNotFit& error) {
    std::fprintf(stderr, "%s\n", error.what_without_backtrace());
    return 1;
  }
}
