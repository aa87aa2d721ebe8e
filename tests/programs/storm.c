/* Threads that call while the process forks: children that end in every way, and one whose second
 * thread is the first to speak. `storm N` forks N times; calls are the same in every run. */
#define _GNU_SOURCE
#include <pthread.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;
static char *self;

__attribute__((noinline)) static int leaf(int x) { return x + 1; }
__attribute__((noinline)) static int small(int x) { return x + 1; }

static void *spin(void *argument)
{
    int sum = 0;
    for (int i = 0; i < 20000; i++)
        sum = leaf(sum);
    return argument;
}

static void work(int count)
{
    for (int i = 0; i < count; i++)
        small(i);
}

static void child(int kind)
{
    switch (kind) {
    case 0:
        work(10);
        exit(0);
    case 1:
        work(10);
        _exit(0);
    case 2:
        execl(self, self, (char *)0);
        _exit(9);
    default: {
        pthread_t thread;
        pthread_create(&thread, 0, spin, 0);
        pthread_join(thread, 0);
        work(3);
        exit(0);
    }
    }
}

int main(int argc, char **argv)
{
    self = argv[0];
    if (argc < 2) {
        work(7);
        return 0;
    }
    pthread_t threads[4];
    int bad = 0;
    for (int i = 0; i < 4; i++)
        pthread_create(&threads[i], 0, spin, 0);
    for (int i = 0; i < atoi(argv[1]); i++) {
        int status;
        pid_t pid = fork();
        if (pid == 0)
            child(i % 4);
        waitpid(pid, &status, 0);
        bad += status != 0;
        char *again[] = { self, 0 };
        if (i % 8 == 0 && posix_spawn(&pid, self, 0, 0, again, environ) == 0) {
            waitpid(pid, &status, 0);
            bad += status != 0;
        }
    }
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], 0);
    printf("bad %d\n", bad);
    return bad;
}
