/* A rank that computes SLOW times as long as it does, and sleeps the rest, so that many fit on few cores and have the
 * whole of one for their messages: measured.sh puts it in oneDNN's place, which it stands on. In its sleep it moves
 * Open MPI's messages along, as a network card would that does so by itself. A rank that waits sleeps SLOW_REST
 * microseconds after each 100, where it would poll all the time: on a node with a core a rank nobody else would have
 * that core. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

typedef int (*execute)(const void *, void *, int, const void *);
int dnnl_primitive_get_primitive_desc(const void *primitive, const void **description);
int dnnl_primitive_desc_query(const void *description, int what, int index, void *result);
const void *dnnl_primitive_desc_query_md(const void *description, int what, int index);
size_t dnnl_memory_desc_get_size(const void *layout);

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

enum { PLACES = 1 << 14 };
/* What is known of a primitive, by its address and by what oneDNN calls it, which another process does too. */
static struct known { const void *primitive; unsigned long name; double worked; int told; } known[PLACES], told[PLACES];
static int tellable;

static unsigned long hashed(unsigned long hash, const void *bytes, size_t count)
{
    for (size_t at = 0; at < count; at++)
        hash = (hash ^ ((const unsigned char *)bytes)[at]) * 1099511628211UL;
    return hash;
}

/* A hash of what a primitive is, how it is implemented, and the sizes of its tensors. */
static unsigned long name_of(const void *primitive)
{
    enum { KIND = 2, IMPLEMENTATION = 8, DIRECTION = 11, FIRST_TENSOR = 129, LAST_TENSOR = 134 };
    const void *description = NULL;
    const char *text = "";
    int kind = 0, direction = 0;
    dnnl_primitive_get_primitive_desc(primitive, &description);
    dnnl_primitive_desc_query(description, KIND, 0, &kind);
    dnnl_primitive_desc_query(description, DIRECTION, 0, &direction);
    dnnl_primitive_desc_query(description, IMPLEMENTATION, 0, &text);
    unsigned long hash = hashed(14695981039346656037UL, &kind, sizeof kind);
    hash = hashed(hashed(hash, &direction, sizeof direction), text, strlen(text));
    for (int tensor = FIRST_TENSOR; tensor <= LAST_TENSOR; tensor++) {
        const void *layout = dnnl_primitive_desc_query_md(description, tensor, 0);
        size_t size = layout ? dnnl_memory_desc_get_size(layout) : 0;
        hash = hashed(hash, &size, sizeof size);
    }
    return hash;
}

/* What an earlier run without messages wrote to SLOW_TABLE. */
static void read_table(void)
{
    FILE *file = getenv("SLOW_TABLE") && !getenv("SLOW_SAVE") ? fopen(getenv("SLOW_TABLE"), "r") : NULL;
    while (file && tellable < PLACES && fscanf(file, "%lx %lf", &told[tellable].name, &told[tellable].worked) == 2)
        tellable++;
    if (file)
        fclose(file);
}

__attribute__((destructor)) static void write_table(void)
{
    if (!getenv("SLOW_SAVE"))
        return;
    char path[4096];
    snprintf(path, sizeof path, "%s.%d", getenv("SLOW_TABLE"), getpid());
    FILE *file = fopen(path, "w");
    for (int at = 0; file && at < PLACES; at++)
        if (known[at].primitive)
            fprintf(file, "%lx %.9f\n", known[at].name, known[at].worked);
    if (file && !fclose(file))
        rename(path, getenv("SLOW_TABLE"));
}

/* Seconds of a core that a primitive takes: what the table says, so that predictions and runs have the same kernels
 * however fast this machine is at the moment. Of what it does not say it is the least of all calls. Linux charges a
 * call for packets that come in while it runs, whoever they are for: a slower kernel would take no longer for these. */
static double least(const void *primitive, double worked)
{
    for (size_t at = (size_t)primitive / 64 % PLACES;; at = (at + 1) % PLACES) {
        if (known[at].primitive != primitive && known[at].primitive)
            continue;
        if (!known[at].primitive) {
            known[at] = (struct known){primitive, name_of(primitive), worked, 0};
            for (int other = 0; other < tellable && !known[at].told; other++)
                if (told[other].name == known[at].name)
                    known[at].worked = told[other].worked, known[at].told = 1;
        }
        if (!known[at].told && worked < known[at].worked)
            known[at].worked = worked;
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
        read_table();
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
    static double slept, rest;
    if (!rest)
        rest = 1e-6 * atof(getenv("SLOW_REST"));
    if (seconds(CLOCK_MONOTONIC) - slept > 1e-4) {
        sleep_for(rest);
        slept = seconds(CLOCK_MONOTONIC);
    }
    return 0;
}
