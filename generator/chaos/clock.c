/* Shifts the clock of a program, when it is preloaded: by the seconds that a file holds at the moment, DDP_CLOCK.

   Only the time of day jumps, as when somebody sets it: the monotonic clock goes on. libfaketime, which does more,
   makes Python's time.sleep() fail (0.9.10: clock_nanosleep with an absolute time of CLOCK_MONOTONIC).

   A program that aborts says where, also if Python has been taken down by then. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <execinfo.h>
#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static long shift(void) {
    char text[32] = "";
    const char *path = getenv("DDP_CLOCK");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file >= 0) {
        if (read(file, text, sizeof text - 1) < 0) text[0] = 0;
        close(file);
    }
    return atol(text);
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    static int (*original)(clockid_t, struct timespec *);
    if (!original) original = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    int failed = original(clock, now);
    if (!failed && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) now->tv_sec += shift();
    return failed;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec exact;
    (void)zone;
    int failed = clock_gettime(CLOCK_REALTIME, &exact);
    if (!failed) *now = (struct timeval){exact.tv_sec, exact.tv_nsec / 1000};
    return failed;
}

time_t time(time_t *result) {
    struct timespec exact;
    clock_gettime(CLOCK_REALTIME, &exact);
    if (result) *result = exact.tv_sec;
    return exact.tv_sec;
}

/* The kernel compares a time with its own clock: it must get the one at which that will be there. Times of the monotonic
   clock, which began with the machine, are small, and stay. */
static struct timespec real(const struct timespec *until) {
    struct timespec time = *until;
    if (time.tv_sec > 1000000000) time.tv_sec -= shift();
    return time;
}

int sem_timedwait(sem_t *restrict semaphore, const struct timespec *restrict until) {
    static int (*original)(sem_t *, const struct timespec *);
    if (!original) original = (int (*)(sem_t *, const struct timespec *))dlsym(RTLD_NEXT, "sem_timedwait");
    struct timespec time = real(until);
    return original(semaphore, &time);
}

typedef int (*cond_timedwait)(pthread_cond_t *, pthread_mutex_t *, const struct timespec *);

int pthread_cond_timedwait(pthread_cond_t *restrict cond, pthread_mutex_t *restrict mutex,
                           const struct timespec *restrict until) {
    static cond_timedwait original;
    /* On x86 an older function has the same name. */
    if (!original) original = (cond_timedwait)dlvsym(RTLD_NEXT, "pthread_cond_timedwait", "GLIBC_2.3.2");
    if (!original) original = (cond_timedwait)dlsym(RTLD_NEXT, "pthread_cond_timedwait");
    struct timespec time = real(until);
    return original(cond, mutex, &time);
}

void abort(void) {
    void *frames[64];
    backtrace_symbols_fd(frames, backtrace(frames, 64), STDERR_FILENO);
    ((void (*)(void))dlsym(RTLD_NEXT, "abort"))();
    _exit(134);
}
