/* A thread for each name, which calls `leaf` once before it takes that name, and ROUNDS times ten
 * times afterwards, with pauses. Usage: prog ROUNDS PAUSE_US NAME... */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

enum { MAX_THREADS = 16 };
static int rounds, pause_us;

static int leaf(int x)
{
    return x + 1;
}

static void *body(void *name)
{
    leaf(1);
    pthread_setname_np(pthread_self(), name);
    for (int i = 0; i < rounds; i++) {
        for (int k = 0; k < 10; k++)
            leaf(k);
        if (pause_us)
            usleep(pause_us);
    }
    return 0;
}

int main(int argc, char **argv)
{
    pthread_t threads[MAX_THREADS];
    int count = argc - 3;
    if (count < 1 || count > MAX_THREADS)
        return 2;
    rounds = atoi(argv[1]);
    pause_us = atoi(argv[2]);
    for (int i = 0; i < count; i++)
        pthread_create(&threads[i], 0, body, argv[3 + i]);
    for (int i = 0; i < count; i++)
        pthread_join(threads[i], 0);
    return 0;
}
