// libcudnn.so.9, as far as dltrain calls it: the backend interface with graphs of one convolution, computed as its
// definition and summed in f64.
//
// It names three engines for any of them, in this order: one that does not give the same bits every time (and computes
// nonsense here, so that it shows), one that serves, and one whose plan it refuses.
#include <cstdlib>
#include <map>

#include "fake.hpp"
#include "numbers.hpp"

using numbers::Type;

namespace {

enum Code { SUCCESS = 0, NOT_INITIALIZED = 1001, BAD_PARAM = 2000, NOT_FINALIZED = 2004, NOT_SUPPORTED = 3000, EXECUTION_FAILED = 5000 };

struct Handle {
    void *stream = nullptr;
};

// ---- descriptors: attributes by their numbers in cudnn_graph.h ----

enum Kind { CONVOLUTION = 1, ENGINE, CONFIGURATION, HEURISTICS, PLAN, FORWARD = 10, FILTER, DATA, GRAPH = 15, PACK, TENSOR };
enum Name {
    COMPUTE = 100, MODE, DILATIONS, STRIDES, AFTER, BEFORE, AXES,
    HEURISTICS_MODE = 200, HEURISTICS_GRAPH, RESULTS,
    ITS_ENGINE = 300,
    PLAN_HANDLE = 400, PLAN_CONFIGURATION, WORKSPACE_SIZE,
    GRAPH_HANDLE = 800, OPERATIONS,
    ALIGNMENT = 900, DATA_TYPE, EXTENTS, DISTANCES, NUMBER = 906,
    PACK_NUMBERS = 1000, PACK_POINTERS, PACK_WORKSPACE = 1003,
    ENGINE_NUMBER = 1301, NUMERICAL_NOTES = 1303, BEHAVIOUR_NOTES = 1305,
};
enum Of { OF_HANDLE = 0, OF_NUMBER = 3, OF_POINTER = 6, OF_DESCRIPTOR = 15 };

struct Descriptor {
    int kind;
    bool finalized = false;
    // Whatever it is, in words of eight bytes.
    std::map<int, std::vector<int64_t>> attributes;
    // Of an engine, a configuration and a plan.
    int engine = 0;

    bool has(int name, size_t count = 1) const {
        const auto at = attributes.find(name);
        return at != attributes.end() && at->second.size() == count;
    }
    int64_t number(int name, size_t i = 0) const { return attributes.at(name)[i]; }
    Descriptor *part(int name) const { return (Descriptor *)number(name); }
    float real(int name) const {
        float value;
        memcpy(&value, &attributes.at(name)[0], 4);
        return value;
    }
};

size_t width(int of) {
    return of == OF_HANDLE || of == OF_NUMBER || of == OF_POINTER || of == OF_DESCRIPTOR ? 8 : 4;
}

// x, w, y, the geometry, alpha and beta of an operation.
struct Names {
    int x, w, y, how, alpha, beta;
};
Names names(int kind) {
    if (kind == FORWARD) return {704, 703, 705, 702, 700, 701};
    if (kind == DATA) return {710, 709, 711, 708, 706, 707};
    return {716, 715, 717, 714, 712, 713};
}

// Bytes of workspace that every engine here asks for, so that one that is not given shows.
constexpr size_t WORKSPACE = 1024;
constexpr int UNSTEADY = 7, SERVES = 1, REFUSED = 9;
constexpr int NONDETERMINISTIC = 4;

// cudnnDataType_t.
Type type_of(int64_t code) {
    return code == 0 ? Type::F32 : code == 2 ? Type::F16 : code == 9 ? Type::Bf16 : Type::None;
}

struct Tensor {
    Type type;
    int n, c, h, w;
    int64_t distance[4], number;

    explicit Tensor(const Descriptor &of)
        : type(type_of(of.number(DATA_TYPE))), n(of.number(EXTENTS, 0)), c(of.number(EXTENTS, 1)),
          h(of.number(EXTENTS, 2)), w(of.number(EXTENTS, 3)), number(of.number(NUMBER)) {
        for (int i = 0; i < 4; ++i) distance[i] = of.number(DISTANCES, i);
    }
    size_t index(int s, int channel, int y, int x) const {
        return s * distance[0] + channel * distance[1] + y * distance[2] + x * distance[3];
    }
    // As many as there are elements only where these lie without gaps.
    size_t count() const { return index(n - 1, c - 1, h - 1, w - 1) + 1; }
    bool dense() const { return count() == size_t(n) * c * h * w; }
};

struct Convolution {
    int64_t pad[2], after[2], stride[2], dilation[2];
    bool correlation;
    int64_t compute;

    explicit Convolution(const Descriptor &of)
        : correlation(of.number(MODE) == 1), compute(of.number(COMPUTE)) {
        for (int i = 0; i < 2; ++i) {
            pad[i] = of.number(BEFORE, i), after[i] = of.number(AFTER, i);
            stride[i] = of.number(STRIDES, i), dilation[i] = of.number(DILATIONS, i);
        }
    }
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
        return {operation.kind,           Tensor(*operation.part(at.x)),       Tensor(*operation.part(at.w)),
                Tensor(*operation.part(at.y)), Convolution(*operation.part(at.how)), operation.real(at.alpha),
                operation.real(at.beta)};
    }
    int groups() const { return x.c / w.c; }
    // Whether x, w and y belong together.
    bool fit() const {
        return x.type != Type::None && w.type == x.type && y.type == x.type && how.compute == 0 && how.stride[0] > 0 &&
               how.stride[1] > 0 && x.c % w.c == 0 && w.n % groups() == 0 && y.c == w.n && y.n == x.n && x.dense() &&
               w.dense() && y.dense() && y.h == how.extent(x.h, w.h, 0) && y.w == how.extent(x.w, w.w, 1);
    }
};

// Calls f(index in x, in w, in y) for every multiplication.
template <class F> void each_product(const Operands &all, F f) {
    const Tensor &x = all.x, &w = all.w, &y = all.y;
    const Convolution &how = all.how;
    const int per_group = w.n / all.groups();
    for (int s = 0; s < y.n; ++s)
        for (int i = 0; i < y.h; ++i)
            for (int j = 0; j < y.w; ++j)
                for (int ky = 0; ky < w.h; ++ky)
                    for (int kx = 0; kx < w.w; ++kx) {
                        const int64_t row = i * how.stride[0] - how.pad[0] + ky * how.dilation[0];
                        const int64_t column = j * how.stride[1] - how.pad[1] + kx * how.dilation[1];
                        if (row < 0 || row >= x.h || column < 0 || column >= x.w) continue;
                        // A convolution proper turns the kernel, a correlation, as networks have it, does not.
                        const int wy = how.correlation ? ky : w.h - 1 - ky, wx = how.correlation ? kx : w.w - 1 - kx;
                        for (int o = 0; o < w.n; ++o)
                            for (int c = 0; c < w.c; ++c)
                                f(x.index(s, o / per_group * w.c + c, row, column), w.index(o, c, wy, wx),
                                  y.index(s, o, i, j));
                    }
}

void convolve(const Operands &all, void *const at[3]) {
    const Tensor *tensors[] = {&all.x, &all.w, &all.y};
    void *memory[3];
    std::vector<float> values[3];
    // The one that is written: y, x or w.
    const int to = all.kind == FORWARD ? 2 : all.kind == DATA ? 0 : 1;
    for (int i = 0; i < 3; ++i) {
        const Type type = tensors[i]->type;
        const size_t count = tensors[i]->count();
        memory[i] = fake_address(at[i], count * numbers::bytes(type));
        if (!memory[i]) return fake_fault("a cuDNN convolution");
        values[i].resize(count);
        for (size_t k = 0; i != to && k < count; ++k) values[i][k] = numbers::get(memory[i], type, k);
    }
    std::vector<double> sums(values[to].size());
    const std::vector<float> &x = values[0], &w = values[1], &y = values[2];
    each_product(all, [&](size_t in, size_t weight, size_t out) {
        if (all.kind == FORWARD) sums[out] += double(x[in]) * w[weight];
        else if (all.kind == DATA) sums[in] += double(y[out]) * w[weight];
        else sums[weight] += double(y[out]) * x[in];
    });
    for (size_t k = 0; k < sums.size(); ++k) {
        const Type type = tensors[to]->type;
        const double before = all.beta == 0 ? 0 : double(all.beta) * numbers::get(memory[to], type, k);
        numbers::put(memory[to], type, k, float(all.alpha * sums[k] + before));
    }
}

// Whether a descriptor has what it needs, and can be had.
int check(const Descriptor &it) {
    const auto wanted = [&](std::initializer_list<int> names, size_t count = 1) {
        for (const int name : names)
            if (!it.has(name, count)) return false;
        return true;
    };
    switch (it.kind) {
    case CONVOLUTION:
        return wanted({COMPUTE, MODE, AXES}) && it.number(AXES) == 2 && wanted({DILATIONS, STRIDES, AFTER, BEFORE}, 2)
                   ? SUCCESS
                   : BAD_PARAM;
    case TENSOR: {
        if (!wanted({ALIGNMENT, DATA_TYPE, NUMBER}) || !wanted({EXTENTS, DISTANCES}, 4)) return BAD_PARAM;
        for (int i = 0; i < 4; ++i)
            if (it.number(EXTENTS, i) < 1 || it.number(DISTANCES, i) < 1) return BAD_PARAM;
        return SUCCESS;
    }
    case FORWARD:
    case DATA:
    case FILTER: {
        const Names at = names(it.kind);
        return wanted({at.x, at.w, at.y, at.how, at.alpha, at.beta}) && Operands::of(it).fit() ? SUCCESS : BAD_PARAM;
    }
    case GRAPH: return wanted({GRAPH_HANDLE, OPERATIONS}) ? SUCCESS : BAD_PARAM;
    case HEURISTICS: return wanted({HEURISTICS_GRAPH, HEURISTICS_MODE}) ? SUCCESS : BAD_PARAM;
    case PLAN:
        if (!wanted({PLAN_HANDLE, PLAN_CONFIGURATION})) return BAD_PARAM;
        return it.part(PLAN_CONFIGURATION)->engine == REFUSED ? NOT_SUPPORTED : SUCCESS;
    case PACK: {
        const auto numbers = it.attributes.find(PACK_NUMBERS);
        return numbers != it.attributes.end() && wanted({PACK_POINTERS}, numbers->second.size()) &&
                       wanted({PACK_WORKSPACE})
                   ? SUCCESS
                   : BAD_PARAM;
    }
    default: return BAD_PARAM;
    }
}

// Gives out descriptors that the caller has made.
template <class F> int give(int64_t count, int64_t room, int64_t *given, void *values, F fill) {
    *given = count < room ? count : room;
    for (int64_t i = 0; i < *given; ++i) {
        Descriptor *to = ((Descriptor **)values)[i];
        fill(*to, i);
        to->finalized = true;
    }
    return SUCCESS;
}

int numbers_of(std::initializer_list<int64_t> all, size_t width, int64_t room, int64_t *count, void *values) {
    *count = int64_t(all.size());
    int64_t i = 0;
    for (const int64_t value : all)
        if (i < room) memcpy((char *)values + width * i++, &value, width);
    return SUCCESS;
}

int execute(Handle *handle, const Descriptor &plan, const Descriptor &pack) {
    const Descriptor &configuration = *plan.part(PLAN_CONFIGURATION);
    const Operands all = Operands::of(*configuration.part(HEURISTICS_GRAPH)->part(OPERATIONS));
    void *at[3] = {};
    const int64_t wanted[] = {all.x.number, all.w.number, all.y.number};
    const std::vector<int64_t> &numbers = pack.attributes.at(PACK_NUMBERS);
    for (size_t k = 0; k < numbers.size(); ++k)
        for (int i = 0; i < 3; ++i)
            if (numbers[k] == wanted[i]) at[i] = (void *)pack.number(PACK_POINTERS, k);
    if (!at[0] || !at[1] || !at[2] || !fake_address((void *)pack.number(PACK_WORKSPACE), WORKSPACE)) return BAD_PARAM;
    const bool nonsense = configuration.engine == UNSTEADY;
    std::function<void()> work = [=] {
        Operands how = all;
        if (nonsense) how.alpha = 1e9f;
        convolve(how, at);
    };
    return fake_enqueue(handle->stream, "convolution", &work) ? EXECUTION_FAILED : SUCCESS;
}

} // namespace

#define DNN(name) CALL(#name, EXECUTION_FAILED)

extern "C" {

size_t cudnnGetCudartVersion() {
    return 13000;
}
size_t cudnnGetVersion() {
    const char *text = getenv("FAKE_CUDNN_VERSION");
    return text ? strtoul(text, nullptr, 10) : 91000;
}

const char *cudnnGetErrorString(int code) {
    switch (code) {
    case SUCCESS: return "CUDNN_STATUS_SUCCESS";
    case BAD_PARAM: return "CUDNN_STATUS_BAD_PARAM";
    case NOT_SUPPORTED: return "CUDNN_STATUS_NOT_SUPPORTED";
    case EXECUTION_FAILED: return "CUDNN_STATUS_EXECUTION_FAILED";
    default: return "CUDNN_STATUS_INTERNAL_ERROR";
    }
}

int cudnnCreate(Handle **handle) {
    CALL("cudnnCreate", NOT_INITIALIZED);
    *handle = new Handle;
    return SUCCESS;
}

int cudnnDestroy(Handle *handle) {
    DNN(cudnnDestroy);
    delete handle;
    return SUCCESS;
}

int cudnnSetStream(Handle *handle, void *stream) {
    DNN(cudnnSetStream);
    if (!fake_is_stream(stream)) return BAD_PARAM;
    handle->stream = stream;
    return SUCCESS;
}

int cudnnBackendCreateDescriptor(int kind, Descriptor **descriptor) {
    DNN(cudnnBackendCreateDescriptor);
    *descriptor = new Descriptor{kind};
    return SUCCESS;
}

int cudnnBackendDestroyDescriptor(Descriptor *descriptor) {
    DNN(cudnnBackendDestroyDescriptor);
    delete descriptor;
    return SUCCESS;
}

int cudnnBackendSetAttribute(Descriptor *it, int name, int of, int64_t count, const void *values) {
    DNN(cudnnBackendSetAttribute);
    if (it->finalized || count < 1) return BAD_PARAM;
    std::vector<int64_t> words(count);
    for (int64_t i = 0; i < count; ++i) {
        memcpy(&words[i], (const char *)values + width(of) * i, width(of));
        if (of == OF_DESCRIPTOR && !((Descriptor *)words[i])->finalized) return NOT_FINALIZED;
    }
    it->attributes[name] = words;
    return SUCCESS;
}

int cudnnBackendFinalize(Descriptor *it) {
    DNN(cudnnBackendFinalize);
    const int code = check(*it);
    it->finalized = code == SUCCESS;
    return code;
}

int cudnnBackendGetAttribute(Descriptor *it, int name, int of, int64_t room, int64_t *count, void *values) {
    DNN(cudnnBackendGetAttribute);
    if (!it->finalized) return NOT_FINALIZED;
    if (it->kind == HEURISTICS && name == RESULTS) {
        // CUDNN_HEUR_MODE_FALLBACK is 2; the others are asked first.
        const bool first = it->number(HEURISTICS_MODE) != 2;
        return give(first ? 2 : 1, room, count, values, [&](Descriptor &to, int64_t i) {
            to.engine = !first ? REFUSED : i == 0 ? UNSTEADY : SERVES;
            to.attributes[HEURISTICS_GRAPH] = it->attributes.at(HEURISTICS_GRAPH);
        });
    }
    if (it->kind == CONFIGURATION && name == ITS_ENGINE)
        return give(1, room, count, values, [&](Descriptor &to, int64_t) { to.engine = it->engine; });
    if (it->kind == ENGINE && name == ENGINE_NUMBER) return numbers_of({it->engine}, 8, room, count, values);
    if (it->kind == ENGINE && name == NUMERICAL_NOTES && it->engine == UNSTEADY)
        return numbers_of({NONDETERMINISTIC}, 4, room, count, values);
    if (it->kind == ENGINE && (name == NUMERICAL_NOTES || name == BEHAVIOUR_NOTES))
        return numbers_of({}, 4, room, count, values);
    if (it->kind == PLAN && name == WORKSPACE_SIZE) return numbers_of({int64_t(WORKSPACE)}, 8, room, count, values);
    return BAD_PARAM;
}

int cudnnBackendExecute(Handle *handle, Descriptor *plan, Descriptor *pack) {
    DNN(cudnnBackendExecute);
    if (!plan->finalized || !pack->finalized) return NOT_FINALIZED;
    return execute(handle, *plan, *pack);
}

} // extern "C"
