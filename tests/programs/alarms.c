/* Threads whose timers interrupt them, and one another's handlers, in the middle of hooks.
 * Usage: prog FILE SECONDS HZ. FILE holds one line of programs/tally.c a thread at the end: `begun`
 * and `done` are the calls it made, in handlers too. */
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#ifndef sigev_notify_thread_id
#define sigev_notify_thread_id _sigev_un._tid
#endif
#define QUIET __attribute__((no_instrument_function))

enum { THREADS = 3, TIMERS = 2, BURST = 20 };

struct line {
    uint64_t tid, begun, done, pad[5];
};

static struct line lines[THREADS];
static __thread struct line *mine;
static double seconds;
static long hz;

__attribute__((noinline)) static int leaf(int x) { return x + 1; }
__attribute__((noinline)) static int middle(int x) { return leaf(x) + leaf(x); }
__attribute__((noinline)) static int in_handler(int x) { return leaf(x); }

QUIET static void on_timer(int number)
{
    in_handler(number);
    __atomic_fetch_add(&mine->done, 2, __ATOMIC_RELAXED);
}

QUIET static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

QUIET static void *work(void *line)
{
    timer_t timers[TIMERS];
    mine = line;
    mine->tid = (uint64_t)gettid();
    for (int i = 0; i < TIMERS; i++) {
        struct sigevent event = { 0 };
        event.sigev_notify = SIGEV_THREAD_ID;
        event.sigev_notify_thread_id = gettid();
        event.sigev_signo = SIGRTMIN + i;
        long every_ns = 1000000000 / hz + 7919 * i;
        struct itimerspec pace = { { 0, every_ns }, { 0, every_ns } };
        if (timer_create(CLOCK_MONOTONIC, &event, &timers[i]) != 0
            || timer_settime(timers[i], 0, &pace, 0) != 0)
            exit(3);
    }
    double end = now() + seconds;
    while (now() < end) {
        for (int i = 0; i < BURST; i++)
            middle(i);
        __atomic_fetch_add(&mine->done, 3 * BURST, __ATOMIC_RELAXED);
        usleep(1000);
    }
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, 0);
    mine->begun = mine->done;
    return 0;
}

QUIET int main(int argc, char **argv)
{
    pthread_t threads[THREADS];
    if (argc != 4)
        return 2;
    seconds = atof(argv[2]);
    hz = atol(argv[3]);
    /* Each may come inside the other, and inside itself. */
    struct sigaction action = { .sa_handler = on_timer, .sa_flags = SA_RESTART | SA_NODEFER };
    for (int i = 0; i < TIMERS; i++)
        sigaction(SIGRTMIN + i, &action, 0);
    for (int i = 0; i < THREADS; i++)
        pthread_create(&threads[i], 0, work, &lines[i]);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], 0);
    FILE *file = fopen(argv[1], "w");
    if (!file)
        return 3;
    fwrite(lines, sizeof lines[0], THREADS, file);
    fclose(file);
    puts("done");
    return 0;
}
