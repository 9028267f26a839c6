/* A wall clock that jumps, for bench/clock_jumps.py: LD_PRELOAD. The file JUMPING_CLOCK holds the offset in seconds (8
   bytes). Waits until a moment of the wall clock look at it again and again, as the kernel does when a clock is set. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

enum { SLICE_NS = 20000000, EPOCH_S = 100000000 }; /* a deadline below EPOCH_S is one of the monotonic clock */

static volatile int64_t *offset;

__attribute__((constructor)) static void begin(void) {
    const char *name = getenv("JUMPING_CLOCK");
    int file = name ? open(name, O_RDONLY | O_CLOEXEC) : -1;
    if (file >= 0) {
        void *mapped = mmap(NULL, sizeof *offset, PROT_READ, MAP_SHARED, file, 0);
        if (mapped != MAP_FAILED)
            offset = mapped;
        close(file);
    }
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

int clock_gettime(clockid_t clock, struct timespec *now) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real)
        real = REAL(clock_gettime);
    int found = real(clock, now);
    if (!found && offset && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
        now->tv_sec += *offset;
    return found;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec found;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &found);
    now->tv_sec = found.tv_sec;
    now->tv_usec = found.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *out) {
    struct timespec found;
    clock_gettime(CLOCK_REALTIME, &found);
    if (out)
        *out = found.tv_sec;
    return found.tv_sec;
}

/* The next moment of the real clock at which to look again; 0 where the deadline is over. */
static int slice(const struct timespec *deadline, struct timespec *until) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    int64_t left = (deadline->tv_sec - now.tv_sec) * 1000000000LL + deadline->tv_nsec - now.tv_nsec;
    if (left <= 0)
        return 0;
    int64_t end = (offset ? now.tv_sec - *offset : now.tv_sec) * 1000000000LL + now.tv_nsec;
    end += left < SLICE_NS ? left : SLICE_NS;
    until->tv_sec = end / 1000000000LL;
    until->tv_nsec = end % 1000000000LL;
    return 1;
}

int sem_timedwait(sem_t *restrict semaphore, const struct timespec *restrict deadline) {
    struct timespec until;
    while (slice(deadline, &until)) {
        if (!REAL(sem_timedwait)(semaphore, &until))
            return 0;
        if (errno != ETIMEDOUT)
            return -1;
    }
    if (!sem_trywait(semaphore))
        return 0;
    errno = ETIMEDOUT;
    return -1;
}

int pthread_cond_timedwait(
    pthread_cond_t *restrict condition, pthread_mutex_t *restrict mutex, const struct timespec *restrict deadline) {
    struct timespec until;
    if (deadline->tv_sec < EPOCH_S)
        return REAL(pthread_cond_timedwait)(condition, mutex, deadline);
    if (!slice(deadline, &until))
        return ETIMEDOUT;
    int found = REAL(pthread_cond_timedwait)(condition, mutex, &until);
    return found == ETIMEDOUT ? 0 : found; /* a wake-up without a reason, which is allowed */
}

long syscall(long number, ...) {
    static long (*real)(long, ...);
    va_list rest;
    long args[6];
    va_start(rest, number);
    for (int i = 0; i < 6; i++)
        args[i] = va_arg(rest, long);
    va_end(rest);
    if (!real)
        real = REAL(syscall);
    struct timespec until;
    if (number == SYS_futex && args[3] && (args[1] & FUTEX_CLOCK_REALTIME)) {
        if (!slice((const struct timespec *)args[3], &until)) {
            errno = ETIMEDOUT;
            return -1;
        }
        long found = real(number, args[0], args[1], args[2], &until, args[4], args[5]);
        if (found < 0 && errno == ETIMEDOUT)
            errno = EINTR;
        return found;
    }
    return real(number, args[0], args[1], args[2], args[3], args[4], args[5]);
}
