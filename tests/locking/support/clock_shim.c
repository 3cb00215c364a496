/* Shows a process a clock that is off by the seconds (a 64-bit number) in the file CLOCK_OFFSET_FILE. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>

static volatile int64_t *offset;

__attribute__((constructor)) static void open_offset(void)
{
    const char *path = getenv("CLOCK_OFFSET_FILE");
    int file = path ? open(path, O_RDONLY) : -1;
    void *mapped = file < 0 ? MAP_FAILED : mmap(NULL, sizeof *offset, PROT_READ, MAP_SHARED, file, 0);
    if (mapped != MAP_FAILED) offset = mapped;
}

static int64_t shift(void) { return offset ? *offset : 0; }

int gettimeofday(struct timeval *restrict tv, void *restrict zone)
{
    static int (*real)(struct timeval *, void *);
    if (!real) real = (int (*)(struct timeval *, void *))dlsym(RTLD_NEXT, "gettimeofday");
    int result = real(tv, zone);
    if (tv) tv->tv_sec += shift();
    return result;
}

int clock_gettime(clockid_t clock, struct timespec *ts)
{
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    int result = real(clock, ts);
    if (clock == CLOCK_REALTIME && ts) ts->tv_sec += shift();
    return result;
}

time_t time(time_t *out)
{
    struct timeval now;
    gettimeofday(&now, NULL);
    if (out) *out = now.tv_sec;
    return now.tv_sec;
}
