/* A wall clock that a test sets: loaded before the C library (LD_PRELOAD), it adds the number of
 * milliseconds in the file that OPTIMUS_CLOCK names to every reading of the wall clock. The
 * monotonic clock is left alone, as by a person who sets the date. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>

typedef int (*get_clock)(clockid_t, struct timespec *);

static long offset_ms(void)
{
    const char *path = getenv("OPTIMUS_CLOCK");
    FILE *file = path ? fopen(path, "re") : NULL;
    long ms = 0;
    if (file) {
        if (fscanf(file, "%ld", &ms) != 1)
            ms = 0;
        fclose(file);
    }
    return ms;
}

int clock_gettime(clockid_t clock, struct timespec *now)
{
    static get_clock real;
    if (!real)
        real = (get_clock)dlsym(RTLD_NEXT, "clock_gettime");
    int result = real(clock, now);
    if (result == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) {
        long ms = offset_ms();
        now->tv_sec += ms / 1000;
        now->tv_nsec += ms % 1000 * 1000000;
        while (now->tv_nsec >= 1000000000) {
            now->tv_nsec -= 1000000000;
            now->tv_sec += 1;
        }
        while (now->tv_nsec < 0) {
            now->tv_nsec += 1000000000;
            now->tv_sec -= 1;
        }
    }
    return result;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone)
{
    struct timespec exact;
    (void)zone;
    if (clock_gettime(CLOCK_REALTIME, &exact) != 0)
        return -1;
    now->tv_sec = exact.tv_sec;
    now->tv_usec = exact.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *at)
{
    struct timespec exact;
    clock_gettime(CLOCK_REALTIME, &exact);
    if (at)
        *at = exact.tv_sec;
    return exact.tv_sec;
}
