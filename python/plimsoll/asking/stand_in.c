/* A cuBLASLt that has an algorithm for every matrix product and computes none. cuDNN does some
 * convolutions by cuBLASLt; the real one does not start where there is no driver, and cuDNN then
 * leaves those engines out of its answers without a word. Only cuDNN's questions are answered here:
 * the functions that it calls, as NVIDIA's documentation declares them. What cuBLASLt would keep
 * for split sums is not known here, so no product has a workspace (python/plimsoll/asking). */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { kSuccess = 0, kInvalidValue = 7, kNotSupported = 15 };

/* An object is the values of its attributes, by their numbers. */
enum { kAttributes = 160, kWidest = 32 };
typedef struct {
  unsigned char values[kAttributes][kWidest];
} Object;

typedef struct {
  uint64_t algorithm[8];
  size_t workspace;
  int status;
  float waves;
  int reserved[4];
} Heuristic;

static int create(void** made) {
  *made = calloc(1, sizeof(Object));
  return *made ? kSuccess : kInvalidValue;
}

static int destroy(void* object) {
  free(object);
  return kSuccess;
}

static int set(void* object, int attribute, const void* value, size_t size) {
  if (attribute >= 0 && attribute < kAttributes && value && size <= kWidest) {
    memcpy(((Object*)object)->values[attribute], value, size);
  }
  return kSuccess;
}

static int get(const void* object, int attribute, void* value, size_t size, size_t* written) {
  if (written) *written = size;
  if (attribute >= 0 && attribute < kAttributes && value && size <= kWidest) {
    memcpy(value, ((const Object*)object)->values[attribute], size);
  }
  return kSuccess;
}

#define ATTRIBUTES(name)                                                         \
  int name##Destroy(void* object) { return destroy(object); }                    \
  int name##SetAttribute(void* object, int attribute, const void* value,         \
                         size_t size) {                                          \
    return set(object, attribute, value, size);                                  \
  }                                                                              \
  int name##GetAttribute(const void* object, int attribute, void* value,         \
                         size_t size, size_t* written) {                         \
    return get(object, attribute, value, size, written);                         \
  }

ATTRIBUTES(cublasLtMatmulDesc)
ATTRIBUTES(cublasLtMatmulPreference)
ATTRIBUTES(cublasLtMatrixLayout)
ATTRIBUTES(cublasLtMatrixTransformDesc)

int cublasLtMatmulDescCreate(void** made, int compute, int scale) {
  (void)compute, (void)scale;
  return create(made);
}
int cublasLtMatmulPreferenceCreate(void** made) { return create(made); }
int cublasLtMatrixLayoutCreate(void** made, int type, uint64_t rows, uint64_t columns,
                               int64_t leading) {
  (void)type, (void)rows, (void)columns, (void)leading;
  return create(made);
}
int cublasLtMatrixTransformDescCreate(void** made, int scale) {
  (void)scale;
  return create(made);
}

int cublasLtCreate(void** made) { return create(made); }
int cublasLtDestroy(void* handle) { return destroy(handle); }
size_t cublasLtGetVersion(void) { return 130100; }
size_t cublasLtGetCudartVersion(void) { return 13010; }
int cublasLtGetProperty(int which, int* value) {
  *value = which == 0 ? 13 : which == 1 ? 1 : 0;
  return kSuccess;
}

int cublasLtMatmulAlgoGetHeuristic(void* handle, void* product, void* a, void* b, void* c, void* d,
                                   void* preference, int wanted, Heuristic* found, int* count) {
  (void)handle, (void)product, (void)a, (void)b, (void)c, (void)d, (void)preference;
  memset(found, 0, (size_t)wanted * sizeof *found);
  for (int i = 0; i < wanted; ++i) found[i].waves = 1;
  *count = wanted;
  return kSuccess;
}

/* Nobody computes. */
int cublasLtMatmul(void) { return kNotSupported; }
int cublasLtMatrixTransform(void) { return kNotSupported; }
