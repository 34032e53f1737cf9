// The CPU's handoff::squeeze_excite_cpu, written in a package's own C++ by AOTInductor, which
// declares it inside extern "C" and calls it for the operator: one definition, and no includes. The
// two layers are too small to be worth a call of oneDNN's each; here they take a visit by each
// thread. Sums are of float32 whatever the tensors are.
__attribute__((optimize("O3", "fp-contract=fast"))) AOTITorchError
aoti_torch_cpu_squeeze_excite_cpu(
    AtenTensorHandle image, AtenTensorHandle squeeze, AtenTensorHandle* squeeze_bias,
    AtenTensorHandle excite, AtenTensorHandle* excite_bias, int64_t activation, int64_t gate,
    double grid_scale, int64_t grid_zero, AtenTensorHandle* result) {
#include "vectors.h"
  struct Core : Vectors {
    // Vectors of channels that are summed at once, and images that share a layer's weights.
    enum : int64_t { lanes = Vectors::lanes, wide = 4, together = 4 };
    typedef uint8_t Bytes __attribute__((vector_size(lanes)));
    static inline __attribute__((always_inline)) Vector activate(
        const Vector& x, const int64_t which) {
      Vector made[1] = {x};
      Vectors::activate(made, 1, which);
      return made[0];
    }
    static inline float sum(const Vector& of) {
      float total = 0.0f;
      for (int64_t l = 0; l < lanes; ++l) total += of[l];
      return total;
    }
    // The means over all points of `count` vectors of channels. A row's sums are summed, so that
    // rounding doesn't grow with the points.
    static inline __attribute__((always_inline)) void average(
        const char* from, int64_t row_step, int64_t point_step, int64_t height, int64_t width,
        float* to, const int64_t count, const bool half) {
      const int64_t size = half ? sizeof(uint16_t) : sizeof(float);
      Vector total[wide] = {};
      for (int64_t y = 0; y < height; ++y) {
        Vector row[wide] = {};
        for (int64_t x = 0; x < width; ++x)
#pragma GCC unroll 4
          for (int64_t v = 0; v < count; ++v)
            row[v] += read(from + y * row_step + x * point_step + v * lanes * size, half);
        for (int64_t v = 0; v < count; ++v) total[v] += row[v];
      }
      for (int64_t v = 0; v < count; ++v)
        store(to + v * lanes, total[v] / static_cast<float>(height * width));
    }
    // On the grid of `steps` to a unit, whose zero is the step `zero`; half a step to the even one.
    static inline __attribute__((always_inline)) void write_steps(
        char* to, const Vector& from, const float steps, const float zero) {
      const Vector round = Vector{} + 12582912.0f;  // 1.5 * 2^23, to which wholes alone are added
      Vector x = from * steps;
      x = x < -zero ? Vector{} - zero : x;
      x = x > 255.0f - zero ? Vector{} + (255.0f - zero) : x;
      x = ((x + round) - round) + zero;
      // NaN becomes 0, as the same in ATen does.
      x = x == x ? x : Vector{};
      const Bytes bytes = __builtin_convertvector(__builtin_convertvector(x, Whole), Bytes);
      __builtin_memcpy(to, &bytes, sizeof(bytes));
    }
    static inline __attribute__((always_inline)) void scale(
        const char* from, int64_t from_step, char* to, const float* gates, int64_t channels,
        int64_t points, const bool half, const bool on_grid, float steps, float zero) {
      const int64_t size = half ? sizeof(uint16_t) : sizeof(float), last = channels - lanes;
      const int64_t made = on_grid ? sizeof(uint8_t) : size;
      for (int64_t p = 0; p < points; ++p)
        // The last vector overlaps, where the channels are no multiple.
        for (int64_t c = 0; c < channels; c += lanes) {
          const int64_t first = c < last ? c : last;
          const Vector scaled =
              read(from + p * from_step + first * size, half) * load(gates + first);
          char* const here = to + (p * channels + first) * made;
          if (on_grid) {
            write_steps(here, scaled, steps, zero);
          } else {
            write(here, scaled, half);
          }
        }
    }
  };

  const auto refuse = [](const char* why) {
    std::cerr << "handoff::squeeze_excite: " << why << std::endl;
    return AOTI_TORCH_FAILURE;
  };
  View x, s, sb, e, eb, made;
  const bool is_open = x.open(image) && s.open(squeeze) && e.open(excite) &&
      (!squeeze_bias || sb.open(*squeeze_bias)) && (!excite_bias || eb.open(*excite_bias));
  const auto is_alike = [&x](const View& one) { return !one.data || one.dtype == x.dtype; };
  if (!is_open || !is_alike(s) || !is_alike(sb) || !is_alike(e) || !is_alike(eb) ||
      (x.dtype != aoti_torch_dtype_float32() && x.dtype != aoti_torch_dtype_bfloat16()))
    return refuse("expected float32 everywhere, or bfloat16");
  const bool half = x.dtype == aoti_torch_dtype_bfloat16();
  const int64_t batch = x.sizes[0], channels = x.sizes[1], height = x.sizes[2], width = x.sizes[3];
  const int64_t hidden = s.sizes[0], points = height * width, size = x.size();
  const int64_t lanes = Core::lanes;
  const bool fits = channels >= lanes && s.sizes[1] == channels && e.sizes[0] == hidden &&
      e.sizes[1] == channels && s.strides[1] == 1 && e.strides[1] == 1 && x.strides[1] == 1 &&
      (!squeeze_bias || sb.sizes[0] == hidden) &&
      (!excite_bias || (eb.sizes[0] == channels && eb.strides[0] == 1));
  if (!fits) return refuse("expected channels that lie beside each other, and weights for them");
  const int64_t shape[4] = {batch, channels, height, width};
  const int64_t steps[4] = {points * channels, 1, width * channels, channels};
  const bool on_grid = grid_scale != 0.0;
  const auto status = aoti_torch_empty_strided(
      4, shape, steps, on_grid ? aoti_torch_dtype_uint8() : x.dtype, aoti_torch_device_type_cpu(),
      0, result);
  if (status != AOTI_TORCH_SUCCESS) return status;
  const auto undo = [result, refuse](const char* why) {
    aoti_torch_delete_tensor_object(*result);
    return refuse(why);
  };
  if (!made.open(*result)) return undo("its result can't be read");
  const std::unique_ptr<float[]> memory(
      new (std::nothrow) float[batch * (2 * channels + hidden) + lanes]());
  if (!memory) return undo("there is no memory for its means");
  float* means = memory.get();
  float* middle = means + batch * channels;
  float* gates = middle + batch * hidden;
  const int64_t last = channels - lanes, blocks = channels / lanes;
  const int64_t chunk = Core::wide * lanes, chunks = (channels + chunk - 1) / chunk;
  const float unit = on_grid ? static_cast<float>(1.0 / grid_scale) : 0.0f;
  const float zero = static_cast<float>(grid_zero);
  const int64_t rows = 8, parts = (height + rows - 1) / rows;
#pragma omp parallel if (batch * channels * points > 16384)
  {
#pragma omp for
    for (int64_t w = 0; w < batch * chunks; ++w) {
      const int64_t n = w / chunks, first = w % chunks * chunk;
      if (channels - first >= chunk) {
        const char* from = x.at(n, first, 0);
        float* to = means + n * channels + first;
        if (half) {
          Core::average(from, x.step(2), x.step(3), height, width, to, Core::wide, true);
        } else {
          Core::average(from, x.step(2), x.step(3), height, width, to, Core::wide, false);
        }
        continue;
      }
      for (int64_t c = first; c < channels; c += lanes) {
        const int64_t begin = c < last ? c : last;
        const char* from = x.at(n, begin, 0);
        float* to = means + n * channels + begin;
        if (half) {
          Core::average(from, x.step(2), x.step(3), height, width, to, 1, true);
        } else {
          Core::average(from, x.step(2), x.step(3), height, width, to, 1, false);
        }
      }
    }
#pragma omp for
    for (int64_t r = 0; r < hidden; ++r) {
      const char* weights = s.at(r);
      const float bias =
          squeeze_bias ? Core::read(sb.at(r), half, 1)[0] : 0.0f;
      for (int64_t n = 0; n < batch; n += Core::together) {
        const int64_t count = batch - n < Core::together ? batch - n : Core::together;
        Core::Vector sums[Core::together] = {};
        int64_t c = 0;
        for (; c + lanes <= channels; c += lanes) {
          const Core::Vector weight = Core::read(weights + c * size, half);
          for (int64_t i = 0; i < count; ++i)
            sums[i] += weight * Core::load(means + (n + i) * channels + c);
        }
        if (c < channels) {
          const Core::Vector weight = Core::read(weights + c * size, half, channels - c);
          for (int64_t i = 0; i < count; ++i)
            sums[i] += weight *
                Core::read(reinterpret_cast<char*>(means + (n + i) * channels + c), false,
                           channels - c);
        }
        for (int64_t i = 0; i < count; ++i)
          middle[(n + i) * hidden + r] =
              Core::activate(Core::Vector{} + (Core::sum(sums[i]) + bias), activation)[0];
      }
    }
#pragma omp for
    for (int64_t w = 0; w < blocks; ++w) {
      // The last one's, and what is left beyond it, overlap.
      const int64_t end = w + 1 < blocks ? (w + 1) * lanes : channels;
      for (int64_t c = w * lanes; c < end; c += lanes) {
        const int64_t first = c < last ? c : last;
        const Core::Vector bias =
            excite_bias ? Core::read(eb.at(first), half) : Core::Vector{};
        for (int64_t n = 0; n < batch; n += Core::together) {
          const int64_t count = batch - n < Core::together ? batch - n : Core::together;
          Core::Vector sums[Core::together] = {bias, bias, bias, bias};
          for (int64_t r = 0; r < hidden; ++r) {
            const Core::Vector weight = Core::read(e.at(r) + first * size, half);
            for (int64_t i = 0; i < count; ++i) sums[i] += weight * middle[(n + i) * hidden + r];
          }
          for (int64_t i = 0; i < count; ++i)
            Core::store(gates + (n + i) * channels + first, Core::activate(sums[i], gate));
        }
      }
    }
#pragma omp for
    for (int64_t w = 0; w < batch * parts; ++w) {
      const int64_t n = w / parts, first = w % parts * rows;
      const int64_t end = height - first < rows ? height : first + rows;
      for (int64_t y = first; y < end; ++y) {
        const float* of_image = gates + n * channels;
        const char* from = x.at(n, 0, y);
        char* to = made.at(n, 0, y);
        if (half && on_grid) {
          Core::scale(from, x.step(3), to, of_image, channels, width, true, true, unit, zero);
        } else if (half) {
          Core::scale(from, x.step(3), to, of_image, channels, width, true, false, unit, zero);
        } else if (on_grid) {
          Core::scale(from, x.step(3), to, of_image, channels, width, false, true, unit, zero);
        } else {
          Core::scale(from, x.step(3), to, of_image, channels, width, false, false, unit, zero);
        }
      }
    }
  }
  return AOTI_TORCH_SUCCESS;
}
