// TensorFlow and JAX: a pool with a limit, and compiled programs with their buffers.
#pragma once

#include "diagnose/error_texts/causes.h"

namespace plimsoll {

/// How much of the device a pool of TensorFlow's or JAX's takes.
Remedy PoolSetting(const OomMessage& message);
Opinion OfXla(const Figures& figures);

}  // namespace plimsoll
