// The CPU's handoff::attention_pooling_cpu, written in a package's own C++ by AOTInductor, which
// declares it inside extern "C" and calls it for the operator: one definition, and no includes.
// A row of the tables is read once, and not at all for padding. Vectors are written by hand,
// because Inductor turns the compiler's own vectorisation off.
__attribute__((optimize("O3"))) AOTITorchError aoti_torch_cpu_attention_pooling_cpu(
    AtenTensorHandle table, AtenTensorHandle ids, AtenTensorHandle categories,
    AtenTensorHandle kinds, AtenTensorHandle gate, AtenTensorHandle weight,
    AtenTensorHandle target, AtenTensorHandle present, double mix, double slope, double scale,
    double fill, AtenTensorHandle* total, AtenTensorHandle* attended) {
  struct View {
    void* data = nullptr;
    int64_t* sizes = nullptr;
    int64_t* strides = nullptr;
    int64_t axes = 0;
    bool open(AtenTensorHandle tensor, int32_t expected) {
      int32_t dtype = -1;
      return aoti_torch_get_data_ptr(tensor, &data) == AOTI_TORCH_SUCCESS &&
          aoti_torch_get_sizes(tensor, &sizes) == AOTI_TORCH_SUCCESS &&
          aoti_torch_get_strides(tensor, &strides) == AOTI_TORCH_SUCCESS &&
          aoti_torch_get_dim(tensor, &axes) == AOTI_TORCH_SUCCESS &&
          aoti_torch_get_dtype(tensor, &dtype) == AOTI_TORCH_SUCCESS && dtype == expected;
    }
    int64_t size(int64_t axis) const { return axis < axes ? sizes[axis] : -1; }
  };
  View t, i, c, k, g, w, q, p, sum, mean;
  const int32_t number = aoti_torch_dtype_float32(), whole = aoti_torch_dtype_int64();
  const bool opened = t.open(table, number) && i.open(ids, whole) && c.open(categories, number) &&
      k.open(kinds, whole) && g.open(gate, number) && w.open(weight, number) &&
      q.open(target, number) && p.open(present, aoti_torch_dtype_bool());
  if (!opened) {
    std::cerr << "attention_pooling: expected int64 ids and kinds, a mask of truths, and float32 "
              << "else, got others" << std::endl;
    return AOTI_TORCH_FAILURE;
  }
  const int64_t rows = i.size(0), length = i.size(1), width = t.size(1);
  const int64_t known = t.size(0), kinds_known = c.size(0);
  // Torch would broadcast sizes of 1, beyond which this would read.
  const struct Expected {
    const char* name;
    const View* view;
    int64_t axes, sizes[3];
  } all[] = {
      {"table", &t, 2, {known, width}}, {"categories", &c, 2, {kinds_known, width}},
      {"ids", &i, 2, {rows, length}}, {"kinds", &k, 2, {rows, length}},
      {"weight", &w, 2, {rows, length}}, {"present", &p, 2, {rows, length}},
      {"gate", &g, 1, {width}}, {"target", &q, 3, {rows, 1, width}}};
  const auto format = [](const int64_t* sizes, int64_t axes) {
    std::string text = "[";
    for (int64_t a = 0; a < axes; ++a) text += (a ? ", " : "") + std::to_string(sizes[a]);
    return text + "]";
  };
  for (const Expected& expected : all) {
    bool fits = expected.view->axes == expected.axes;
    for (int64_t a = 0; fits && a < expected.axes; ++a)
      fits = expected.view->sizes[a] == expected.sizes[a];
    if (fits) continue;
    std::cerr << "attention_pooling: expected " << expected.name << " of the sizes "
              << format(expected.sizes, expected.axes) << ", got "
              << format(expected.view->sizes, expected.view->axes) << std::endl;
    return AOTI_TORCH_FAILURE;
  }

  // What one row of ids is given; strides of a step along the sequence.
  struct Row {
    const float* __restrict table;
    const float* __restrict categories;
    const float* __restrict gate;
    const float* __restrict target;
    const int64_t* __restrict ids;
    const int64_t* __restrict kinds;
    const float* __restrict weight;
    const bool* __restrict present;
    int64_t ids_step, kinds_step, weight_step, present_step, length, known, kinds_known;
    float mix, slope, scale, fill;
  };
  struct Pool {
    // As wide as the processor's own: g++ takes wider ones apart, number by number.
#if defined(__AVX512F__)
    enum : int64_t { lanes = 16, most = 8 };
#else
    enum : int64_t { lanes = 8, most = 16 };
#endif
    typedef float Vector __attribute__((vector_size(lanes * sizeof(float))));
    static inline __attribute__((always_inline)) Vector at(const float* from, int64_t count) {
      Vector loaded = {};
      __builtin_memcpy(&loaded, from, count * sizeof(float));
      return loaded;
    }
    // In halves, which takes four additions in a row instead of one for each number.
    static inline __attribute__((always_inline)) float added(const Vector& of) {
      typedef float Quarter __attribute__((vector_size(16)));
      Quarter part[lanes / 4];
      __builtin_memcpy(part, &of, sizeof(of));
      for (int64_t half = lanes / 8; half > 0; half /= 2) {
        for (int64_t h = 0; h < half; ++h) part[h] += part[h + half];
      }
      return (part[0][0] + part[0][2]) + (part[0][1] + part[0][3]);
    }
    // Columns come in `blocks` of `lanes`, of which the last has `tail`; both are constants where they
    // are common, so that the sums stay in registers. False: an id lies outside its table.
    static inline __attribute__((always_inline)) bool run(
        const Row& row, float* __restrict total, float* __restrict attended, int64_t width,
        const int64_t blocks, const int64_t tail, Vector* __restrict kept,
        float* __restrict score) {
      Vector sums[most] = {}, means[most] = {};
      float largest = -std::numeric_limits<float>::infinity();
      int64_t here = 0, absent = 0;
      for (int64_t l = 0; l < row.length; ++l) {
        const bool present = row.present[l * row.present_step];
        const float share = row.weight[l * row.weight_step];
        const int64_t id = row.ids[l * row.ids_step], kind = row.kinds[l * row.kinds_step];
        if (id < 0 || id >= row.known || kind < 0 || kind >= row.kinds_known) return false;
        absent += !present;
        if (!present && share == 0.0f) continue;
        const float* item = row.table + id * width;
        const float* category = row.categories + kind * width;
        Vector dots = {};
        for (int64_t b = 0; b < blocks; ++b) {
          const int64_t count = b + 1 < blocks ? lanes : tail, j = b * lanes;
          Vector value = (at(item + j, count) + at(category + j, count) * row.mix) *
              at(row.gate + j, count);
          value = value > 0.0f ? value : value * row.slope;
          kept[here * blocks + b] = value;
          sums[b] += value * share;
          dots += value * at(row.target + j, count);
        }
        if (!present) continue;
        score[here] = added(dots) * row.scale;
        largest = score[here] > largest ? score[here] : largest;
        ++here;
      }
      if (absent && row.fill > largest) largest = row.fill;
      float all = absent ? static_cast<float>(absent) * std::exp(row.fill - largest) : 0.0f;
      for (int64_t l = 0; l < here; ++l) {
        score[l] = std::exp(score[l] - largest);
        all += score[l];
      }
      for (int64_t l = 0; l < here; ++l) {
        const float attention = score[l] / all;
        for (int64_t b = 0; b < blocks; ++b) means[b] += kept[l * blocks + b] * attention;
      }
      for (int64_t b = 0; b < blocks; ++b) {
        const int64_t count = b + 1 < blocks ? lanes : tail;
        __builtin_memcpy(total + b * lanes, &sums[b], count * sizeof(float));
        __builtin_memcpy(attended + b * lanes, &means[b], count * sizeof(float));
      }
      return true;
    }
  };

  const int64_t blocks = (width + Pool::lanes - 1) / Pool::lanes;
  const int64_t tail = width - (blocks - 1) * Pool::lanes;
  if (blocks > Pool::most) {
    std::cerr << "attention_pooling: expected tables of at most " << Pool::most * Pool::lanes
              << " columns, got " << width << std::endl;
    return AOTI_TORCH_FAILURE;
  }
  *total = *attended = nullptr;
  // Whoever calls takes results only after a success, so without this each refusal would lose them.
  const auto refuse = [&] {
    for (AtenTensorHandle* made : {total, attended}) {
      if (*made) aoti_torch_delete_tensor_object(*made);
      *made = nullptr;
    }
    return AOTI_TORCH_FAILURE;
  };
  const int64_t shape[2] = {rows, width}, stride[2] = {width, 1};
  for (AtenTensorHandle* made : {total, attended}) {
    const auto status = aoti_torch_empty_strided(
        2, shape, stride, number, aoti_torch_device_type_cpu(), 0, made);
    if (status == AOTI_TORCH_SUCCESS) continue;
    *made = nullptr;
    return refuse();
  }
  if (!sum.open(*total, number) || !mean.open(*attended, number)) return refuse();

  // No exception may leave a parallel region, so what is wrong is noted there and reported after.
  bool known_ids = true, has_room = true;
#pragma omp parallel reduction(&& : known_ids, has_room) if (rows * length * width > 65536)
  {
    // Scores first: where they have room, the rest's size is a number that can be written.
    std::unique_ptr<float[]> score(new (std::nothrow) float[length]), memory;
    if (score) memory.reset(new (std::nothrow) float[(length * blocks + 1) * Pool::lanes]);
    has_room = memory != nullptr;
    constexpr uintptr_t step = sizeof(Pool::Vector);
    auto* kept = reinterpret_cast<Pool::Vector*>(
        (reinterpret_cast<uintptr_t>(memory.get()) + step - 1) / step * step);
#pragma omp for
    for (int64_t n = 0; n < rows; ++n) {
      if (!known_ids || !has_room) continue;
      const Row row = {
          static_cast<const float*>(t.data), static_cast<const float*>(c.data),
          static_cast<const float*>(g.data),
          static_cast<const float*>(q.data) + n * q.strides[0],
          static_cast<const int64_t*>(i.data) + n * i.strides[0],
          static_cast<const int64_t*>(k.data) + n * k.strides[0],
          static_cast<const float*>(w.data) + n * w.strides[0],
          static_cast<const bool*>(p.data) + n * p.strides[0],
          i.strides[1], k.strides[1], w.strides[1], p.strides[1], length, known, kinds_known,
          static_cast<float>(mix), static_cast<float>(slope), static_cast<float>(scale),
          static_cast<float>(fill)};
      float* sums = static_cast<float*>(sum.data) + n * width;
      float* means = static_cast<float*>(mean.data) + n * width;
      constexpr int64_t full = Pool::lanes;
      if (width == 16) {
        known_ids = Pool::run(row, sums, means, 16, 16 / full, full, kept, score.get());
      } else if (width == 32) {
        known_ids = Pool::run(row, sums, means, 32, 32 / full, full, kept, score.get());
      } else if (width == 64) {
        known_ids = Pool::run(row, sums, means, 64, 64 / full, full, kept, score.get());
      } else {
        known_ids = Pool::run(row, sums, means, width, blocks, tail, kept, score.get());
      }
    }
  }
  if (known_ids && has_room) return AOTI_TORCH_SUCCESS;
  if (has_room) {
    std::cerr << "attention_pooling: expected ids from 0 to " << known - 1 << " and kinds from 0 to "
              << kinds_known - 1 << ", got others" << std::endl;
  } else {
    std::cerr << "attention_pooling: expected memory for sequences of " << length << ", got none"
              << std::endl;
  }
  return refuse();
}
