/* Calls at a pace, and several ways to end.
 * Usage: prog [CALLS [THREADS [PAUSE_US [END]]]]; a thread makes CALLS calls of leaf, 1000 a call of
 * batch, with a pause after each batch. END: exit, kill (SIGKILL), quit (_exit), fork (two children
 * that work as the threads do, and the parent goes on after them). */
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static long calls = 50000;
static int pause_us;

static int leaf(int x) { return x + 1; }

static void batch(int n)
{
    int sum = 0;
    while (n--)
        sum = leaf(sum);
}

static void *work(void *unused)
{
    for (long done = 0; done < calls; done += 1000) {
        batch(1000);
        if (pause_us)
            usleep(pause_us);
    }
    return unused;
}

int main(int argc, char **argv)
{
    pthread_t threads[64];
    const char *end = argc > 4 ? argv[4] : "exit";
    int count = argc > 2 ? atoi(argv[2]) : 2;
    if (argc > 1)
        calls = atol(argv[1]);
    if (argc > 3)
        pause_us = atoi(argv[3]);
    if (!strcmp(end, "fork")) {
        for (int child = 0; child < 2; child++)
            if (fork() == 0) {
                work(0);
                exit(0);
            }
        while (wait(0) > 0)
            ;
    }
    for (int i = 0; i < count; i++)
        pthread_create(&threads[i], 0, work, 0);
    for (int i = 0; i < count; i++)
        pthread_join(threads[i], 0);
    printf("done %ld\n", calls * count);
    fflush(stdout);
    if (!strcmp(end, "kill"))
        kill(getpid(), SIGKILL);
    if (!strcmp(end, "quit"))
        _exit(7);
    return 0;
}
