/* Threads that count their own calls in a file which outlives them: the truth about a program that
 * is killed. Only leaves are traced. `begun` grows before each call and `done` after it, so a thread
 * that was stopped anywhere has emitted from 2 * done to 2 * begun events.
 *
 * Usage: prog FILE THREADS CALLS PAUSE_US [noise|step]; CALLS 0 means until killed; a pause comes
 * after each 1000 calls. `noise`: gaps and functions that no packer can foresee. `step`: behind 20
 * calls of one thread it traps, makes CALLS more, traps again. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define QUIET __attribute__((no_instrument_function))
#if defined(__x86_64__)
#define TRAP() __asm__ volatile("int3")
#else
#define TRAP() raise(SIGTRAP)
#endif

enum { MOST_THREADS = 64 };

struct line {
    volatile uint64_t tid, begun, done;
    uint64_t pad[5];
};

static uint64_t calls;
static int pause_us, is_noisy;

__attribute__((noinline)) static int leaf(int x) { return x + 1; }

#define LEAF(n) __attribute__((noinline)) static int leaf##n(int x) { return x + n + 2; }
#define FOUR_LEAVES(a, b, c, d) LEAF(a) LEAF(b) LEAF(c) LEAF(d)
FOUR_LEAVES(0, 1, 2, 3)
FOUR_LEAVES(4, 5, 6, 7)
FOUR_LEAVES(8, 9, 10, 11)
FOUR_LEAVES(12, 13, 14, 15)

static int (*const leaves[16])(int) = {
    leaf0, leaf1, leaf2, leaf3, leaf4, leaf5, leaf6, leaf7,
    leaf8, leaf9, leaf10, leaf11, leaf12, leaf13, leaf14, leaf15,
};

QUIET static void call(struct line *line)
{
    line->begun++;
    leaf(1);
    line->done++;
}

/* A call of any leaf, behind up to 255 turns of a loop that does nothing. */
QUIET static void call_any(struct line *line, uint64_t *noise)
{
    *noise ^= *noise << 13;
    *noise ^= *noise >> 7;
    *noise ^= *noise << 17;
    for (volatile unsigned turn = *noise >> 56; turn > 0; turn--)
        ;
    line->begun++;
    leaves[*noise & 15](1);
    line->done++;
}

QUIET static void *work(void *argument)
{
    struct line *line = argument;
    uint64_t noise = 0x9e3779b97f4a7c15u + (uint64_t)gettid();
    line->tid = (uint64_t)gettid();
    for (uint64_t made = 1; calls == 0 || made <= calls; made++) {
        if (is_noisy)
            call_any(line, &noise);
        else
            call(line);
        if (pause_us && made % 1000 == 0)
            usleep((useconds_t)pause_us);
    }
    return 0;
}

/* A debugger makes what it wants of the instructions between the traps. */
QUIET static void step(struct line *line)
{
    line->tid = (uint64_t)gettid();
    for (int i = 0; i < 20; i++)
        call(line);
    TRAP();
    for (uint64_t made = 0; made < calls; made++)
        call(line);
    TRAP();
}

QUIET int main(int argc, char **argv)
{
    pthread_t threads[MOST_THREADS];
    int file = argc > 4 ? open(argv[1], O_RDWR | O_CREAT, 0600) : -1;
    int count = argc > 4 ? atoi(argv[2]) : 0;
    if (file < 0 || count < 1 || count > MOST_THREADS
        || ftruncate(file, MOST_THREADS * sizeof(struct line)) != 0)
        return 2;
    struct line *lines = mmap(0, MOST_THREADS * sizeof *lines, PROT_READ | PROT_WRITE, MAP_SHARED,
                              file, 0);
    if (lines == MAP_FAILED)
        return 2;
    close(file);
    calls = strtoull(argv[3], 0, 10);
    pause_us = atoi(argv[4]);
    is_noisy = argc > 5 && !strcmp(argv[5], "noise");
    if (argc > 5 && !is_noisy) {
        step(lines);
        return 0;
    }
    for (int i = 0; i < count; i++)
        pthread_create(&threads[i], 0, work, &lines[i]);
    for (int i = 0; i < count; i++)
        pthread_join(threads[i], 0);
    printf("done %d\n", count);
    return 0;
}
