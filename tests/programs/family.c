/* Children of every kind, while threads of the parent call. Usage: prog COUNT; the calls are the
 * same in every run. Kinds in turn: exit, _exit, exec, a second thread that speaks first, vfork
 * and exec, posix_spawn, daemon, fork by a thread. */
#define _GNU_SOURCE
#include <pthread.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

enum { KINDS = 8, SPINNERS = 2, SPINS = 20000 };

extern char **environ;
static char *self;

__attribute__((noinline)) static int leaf(int x) { return x + 1; }
__attribute__((noinline)) static int small(int x) { return x + 1; }

static void work(int count)
{
    for (int i = 0; i < count; i++)
        small(i);
}

static void *spin(void *argument)
{
    int sum = 0;
    for (int i = 0; i < SPINS; i++)
        sum = leaf(sum);
    return argument;
}

static void *speak(void *argument)
{
    work(5);
    return argument;
}

static int ended(pid_t pid)
{
    int status = 1;
    waitpid(pid, &status, 0);
    return status;
}

static int plain(int kind)
{
    pid_t pid = fork();
    if (pid != 0)
        return ended(pid);
    if (kind == 2) {
        execl(self, self, (char *)0);
        _exit(9);
    }
    if (kind == 3) {
        pthread_t thread;
        pthread_create(&thread, 0, speak, 0);
        pthread_join(thread, 0);
    }
    work(10);
    if (kind == 1)
        _exit(0);
    exit(0);
}

static int by_vfork(void)
{
    pid_t pid = vfork();
    if (pid == 0) {
        execl(self, self, (char *)0);
        _exit(9);
    }
    return ended(pid);
}

static int by_spawn(void)
{
    pid_t pid;
    char *words[] = { self, 0 };
    return posix_spawn(&pid, self, 0, 0, words, environ) ? 1 : ended(pid);
}

/* The grandchild is nobody's to wait for: the pipe tells its end. */
static int by_daemon(void)
{
    int ends[2];
    char byte;
    if (pipe(ends) != 0)
        return 1;
    pid_t pid = fork();
    if (pid == 0) {
        if (daemon(1, 1) != 0)
            _exit(9);
        work(10);
        exit(0);
    }
    int status = ended(pid);
    close(ends[1]);
    while (read(ends[0], &byte, 1) > 0)
        ;
    close(ends[0]);
    return status;
}

static void *by_thread(void *argument)
{
    *(int *)argument = plain(0);
    return 0;
}

static int one(int kind)
{
    int status = 0;
    pthread_t thread;
    switch (kind) {
    case 4:
        return by_vfork();
    case 5:
        return by_spawn();
    case 6:
        return by_daemon();
    case 7:
        pthread_create(&thread, 0, by_thread, &status);
        pthread_join(thread, 0);
        return status;
    default:
        return plain(kind);
    }
}

int main(int argc, char **argv)
{
    pthread_t threads[SPINNERS];
    int bad = 0;
    self = argv[0];
    if (argc < 2) {
        work(7);
        return 0;
    }
    for (int i = 0; i < SPINNERS; i++)
        pthread_create(&threads[i], 0, spin, 0);
    for (int i = 0; i < atoi(argv[1]); i++)
        bad += one(i % KINDS) != 0;
    for (int i = 0; i < SPINNERS; i++)
        pthread_join(threads[i], 0);
    printf("bad %d\n", bad);
    return bad != 0;
}
