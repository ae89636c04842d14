// Streams, events and captures: who does what when.
//
// Work is done when it is put into a stream, or, with FAKE_CUDA_DELAYED=1, not before somebody waits for it: then
// whoever forgot to wait, on the host or between two streams, sees what was there before.
#pragma once
#include <algorithm>
#include <cstdlib>
#include <deque>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <type_traits>
#include <unistd.h>
#include <utility>
#include <vector>

#include "clock.hpp"

namespace stream {

// Something to do; false: it cannot be done yet, because it waits for other processes.
class Work {
    std::function<bool()> go;

public:
    // For the clock: what it is, when it was put into its stream, what it takes.
    const char *what = nullptr;
    int64_t put = 0, takes = 0;
    size_t bytes = 0;

    template <class F> Work(F does) {
        if constexpr (std::is_same<decltype(does()), bool>::value) go = does;
        else
            go = [does] {
                does();
                return true;
            };
    }
    Work called(const char *name, int64_t time, size_t of = 0) const {
        Work work = *this;
        work.what = name, work.takes = time, work.bytes = of;
        return work;
    }
    bool operator()() const { return go(); }
};

struct Stream;
struct Event;

// What is done in a graph, on one of its branches: some work, a mark or a wait for one, or an event that is recorded
// anew by each launch.
struct Node {
    int branch;
    Work work;
    int marks = -1, waits = -1;
    Event *event = nullptr;
};

// What a captured graph replays. The first branch is the stream whose capture was begun.
struct Graph {
    std::vector<Node> nodes;
    std::vector<Stream *> branches;
    // Of each branch how many nodes it has, and how many of them the first one waits for.
    std::vector<size_t> count, joined;
    // Of each mark its branch, and how many nodes that has before it.
    std::vector<std::pair<int, size_t>> marks;

    int branch(Stream *of) {
        const auto found = std::find(branches.begin(), branches.end(), of);
        if (found != branches.end()) return int(found - branches.begin());
        branches.push_back(of), count.push_back(0), joined.push_back(0);
        return int(branches.size()) - 1;
    }
    void add(Stream *of, Work work, Event *event = nullptr) {
        nodes.push_back({branch(of), std::move(work), -1, -1, event});
        ++count[branch(of)];
    }
    int mark(Stream *of) {
        marks.push_back({branch(of), count[branch(of)]});
        nodes.push_back({branch(of), [] {}, int(marks.size()) - 1});
        return int(marks.size()) - 1;
    }
    void wait(Stream *of, int mark) {
        nodes.push_back({branch(of), [] {}, -1, mark});
        auto &reached = joined[marks[mark].first];
        if (branch(of) == 0) reached = std::max(reached, marks[mark].second);
    }
    // Whether the first branch waits for all that others do. (By one that it waits for it does not.)
    bool is_joined() const {
        for (size_t i = 1; i < count.size(); ++i)
            if (joined[i] < count[i]) return false;
        return true;
    }
};

// A point in a stream, shared by those who wait for it.
struct Point {
    Stream *of = nullptr;
    bool reached = false, seen = false;
    // When it is reached, by the virtual clock and by the host's.
    int64_t time = 0, real = 0;
    // Recorded while its stream was captured: a mark of the graph.
    Graph *captured = nullptr;
    int mark = -1;
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
    // By its handle nobody finds it any more.
    bool destroyed = false;
    // In the order in which they were made; and when what was done last has ended.
    int number = 0;
    int64_t time = 0;
};

inline bool delayed() {
    static const bool is = getenv("FAKE_CUDA_DELAYED") && *getenv("FAKE_CUDA_DELAYED") == '1';
    return is;
}

// The default stream, which is there before any other.
inline Stream *fallback() {
    static Stream *it = new Stream;
    return it;
}

inline std::set<Stream *> &all() {
    static std::set<Stream *> *it = new std::set<Stream *>{fallback()};
    return *it;
}

inline Stream *of(void *handle) {
    Stream *asked = handle == nullptr ? fallback() : (Stream *)handle;
    return all().count(asked) && !asked->destroyed ? asked : nullptr;
}

// Does the oldest work of a stream; false: there is none, or it cannot be done yet.
inline bool step(Stream *of) {
    if (of->waiting.empty()) return false;
    const Work work = std::move(of->waiting.front());
    of->waiting.pop_front();
    const int64_t before = of->time;
    of->time = std::max(of->time, work.put);
    if (work()) {
        const int64_t from = of->time;
        of->time += clock_at_its_rate(work.takes);
        if (work.what) clock_trace(of->number, work.what, from, of->time, work.bytes);
        return true;
    }
    of->time = before;
    of->waiting.push_front(work);
    return false;
}

// Does what can be done now.
inline void advance(Stream *of) {
    while (step(of)) {}
}

// Does all of it, with what other processes have to do.
inline void finish(Stream *of) {
    for (advance(of); !of->waiting.empty(); advance(of)) usleep(100);
}

// The host waits for all of it.
inline void drain(Stream *of) {
    finish(of);
    clock_wait(of->time);
}

inline void drain_all() {
    for (Stream *stream : all()) drain(stream);
}

inline void put(Stream *into, Work work) {
    if (into->capture) {
        into->capture->add(into, std::move(work));
        return;
    }
    work.put = clock_now();
    clock_changed();
    into->waiting.push_back(std::move(work));
    // The default stream waits for all others, and they for it.
    if (into == fallback())
        for (Stream *stream : all()) {
            finish(stream);
            into->time = std::max(into->time, stream->time);
        }
    if (!delayed()) advance(into);
}

// A stream that is there from now on.
inline Stream *created() {
    static int streams = 0;
    Stream *stream = new Stream;
    stream->number = ++streams;
    all().insert(stream);
    return stream;
}

// It is no more. This waits for nothing: a card goes on with what is under way.
inline void destroy(Stream *stream) {
    if (delayed() && !stream->waiting.empty()) {
        stream->destroyed = true;
        return;
    }
    drain(stream);
    all().erase(stream);
    delete stream;
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
