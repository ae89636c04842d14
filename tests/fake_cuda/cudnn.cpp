// libcudnn.so.9, as far as dltrain calls it: the legacy convolutions as their definition, summed in f64.
#include <cstdlib>

#include "fake.hpp"
#include "numbers.hpp"

using numbers::Type;

namespace {

enum Code { SUCCESS = 0, NOT_INITIALIZED = 1001, BAD_PARAM = 2000, NOT_SUPPORTED = 3000, INTERNAL_ERROR = 4000, EXECUTION_FAILED = 5000 };

struct Handle {
    void *stream = nullptr;
};

// An image batch (n,c,h,w), or filters (o,i,h,w), which lie in that order or with the channels innermost.
struct Tensor {
    Type type = Type::None;
    bool channels_last = false;
    int n = 0, c = 0, h = 0, w = 0;

    size_t index(int s, int channel, int y, int x) const {
        return channels_last ? ((size_t(s) * h + y) * w + x) * c + channel : ((size_t(s) * c + channel) * h + y) * w + x;
    }
    size_t bytes() const { return size_t(n) * c * h * w * numbers::bytes(type); }
};

struct Convolution {
    int pad[2] = {}, stride[2] = {}, dilation[2] = {}, groups = 1, mode = 1, compute = 0;
};

struct Performance {
    int algorithm, status;
    float time;
    size_t memory;
    int determinism, math_type, reserved[3];
};

// cudnnDataType_t.
Type type_of(int code) {
    return code == 0 ? Type::F32 : code == 2 ? Type::F16 : code == 9 ? Type::Bf16 : Type::None;
}

// Bytes of workspace that every algorithm here asks for, so that one that is not given shows.
constexpr size_t WORKSPACE = 1024;
constexpr int ALGORITHM = 1;

int extent(int in, int kernel, const Convolution &how, int axis) {
    const int reach = how.dilation[axis] * (kernel - 1) + 1, room = in + 2 * how.pad[axis] - reach;
    return room < 0 ? 0 : room / how.stride[axis] + 1;
}

// Whether x, w and y belong together.
bool fits(const Tensor &x, const Tensor &w, const Tensor &y, const Convolution &how) {
    return x.type != Type::None && w.type == x.type && y.type == x.type && how.compute == 0 && how.stride[0] > 0 &&
           how.stride[1] > 0 && how.groups > 0 && x.c == w.c * how.groups && w.n % how.groups == 0 && y.c == w.n &&
           y.n == x.n && y.h == extent(x.h, w.h, how, 0) && y.w == extent(x.w, w.w, how, 1);
}

// Calls f(index in x, in w, in y) for every multiplication.
template <class F> void each_product(const Tensor &x, const Tensor &w, const Tensor &y, const Convolution &how, F f) {
    const int per_group = w.n / how.groups;
    for (int s = 0; s < y.n; ++s)
        for (int i = 0; i < y.h; ++i)
            for (int j = 0; j < y.w; ++j)
                for (int ky = 0; ky < w.h; ++ky)
                    for (int kx = 0; kx < w.w; ++kx) {
                        const int row = i * how.stride[0] - how.pad[0] + ky * how.dilation[0];
                        const int column = j * how.stride[1] - how.pad[1] + kx * how.dilation[1];
                        if (row < 0 || row >= x.h || column < 0 || column >= x.w) continue;
                        // Mode 0 is a convolution proper, 1 a correlation, as networks have it.
                        const int wy = how.mode ? ky : w.h - 1 - ky, wx = how.mode ? kx : w.w - 1 - kx;
                        for (int o = 0; o < w.n; ++o)
                            for (int c = 0; c < w.c; ++c)
                                f(x.index(s, o / per_group * w.c + c, row, column), w.index(o, c, wy, wx),
                                  y.index(s, o, i, j));
                    }
}

enum class Direction { Forward, Data, Filter };

struct Operands {
    Tensor x, w, y;
    const void *at[3];
    Convolution how;
    float alpha, beta;
};

void convolve(const Operands &all, Direction direction) {
    const Tensor *tensors[] = {&all.x, &all.w, &all.y};
    void *memory[3];
    std::vector<float> values[3];
    // The one that is written: y, x or w.
    const int to = direction == Direction::Forward ? 2 : direction == Direction::Data ? 0 : 1;
    for (int i = 0; i < 3; ++i) {
        memory[i] = fake_address(all.at[i], tensors[i]->bytes());
        if (!memory[i]) return fake_fault("a cuDNN convolution");
        const size_t count = tensors[i]->bytes() / numbers::bytes(tensors[i]->type);
        values[i].resize(count);
        for (size_t k = 0; i != to && k < count; ++k) values[i][k] = numbers::get(memory[i], tensors[i]->type, k);
    }
    std::vector<double> sums(values[to].size());
    const std::vector<float> &x = values[0], &w = values[1], &y = values[2];
    each_product(all.x, all.w, all.y, all.how, [&](size_t in, size_t weight, size_t out) {
        if (direction == Direction::Forward) sums[out] += double(x[in]) * w[weight];
        else if (direction == Direction::Data) sums[in] += double(y[out]) * w[weight];
        else sums[weight] += double(y[out]) * x[in];
    });
    for (size_t k = 0; k < sums.size(); ++k) {
        const Type type = tensors[to]->type;
        const double before = all.beta == 0 ? 0 : double(all.beta) * numbers::get(memory[to], type, k);
        numbers::put(memory[to], type, k, float(all.alpha * sums[k] + before));
    }
}

int run(Handle *handle, const Operands &all, Direction direction, int algorithm, const void *workspace,
        size_t workspace_bytes) {
    if (!fits(all.x, all.w, all.y, all.how)) return BAD_PARAM;
    if (algorithm != ALGORITHM) return NOT_SUPPORTED;
    if (workspace_bytes < WORKSPACE || !fake_address(workspace, workspace_bytes)) return BAD_PARAM;
    std::function<void()> work = [=] { convolve(all, direction); };
    return fake_enqueue(handle->stream, "convolution", &work) ? EXECUTION_FAILED : SUCCESS;
}

int find(const Tensor *x, const Tensor *w, const Tensor *y, const Convolution *how, int room, int *count,
         Performance *found) {
    if (!fits(*x, *w, *y, *how) || room < 1) return BAD_PARAM;
    *count = 1;
    found[0] = {ALGORITHM, SUCCESS, 1.0f, WORKSPACE, 1, 0, {}};
    // A second one that does not serve.
    if (room > 1) *count = 2, found[1] = {ALGORITHM + 1, NOT_SUPPORTED, -1.0f, 0, 0, 0, {}};
    return SUCCESS;
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

#define DESCRIPTOR(Name, Type)                                                                                         \
    int cudnnCreate##Name##Descriptor(Type **descriptor) {                                                             \
        DNN(cudnnCreate##Name##Descriptor);                                                                            \
        *descriptor = new Type;                                                                                        \
        return SUCCESS;                                                                                                \
    }                                                                                                                  \
    int cudnnDestroy##Name##Descriptor(Type *descriptor) {                                                             \
        DNN(cudnnDestroy##Name##Descriptor);                                                                           \
        delete descriptor;                                                                                             \
        return SUCCESS;                                                                                                \
    }
DESCRIPTOR(Tensor, Tensor)
DESCRIPTOR(Filter, Tensor)
DESCRIPTOR(Convolution, Convolution)

static int set(Tensor *descriptor, int format, int type, int n, int c, int h, int w) {
    if ((format != 0 && format != 1) || type_of(type) == Type::None || n < 1 || c < 1 || h < 1 || w < 1)
        return BAD_PARAM;
    *descriptor = {type_of(type), format == 1, n, c, h, w};
    return SUCCESS;
}

int cudnnSetTensor4dDescriptor(Tensor *descriptor, int format, int type, int n, int c, int h, int w) {
    DNN(cudnnSetTensor4dDescriptor);
    return set(descriptor, format, type, n, c, h, w);
}

int cudnnSetFilter4dDescriptor(Tensor *descriptor, int type, int format, int o, int i, int h, int w) {
    DNN(cudnnSetFilter4dDescriptor);
    return set(descriptor, format, type, o, i, h, w);
}

int cudnnSetConvolution2dDescriptor(Convolution *how, int pad_h, int pad_w, int stride_h, int stride_w, int dilation_h,
                                    int dilation_w, int mode, int compute) {
    DNN(cudnnSetConvolution2dDescriptor);
    if (pad_h < 0 || pad_w < 0 || stride_h < 1 || stride_w < 1 || dilation_h < 1 || dilation_w < 1) return BAD_PARAM;
    *how = {{pad_h, pad_w}, {stride_h, stride_w}, {dilation_h, dilation_w}, how->groups, mode, compute};
    return SUCCESS;
}

int cudnnSetConvolutionGroupCount(Convolution *how, int groups) {
    DNN(cudnnSetConvolutionGroupCount);
    how->groups = groups;
    return groups > 0 ? SUCCESS : BAD_PARAM;
}

int cudnnSetConvolutionMathType(Convolution *, int) {
    DNN(cudnnSetConvolutionMathType);
    return SUCCESS;
}

// ---- which algorithm ----

// Asked without trying or with: the answer is the same.
#define FIND_FORWARD(name)                                                                                             \
    int name(Handle *, Tensor *x, Tensor *w, Convolution *how, Tensor *y, int room, int *count, Performance *found) {  \
        DNN(name);                                                                                                     \
        return find(x, w, y, how, room, count, found);                                                                 \
    }
FIND_FORWARD(cudnnGetConvolutionForwardAlgorithm_v7)
FIND_FORWARD(cudnnFindConvolutionForwardAlgorithm)

#define FIND_DATA(name)                                                                                                \
    int name(Handle *, Tensor *w, Tensor *dy, Convolution *how, Tensor *dx, int room, int *count,                      \
             Performance *found) {                                                                                     \
        DNN(name);                                                                                                     \
        return find(dx, w, dy, how, room, count, found);                                                               \
    }
FIND_DATA(cudnnGetConvolutionBackwardDataAlgorithm_v7)
FIND_DATA(cudnnFindConvolutionBackwardDataAlgorithm)

#define FIND_FILTER(name)                                                                                              \
    int name(Handle *, Tensor *x, Tensor *dy, Convolution *how, Tensor *dw, int room, int *count,                      \
             Performance *found) {                                                                                     \
        DNN(name);                                                                                                     \
        return find(x, dw, dy, how, room, count, found);                                                               \
    }
FIND_FILTER(cudnnGetConvolutionBackwardFilterAlgorithm_v7)
FIND_FILTER(cudnnFindConvolutionBackwardFilterAlgorithm)

// ---- convolutions ----

int cudnnConvolutionForward(Handle *handle, const float *alpha, Tensor *x_is, const void *x, Tensor *w_is,
                            const void *w, Convolution *how, int algorithm, void *workspace, size_t workspace_bytes,
                            const float *beta, Tensor *y_is, void *y) {
    DNN(cudnnConvolutionForward);
    return run(handle, {*x_is, *w_is, *y_is, {x, w, y}, *how, *alpha, *beta}, Direction::Forward, algorithm, workspace,
               workspace_bytes);
}

int cudnnConvolutionBackwardData(Handle *handle, const float *alpha, Tensor *w_is, const void *w, Tensor *dy_is,
                                 const void *dy, Convolution *how, int algorithm, void *workspace,
                                 size_t workspace_bytes, const float *beta, Tensor *dx_is, void *dx) {
    DNN(cudnnConvolutionBackwardData);
    return run(handle, {*dx_is, *w_is, *dy_is, {dx, w, dy}, *how, *alpha, *beta}, Direction::Data, algorithm,
               workspace, workspace_bytes);
}

int cudnnConvolutionBackwardFilter(Handle *handle, const float *alpha, Tensor *x_is, const void *x, Tensor *dy_is,
                                   const void *dy, Convolution *how, int algorithm, void *workspace,
                                   size_t workspace_bytes, const float *beta, Tensor *dw_is, void *dw) {
    DNN(cudnnConvolutionBackwardFilter);
    return run(handle, {*x_is, *dw_is, *dy_is, {x, dw, dy}, *how, *alpha, *beta}, Direction::Filter, algorithm,
               workspace, workspace_bytes);
}

} // extern "C"
