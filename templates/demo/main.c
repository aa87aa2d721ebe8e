/*
 * A program worth looking at: 25 named threads and main, nested calls, recursion, and two static
 * functions of one name. Every run makes the same calls. Prints one line.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <time.h>

#include "work.h"

enum { WORKERS = 25, ROUNDS = 40 };

struct worker {
    pthread_t thread;
    uint32_t number;
    uint32_t sum;
};

/* Workers wait most of the time, as those of a server do: so the program takes about a second. */
static void wait_for_request(void)
{
    struct timespec pause = {0, 20 * 1000 * 1000};
    nanosleep(&pause, NULL);
}

static uint32_t serve_request(uint32_t seed)
{
    return crunch_numbers(seed) ^ read_text(seed);
}

static void *work(void *argument)
{
    struct worker *worker = argument;
    for (uint32_t round = 0; round < ROUNDS; round++) {
        wait_for_request();
        worker->sum += serve_request(worker->number * ROUNDS + round);
    }
    return NULL;
}

static int start(struct worker *worker)
{
    char name[16];
    if (pthread_create(&worker->thread, NULL, work, worker) != 0)
        return -1;
    snprintf(name, sizeof name, "worker-%02u", worker->number);
    return pthread_setname_np(worker->thread, name);
}

int main(void)
{
    static struct worker workers[WORKERS];
    uint32_t sum = 0;

    for (uint32_t number = 0; number < WORKERS; number++) {
        workers[number].number = number;
        if (start(&workers[number]) != 0) {
            fprintf(stderr, "demo: cannot start worker %u\n", number);
            return 1;
        }
    }
    for (uint32_t number = 0; number < WORKERS; number++) {
        pthread_join(workers[number].thread, NULL);
        sum += workers[number].sum;
    }
    printf("demo: %d workers served %d requests each, sum %08x\n", WORKERS, ROUNDS, sum);
    return 0;
}
