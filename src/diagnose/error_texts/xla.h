// TensorFlow and JAX: a pool with a limit, and compiled programs with their buffers.
#pragma once

#include "diagnose/error_texts/causes.h"

namespace plimsoll {

Opinion OfXla(const Figures& figures);

}  // namespace plimsoll
