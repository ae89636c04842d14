// libnvidia-ml.so.1, as far as dltrain calls it: a GPU that is half busy.
#include <cstdio>
#include <cstdlib>

#include "fake.hpp"

namespace {

enum Code { SUCCESS = 0, INVALID_ARGUMENT = 2, UNKNOWN = 999 };

struct Rates {
    unsigned gpu, memory;
};

struct Memory {
    unsigned long long total, free, used;
};

} // namespace

#define NVML(name) CALL(#name, UNKNOWN)

extern "C" {

int nvmlInit_v2() {
    NVML(nvmlInit_v2);
    return SUCCESS;
}

int nvmlShutdown() {
    NVML(nvmlShutdown);
    return SUCCESS;
}

const char *nvmlErrorString(int code) { return code == SUCCESS ? "Success" : "Unknown Error"; }

int nvmlDeviceGetHandleByPciBusId_v2(const char *bus, void **device) {
    NVML(nvmlDeviceGetHandleByPciBusId_v2);
    unsigned domain, number, rest;
    if (sscanf(bus, "%x:%x:%x", &domain, &number, &rest) != 3 || number == 0) return INVALID_ARGUMENT;
    *device = (void *)(size_t)number;
    return SUCCESS;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) {
    NVML(nvmlDeviceGetHandleByIndex_v2);
    *device = (void *)(size_t)(index + 1);
    return SUCCESS;
}

int nvmlDeviceGetUtilizationRates(void *, Rates *rates) {
    NVML(nvmlDeviceGetUtilizationRates);
    *rates = {50, 25};
    return SUCCESS;
}

int nvmlDeviceGetMemoryInfo(void *, Memory *memory) {
    NVML(nvmlDeviceGetMemoryInfo);
    *memory = {8ull << 30, 6ull << 30, 2ull << 30};
    return SUCCESS;
}

// Milliwatts.
int nvmlDeviceGetPowerUsage(void *, unsigned *power) {
    NVML(nvmlDeviceGetPowerUsage);
    *power = 123000;
    return SUCCESS;
}

} // extern "C"
