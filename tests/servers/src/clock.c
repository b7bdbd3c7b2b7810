/* A wall clock that differs from the clock of the system, for tests of servers whose clock jumps.
 *
 * A server loads the library before libc (LD_PRELOAD). The variable ORDAIN_CLOCK_OFFSET names a file with the
 * difference in seconds, as eight bytes. The library reads the file whenever the server reads the wall clock. Other
 * clocks, such as the monotonic clock, stay as they are. */

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static int file = -1;

__attribute__((constructor)) static void begin(void)
{
    const char *path = getenv("ORDAIN_CLOCK_OFFSET");
    if (path)
        file = open(path, O_RDONLY | O_CLOEXEC);
}

/* Returns the difference. If the test is replacing the content of the file at this moment, returns the difference that
 * the last successful read found, or 0 before the first successful read. */
static int64_t offset(void)
{
    static _Atomic int64_t last;
    int64_t seconds;
    int before = errno;
    if (pread(file, &seconds, sizeof seconds, 0) == sizeof seconds)
        last = seconds;
    errno = before;
    return last;
}

int clock_gettime(clockid_t clock, struct timespec *now)
{
    int failed = syscall(SYS_clock_gettime, clock, now);
    if (!failed && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
        now->tv_sec += offset();
    return failed;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone)
{
    struct timespec time;
    (void)zone;
    if (clock_gettime(CLOCK_REALTIME, &time))
        return -1;
    now->tv_sec = time.tv_sec;
    now->tv_usec = time.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *out)
{
    struct timespec now;
    if (clock_gettime(CLOCK_REALTIME, &now))
        return -1;
    if (out)
        *out = now.tv_sec;
    return now.tv_sec;
}
