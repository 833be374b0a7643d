// A broken invariant of our own stops the program; an input can never cause that.
#pragma once

#include <cstdio>
#include <cstdlib>

#define PLIMSOLL_CHECK(condition)                                                              \
  do {                                                                                         \
    if (!(condition)) {                                                                        \
      std::fprintf(stderr, "plimsoll: internal error: %s does not hold (%s:%d)\n", #condition, \
                   __FILE__, __LINE__);                                                        \
      std::abort();                                                                            \
    }                                                                                          \
  } while (false)
