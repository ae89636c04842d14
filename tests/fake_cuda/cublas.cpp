// libcublas.so, as far as dltrain calls it: products as their definition, summed in f64.
#include "fake.hpp"
#include "numbers.hpp"

#include <algorithm>

using numbers::Type;

namespace {

enum Code { SUCCESS = 0, NOT_INITIALIZED = 1, INVALID_VALUE = 7, EXECUTION_FAILED = 13, NOT_SUPPORTED = 15 };

struct Handle {
    void *stream = nullptr;
};

// cudaDataType.
Type type_of(int code) {
    return code == 0 ? Type::F32 : code == 2 ? Type::F16 : code == 14 ? Type::Bf16 : Type::None;
}

struct Matrix {
    const void *at;
    Type type;
    size_t leading;
    bool transposed;
    int rows, columns;

    // Columns follow one another; `rows` and `columns` are those of the matrix after transposition.
    size_t index(size_t row, size_t column) const {
        return transposed ? row * leading + column : column * leading + row;
    }
    size_t bytes() const {
        return rows == 0 || columns == 0 ? 0 : (index(rows - 1, columns - 1) + 1) * numbers::bytes(type);
    }
    bool fits() const { return leading >= size_t(transposed ? columns : rows) && leading > 0; }
};

bool multiply(int m, int n, int k, float alpha, const Matrix &a, const Matrix &b, float beta, const Matrix &c) {
    const void *left = fake_address(a.at, a.bytes()), *right = fake_address(b.at, b.bytes());
    void *result = fake_address(c.at, c.bytes());
    if (m == 0 || n == 0) return true;
    if (!result || (k > 0 && (!left || !right))) return false;
    std::vector<float> rows(size_t(k) * n);
    for (int j = 0; j < n; ++j)
        for (int p = 0; p < k; ++p) rows[size_t(p) * n + j] = numbers::get(right, b.type, b.index(p, j));
    std::vector<double> sums(n);
    for (int i = 0; i < m; ++i) {
        // The sums of a row side by side: none waits for the other's addition.
        std::fill(sums.begin(), sums.end(), 0.0);
        for (int p = 0; p < k; ++p) {
            const double factor = numbers::get(left, a.type, a.index(i, p));
            const float *row = &rows[size_t(p) * n];
            for (int j = 0; j < n; ++j) sums[j] += factor * row[j];
        }
        for (int j = 0; j < n; ++j) {
            const size_t at = c.index(i, j);
            // What beta = 0 multiplies is not read.
            const double before = beta == 0 ? 0 : double(beta) * numbers::get(result, c.type, at);
            numbers::put(result, c.type, at, float(alpha * sums[j] + before));
        }
    }
    return true;
}

// The products of a batch, whose matrices lie these many elements apart.
int products(Handle *handle, int transpose_a, int transpose_b, int m, int n, int k, const float *alpha, const void *a,
             int a_type, int lda, long long stride_a, const void *b, int b_type, int ldb, long long stride_b,
             const float *beta, void *c, int c_type, int ldc, long long stride_c, int batch, int compute_type) {
    // CUBLAS_COMPUTE_32F and its variants.
    if (compute_type < 68 || compute_type > 77) return NOT_SUPPORTED;
    Matrix left = {a, type_of(a_type), size_t(lda), transpose_a != 0, m, k};
    Matrix right = {b, type_of(b_type), size_t(ldb), transpose_b != 0, k, n};
    Matrix result = {c, type_of(c_type), size_t(ldc), false, m, n};
    if (left.type == Type::None || left.type != right.type) return NOT_SUPPORTED;
    if (result.type != left.type && result.type != Type::F32) return NOT_SUPPORTED;
    if (m < 0 || n < 0 || k < 0 || !left.fits() || !right.fits() || !result.fits()) return INVALID_VALUE;
    const float by = *alpha, keep = *beta;
    std::function<void()> work = [=]() mutable {
        for (int i = 0; i < batch; ++i) {
            left.at = (const char *)a + i * stride_a * (long long)numbers::bytes(left.type);
            right.at = (const char *)b + i * stride_b * (long long)numbers::bytes(right.type);
            result.at = (const char *)c + i * stride_c * (long long)numbers::bytes(result.type);
            if (!multiply(m, n, k, by, left, right, keep, result)) fake_fault("a cuBLAS product");
        }
    };
    const double numbers = double(m) * k + double(k) * n + double(m) * n, steps = double(m) * n * k;
    const double bytes = batch * numbers * numbers::bytes(left.type), operations = 2 * batch * steps;
    return fake_enqueue(handle->stream, "gemm", bytes, operations, &work) ? EXECUTION_FAILED : SUCCESS;
}

} // namespace

extern "C" {

int cublasCreate_v2(Handle **handle) {
    CALL("cublasCreate_v2", NOT_INITIALIZED);
    *handle = new Handle;
    return SUCCESS;
}

int cublasDestroy_v2(Handle *handle) {
    CALL("cublasDestroy_v2", EXECUTION_FAILED);
    delete handle;
    return SUCCESS;
}

int cublasGetVersion_v2(Handle *, int *version) {
    CALL("cublasGetVersion_v2", EXECUTION_FAILED);
    *version = FAKE_CUBLAS_VERSION;
    return SUCCESS;
}

int cublasSetStream_v2(Handle *handle, void *stream) {
    CALL("cublasSetStream_v2", EXECUTION_FAILED);
    if (!fake_is_stream(stream)) return INVALID_VALUE;
    handle->stream = stream;
    return SUCCESS;
}

int cublasSetWorkspace_v2(Handle *, void *workspace, size_t bytes) {
    CALL("cublasSetWorkspace_v2", EXECUTION_FAILED);
    return bytes == 0 || fake_address(workspace, bytes) ? SUCCESS : INVALID_VALUE;
}

// CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION: this double sums in f32 alone.
int cublasSetMathMode(Handle *, int mode) {
    CALL("cublasSetMathMode", EXECUTION_FAILED);
    return mode & 16 ? SUCCESS : NOT_SUPPORTED;
}

const char *cublasGetStatusString(int code) {
    return code == EXECUTION_FAILED ? "the GPU program failed to execute" : "a cuBLAS error";
}

int cublasGemmStridedBatchedEx(Handle *handle, int transpose_a, int transpose_b, int m, int n, int k,
                               const float *alpha, const void *a, int a_type, int lda, long long stride_a,
                               const void *b, int b_type, int ldb, long long stride_b, const float *beta, void *c,
                               int c_type, int ldc, long long stride_c, int batch, int compute_type, int) {
    CALL("cublasGemmStridedBatchedEx", EXECUTION_FAILED);
    return products(handle, transpose_a, transpose_b, m, n, k, alpha, a, a_type, lda, stride_a, b, b_type, ldb,
                    stride_b, beta, c, c_type, ldc, stride_c, batch, compute_type);
}

int cublasGemmEx(Handle *handle, int transpose_a, int transpose_b, int m, int n, int k, const float *alpha,
                 const void *a, int a_type, int lda, const void *b, int b_type, int ldb, const float *beta, void *c,
                 int c_type, int ldc, int compute_type, int) {
    CALL("cublasGemmEx", EXECUTION_FAILED);
    return products(handle, transpose_a, transpose_b, m, n, k, alpha, a, a_type, lda, 0, b, b_type, ldb, 0, beta, c,
                    c_type, ldc, 0, 1, compute_type);
}

} // extern "C"
