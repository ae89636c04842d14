// What the doubles of the CUDA libraries share: calls that are counted and fail when told to, and a queue of work.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>

// Counts a call; not 0: it is to fail, with this code (-1: with one of the library's own choice).
extern "C" int fake_call(const char *name);
// The address at which the host may read and write what a device pointer points to, if so many bytes from it on belong
// to one allocation; null if not. Pinned host memory is its own address.
extern "C" void *fake_address(const void *device, size_t bytes);
// Puts work into a stream that moves so many bytes and takes so many operations (for the clock); the driver's code.
extern "C" int fake_enqueue(void *stream, const char *what, double bytes, double operations,
                            std::function<void()> *work);
// The same for work that other processes take part in: it is tried again until it answers true.
extern "C" int fake_enqueue_waiting(void *stream, std::function<bool()> *work);
// When what a stream has done so far is over; at the earliest `until`.
extern "C" int64_t fake_time(void *stream, int64_t until);
// Whether a stream is one.
extern "C" bool fake_is_stream(void *stream);

// A library's work has found memory that is not the device's: nothing more succeeds.
extern "C" void fake_fault(const char *what);

// Opens every call of a library whose errors are `failed`.
#define CALL(name, failed)                                                                                             \
    if (const int code = fake_call(name)) return code > 0 ? code : failed
