// The CPU's handoff::depthwise_cpu, written in a package's own C++ by AOTInductor, which declares it
// inside extern "C" and calls it for the operator: one definition, and no includes. Each vector of
// channels is a convolution of its own; the sums of a few points beside each other share a tap's
// weights.
__attribute__((optimize("O3", "fp-contract=fast"))) AOTITorchError aoti_torch_cpu_depthwise_cpu(
    AtenTensorHandle image, AtenTensorHandle taps, AtenTensorHandle* bias, int64_t stride_y,
    int64_t stride_x, int64_t padding_y, int64_t padding_x, int64_t dilation_y, int64_t dilation_x,
    int64_t activation, AtenTensorHandle* result) {
#include "vectors.h"
  struct Core : Vectors {
    // Points beside each other whose sums are kept in registers, the channels that are gone through
    // before the next points, the largest kernels that have code of their own, and an image's
    // numbers that the core's own cache holds.
    enum : int64_t {
      lanes = Vectors::lanes, together = lanes == 16 ? 8 : 4, chunk = 8 * lanes, largest = 7,
      window = largest + 2 * (together - 1), held = 131072
    };
    // What makes one line of points: the first row that its taps read, with the number of rows that
    // lie within the image, and the weights from there on.
    struct Line {
      const char* row;
      int64_t row_step, step, rows, width, channels, padding, begin, end, made, next, next_rows;
      const float* weights;
      const float* biases;
      int64_t activation;
      float* to;
    };
    // One point, of which the taps from `low` to `high` of a row lie within the image.
    static inline __attribute__((always_inline)) void convolve(
        const char* from, const int64_t row_step, const int64_t tap_step, const float* weights,
        const int64_t channels, const int64_t rows, const int64_t taps, const int64_t low,
        const int64_t high, Vector* sums) {
      for (int64_t i = 0; i < rows; ++i)
        for (int64_t j = low; j < high; ++j)
          sums[0] += load(weights + (i * taps + j) * channels) *
              load(reinterpret_cast<const float*>(from + i * row_step + j * tap_step));
    }
    // Points beside each other by so many taps a row without gaps: what several of them read is
    // read once. From `from` on, or, with an edge among them, where each place is said to be.
    static inline __attribute__((always_inline)) void convolve_some(
        const Line& line, const char* from, const char* const* places, const int64_t offset,
        const float* weights, Vector* sums, const int64_t taps, const int64_t stride,
        const bool is_inner) {
      const int64_t count = taps + (together - 1) * stride;
      for (int64_t i = 0; i < line.rows; ++i) {
        Vector x[window];
#pragma GCC unroll 21
        for (int64_t n = 0; n < count; ++n)
          x[n] = load(reinterpret_cast<const float*>(
              (is_inner ? from + i * line.row_step + n * line.step : places[i * count + n]) +
              offset));
#pragma GCC unroll 7
        for (int64_t j = 0; j < taps; ++j) {
          const Vector weight = load(weights + (i * taps + j) * line.channels);
#pragma GCC unroll 8
          for (int64_t p = 0; p < together; ++p) sums[p] += weight * x[p * stride + j];
        }
      }
    }
    // The points from `p` on, of the channels from `chunk` to `behind`.
    static inline __attribute__((always_inline)) void compute(
        const Line& line, const int64_t p, const int64_t chunk, const int64_t behind,
        const char* const* places, const int64_t taps, const int64_t stride, const bool is_inner) {
      const int64_t left = p * stride - line.padding, rest = line.made - p;
      const int64_t last = line.channels - lanes;
      for (int64_t c = chunk; c < behind; c += lanes) {
        // The last vector overlaps, where the channels are no multiple.
        const int64_t channel = c < last ? c : last;
        const Vector shift = line.biases ? load(line.biases + channel) : Vector{};
        Vector sums[together];
#pragma GCC unroll 8
        for (int64_t v = 0; v < together; ++v) sums[v] = shift;
        const int64_t offset = (is_inner ? channel : channel - chunk) * sizeof(float);
        convolve_some(line, line.row + left * line.step, places, offset, line.weights + channel,
                      sums, taps, stride, is_inner);
        activate(sums, together, line.activation);
        float* const out = line.to + p * line.channels + channel;
#pragma GCC unroll 8
        for (int64_t v = 0; v < together; ++v)
          if (is_inner || v < rest) store(out + v * line.channels, sums[v]);
      }
    }
    static inline __attribute__((always_inline)) void compute_line(
        const Line& line, const int64_t taps, const int64_t stride) {
      // What lies outside of the image; the last vector may begin before the chunk.
      const float outside[lanes + chunk] = {};
      const char* places[largest * window];
      const int64_t reads = taps + (together - 1) * stride;
      for (int64_t first = 0; first < line.channels; first += chunk) {
        const int64_t size = chunk, left_over = line.channels - first;
        const int64_t behind = left_over < size ? line.channels : first + size;
        for (int64_t p = 0; p < line.made; p += together) {
          const int64_t left = p * stride - line.padding;
          // What the next line of points reads first, and this one doesn't.
          for (int64_t i = 0; i < line.next_rows; ++i) {
            const char* const next = line.row + line.next + i * line.row_step + left * line.step;
            for (int64_t k = 0; k < together * stride; ++k)
              for (int64_t c = first; c < behind; c += lanes)
                __builtin_prefetch(next + k * line.step + c * sizeof(float), 0, 2);
          }
          if (p >= line.begin && p + together <= line.end) {
            compute(line, p, first, behind, places, taps, stride, true);
            continue;
          }
          for (int64_t i = 0; i < line.rows; ++i)
            for (int64_t k = 0; k < reads; ++k) {
              const bool is_outside = left + k < 0 || left + k >= line.width;
              places[i * reads + k] = is_outside
                  ? reinterpret_cast<const char*>(outside + lanes)
                  : line.row + i * line.row_step + (left + k) * line.step + first * sizeof(float);
            }
          compute(line, p, first, behind, places, taps, stride, false);
        }
      }
    }
  };

  const auto refuse = [](const char* why) {
    std::cerr << "handoff::depthwise: " << why << std::endl;
    return AOTI_TORCH_FAILURE;
  };
  View x, w, b, made;
  if (!x.open(image) || !w.open(taps) || (bias && !b.open(*bias)) ||
      x.dtype != aoti_torch_dtype_float32() || w.dtype != x.dtype || (bias && b.dtype != x.dtype))
    return refuse("expected float32 everywhere");
  const int64_t batch = x.sizes[0], channels = x.sizes[1], height = x.sizes[2], width = x.sizes[3];
  const int64_t rows = w.sizes[0], columns = w.sizes[1];
  const bool fits = channels >= Core::lanes && w.sizes[2] == channels && w.strides[2] == 1 &&
      (columns < 2 || w.strides[1] == channels) &&
      (rows < 2 || w.strides[0] == columns * channels) && x.strides[1] == 1 &&
      stride_y > 0 && stride_x > 0 && padding_y >= 0 && padding_x >= 0 && dilation_y > 0 &&
      dilation_x > 0 && (!bias || (b.sizes[0] == channels && b.strides[0] == 1));
  if (!fits) return refuse("expected channels that lie beside each other, and weights for them");
  if (height + 2 * padding_y <= dilation_y * (rows - 1) ||
      width + 2 * padding_x <= dilation_x * (columns - 1))
    return refuse("expected an image that is at least as large as the kernel");
  const int64_t made_height =
      (height + 2 * padding_y - dilation_y * (rows - 1) - 1) / stride_y + 1;
  const int64_t made_width =
      (width + 2 * padding_x - dilation_x * (columns - 1) - 1) / stride_x + 1;
  const int64_t shape[4] = {batch, channels, made_height, made_width};
  const int64_t steps[4] = {made_height * made_width * channels, 1, made_width * channels,
                            channels};
  const auto status = aoti_torch_empty_strided(
      4, shape, steps, x.dtype, aoti_torch_device_type_cpu(), 0, result);
  if (status != AOTI_TORCH_SUCCESS) return status;
  if (!made.open(*result)) {
    aoti_torch_delete_tensor_object(*result);
    return refuse("its result can't be read");
  }
  const float* const weights = static_cast<const float*>(w.data);
  const float* const biases = bias ? static_cast<const float*>(b.data) : nullptr;
  float* const to = static_cast<float*>(made.data);
  // Where no tap of a row of points is outside of the image.
  const int64_t reach = dilation_x * (columns - 1);
  const int64_t begin = (padding_x + stride_x - 1) / stride_x;
  const int64_t room = width - 1 - reach + padding_x;
  const int64_t inner = room < 0 ? 0 : room / stride_x + 1;
  const int64_t end = inner < made_width ? inner : made_width;
  const int64_t last = channels - Core::lanes;
  // The first of `count` taps `step` apart, from `from` on, that lies within `size`, and behind the
  // last.
  const auto first_inside = [](int64_t from, int64_t step) {
    return from < 0 ? (-from + step - 1) / step : 0;
  };
  const auto behind_inside = [](int64_t from, int64_t step, int64_t count, int64_t size) {
    const int64_t inside = from < size ? (size - 1 - from) / step + 1 : 0;
    return inside < count ? inside : count;
  };
  const bool has_code = rows <= Core::largest && stride_x <= 2 && dilation_x == 1 &&
      (columns == 3 || columns == 5 || columns == 7);
  const bool is_large = dilation_y == 1 && height * width * channels > Core::held;
#pragma omp parallel for if (batch * made_height * made_width * channels > 4096)
  for (int64_t at = 0; at < batch * made_height; ++at) {
    const int64_t top = at % made_height * stride_y - padding_y;
    const int64_t first = first_inside(top, dilation_y);
    const int64_t behind = behind_inside(top, dilation_y, rows, height);
    const int64_t inside = behind < first ? 0 : behind - first, step = x.step(3);
    const Core::Line line{
        x.at(at / made_height, 0, 0) + (top + first * dilation_y) * x.step(2),
        dilation_y * x.step(2), step, inside, width, channels, padding_x, begin, end, made_width,
        inside * x.step(2), is_large ? stride_y : 0, weights + first * columns * channels, biases,
        activation, to + at * made_width * channels};
    if (has_code) {
      const int64_t which = columns * 2 + stride_x;
      if (which == 7) Core::compute_line(line, 3, 1);
      if (which == 8) Core::compute_line(line, 3, 2);
      if (which == 11) Core::compute_line(line, 5, 1);
      if (which == 12) Core::compute_line(line, 5, 2);
      if (which == 15) Core::compute_line(line, 7, 1);
      if (which == 16) Core::compute_line(line, 7, 2);
      continue;
    }
    for (int64_t p = 0; p < made_width; ++p) {
      const int64_t left = p * stride_x - padding_x;
      const int64_t low = first_inside(left, dilation_x);
      const int64_t high = behind_inside(left, dilation_x, columns, width);
      for (int64_t c = 0; c < channels; c += Core::lanes) {
        const int64_t channel = c < last ? c : last;
        Core::Vector sums[1] = {biases ? Core::load(biases + channel) : Core::Vector{}};
        Core::convolve(line.row + left * step + channel * sizeof(float), line.row_step,
                       dilation_x * step, line.weights + channel, channels, inside, columns, low,
                       high, sums);
        Core::activate(sums, 1, activation);
        Core::store(line.to + p * channels + channel, sums[0]);
      }
    }
  }
  return AOTI_TORCH_SUCCESS;
}
