/* The workload of the benchmark: what a call of an instrumented function costs.
 *
 * work leaf N      N calls of a leaf of a few instructions, in one loop
 * work bursts N    the same in bursts of 20,000 with pauses: 8 million events a second at most, so
 *                  that a drain keeps up
 * work fib N       the calls of fib(N)
 * work threads N   N calls of the leaf in each of four threads
 *
 * Prints the calls and the CPU time a call took of its thread, pauses not counted, in ns. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define QUIET __attribute__((no_instrument_function))
enum { BURST = 20000, THREADS = 4, BURST_NS = 5000000 };

__attribute__((noinline)) static int leaf(int x)
{
    __asm__ volatile("" : "+r"(x));
    return x + 1;
}

__attribute__((noinline)) static long fib(long n)
{
    return n < 2 ? n : fib(n - 1) + fib(n - 2);
}

struct work {
    const char *mode;
    long n;
    double calls, cpu_ns;
    long result;
};

QUIET static double now(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

QUIET static void leaves(struct work *work, long n)
{
    double begin = now(CLOCK_THREAD_CPUTIME_ID);
    int x = 0;
    for (long i = 0; i < n; i++)
        x = leaf(x);
    work->cpu_ns += now(CLOCK_THREAD_CPUTIME_ID) - begin;
    work->calls += (double)n;
    work->result += x;
}

QUIET static void bursts(struct work *work)
{
    for (long done = 0; done < work->n; done += BURST) {
        double begin = now(CLOCK_MONOTONIC);
        leaves(work, BURST);
        double left = BURST_NS - (now(CLOCK_MONOTONIC) - begin);
        struct timespec pause = { 0, left > 0 ? (long)left : 0 };
        nanosleep(&pause, 0);
        if (done == 0) /* the first burst makes the memory present, for every row */
            work->calls = work->cpu_ns = 0;
    }
}

QUIET static void fibs(struct work *work)
{
    double begin = now(CLOCK_THREAD_CPUTIME_ID), a = 1, b = 1;
    work->result = fib(work->n);
    work->cpu_ns = now(CLOCK_THREAD_CPUTIME_ID) - begin;
    for (long i = 2; i <= work->n; i++) {
        double c = a + b + 1;
        a = b;
        b = c;
    }
    work->calls = b;
}

QUIET static void *run(void *argument)
{
    struct work *work = argument;
    if (!strcmp(work->mode, "bursts"))
        bursts(work);
    else if (!strcmp(work->mode, "fib"))
        fibs(work);
    else
        leaves(work, work->n);
    return 0;
}

QUIET int main(int argc, char **argv)
{
    struct work works[THREADS];
    pthread_t threads[THREADS];
    double calls = 0, cpu_ns = 0;
    if (argc != 3) {
        fprintf(stderr, "usage: work leaf|bursts|fib|threads N\n");
        return 2;
    }
    leaf(0); /* starts the tracer: its start-up is not what is measured */
    int count = strcmp(argv[1], "threads") ? 1 : THREADS;
    for (int i = 0; i < count; i++) {
        works[i] = (struct work){ argv[1], atol(argv[2]), 0, 0, 0 };
        pthread_create(&threads[i], 0, run, &works[i]);
    }
    for (int i = 0; i < count; i++) {
        pthread_join(threads[i], 0);
        calls += works[i].calls;
        cpu_ns += works[i].cpu_ns;
    }
    printf("%.0f calls %.3f ns\n", calls, cpu_ns / calls);
    return 0;
}
