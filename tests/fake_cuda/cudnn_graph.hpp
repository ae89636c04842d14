// cuDNN's descriptors, and what graphs of them compute: a convolution alone, or with what may be joined to it: what
// follows it, or the normalisation before it.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <map>
#include <memory>
#include <optional>

#include "fake.hpp"
#include "numbers.hpp"

namespace dnn {

using numbers::Type;

// ---- descriptors: attributes by their numbers in cudnn_graph.h ----

enum Kind {
    POINTWISE = 0, CONVOLUTION, ENGINE, CONFIGURATION, HEURISTICS, PLAN,
    FORWARD = 10, FILTER, DATA, ELEMENTS, STATISTICS, GRAPH, PACK, TENSOR,
};
enum Name {
    FUNCTION = 0, PRECISION, LOWER_CLIP = 3, UPPER_CLIP, SLOPE,
    COMPUTE = 100, MODE, DILATIONS, STRIDES, AFTER, BEFORE, AXES,
    HEURISTICS_MODE = 200, HEURISTICS_GRAPH, RESULTS,
    ITS_ENGINE = 300,
    PLAN_HANDLE = 400, PLAN_CONFIGURATION, WORKSPACE_SIZE, PLAN_TEXT = 405,
    ITS_FUNCTION = 750, ELEMENTS_X, ELEMENTS_B, ELEMENTS_Y, ALPHA_1, ALPHA_2, ELEMENTS_DX, ELEMENTS_DY,
    STATISTICS_MODE = 770, STATISTICS_PRECISION, STATISTICS_X, SUM, SQUARES,
    GRAPH_HANDLE = 800, OPERATIONS,
    ALIGNMENT = 900, DATA_TYPE, EXTENTS, DISTANCES, NUMBER = 906, VIRTUAL,
    PACK_NUMBERS = 1000, PACK_POINTERS, PACK_WORKSPACE = 1003,
    ENGINE_NUMBER = 1301, NUMERICAL_NOTES = 1303, BEHAVIOUR_NOTES = 1305,
};
enum Of {
    OF_HANDLE = 0, OF_DATA_TYPE, OF_BOOLEAN, OF_NUMBER, OF_FLOAT, OF_DOUBLE, OF_POINTER,
    OF_FUNCTION = 14, OF_DESCRIPTOR, OF_STATISTICS, OF_CHAR = 24,
};
// cudnnPointwiseMode_t.
enum Function { ADD = 0, MUL = 1, RELU = 100, RELU_BACKWARD = 200 };

struct Attribute {
    int of = 0;
    // Whatever it is, in words of eight bytes.
    std::vector<int64_t> words;
};

struct Descriptor {
    int kind;
    bool finalized = false;
    std::map<int, Attribute> attributes;
    // Of an engine, a configuration and a plan.
    int engine = 0;
    // What a plan that was restored is made of.
    std::vector<std::shared_ptr<Descriptor>> made;

    bool has(int name, size_t count = 1) const {
        const auto at = attributes.find(name);
        return at != attributes.end() && at->second.words.size() == count;
    }
    bool is(int name, int of) const { return has(name) && attributes.at(name).of == of; }
    bool has_part(int name, int kind) const { return is(name, OF_DESCRIPTOR) && part(name)->kind == kind; }
    const std::vector<int64_t> &words(int name) const { return attributes.at(name).words; }
    int64_t number(int name, size_t i = 0) const { return words(name)[i]; }
    Descriptor *part(int name, size_t i = 0) const { return (Descriptor *)number(name, i); }
    float real(int name) const {
        float value;
        memcpy(&value, &words(name)[0], 4);
        return value;
    }
};

inline size_t width(int of) {
    switch (of) {
    case OF_HANDLE:
    case OF_NUMBER:
    case OF_DOUBLE:
    case OF_POINTER:
    case OF_DESCRIPTOR: return 8;
    case OF_BOOLEAN:
    case OF_CHAR: return 1;
    default: return 4;
    }
}

// x, w, y, the geometry, alpha and beta of an operation.
struct Names {
    int x, w, y, how, alpha, beta;
};
inline Names names(int kind) {
    if (kind == FORWARD) return {704, 703, 705, 702, 700, 701};
    if (kind == DATA) return {710, 709, 711, 708, 706, 707};
    return {716, 715, 717, 714, 712, 713};
}

// cudnnDataType_t.
inline Type type_of(int64_t code) {
    return code == 0 ? Type::F32 : code == 2 ? Type::F16 : code == 9 ? Type::Bf16 : Type::None;
}

struct Tensor {
    Type type;
    // Those of space: 2 of images, 3 of cubes.
    int axes;
    // n, c, d, h, w; images have a depth of 1.
    int extent[5] = {1, 1, 1, 1, 1};
    int64_t distance[5] = {1, 1, 1, 1, 1}, number;
    // It has no memory: one operation hands it to the next.
    bool is_virtual;

    explicit Tensor(const Descriptor &of)
        : type(type_of(of.number(DATA_TYPE))), axes(int(of.words(EXTENTS).size()) - 2), number(of.number(NUMBER)),
          is_virtual(of.has(VIRTUAL) && of.number(VIRTUAL) != 0) {
        for (int i = 0; i < 2 + axes; ++i) {
            const int at = i < 2 ? i : i + 3 - axes;
            extent[at] = int(of.number(EXTENTS, i)), distance[at] = of.number(DISTANCES, i);
        }
    }
    int n() const { return extent[0]; }
    int c() const { return extent[1]; }
    int d() const { return extent[2]; }
    int h() const { return extent[3]; }
    int w() const { return extent[4]; }
    size_t index(int s, int channel, int z, int y, int x) const {
        return s * distance[0] + channel * distance[1] + z * distance[2] + y * distance[3] + x * distance[4];
    }
    // As many as there are elements only where these lie without gaps.
    size_t count() const { return index(n() - 1, c() - 1, d() - 1, h() - 1, w() - 1) + 1; }
    bool dense() const { return count() == size_t(n()) * c() * d() * h() * w(); }
    bool as_large(const Tensor &as) const { return memcmp(extent, as.extent, sizeof extent) == 0; }
    // A real number a channel of another.
    bool by_channel(const Tensor &of) const {
        return type == Type::F32 && !is_virtual && n() == 1 && c() == of.c() && d() == 1 && h() == 1 &&
               w() == 1;
    }
    bool operator==(const Tensor &other) const {
        return type == other.type && axes == other.axes && as_large(other) &&
               memcmp(distance, other.distance, sizeof distance) == 0 && number == other.number &&
               is_virtual == other.is_virtual;
    }
};

struct Convolution {
    int axes;
    // Of depth, height and width.
    int64_t pad[3] = {}, after[3] = {}, stride[3] = {1, 1, 1}, dilation[3] = {1, 1, 1};
    bool correlation;
    int64_t compute;

    explicit Convolution(const Descriptor &of)
        : axes(int(of.number(AXES))), correlation(of.number(MODE) == 1), compute(of.number(COMPUTE)) {
        for (int i = 0; i < axes; ++i) {
            const int at = i + 3 - axes;
            pad[at] = of.number(BEFORE, i), after[at] = of.number(AFTER, i);
            stride[at] = of.number(STRIDES, i), dilation[at] = of.number(DILATIONS, i);
        }
    }
    // Where in x place `at` of y finds place `of` of the kernel.
    int64_t place(int axis, int at, int of) const { return at * stride[axis] - pad[axis] + of * dilation[axis]; }
    int64_t extent(int in, int kernel, int axis) const {
        const int64_t room = in + pad[axis] + after[axis] - (dilation[axis] * (kernel - 1) + 1);
        return room < 0 ? 0 : room / stride[axis] + 1;
    }
};

struct Operands {
    int kind;
    Tensor x, w, y;
    Convolution how;
    float alpha, beta;

    static Operands of(const Descriptor &operation) {
        const Names at = names(operation.kind);
        const auto tensor = [&](int name) { return Tensor(*operation.part(name)); };
        return {operation.kind, tensor(at.x), tensor(at.w), tensor(at.y), Convolution(*operation.part(at.how)),
                operation.real(at.alpha), operation.real(at.beta)};
    }
    const Tensor &result() const { return kind == FORWARD ? y : kind == DATA ? x : w; }
    // What it multiplies.
    const Tensor &left() const { return kind == FORWARD ? x : y; }
    const Tensor &right() const { return kind == FILTER ? x : w; }
    int groups() const { return x.c() / w.c(); }
    // Whether x, w and y belong together. A result without memory is not of their type, and was nothing before.
    bool fit() const {
        const Type type = left().type;
        const bool stored = result().is_virtual ? beta == 0 : result().type == type;
        return type != Type::None && right().type == type && stored && how.compute == 0 &&
               x.c() % w.c() == 0 && w.n() % groups() == 0 && y.c() == w.n() && y.n() == x.n() && x.dense() &&
               w.dense() && y.dense() && along(0) && along(1) && along(2);
    }
    // The same of an axis of space.
    bool along(int axis) const {
        const bool alike = x.axes == how.axes && w.axes == how.axes && y.axes == how.axes;
        return alike && how.stride[axis] > 0 &&
               y.extent[2 + axis] == how.extent(x.extent[2 + axis], w.extent[2 + axis], axis);
    }
};

// Calls f(index in x, in w, in y) for the multiplications of a group's first input and output channels; the others
// follow.
template <class F> void each_first_product(const Operands &all, F f) {
    const Tensor &x = all.x, &w = all.w, &y = all.y;
    const Convolution &how = all.how;
    const int per_group = w.n() / all.groups();
    // Of an axis, g(place in x, in w, in y).
    const auto along = [&](int axis, auto g) {
        for (int i = 0; i < y.extent[2 + axis]; ++i)
            for (int k = 0; k < w.extent[2 + axis]; ++k) {
                const int64_t at = how.place(axis, i, k);
                // A convolution proper turns the kernel, a correlation, as networks have it, does not.
                const int turned = how.correlation ? k : w.extent[2 + axis] - 1 - k;
                if (at >= 0 && at < x.extent[2 + axis]) g(int(at), turned, i);
            }
    };
    for (int s = 0; s < y.n(); ++s)
        along(0, [&](int xz, int wz, int yz) {
            along(1, [&](int xy, int wy, int yy) {
                along(2, [&](int xx, int wx, int yx) {
                    for (int group = 0; group < all.groups(); ++group)
                        f(x.index(s, group * w.c(), xz, xy, xx), w.index(group * per_group, 0, wz, wy, wx),
                          y.index(s, group * per_group, yz, yy, yx));
                });
            });
        });
}

// The tensors of an operation.
struct Touched {
    std::vector<Tensor> read, written;
};

// Names of the tensors that a function of single elements reads, and of the one that it writes, which is the last.
inline std::vector<int> elements_of(int64_t function) {
    switch (function) {
    case ADD:
    case MUL: return {ELEMENTS_X, ELEMENTS_B, ELEMENTS_Y};
    case RELU: return {ELEMENTS_X, ELEMENTS_Y};
    case RELU_BACKWARD: return {ELEMENTS_X, ELEMENTS_DY, ELEMENTS_DX};
    default: return {};
    }
}

inline int64_t function_of(const Descriptor &operation) {
    return operation.kind == ELEMENTS ? operation.part(ITS_FUNCTION)->number(FUNCTION) : -1;
}

inline Touched touched(const Descriptor &operation) {
    const auto tensor = [&](int name) { return Tensor(*operation.part(name)); };
    if (operation.kind == STATISTICS) return {{tensor(STATISTICS_X)}, {tensor(SUM), tensor(SQUARES)}};
    if (operation.kind != ELEMENTS) {
        const Operands all = Operands::of(operation);
        return {{all.left(), all.right()}, {all.result()}};
    }
    Touched all;
    for (const int name : elements_of(function_of(operation))) all.read.push_back(tensor(name));
    all.written = {all.read.back()};
    all.read.pop_back();
    return all;
}

// Whether operations follow one another: each tensor is one and the same wherever it occurs, is written before it is
// read, and what has no memory is written at all.
inline bool follow(const Descriptor &graph) {
    std::map<int64_t, Tensor> seen;
    for (size_t i = 0; i < graph.words(OPERATIONS).size(); ++i) {
        const Touched now = touched(*graph.part(OPERATIONS, i));
        for (const Tensor &tensor : now.read) {
            const auto at = seen.find(tensor.number);
            if (at == seen.end() ? tensor.is_virtual : !(at->second == tensor)) return false;
            seen.emplace(tensor.number, tensor);
        }
        for (const Tensor &tensor : now.written)
            if (!seen.emplace(tensor.number, tensor).second) return false;
    }
    return true;
}

// Functions of single elements, one after the other, each of what the one before gave and another tensor: the first
// tensor, the others, the last one.
struct Chain {
    Tensor from;
    std::vector<Tensor> others;
    Tensor to;

    // The operations from `at` on, if they are these functions.
    static std::optional<Chain> of(const Descriptor &graph, size_t at, const std::vector<int> &functions) {
        std::optional<Chain> it;
        if (graph.words(OPERATIONS).size() < at + functions.size()) return std::nullopt;
        for (size_t i = 0; i < functions.size(); ++i) {
            const Descriptor &operation = *graph.part(OPERATIONS, at + i);
            if (operation.kind != ELEMENTS || function_of(operation) != functions[i]) return std::nullopt;
            const Touched now = touched(operation);
            if (!it) it = Chain{now.read[0], {}, now.written[0]};
            else if (now.read[0].number != it->to.number) return std::nullopt;
            if (now.read.size() == 2) it->others.push_back(now.read[1]);
            it->to = now.written[0];
            if (!it->to.is_virtual) return std::nullopt;
        }
        return it;
    }
    // Of each channel the values of the others, by their addresses.
    template <class F> std::vector<std::vector<double>> of_channels(F address) const {
        std::vector<std::vector<double>> all(from.c());
        for (size_t c = 0; c < all.size(); ++c)
            for (const Tensor &other : others) all[c].push_back(numbers::get(address(other), other.type, c));
        return all;
    }
};

// What a graph computes of a convolution, in the order of the members.
struct Computation {
    Operands convolution;
    std::optional<Tensor> bias;
    bool relu = false;
    // The output of a ReLU, through which gradients go where it is positive.
    std::optional<Tensor> gate;
    Tensor result;
    // Of the result as it was stored, a channel: the sum and the sum of squares, or neither.
    std::vector<Tensor> sums;
    // Before it x is scaled and shifted, and goes through a ReLU.
    std::optional<Chain> scaled = {};

    bool normalises() const { return scaled.has_value(); }

    // None: nothing here can compute it.
    static std::optional<Computation> of(const Descriptor &graph) {
        const auto scaled = Chain::of(graph, 0, {MUL, ADD, RELU});
        const size_t at = scaled ? 3 : 0, count = graph.words(OPERATIONS).size();
        if (at == count) return std::nullopt;
        const Descriptor &first = *graph.part(OPERATIONS, at);
        if (first.kind != FORWARD && first.kind != DATA && first.kind != FILTER) return std::nullopt;
        const Operands all = Operands::of(first);
        Computation it{all, {}, false, {}, all.result(), {}};
        if (scaled) {
            if (first.kind == DATA || all.x.number != scaled->to.number) return std::nullopt;
            it.scaled = scaled;
        }
        for (size_t i = at + 1; i < count; ++i)
            if (!it.join(*graph.part(OPERATIONS, i), i == at + 1)) return std::nullopt;
        if (it.result.is_virtual || it.result.type != all.left().type) return std::nullopt;
        return it;
    }

    // Takes in one operation more, if that can be.
    bool join(const Descriptor &operation, bool first) {
        const Touched now = touched(operation);
        const auto goes_on = [&](size_t i) { return now.read[i].number == result.number; };
        if (operation.kind == STATISTICS) {
            if (!first || convolution.kind != FORWARD || result.is_virtual || !goes_on(0)) return false;
            sums = now.written;
            return true;
        }
        if (!result.is_virtual) return false;
        switch (function_of(operation)) {
        case ADD:
            if (!first || convolution.kind != FORWARD || !goes_on(0) || !now.read[1].by_channel(result)) return false;
            bias = now.read[1];
            break;
        case RELU:
            if (relu || convolution.kind != FORWARD || !goes_on(0)) return false;
            relu = true;
            break;
        case RELU_BACKWARD:
            if (!first || convolution.kind != DATA || !goes_on(1) || now.read[0].is_virtual) return false;
            gate = now.read[0];
            break;
        default: return false;
        }
        result = now.written[0];
        return true;
    }

    // Those that have memory.
    std::vector<Tensor> tensors() const {
        std::vector<Tensor> all = {result};
        for (const Tensor &read : {convolution.left(), convolution.right()})
            if (!read.is_virtual) all.push_back(read);
        if (scaled) {
            all.push_back(scaled->from);
            all.insert(all.end(), scaled->others.begin(), scaled->others.end());
        }
        if (bias) all.push_back(*bias);
        if (gate) all.push_back(*gate);
        all.insert(all.end(), sums.begin(), sums.end());
        return all;
    }
};

// Calls f(n, c, d, h, w) for every element.
template <class F> void each_element(const Tensor &of, F f) {
    for (int n = 0; n < of.n(); ++n)
        for (int c = 0; c < of.c(); ++c)
            for (int d = 0; d < of.d(); ++d)
                for (int h = 0; h < of.h(); ++h)
                    for (int w = 0; w < of.w(); ++w) f(n, c, d, h, w);
}

inline std::vector<double> read(const Tensor &tensor, const void *memory) {
    std::vector<double> values(tensor.count());
    for (size_t k = 0; k < values.size(); ++k) values[k] = numbers::get(memory, tensor.type, k);
    return values;
}

// Adds to each of some numbers the product of a factor and another number: these lie `step` apart, those `stride`.
inline void add_products(double *__restrict to, int64_t step, double factor, const double *__restrict of,
                         int64_t stride, int count) {
    if (step == 1 && stride == 1) {
        for (int i = 0; i < count; ++i) to[i] += factor * of[i];
    } else {
        for (int i = 0; i < count; ++i) to[i * step] += factor * of[i * stride];
    }
}

// The same weights with output channels side by side, as `w` then says.
inline std::vector<double> by_output(Tensor &w, const std::vector<double> &values) {
    const Tensor was = w;
    w.distance[0] = 1, w.distance[1] = w.n();
    w.distance[4] = w.distance[1] * w.c(), w.distance[3] = w.distance[4] * w.w();
    w.distance[2] = w.distance[3] * w.h();
    std::vector<double> turned(w.count());
    each_element(w, [&](int n, int c, int z, int y, int x) {
        turned[w.index(n, c, z, y, x)] = values[was.index(n, c, z, y, x)];
    });
    return turned;
}

// Whether products of f32 go by transforms, as some engines of cuDNN's do.
inline bool transforms() {
    const char *text = getenv("FAKE_CUDNN_TRANSFORMS");
    return text && *text == '1';
}

// Each is off by some roundings of the largest.
inline void disturb(std::vector<double> &products) {
    double largest = 0;
    for (const double value : products) largest = std::max(largest, std::abs(value));
    for (size_t k = 0; k < products.size(); ++k) products[k] += (k % 3 - 1.0) * 64 * largest / (1 << 24);
}

// With the addresses of tensors, by their numbers.
inline void compute(const Computation &it, const std::map<int64_t, void *> &at) {
    std::map<int64_t, void *> memory;
    for (const Tensor &tensor : it.tensors()) {
        void *&here = memory[tensor.number];
        here = fake_address(at.at(tensor.number), tensor.count() * numbers::bytes(tensor.type));
        if (!here) return fake_fault("a cuDNN convolution");
    }
    const auto address = [&](const Tensor &tensor) { return memory[tensor.number]; };
    const auto values = [&](const Tensor &tensor) {
        if (!it.scaled || tensor.number != it.scaled->to.number) return read(tensor, memory[tensor.number]);
        // What is handed on is a number of its type.
        std::vector<double> all = read(it.scaled->from, address(it.scaled->from));
        const auto of_channels = it.scaled->of_channels(address);
        each_element(tensor, [&](int n, int c, int d, int h, int w) {
            const std::vector<double> &by = of_channels[c];
            double &value = all[tensor.index(n, c, d, h, w)];
            uint64_t stored = 0;
            numbers::put(&stored, tensor.type, 0, float(value * by[0] + by[1] > 0 ? value * by[0] + by[1] : 0));
            value = numbers::get(&stored, tensor.type, 0);
        });
        return all;
    };
    Operands all = it.convolution;
    const Tensor raw = all.result(), &result = it.result;
    const std::vector<double> left = values(all.left());
    std::vector<double> right = values(all.right()), products(raw.count());
    if (all.kind == FORWARD) right = by_output(all.w, right);
    const int64_t *const x_apart = all.x.distance, *const w_apart = all.w.distance, *const y_apart = all.y.distance;
    const int inputs = all.w.c(), outputs = all.w.n() / all.groups();
    each_first_product(all, [&](size_t x, size_t w, size_t y) {
        if (all.kind == FORWARD) {
            for (int c = 0; c < inputs; ++c) {
                const double factor = left[x + c * x_apart[1]];
                add_products(&products[y], y_apart[1], factor, &right[w + c * w_apart[1]], 1, outputs);
            }
            return;
        }
        for (int o = 0; o < outputs; ++o) {
            const double factor = left[y + o * y_apart[1]];
            if (all.kind == DATA)
                add_products(&products[x], x_apart[1], factor, &right[w + o * w_apart[0]], w_apart[1], inputs);
            else
                add_products(&products[w + o * w_apart[0]], w_apart[1], factor, &right[x], x_apart[1], inputs);
        }
    });
    if (raw.type == Type::F32 && transforms()) disturb(products);
    const std::vector<double> bias = it.bias ? values(*it.bias) : std::vector<double>();
    const std::vector<double> gate = it.gate ? values(*it.gate) : std::vector<double>();
    void *to = memory[result.number];
    std::vector<double> sum(result.c()), squares(result.c());
    each_element(result, [&](int n, int c, int d, int h, int w) {
        const size_t k = result.index(n, c, d, h, w);
        // What beta = 0 multiplies is not read.
        const double before = all.beta == 0 ? 0 : double(all.beta) * numbers::get(to, result.type, k);
        double value = all.alpha * products[raw.index(n, c, d, h, w)] + before;
        if (it.bias) value += bias[it.bias->index(0, c, 0, 0, 0)];
        if (it.relu) value = value > 0 ? value : 0;
        if (it.gate && gate[it.gate->index(n, c, d, h, w)] <= 0) value = 0;
        numbers::put(to, result.type, k, float(value));
        const double stored = numbers::get(to, result.type, k);
        sum[c] += stored, squares[c] += stored * stored;
    });
    for (size_t i = 0; i < it.sums.size(); ++i)
        for (int c = 0; c < result.c(); ++c)
            numbers::put(memory[it.sums[i].number], Type::F32, it.sums[i].index(0, c, 0, 0, 0),
                         float(i == 0 ? sum[c] : squares[c]));
}

} // namespace dnn
