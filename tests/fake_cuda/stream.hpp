// Streams, events and captures: who does what when.
//
// Work is done when it is put into a stream, or, with FAKE_CUDA_DELAYED=1, not before somebody waits for it: then whoever
// forgot to wait, on the host or between two streams, sees what was there before.
#pragma once
#include <cstdlib>
#include <deque>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <type_traits>
#include <unistd.h>
#include <vector>

namespace stream {

// Something to do; false: it cannot be done yet, because it waits for other processes.
class Work {
    std::function<bool()> go;

public:
    template <class F> Work(F does) {
        if constexpr (std::is_same<decltype(does()), bool>::value) go = does;
        else
            go = [does] {
                does();
                return true;
            };
    }
    bool operator()() const { return go(); }
};

// What a captured graph replays.
struct Graph {
    std::vector<Work> work;
};

struct Stream;

// A point in a stream, shared by those who wait for it.
struct Point {
    Stream *of = nullptr;
    bool reached = false;
    // Recorded while its stream was captured.
    Graph *captured = nullptr;
};

struct Event {
    std::shared_ptr<Point> point;
};

struct Stream {
    std::deque<Work> waiting;
    // While its work is captured.
    Graph *capture = nullptr;
    bool origin = false;
    // What made the capture worthless.
    bool broken = false;
};

inline bool delayed() {
    static const bool is = getenv("FAKE_CUDA_DELAYED") && *getenv("FAKE_CUDA_DELAYED") == '1';
    return is;
}

inline std::set<Stream *> &all() {
    static std::set<Stream *> *it = new std::set<Stream *>{new Stream};
    return *it;
}

// The default stream, which is there before any other.
inline Stream *&fallback() {
    static Stream *it = *all().begin();
    return it;
}

inline Stream *of(void *handle) {
    Stream *asked = handle == nullptr ? fallback() : (Stream *)handle;
    return all().count(asked) ? asked : nullptr;
}

// Does the oldest work of a stream; false: there is none, or it cannot be done yet.
inline bool step(Stream *of) {
    if (of->waiting.empty()) return false;
    const Work work = std::move(of->waiting.front());
    of->waiting.pop_front();
    if (work()) return true;
    of->waiting.push_front(work);
    return false;
}

// Does what can be done now.
inline void advance(Stream *of) {
    while (step(of)) {}
}

// Does all of it, and waits for what other processes have to do.
inline void drain(Stream *of) {
    for (advance(of); !of->waiting.empty(); advance(of)) usleep(100);
}

inline void drain_all() {
    for (Stream *stream : all()) drain(stream);
}

inline void put(Stream *into, Work work) {
    if (into->capture) {
        into->capture->work.push_back(std::move(work));
        return;
    }
    into->waiting.push_back(std::move(work));
    // The default stream waits for all others, and they for it.
    if (into == fallback()) drain_all();
    if (!delayed()) advance(into);
}

// Goes on until a point is reached; false: not yet.
inline bool reach(const std::shared_ptr<Point> &point) {
    while (!point->reached && all().count(point->of) && step(point->of)) {}
    return point->reached || !all().count(point->of);
}

// Whether any stream is captured: calls that would wait, or allocate, are refused then, and spoil the capture.
inline bool spoiled() {
    bool any = false;
    for (Stream *stream : all())
        if (stream->capture) any = stream->broken = true;
    return any;
}

} // namespace stream
