/* A rank that computes SLOW times as long as it does, and sleeps the rest, so that many fit on few cores and have the
 * whole of one for their messages: measured.sh puts it in oneDNN's place, which it stands on. In its sleep it moves
 * Open MPI's messages along, as a network card would that does so by itself. A rank that waits sleeps a third of the
 * time, where it would poll all the time: on a node with a core a rank nobody else would have that core. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <time.h>

typedef int (*execute)(const void *, void *, int, const void *);

static double seconds(clockid_t clock)
{
    struct timespec now;
    clock_gettime(clock, &now);
    return now.tv_sec + 1e-9 * now.tv_nsec;
}

static void sleep_for(double time)
{
    struct timespec span = {(time_t)time, (long)(1e9 * (time - (time_t)time))};
    clock_nanosleep(CLOCK_MONOTONIC, 0, &span, 0);
}

/* Seconds of a core that a primitive takes: the least of all its calls. Linux charges a call for packets that come in
 * while it runs, whoever they are for; a slower kernel would not take longer for these. */
static double least(const void *primitive, double worked)
{
    enum { PLACES = 1 << 14 };
    static struct { const void *primitive; double worked; } known[PLACES];
    for (size_t at = (size_t)primitive / 64 % PLACES;; at = (at + 1) % PLACES) {
        if (known[at].primitive != primitive && known[at].primitive)
            continue;
        if (!known[at].primitive || worked < known[at].worked)
            known[at].worked = worked;
        known[at].primitive = primitive;
        return known[at].worked;
    }
}

int dnnl_primitive_execute(const void *primitive, void *stream, int count, const void *arguments)
{
    static execute real;
    static void (*progress)(void);
    static double factor, owed;
    if (!real) {
        real = (execute)dlsym(RTLD_NEXT, "dnnl_primitive_execute");
        factor = atof(getenv("SLOW"));
        progress = (void (*)(void))dlsym(RTLD_DEFAULT, "opal_progress");
    }
    double began = seconds(CLOCK_MONOTONIC), worked = seconds(CLOCK_THREAD_CPUTIME_ID);
    int status = real(primitive, stream, count, arguments);
    /* Time in which others had the core is not time that it took. */
    owed += factor * least(primitive, seconds(CLOCK_THREAD_CPUTIME_ID) - worked) - (seconds(CLOCK_MONOTONIC) - began);
    while (owed > 5e-4) {
        began = seconds(CLOCK_MONOTONIC);
        sleep_for(3e-4);
        if (progress)
            progress();
        owed -= seconds(CLOCK_MONOTONIC) - began;
    }
    return status;
}

/* Open MPI yields in every test of a message that has not come, and a rank may ask for many. */
int sched_yield(void)
{
    static double slept;
    if (seconds(CLOCK_MONOTONIC) - slept > 1e-4) {
        sleep_for(5e-5);
        slept = seconds(CLOCK_MONOTONIC);
    }
    return 0;
}
