// The CPU's handoff::attention_cpu, written in a package's own C++ by AOTInductor, which declares it
// inside extern "C" and calls it for the operator: one definition, and no includes. Keys and values
// are read where they lie, and a block of queries once for all keys: its scores have a row for each
// key, so that the softmax is of columns and needs no sum across a vector. Vectors are written by
// hand, because Inductor turns the compiler's own vectorisation off, and products and sums are
// contracted, which it turns off as well. In bfloat16 two neighbours of a sum lie in 32 bits, which
// processors that have such products take at once, and sums and softmax are float32.
__attribute__((optimize("O3", "fp-contract=fast"))) AOTITorchError aoti_torch_cpu_attention_cpu(
    AtenTensorHandle query, AtenTensorHandle key, AtenTensorHandle value, AtenTensorHandle* mask,
    double scale, AtenTensorHandle* result) {
#include "vectors.h"
  struct Core : Vectors {
    // Of a block of queries, in vectors; how many of its rows are multiplied with values at once,
    // and with how many vectors of those; and how many keys with a block of queries. Registers hold
    // as much.
    enum : int64_t {
      lanes = Vectors::lanes, most = 3, rows = 6, columns = lanes / 4, keys = lanes / 2
    };
    // sum + right * left, of which there is one for all of a vector; with `paired` both hold two.
    static inline __attribute__((always_inline)) Vector add_product(
        const Vector& sum, const Vector& right, const char* left, const bool paired) {
      if (!paired) {
        float one;
        __builtin_memcpy(&one, left, sizeof(one));
        return sum + right * one;
      }
      uint32_t pair;
      __builtin_memcpy(&pair, left, sizeof(pair));
#if defined(__AVX512BF16__)
      return (Vector)_mm512_dpbf16_ps((__m512)sum, (__m512bh)right, (__m512bh)(Bits{} + pair));
#else
      const Bits bits = (Bits)right;
      float low, high;
      const uint32_t low_bits = pair << 16, high_bits = pair & 0xffff0000;
      __builtin_memcpy(&low, &low_bits, sizeof(low));
      __builtin_memcpy(&high, &high_bits, sizeof(high));
      return sum + (Vector)(bits << 16) * low + (Vector)(bits & 0xffff0000) * high;
#endif
    }
    // result[count][vectors] = left[count][depth] * right[depth][vectors]; all sums in registers.
    // Steps of what is on the left are in bytes; `depth` counts pairs, where they are, and their
    // sums are scaled.
    static inline __attribute__((always_inline)) void multiply(
        int64_t depth, const char* __restrict left, int64_t left_step, int64_t left_depth,
        const float* __restrict right, int64_t right_step, float* __restrict result,
        int64_t result_step, const int64_t count, const int64_t vectors, const bool paired,
        float scale) {
      Vector sums[8][4];
#pragma GCC unroll 8
      for (int64_t r = 0; r < count; ++r)
#pragma GCC unroll 4
        for (int64_t v = 0; v < vectors; ++v) sums[r][v] = Vector{};
      for (int64_t k = 0; k < depth; ++k) {
        Vector given[4];
#pragma GCC unroll 4
        for (int64_t v = 0; v < vectors; ++v) given[v] = load(right + k * right_step + v * lanes);
#if defined(__AVX512BF16__)
        // Else g++ 12 loads them for each row again, and keeps sums in memory.
#pragma GCC unroll 4
        for (int64_t v = 0; v < vectors; ++v) __asm__("" : "+v"(given[v]));
#endif
#pragma GCC unroll 8
        for (int64_t r = 0; r < count; ++r) {
          const char* one = left + r * left_step + k * left_depth;
#pragma GCC unroll 4
          for (int64_t v = 0; v < vectors; ++v)
            sums[r][v] = add_product(sums[r][v], given[v], one, paired);
        }
      }
#pragma GCC unroll 8
      for (int64_t r = 0; r < count; ++r)
#pragma GCC unroll 4
        for (int64_t v = 0; v < vectors; ++v)
          store(result + r * result_step + v * lanes, paired ? sums[r][v] * scale : sums[r][v]);
    }
    // Steps are of rows, and inside one, in bytes; `mask` may be null.
    struct Head {
      const char* __restrict query;
      const char* __restrict key;
      const char* __restrict value;
      const char* __restrict mask;
      char* __restrict result;
      int64_t query_step, query_depth, key_step, key_depth, value_step, mask_step, mask_depth;
      int64_t result_step, length, depth, width;
      float scale;
    };
    // score[length][block] = key * query, for the first `count` queries of a block of `vectors`.
    static inline __attribute__((always_inline)) void compare(
        const Head& of, int64_t count, float* __restrict turned, float* __restrict score,
        const int64_t vectors, const bool paired) {
      const int64_t block = vectors * lanes, depth = paired ? of.depth / 2 : of.depth;
      const int64_t query_depth = paired ? sizeof(float) : of.query_depth;
      const int64_t key_depth = paired ? sizeof(float) : of.key_depth;
      for (int64_t r = 0; r < block; ++r)
        for (int64_t d = 0; d < depth; ++d) {
          float one = 0.0f;
          if (r < count)
            __builtin_memcpy(&one, of.query + r * of.query_step + d * query_depth, sizeof(one));
          // A pair is no number, and its scores are scaled instead.
          if (!paired) one *= of.scale;
          __builtin_memcpy(turned + d * block + r, &one, sizeof(one));
        }
      const int64_t last = of.length - keys;
      if (last >= 0) {
        // The last rows overlap, where the length is no multiple.
        for (int64_t j = 0; j < of.length; j += keys) {
          const int64_t first = j < last ? j : last;
          multiply(depth, of.key + first * of.key_step, of.key_step, key_depth, turned, block,
                   score + first * block, block, keys, vectors, paired, of.scale);
        }
      } else {
        for (int64_t j = 0; j < of.length; ++j)
          multiply(depth, of.key + j * of.key_step, of.key_step, key_depth, turned, block,
                   score + j * block, block, 1, vectors, paired, of.scale);
      }
      if (of.mask) add_mask(of, count, score, vectors);
    }
    // A mask that is the same for all queries is added as it is, another is turned first, as many
    // keys at once as a vector has numbers.
    static inline __attribute__((always_inline)) void add_mask(
        const Head& of, int64_t count, float* __restrict score, const int64_t vectors) {
      const int64_t block = vectors * lanes;
      int64_t j = 0;
      if (of.mask_step == 0) {
        for (; j < of.length; ++j) {
          float one;
          __builtin_memcpy(&one, of.mask + j * of.mask_depth, sizeof(one));
          for (int64_t v = 0; v < vectors; ++v)
            store(score + j * block + v * lanes, load(score + j * block + v * lanes) + one);
        }
      } else if (of.mask_depth == sizeof(float)) {
        for (; j + lanes <= of.length; j += lanes)
          for (int64_t v = 0; v < vectors; ++v) {
            Vector square[lanes];
            for (int64_t r = 0; r < lanes; ++r)
              square[r] = v * lanes + r < count
                  ? read(of.mask + (v * lanes + r) * of.mask_step + j * sizeof(float), false)
                  : Vector{};
            turn(square);
            for (int64_t l = 0; l < lanes; ++l) {
              float* at = score + (j + l) * block + v * lanes;
              store(at, load(at) + square[l]);
            }
          }
      }
      for (; j < of.length; ++j)
        for (int64_t r = 0; r < count; ++r) {
          float one;
          __builtin_memcpy(&one, of.mask + r * of.mask_step + j * of.mask_depth, sizeof(one));
          score[j * block + r] += one;
        }
    }
    // Rows become columns: blocks of ever twice the side change places with those across.
    static inline __attribute__((always_inline)) void turn(Vector* __restrict square) {
#pragma GCC unroll 4
      for (int64_t side = 1; side < lanes; side *= 2) {
        Whole low, high;
#pragma GCC unroll 16
        for (int64_t l = 0; l < lanes; ++l) {
          low[l] = l & side ? lanes + l - side : l;
          high[l] = l & side ? lanes + l : l + side;
        }
#pragma GCC unroll 16
        for (int64_t r = 0; r < lanes; ++r) {
          if (r & side) continue;
          const Vector above = square[r], below = square[r + side];
          square[r] = __builtin_shuffle(above, below, low);
          square[r + side] = __builtin_shuffle(above, below, high);
        }
      }
    }
    // Make weights of the scores, which `share` makes a sum of 1 of; with `paired`, those of two
    // keys in the place of one.
    static inline __attribute__((always_inline)) void weigh(
        const Head& of, float* __restrict score, float* __restrict share, const int64_t vectors,
        const bool paired) {
      const int64_t block = vectors * lanes;
      Vector largest[most], total[most];
      for (int64_t v = 0; v < vectors; ++v) largest[v] = load(score + v * lanes);
      for (int64_t j = 1; j < of.length; ++j)
        for (int64_t v = 0; v < vectors; ++v) {
          const Vector x = load(score + j * block + v * lanes);
          largest[v] = x > largest[v] ? x : largest[v];
        }
      const float infinity = std::numeric_limits<float>::infinity();
      for (int64_t v = 0; v < vectors; ++v) {
        total[v] = Vector{};
        // Where a mask leaves nothing, weights and results are 0, as torch's are.
        largest[v] = largest[v] == -infinity ? Vector{} : largest[v];
      }
      for (int64_t j = 0; j < of.length; j += paired ? 2 : 1)
        for (int64_t v = 0; v < vectors; ++v) {
          const float* from = score + j * block + v * lanes;
          const Vector weight = power(load(from) - largest[v]);
          total[v] += weight;
          if (paired) {
            const bool is_pair = j + 1 < of.length;
            const Vector next = is_pair ? power(load(from + block) - largest[v]) : Vector{};
            total[v] += next;
            store(score + j / 2 * block + v * lanes, (Vector)(round(weight) | round(next) << 16));
          } else {
            store(score + j * block + v * lanes, weight);
          }
        }
      for (int64_t v = 0; v < vectors; ++v)
        store(share + v * lanes, total[v] == 0.0f ? Vector{} : 1.0f / total[v]);
    }
    // Values of two keys beside each other, as their weights are; behind the last one stands 0.
    static inline __attribute__((always_inline)) void pair(
        const char* __restrict value, int64_t step, int64_t length, int64_t width,
        float* __restrict pairs) {
      for (int64_t j = 0; j < length; j += 2)
        for (int64_t d = 0; d < width; d += lanes) {
          const char* from = value + j * step + d * sizeof(uint16_t);
          const Bits next = j + 1 < length ? load_halves(from + step) : Bits{};
          store(pairs + j / 2 * width + d, (Vector)(load_halves(from) | next << 16));
        }
    }
    // result[count][width] = weights * value * share. The last rows of weights may lie beyond the
    // block, in the memory behind it; what they give is not stored.
    static inline __attribute__((always_inline)) void mix(
        const Head& of, int64_t count, const float* __restrict score, const float* __restrict share,
        const float* __restrict pairs, const int64_t vectors, const bool paired) {
      const int64_t block = vectors * lanes, length = paired ? (of.length + 1) / 2 : of.length;
      const float* value = paired ? pairs : reinterpret_cast<const float*>(of.value);
      const int64_t value_step = paired ? of.width : of.value_step / int64_t(sizeof(float));
      const int64_t left_depth = block * sizeof(float);
      float part[rows * columns * lanes];
      for (int64_t r = 0; r < count; r += rows)
        for (int64_t d = 0; d < of.width;) {
          const bool is_wide = of.width - d >= columns * lanes;
          const int64_t given = is_wide ? columns : 1;
          const char* left = reinterpret_cast<const char*>(score + r);
          if (is_wide) {
            multiply(length, left, sizeof(float), left_depth, value + d, value_step, part,
                     columns * lanes, rows, columns, paired, 1.0f);
          } else {
            multiply(length, left, sizeof(float), left_depth, value + d, value_step, part,
                     columns * lanes, rows, 1, paired, 1.0f);
          }
          for (int64_t x = 0; x < rows && r + x < count; ++x)
            for (int64_t v = 0; v < given; ++v) {
              const Vector made = load(part + (x * columns + v) * lanes) * share[r + x];
              char* row = of.result + (r + x) * of.result_step;
              const int64_t size = paired ? sizeof(uint16_t) : sizeof(float);
              write(row + (d + v * lanes) * size, made, paired);
            }
          d += given * lanes;
        }
    }
    static inline __attribute__((always_inline)) void run(
        const Head& of, int64_t count, float* __restrict turned, float* __restrict score,
        const float* __restrict pairs, const int64_t vectors, const bool paired) {
      float share[most * lanes];
      compare(of, count, turned, score, vectors, paired);
      weigh(of, score, share, vectors, paired);
      mix(of, count, score, share, pairs, vectors, paired);
    }
    static inline __attribute__((always_inline)) void run_block(
        const Head& of, int64_t count, float* __restrict turned, float* __restrict score,
        const float* __restrict pairs, const bool paired) {
      if (count > 2 * lanes) {
        run(of, count, turned, score, pairs, 3, paired);
      } else if (count > lanes) {
        run(of, count, turned, score, pairs, 2, paired);
      } else {
        run(of, count, turned, score, pairs, 1, paired);
      }
    }
  };

  const auto refuse = [](const char* why) {
    std::cerr << "handoff::attention: " << why << std::endl;
    return AOTI_TORCH_FAILURE;
  };
  View q, k, v, m, made;
  const auto is_known = [](const View& one) {
    return one.dtype == aoti_torch_dtype_float32() || one.dtype == aoti_torch_dtype_bfloat16();
  };
  const bool is_open = q.open(query) && k.open(key) && v.open(value) && (!mask || m.open(*mask));
  if (!is_open || !is_known(q) || k.dtype != q.dtype || v.dtype != q.dtype ||
      (mask && m.dtype != aoti_torch_dtype_float32()))
    return refuse("expected float32 everywhere, or bfloat16 with a mask in float32");
  const bool paired = q.dtype == aoti_torch_dtype_bfloat16();
  const int64_t batch = q.sizes[0], heads = q.sizes[1], length = q.sizes[2], depth = q.sizes[3];
  const int64_t known = k.sizes[2], width = v.sizes[3];
  const bool fits = known > 0 && k.is(batch, heads, known, depth) &&
      v.is(batch, heads, known, width) && (!mask || m.is(batch, heads, length, known)) &&
      width % 16 == 0 && v.strides[3] == 1 &&
      (!paired || (depth % 2 == 0 && q.strides[3] == 1 && k.strides[3] == 1));
  if (!fits) return refuse("queries, keys, values and mask don't belong together");
  // Heads of a place beside each other, as torch has them, so that joining them copies nothing.
  const int64_t shape[4] = {batch, heads, length, width};
  const int64_t steps[4] = {length * heads * width, width, heads * width, 1};
  const auto status = aoti_torch_empty_strided(
      4, shape, steps, q.dtype, aoti_torch_device_type_cpu(), 0, result);
  if (status != AOTI_TORCH_SUCCESS) return status;
  const auto undo = [result, refuse](const char* why) {
    aoti_torch_delete_tensor_object(*result);
    return refuse(why);
  };
  if (!made.open(*result)) return undo("its result can't be read");
  const int64_t block = Core::most * Core::lanes, blocks = (length + block - 1) / block;
  const int64_t work = batch * heads * blocks;
  const int64_t paired_size = paired ? (known + 1) / 2 * width : 0;
  bool has_memory = true;
#pragma omp parallel if (batch * heads * length * known * depth > 65536) reduction(&& : has_memory)
  {
    // No exception may leave a parallel region. The spare is for the address to be rounded up.
    const std::unique_ptr<float[]> memory(new (std::nothrow) float[
        block * (known + depth) + paired_size + 2 * Core::lanes]());
    has_memory = memory != nullptr;
    float* turned = reinterpret_cast<float*>(
        (reinterpret_cast<uintptr_t>(memory.get()) + 63) / 64 * 64);
    float* pairs = turned + block * depth;
    float* score = pairs + paired_size;
    const char* last = nullptr;
#pragma omp for
    for (int64_t w = 0; w < work; ++w) {
      if (!has_memory) continue;
      const int64_t b = w / blocks / heads, h = w / blocks % heads, first = w % blocks * block;
      const int64_t count = length - first < block ? length - first : block;
      const Core::Head head = {
          q.at(b, h, first), k.at(b, h, 0), v.at(b, h, 0), mask ? m.at(b, h, first) : nullptr,
          made.at(b, h, first), q.step(2), q.step(3), k.step(2), k.step(3), v.step(2),
          mask ? m.step(2) : 0, mask ? m.step(3) : 0, made.step(2), known, depth, width,
          static_cast<float>(scale)};
      if (!paired) {
        Core::run_block(head, count, turned, score, pairs, false);
        continue;
      }
      // Once for all blocks of a head that this thread computes.
      if (last != head.value) Core::pair(head.value, v.step(2), known, width, pairs);
      last = head.value;
      Core::run_block(head, count, turned, score, pairs, true);
    }
  }
  return has_memory ? AOTI_TORCH_SUCCESS : undo("there is no memory for its scores");
}
