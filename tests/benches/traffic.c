/* A program for the way out of its events: 26 threads that work in rounds and wait between them.
 *
 * Usage: prog ROUNDS PAUSE_US [noise]. A round of a thread is about 800 calls: a recursion, then
 * loops over small functions; with `noise`, of 256 functions called in an order and at times that
 * nothing foretells. Prints how long the threads took, in ms. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define QUIET __attribute__((no_instrument_function))
#define TRACED __attribute__((noinline))

enum { THREADS = 26, FUNCTIONS = 256 };

static unsigned rounds, pause_us, is_noisy;

TRACED static uint32_t fibonacci(uint32_t n)
{
    return n < 2 ? n : fibonacci(n - 1) + fibonacci(n - 2);
}

TRACED static uint32_t mix(uint32_t x) { return (x ^ x >> 15) * 0x2c1b3c6du; }
TRACED static uint32_t fold(uint32_t x) { return mix(x) ^ mix(x + 1); }
TRACED static uint32_t serve(uint32_t seed)
{
    uint32_t sum = fibonacci(9);
    for (uint32_t at = 0; at < 100; at++)
        sum += fold(seed + at);
    return sum;
}

#define F1(n) TRACED static uint32_t noise##n(uint32_t x) { return x * 3 + 0x##n; }
#define F16(n) F1(n##0) F1(n##1) F1(n##2) F1(n##3) F1(n##4) F1(n##5) F1(n##6) F1(n##7) \
    F1(n##8) F1(n##9) F1(n##a) F1(n##b) F1(n##c) F1(n##d) F1(n##e) F1(n##f)
F16(0) F16(1) F16(2) F16(3) F16(4) F16(5) F16(6) F16(7)
F16(8) F16(9) F16(a) F16(b) F16(c) F16(d) F16(e) F16(f)

#define N1(n) noise##n,
#define N16(n) N1(n##0) N1(n##1) N1(n##2) N1(n##3) N1(n##4) N1(n##5) N1(n##6) N1(n##7) \
    N1(n##8) N1(n##9) N1(n##a) N1(n##b) N1(n##c) N1(n##d) N1(n##e) N1(n##f)
static uint32_t (*const noises[FUNCTIONS])(uint32_t) = {
    N16(0) N16(1) N16(2) N16(3) N16(4) N16(5) N16(6) N16(7)
    N16(8) N16(9) N16(a) N16(b) N16(c) N16(d) N16(e) N16(f)
};

TRACED static uint32_t serve_noise(uint64_t *state)
{
    uint32_t sum = 0;
    for (uint32_t at = 0; at < 400; at++) {
        *state ^= *state << 13;
        *state ^= *state >> 7;
        *state ^= *state << 17;
        for (volatile unsigned turns = *state >> 32 & 63; turns > 0; turns--)
            ;
        sum += noises[*state % FUNCTIONS](at);
    }
    return sum;
}

QUIET static void *work(void *number)
{
    uint32_t seed = (uint32_t)(uintptr_t)number, sum = 0;
    uint64_t state = seed * 0x9e3779b97f4a7c15ull + 1;
    struct timespec pause = { 0, (long)pause_us * 1000 };
    for (unsigned round = 0; round < rounds; round++) {
        sum += is_noisy ? serve_noise(&state) : serve(seed + round);
        if (pause_us > 0)
            nanosleep(&pause, NULL);
    }
    return (void *)(uintptr_t)sum;
}

QUIET static uint64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

QUIET int main(int argc, char **argv)
{
    pthread_t threads[THREADS];
    uint64_t begin = now_ns();
    rounds = argc > 1 ? (unsigned)atoi(argv[1]) : 100;
    pause_us = argc > 2 ? (unsigned)atoi(argv[2]) : 1000;
    is_noisy = argc > 3 && strcmp(argv[3], "noise") == 0;
    for (uintptr_t at = 0; at < THREADS; at++)
        if (pthread_create(&threads[at], NULL, work, (void *)at) != 0)
            return 1;
    for (unsigned at = 0; at < THREADS; at++)
        pthread_join(threads[at], NULL);
    printf("%llu ms\n", (unsigned long long)((now_ns() - begin) / 1000000));
    return 0;
}
