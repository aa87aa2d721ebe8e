/* Threads of a short life, four at a time. Usage: prog ROUNDS CALLS PAUSE_US
 * Each calls `leaf` CALLS times; nothing else is traced. A pause comes after each four of them. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define QUIET __attribute__((no_instrument_function))

enum { AT_ONCE = 4 };

static int calls;

__attribute__((noinline)) static int leaf(int x) { return x + 1; }

QUIET static void *work(void *unused)
{
    for (int i = 0; i < calls; i++)
        leaf(i);
    return unused;
}

QUIET int main(int argc, char **argv)
{
    pthread_t threads[AT_ONCE];
    if (argc != 4)
        return 2;
    int rounds = atoi(argv[1]), pause_us = atoi(argv[3]);
    calls = atoi(argv[2]);
    for (int round = 0; round < rounds; round++) {
        for (int i = 0; i < AT_ONCE; i++)
            if (pthread_create(&threads[i], 0, work, 0) != 0)
                return 3;
        for (int i = 0; i < AT_ONCE; i++)
            pthread_join(threads[i], 0);
        usleep((useconds_t)pause_us);
    }
    printf("done %d\n", AT_ONCE * rounds);
    return 0;
}
