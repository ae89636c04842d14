// libcudnn.so.9, as far as dltrain calls it: the backend interface with graphs of one convolution, and of some that
// join to it what follows it, computed as their definition and summed in f64 (cudnn_graph.hpp).
//
// It names three engines for any of them, in this order: one that does not give the same bits every time (and computes
// nonsense here, so that it shows), one that serves, and one whose plan it refuses.
#include <cstdlib>
#include <cstring>
#include <string>
#include <unistd.h>

#include "clock.hpp"
#include "cudnn_graph.hpp"

using namespace dnn;

namespace {

enum Code {
    SUCCESS = 0,
    NOT_INITIALIZED = 1001,
    BAD_PARAM = 2000,
    NOT_FINALIZED = 2004,
    NOT_SUPPORTED = 3000,
    EXECUTION_FAILED = 5000
};

struct Handle {
    void *stream = nullptr;
};

// Bytes of workspace that every engine here asks for, so that one that is not given shows.
constexpr size_t WORKSPACE = 1024;
constexpr int UNSTEADY = 7, SERVES = 1, JOINED = 4, REFUSED = 9;
constexpr int NONDETERMINISTIC = 4, RUNTIME_COMPILATION = 0;
// No tensor has more elements than this, and no geometry larger numbers: so that what is counted fits its words.
constexpr int64_t MOST = int64_t(1) << 40, MOST_EXTENT = (int64_t(1) << 31) - 1;

// Whether there is an engine for such a product that normalises: 0 none, 1 all, or those that are named.
bool normalises(int kind) {
    const char *given = getenv("FAKE_CUDNN_NORMALISED");
    const char *name = kind == FORWARD ? "forward" : "weights";
    return !given || strcmp(given, "1") == 0 || strstr(given, name);
}

// Engines for a graph, in order; none: it cannot be computed.
std::vector<int> engines(const Descriptor &graph, bool fallback) {
    const bool joined = graph.words(OPERATIONS).size() > 1;
    const char *text = getenv("FAKE_CUDNN_JOINED");
    const auto computation = Computation::of(graph);
    const bool more = joined || (computation && computation->convolution.beta != 0);
    // As with cuDNN's own only halves are normalised.
    if (computation && computation->normalises() &&
        (computation->convolution.w.type != Type::F16 || !normalises(computation->convolution.kind)))
        return {};
    if (!computation || (more && text && std::string(text) == "0")) return {};
    if (fallback) return {REFUSED};
    return {UNSTEADY, joined ? JOINED : SERVES};
}

// As cuDNN's own that join, it is compiled when it is wanted; those that count statistics or normalise are there
// already.
bool is_compiled(const Descriptor &engine) {
    const auto computation = Computation::of(*engine.part(HEURISTICS_GRAPH));
    return engine.engine == JOINED && computation->sums.empty() && !computation->normalises();
}

// The host is busy with that, and the device has nothing to do meanwhile.
void compile(const Descriptor &engine) {
    const char *text = getenv("FAKE_CUDNN_COMPILES");
    const int milliseconds = text ? atoi(text) : 0;
    if (milliseconds == 0 || !is_compiled(engine)) return;
    usleep(1000 * milliseconds);
    clock_falls_asleep();
}

bool check_tensor(const Descriptor &it) {
    const auto extents = it.attributes.find(EXTENTS);
    const size_t rank = extents == it.attributes.end() ? 0 : extents->second.words.size();
    if (!it.has(ALIGNMENT) || !it.has(DATA_TYPE) || !it.has(NUMBER) || !it.has(DISTANCES, rank)) return false;
    if (rank != 4 && rank != 5) return false;
    int64_t elements = 1;
    for (size_t i = 0; i < rank; ++i) {
        const int64_t extent = it.number(EXTENTS, i), distance = it.number(DISTANCES, i);
        if (extent < 1 || extent > MOST_EXTENT || extent > MOST / elements) return false;
        if (distance < 1 || extent - 1 > MOST / distance) return false;
        elements *= extent;
    }
    if (it.has(VIRTUAL) && !it.is(VIRTUAL, OF_BOOLEAN)) return false;
    const Tensor tensor(it);
    return tensor.type != Type::None || !tensor.is_virtual;
}

bool check_convolution(const Descriptor &it) {
    if (!it.has(COMPUTE) || !it.has(MODE) || !it.has(AXES)) return false;
    if (it.number(AXES) != 2 && it.number(AXES) != 3) return false;
    for (const int name : {DILATIONS, STRIDES, AFTER, BEFORE}) {
        if (!it.has(name, size_t(it.number(AXES)))) return false;
        for (const int64_t value : it.words(name))
            if (value < -MOST_EXTENT || value > MOST_EXTENT) return false;
    }
    return true;
}

// What is not set is as if it were 0.
bool check_function(const Descriptor &it) {
    const auto zero = [&](int name) {
        double value = 0;
        if (!it.has(name)) return true;
        memcpy(&value, &it.words(name)[0], 8);
        return it.is(name, OF_DOUBLE) && value == 0;
    };
    return it.is(FUNCTION, OF_FUNCTION) && it.is(PRECISION, OF_DATA_TYPE) && it.number(PRECISION) == 0 &&
           zero(LOWER_CLIP) && zero(SLOPE) && !it.has(UPPER_CLIP);
}

bool check_elements(const Descriptor &it) {
    if (!it.has_part(ITS_FUNCTION, POINTWISE)) return false;
    for (const int name : {ALPHA_1, ALPHA_2})
        if (it.has(name) && (!it.is(name, OF_FLOAT) || it.real(name) != 1)) return false;
    const int64_t function = function_of(it);
    const std::vector<int> names = elements_of(function);
    for (const int name : names)
        if (!it.has_part(name, TENSOR)) return false;
    if (names.empty()) return false;
    const Touched all = touched(it);
    const Tensor &to = all.written[0];
    for (const Tensor &from : all.read) {
        if (from.type == Type::None || !from.dense()) return false;
        // An extent of 1 is stretched, of what is added.
        for (int i = 0; i < 5; ++i)
            if (from.extent[i] != to.extent[i] && (from.extent[i] != 1 || &from == &all.read[0] || function >= RELU))
                return false;
    }
    const bool alike = function != RELU_BACKWARD || all.read[0].is_virtual || all.read[0].type == to.type;
    return to.type != Type::None && to.dense() && alike;
}

bool check_statistics(const Descriptor &it) {
    if (!it.is(STATISTICS_MODE, OF_STATISTICS) || it.number(STATISTICS_MODE) != 0) return false;
    if (!it.is(STATISTICS_PRECISION, OF_DATA_TYPE) || it.number(STATISTICS_PRECISION) != 0) return false;
    for (const int name : {STATISTICS_X, SUM, SQUARES})
        if (!it.has_part(name, TENSOR)) return false;
    const Touched all = touched(it);
    const Tensor &x = all.read[0];
    for (const Tensor &sums : all.written)
        if (!sums.by_channel(x) || !sums.dense()) return false;
    return x.type != Type::None && x.dense();
}

bool check_graph(const Descriptor &it) {
    const auto operations = it.attributes.find(OPERATIONS);
    if (!it.is(GRAPH_HANDLE, OF_HANDLE) || operations == it.attributes.end()) return false;
    if (operations->second.of != OF_DESCRIPTOR) return false;
    for (size_t i = 0; i < operations->second.words.size(); ++i) {
        const int kind = it.part(OPERATIONS, i)->kind;
        if (kind < FORWARD || kind > STATISTICS) return false;
    }
    return follow(it);
}

// Whether a descriptor has what it needs, and can be had.
int check(const Descriptor &it) {
    const auto sound = [](bool yes) { return yes ? SUCCESS : BAD_PARAM; };
    switch (it.kind) {
    case TENSOR: return sound(check_tensor(it));
    case CONVOLUTION: return sound(check_convolution(it));
    case POINTWISE: return sound(check_function(it));
    case FORWARD:
    case DATA:
    case FILTER: {
        const Names at = names(it.kind);
        for (const int name : {at.x, at.w, at.y})
            if (!it.has_part(name, TENSOR)) return BAD_PARAM;
        return sound(it.has_part(at.how, CONVOLUTION) && it.has(at.alpha) && it.has(at.beta) &&
                     Operands::of(it).fit());
    }
    case ELEMENTS: return sound(check_elements(it));
    case STATISTICS: return sound(check_statistics(it));
    case GRAPH: return sound(check_graph(it));
    case HEURISTICS:
        if (!it.has_part(HEURISTICS_GRAPH, GRAPH) || !it.has(HEURISTICS_MODE)) return BAD_PARAM;
        return engines(*it.part(HEURISTICS_GRAPH), false).empty() ? NOT_SUPPORTED : SUCCESS;
    case PLAN:
        if (!it.is(PLAN_HANDLE, OF_HANDLE) || !it.has_part(PLAN_CONFIGURATION, CONFIGURATION)) return BAD_PARAM;
        return it.part(PLAN_CONFIGURATION)->engine == REFUSED ? NOT_SUPPORTED : SUCCESS;
    case PACK:
        return sound(it.attributes.count(PACK_NUMBERS) && it.has(PACK_POINTERS, it.words(PACK_NUMBERS).size()) &&
                     it.has(PACK_WORKSPACE));
    default: return BAD_PARAM;
    }
}

// ---- plans as text: {"engine":4,"graph":"15(801:15=10(...),13(...);)"} ----
//
// A descriptor is its kind and, in brackets, its attributes: each by its name, its type and its values, which may be
// descriptors. Handles are left out: a plan is restored for another.

void write(std::string &to, const Descriptor &it) {
    to += std::to_string(it.kind) + '(';
    for (const auto &[name, attribute] : it.attributes) {
        if (attribute.of == OF_HANDLE) continue;
        to += std::to_string(name) + ':' + std::to_string(attribute.of);
        char before = '=';
        for (const int64_t word : attribute.words) {
            to += before;
            if (attribute.of == OF_DESCRIPTOR) write(to, *(const Descriptor *)word);
            else to += std::to_string(word);
            before = ',';
        }
        to += ';';
    }
    to += ')';
}

std::string text_of(int engine, const Descriptor &graph) {
    std::string text = "{\"engine\":" + std::to_string(engine) + ",\"graph\":\"";
    write(text, graph);
    return text + "\"}";
}

// Reads what `write` wrote. It may take more than that: whether it did shows when it is written again.
struct Reader {
    const char *at;
    const Attribute handle;
    std::vector<std::shared_ptr<Descriptor>> made = {};

    bool take(const char *text) {
        const size_t length = strlen(text);
        if (strncmp(at, text, length) != 0) return false;
        at += length;
        return true;
    }
    int64_t number() {
        char *end;
        const int64_t value = strtoll(at, &end, 10);
        at = end;
        return value;
    }
    // A graph has operations, these have tensors, and these have nothing. Null: there is none, or it is not sound.
    Descriptor *descriptor(int depth = 3) {
        if (depth == 0) return nullptr;
        auto it = std::make_shared<Descriptor>(Descriptor{int(number())});
        if (!take("(")) return nullptr;
        while (!take(")")) {
            const int name = int(number());
            if (!take(":")) return nullptr;
            Attribute attribute{int(number()), {}};
            if (attribute.of == OF_HANDLE || attribute.of == OF_POINTER || !take("=")) return nullptr;
            do {
                attribute.words.push_back(attribute.of == OF_DESCRIPTOR ? int64_t(descriptor(depth - 1)) : number());
                if (attribute.of == OF_DESCRIPTOR && !attribute.words.back()) return nullptr;
            } while (take(","));
            if (!take(";")) return nullptr;
            it->attributes[name] = attribute;
        }
        if (it->kind == GRAPH) it->attributes[GRAPH_HANDLE] = handle;
        it->finalized = check(*it) == SUCCESS;
        if (!it->finalized) return nullptr;
        made.push_back(it);
        return it.get();
    }
};

// Makes a plan of its text, without a zero at its end, and of nothing else.
int restore(Descriptor &plan) {
    const Attribute &given = plan.attributes.at(PLAN_TEXT);
    if (!plan.is(PLAN_HANDLE, OF_HANDLE) || plan.attributes.size() != 2 || given.of != OF_CHAR) return BAD_PARAM;
    const std::string text(given.words.begin(), given.words.end());
    if (text.find('\0') != std::string::npos) return BAD_PARAM;
    Reader reader{text.c_str(), plan.attributes.at(PLAN_HANDLE)};
    if (!reader.take("{\"engine\":")) return BAD_PARAM;
    const int engine = int(reader.number());
    if (!reader.take(",\"graph\":\"")) return BAD_PARAM;
    Descriptor *graph = reader.descriptor();
    if (!graph || graph->kind != GRAPH || text_of(engine, *graph) != text) return BAD_PARAM;
    const std::vector<int> known = engines(*graph, false);
    if (known.empty()) return NOT_SUPPORTED;
    if (engine != known[0] && engine != known[1]) return BAD_PARAM;
    auto configuration = std::make_shared<Descriptor>(Descriptor{CONFIGURATION, true});
    configuration->engine = engine;
    configuration->attributes[HEURISTICS_GRAPH] = {OF_DESCRIPTOR, {int64_t(graph)}};
    plan.attributes.erase(PLAN_TEXT);
    plan.attributes[PLAN_CONFIGURATION] = {OF_DESCRIPTOR, {int64_t(configuration.get())}};
    plan.made = reader.made;
    plan.made.push_back(configuration);
    return check(plan);
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
    Computation all = *Computation::of(*configuration.part(HEURISTICS_GRAPH));
    std::map<int64_t, void *> at;
    const std::vector<int64_t> &numbers = pack.words(PACK_NUMBERS);
    for (size_t k = 0; k < numbers.size(); ++k) at[numbers[k]] = (void *)pack.number(PACK_POINTERS, k);
    for (const Tensor &tensor : all.tensors())
        if (!at[tensor.number]) return BAD_PARAM;
    if (!fake_address((void *)pack.number(PACK_WORKSPACE), WORKSPACE)) return BAD_PARAM;
    if (configuration.engine == UNSTEADY) all.convolution.alpha = 1e9f;
    std::function<void()> work = [=] { compute(all, at); };
    const dnn::Operands &product = all.convolution;
    double bytes = 0;
    for (const Tensor &tensor : all.tensors()) bytes += double(tensor.count()) * numbers::bytes(tensor.type);
    const double operations = 2.0 * product.y.count() * product.w.count() / product.w.n();
    return fake_enqueue(handle->stream, "convolution", bytes, operations, &work) ? EXECUTION_FAILED : SUCCESS;
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
    it->attributes[name] = {of, words};
    return SUCCESS;
}

int cudnnBackendFinalize(Descriptor *it) {
    DNN(cudnnBackendFinalize);
    const int code = it->kind == PLAN && it->attributes.count(PLAN_TEXT) ? restore(*it) : check(*it);
    it->finalized = code == SUCCESS;
    if (it->kind == PLAN && it->finalized) compile(*it->part(PLAN_CONFIGURATION));
    return code;
}

int cudnnBackendGetAttribute(Descriptor *it, int name, int of, int64_t room, int64_t *count, void *values) {
    DNN(cudnnBackendGetAttribute);
    if (!it->finalized) return NOT_FINALIZED;
    if (it->kind == HEURISTICS && name == RESULTS) {
        // CUDNN_HEUR_MODE_FALLBACK is 2; the others are asked first.
        const std::vector<int> all = engines(*it->part(HEURISTICS_GRAPH), it->number(HEURISTICS_MODE) == 2);
        return give(int64_t(all.size()), room, count, values, [&](Descriptor &to, int64_t i) {
            to.engine = all[i];
            to.attributes[HEURISTICS_GRAPH] = it->attributes.at(HEURISTICS_GRAPH);
        });
    }
    // A plan gives out its configuration, a configuration its engine.
    const Descriptor *from = it->kind == PLAN && name == PLAN_CONFIGURATION ? it->part(PLAN_CONFIGURATION)
                             : it->kind == CONFIGURATION && name == ITS_ENGINE ? it
                                                                               : nullptr;
    if (from)
        return give(1, room, count, values, [&](Descriptor &to, int64_t) {
            to.engine = from->engine;
            to.attributes = from->attributes;
        });
    if (it->kind == ENGINE && name == ENGINE_NUMBER) return numbers_of({it->engine}, 8, room, count, values);
    if (it->kind == ENGINE && name == NUMERICAL_NOTES && it->engine == UNSTEADY)
        return numbers_of({NONDETERMINISTIC}, 4, room, count, values);
    if (it->kind == ENGINE && name == BEHAVIOUR_NOTES && is_compiled(*it))
        return numbers_of({RUNTIME_COMPILATION}, 4, room, count, values);
    if (it->kind == ENGINE && (name == NUMERICAL_NOTES || name == BEHAVIOUR_NOTES))
        return numbers_of({}, 4, room, count, values);
    if (it->kind == PLAN && name == WORKSPACE_SIZE) return numbers_of({int64_t(WORKSPACE)}, 8, room, count, values);
    if (it->kind == PLAN && name == PLAN_TEXT && of == OF_CHAR) {
        // As of engines that are not compiled in the first releases of cuDNN 9.
        const char *wanted = getenv("FAKE_CUDNN_TEXT");
        if (wanted && std::string(wanted) == "0") return NOT_SUPPORTED;
        const Descriptor &configuration = *it->part(PLAN_CONFIGURATION);
        const std::string text = text_of(configuration.engine, *configuration.part(HEURISTICS_GRAPH));
        *count = int64_t(text.size());
        if (values && room > 0) memcpy(values, text.data(), size_t(*count < room ? *count : room));
        return SUCCESS;
    }
    return BAD_PARAM;
}

int cudnnBackendExecute(Handle *handle, Descriptor *plan, Descriptor *pack) {
    DNN(cudnnBackendExecute);
    if (!plan->finalized || !pack->finalized) return NOT_FINALIZED;
    return execute(handle, *plan, *pack);
}

} // extern "C"
