// Counting of calls, and failures on demand: FAKE_CUDA_FAIL and FAKE_CUDA_LOG (see README.md).
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <unistd.h>

#include "fake.hpp"
#include "memory.hpp"

namespace {

// CALL:N or CALL:N:CODE; CALL may be *.
struct Failure {
    std::string call;
    long number = 0;
    int code = -1;
};

struct Calls {
    std::mutex lock;
    std::map<std::string, long> counts;
    long all = 0;
    Failure failure;
    FILE *log = nullptr;

    Calls() {
        if (const char *text = getenv("FAKE_CUDA_FAIL")) {
            const std::string all = text;
            const size_t colon = all.find(':');
            const size_t second = colon == std::string::npos ? colon : all.find(':', colon + 1);
            failure.call = all.substr(0, colon);
            if (colon != std::string::npos) failure.number = atol(all.c_str() + colon + 1);
            if (second != std::string::npos) failure.code = atoi(all.c_str() + second + 1);
        }
        if (const char *path = getenv("FAKE_CUDA_LOG")) {
            log = fopen((std::string(path) + "." + std::to_string(getpid())).c_str(), "w");
            if (log) setvbuf(log, nullptr, _IOLBF, 1 << 12);
        }
    }
};

Calls &calls() {
    static Calls *it = new Calls;
    return *it;
}

// What is left when the process ends: tests of leaks read it.
struct Ending {
    ~Ending() {
        if (FILE *log = calls().log)
            fprintf(log, "end allocations %zu bytes %zu peak %zu pinned %zu\n", memory::space().live.size(),
                    memory::space().used, memory::space().peak, memory::space().pinned.size());
    }
} ending;

} // namespace

extern "C" int fake_call(const char *name) {
    Calls &now = calls();
    const std::lock_guard<std::mutex> held(now.lock);
    const long number = ++now.counts[name], all = ++now.all;
    if (now.log) fprintf(now.log, "%ld %s %ld\n", all, name, number);
    const bool any = now.failure.call == "*";
    const bool hit = any ? now.failure.number == all : now.failure.call == name && now.failure.number == number;
    return hit ? now.failure.code : 0;
}
