// The virtual clock: what the doubles do takes time by a list of prices, and what the host does takes none. README.md
// says how it works.
//
// It is on with FAKE_CUDA_CLOCK. All times are nanoseconds, and the same in every run.
#pragma once
#include <cstddef>
#include <cstdint>

extern "C" {
// Whether there is a clock. Without one all prices are 0, and so is the time.
bool clock_is_on();
// The host's time.
int64_t clock_now();
// What a kernel, a library's call or a copy takes: bytes that it reads or writes, and operations.
int64_t clock_kernel(double bytes, double operations);
int64_t clock_copy(size_t bytes);
// What a message of so many bytes takes on its link.
int64_t clock_message(size_t bytes);
// The time that work takes which has this price: ten times as long until the device has worked for FAKE_CUDA_WAKES.
int64_t clock_at_its_rate(int64_t price);
// The device has had nothing to do for so long that it is as at first.
void clock_falls_asleep();
// Something that a host may wait for comes to pass at this time: time stops there.
void clock_stops_at(int64_t time);
// The host waits until then.
void clock_wait(int64_t time);
// The host has asked in vain; where nobody sees that it yields, time goes on to where it stops next.
void clock_asked();
// The host has done something that others may see: time stands still until all have looked.
void clock_changed();
// From here on the ranks of the job have one clock (the first graph is launched), and until here.
void clock_join();
void clock_leave();
// A line for FAKE_CUDA_TRACE: a stream's number, what it did from when to when, of how many bytes.
void clock_trace(int stream, const char *what, int64_t from, int64_t to, size_t bytes);
}
