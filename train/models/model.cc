#include "train/models/model.h"

#include <c10/util/Exception.h>

#include "train/models/classifier.h"
#include "train/models/gpt.h"
#include "train/models/mlp.h"
#include "train/models/model_layers.h"
#include "train/models/unet.h"

namespace plimsoll::train {
namespace {

void Set(std::int64_t& option, std::int64_t size) {
  TORCH_CHECK(size >= 0, "a model's size cannot be ", size);
  if (size != 0) option = size;
}

std::shared_ptr<TrainModel> MakeGpt(const ModelSizes& sizes) {
  GptOptions options;
  Set(options.vocabulary, sizes.vocabulary);
  Set(options.context, sizes.context);
  Set(options.width, sizes.width);
  Set(options.layers, sizes.layers);
  Set(options.heads, sizes.heads);
  options.dropout = sizes.dropout;
  return std::make_shared<Gpt>(options);
}

template <class Options>
Options OptionsForImages(const ModelSizes& sizes) {
  Options options;
  Set(options.in_channels, sizes.in_channels);
  Set(options.classes, sizes.classes);
  Set(options.width, sizes.width);
  options.normalization = sizes.normalization;
  options.separable = sizes.separable;
  return options;
}

std::shared_ptr<TrainModel> MakeClassifier(const ModelSizes& sizes) {
  auto options = OptionsForImages<ClassifierOptions>(sizes);
  Set(options.layers, sizes.layers);
  return std::make_shared<Classifier>(options);
}

std::shared_ptr<TrainModel> MakeMlp(const ModelSizes& sizes) {
  MlpOptions options;
  Set(options.inputs, sizes.in_channels);
  Set(options.hidden, sizes.width);
  Set(options.classes, sizes.classes);
  return std::make_shared<Mlp>(options);
}

}  // namespace

std::vector<ModelLayer> TrainModel::AsLayers() const { return {}; }

Normalization ParseNormalization(std::string_view text) {
  if (text == "group") return Normalization::kGroup;
  if (text == "batch") return Normalization::kBatch;
  TORCH_CHECK(text == "none", "normalization '", text, "' is not one of group, batch, none");
  return Normalization::kNone;
}

std::shared_ptr<TrainModel> MakeModel(std::string_view name, const ModelSizes& sizes) {
  if (name == "gpt") return MakeGpt(sizes);
  if (name == "unet") return std::make_shared<UNet>(OptionsForImages<UNetOptions>(sizes));
  if (name == "classifier") return MakeClassifier(sizes);
  TORCH_CHECK(name == "mlp", "model '", name, "' is not one of gpt, unet, classifier, mlp");
  return MakeMlp(sizes);
}

}  // namespace plimsoll::train
