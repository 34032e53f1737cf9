// The CPU's handoff::pointwise_cpu, written in a package's own C++ by AOTInductor, which declares it
// inside extern "C" and calls it for the operator: one definition, and no includes. An image's
// points are rows that are multiplied with the weights, a few of them at once, so that their sums
// stay in registers; what follows the product is done before it leaves the core's own cache.
__attribute__((optimize("O3", "fp-contract=fast"))) AOTITorchError aoti_torch_cpu_pointwise_cpu(
    AtenTensorHandle image, AtenTensorHandle weight, AtenTensorHandle* bias,
    AtenTensorHandle* added, int64_t channels, int64_t activation, AtenTensorHandle* result) {
#include "vectors.h"
  struct Core : Vectors {
    // A block of channels, the blocks that lie beside each other in a group (`pack` in
    // `kernels/pointwise.py`), and the vectors of a block; blocks whose sums are kept in registers
    // for so many points, points that share what the cache holds of the weights, and numbers of
    // these that it holds.
    enum : int64_t {
      lanes = Vectors::lanes, block = 16, blocks = 4, vectors = block / lanes,
      wide = vectors == 1 ? 4 : 1, points = 6, shared = 96, held = 65536
    };
    // The products of `count` points with `width` blocks, which begin at `weights`.
    static inline __attribute__((always_inline)) void multiply(
        const char* from, const int64_t from_step, const float* weights, const int64_t weights_step,
        const int64_t depth, float* to, const int64_t count, const int64_t width) {
      Vector sums[points][wide * vectors] = {};
      for (int64_t k = 0; k < depth; ++k) {
        Vector row[wide * vectors];
#pragma GCC unroll 4
        for (int64_t v = 0; v < width * vectors; ++v)
          row[v] = load(weights + k * weights_step + v * lanes);
#pragma GCC unroll 6
        for (int64_t p = 0; p < count; ++p) {
          float x;
          __builtin_memcpy(&x, from + p * from_step + k * sizeof(float), sizeof(x));
#pragma GCC unroll 4
          for (int64_t v = 0; v < width * vectors; ++v) sums[p][v] += row[v] * x;
        }
      }
#pragma GCC unroll 6
      for (int64_t p = 0; p < count; ++p)
#pragma GCC unroll 4
        for (int64_t v = 0; v < width * vectors; ++v)
          store(to + (p * width * vectors + v) * lanes, sums[p][v]);
    }
    static inline __attribute__((always_inline)) void multiply_some(
        const char* from, const int64_t from_step, const float* weights, const int64_t weights_step,
        const int64_t depth, float* to, const int64_t count, const int64_t width) {
      if (count == points) {
        if (width == 1) multiply(from, from_step, weights, weights_step, depth, to, points, 1);
        if (wide > 1 && width == 2)
          multiply(from, from_step, weights, weights_step, depth, to, points, 2);
        if (wide > 1 && width == 3)
          multiply(from, from_step, weights, weights_step, depth, to, points, 3);
        if (wide > 1 && width == 4)
          multiply(from, from_step, weights, weights_step, depth, to, points, 4);
      } else {
        if (width == 1) multiply(from, from_step, weights, weights_step, depth, to, 1, 1);
        if (wide > 1 && width == 2)
          multiply(from, from_step, weights, weights_step, depth, to, 1, 2);
        if (wide > 1 && width == 3)
          multiply(from, from_step, weights, weights_step, depth, to, 1, 3);
        if (wide > 1 && width == 4)
          multiply(from, from_step, weights, weights_step, depth, to, 1, 4);
      }
    }
    // What follows the sums of some channels of a point, of which `count` are given.
    static inline __attribute__((always_inline)) void finish(
        const float* sums, const float* bias, const float* added, const int64_t activation,
        float* to, const int64_t count) {
      const auto take = [count](const float* from) __attribute__((always_inline)) {
        return read(reinterpret_cast<const char*>(from), false, count);
      };
      Vector made[1] = {load(sums)};
      if (bias) made[0] += take(bias);
      if (added) made[0] += take(added);
      activate(made, 1, activation);
      write(reinterpret_cast<char*>(to), made[0], false, count);
    }
  };

  const auto refuse = [](const char* why) {
    std::cerr << "handoff::pointwise: " << why << std::endl;
    return AOTI_TORCH_FAILURE;
  };
  View x, w, b, a, made;
  const bool is_open = x.open(image) && w.open(weight) && (!bias || b.open(*bias)) &&
      (!added || a.open(*added));
  const auto is_float = [](const View& one) {
    return !one.data || one.dtype == aoti_torch_dtype_float32();
  };
  if (!is_open || !is_float(x) || !is_float(w) || !is_float(b) || !is_float(a))
    return refuse("expected float32 everywhere");
  const int64_t batch = x.sizes[0], depth = x.sizes[1], height = x.sizes[2], width = x.sizes[3];
  const int64_t image_points = height * width, points = batch * image_points;
  const int64_t blocks = (channels + Core::block - 1) / Core::block;
  // Points follow each other as those of a batch whose channels lie beside each other do.
  const auto is_rows = [&](const View& one, int64_t row) {
    return (row < 2 || one.strides[1] == 1) && (width < 2 || one.strides[3] == row) &&
        (height < 2 || one.strides[2] == width * row) &&
        (batch < 2 || one.strides[0] == image_points * row);
  };
  const bool fits = channels > 0 && w.sizes[0] == depth * blocks * Core::block &&
      w.strides[0] == 1 && is_rows(x, depth) &&
      (!bias || (b.sizes[0] == channels && (channels < 2 || b.strides[0] == 1))) &&
      (!added || (a.is(batch, channels, height, width) && is_rows(a, channels)));
  if (!fits) return refuse("expected channels that lie beside each other, and weights for them");
  const int64_t shape[4] = {batch, channels, height, width};
  const int64_t steps[4] = {image_points * channels, 1, width * channels, channels};
  const auto status = aoti_torch_empty_strided(
      4, shape, steps, x.dtype, aoti_torch_device_type_cpu(), 0, result);
  if (status != AOTI_TORCH_SUCCESS) return status;
  if (!made.open(*result)) {
    aoti_torch_delete_tensor_object(*result);
    return refuse("its result can't be read");
  }
  if (!points) return AOTI_TORCH_SUCCESS;
  const char* const from = static_cast<const char*>(x.data);
  const float* const weights = static_cast<const float*>(w.data);
  const float* const biases = bias ? static_cast<const float*>(b.data) : nullptr;
  const float* const others = added ? static_cast<const float*>(a.data) : nullptr;
  float* const to = static_cast<float*>(made.data);
  const int64_t groups = (blocks + Core::blocks - 1) / Core::blocks, last = channels - Core::block;
  // Weights that the core's own cache holds beside the rest are gone through for some points after
  // the other, whose results are so written one behind the other; of others a group is, for all
  // points of a share.
  const int64_t at_once = w.sizes[0] <= Core::held ? groups : 1, parts = groups / at_once;
  const int64_t wanted = parts > 1 ? (points + Core::shared - 1) / Core::shared : points;
  const int64_t step = (points + wanted * Core::points - 1) / (wanted * Core::points) * Core::points;
  const int64_t shares = (points + step - 1) / step;
#pragma omp parallel for if (points * channels * depth > 65536)
  for (int64_t share = 0; share < shares * parts; ++share) {
    const int64_t first_group = share % parts * at_once, begin = share / parts * step;
    const int64_t end = points - begin < step ? points : begin + step;
    float sums[Core::points * Core::wide * Core::block];
    for (int64_t point = begin; point < end;) {
      const int64_t all = Core::points, count = end - point < all ? 1 : all;
      for (int64_t group = first_group; group < first_group + at_once; ++group) {
        const int64_t first_block = group * Core::blocks, rest = blocks - first_block;
        const int64_t full = Core::blocks, in_group = rest < full ? rest : full;
        const float* const of_group = weights + first_block * Core::block * depth;
        for (int64_t inside = 0; inside < in_group; inside += Core::wide) {
          const int64_t wide = in_group - inside < Core::wide ? in_group - inside : Core::wide;
          Core::multiply_some(
              from + point * depth * sizeof(float), depth * sizeof(float),
              of_group + inside * Core::block, in_group * Core::block, depth, sums, count, wide);
          for (int64_t p = 0; p < count; ++p)
            for (int64_t n = 0; n < wide; ++n) {
              // The last block overlaps, where the channels are no multiple.
              const int64_t at = (first_block + inside + n) * Core::block;
              const int64_t channel = at < last ? at : last < 0 ? 0 : last;
              for (int64_t v = 0; v < Core::vectors; ++v) {
                const int64_t begin = channel + v * Core::lanes, left = channels - begin;
                const int64_t place = (point + p) * channels + begin, whole = Core::lanes;
                const float* const made = sums + (p * wide + n) * Core::block + v * whole;
                const float* const shift = biases ? biases + begin : nullptr;
                const float* const other = others ? others + place : nullptr;
                if (parts > 1 && at > last && last > 0) {
                  // Another thread may be at what overlaps.
                  float all_of_it[Core::lanes];
                  Core::finish(made, shift, other, activation, all_of_it, Core::lanes);
                  for (int64_t l = begin < at ? at - begin : 0; l < whole; ++l)
                    to[place + l] = all_of_it[l];
                } else if (left >= whole) {
                  Core::finish(made, shift, other, activation, to + place, Core::lanes);
                } else if (left > 0) {
                  Core::finish(made, shift, other, activation, to + place, left);
                }
              }
            }
        }
      }
      point += count;
    }
  }
  return AOTI_TORCH_SUCCESS;
}
