/* Threads that call when they are told to. Usage: prog THREADS CALLS [RING]
 * Words on standard input, each answered by a line: `g` each thread calls `leaf` CALLS times, `s` ten
 * times, `x` the program starts itself once more, to record into RING. It ends with its input. Nothing but
 * `leaf` is traced. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define QUIET __attribute__((no_instrument_function))

static pthread_barrier_t begin, done;
static int calls;

__attribute__((noinline)) static int leaf(int x) { return x + 1; }

QUIET static void *work(void *unused)
{
    for (;;) {
        pthread_barrier_wait(&begin);
        for (int i = 0; i < calls; i++)
            leaf(i);
        pthread_barrier_wait(&done);
    }
    return unused;
}

QUIET static void answer(const char *line)
{
    puts(line);
    fflush(stdout);
}

QUIET int main(int argc, char **argv)
{
    pthread_t thread;
    char word[16];
    if (argc < 3)
        return 2;
    int count = atoi(argv[1]);
    pthread_barrier_init(&begin, 0, (unsigned)count + 1);
    pthread_barrier_init(&done, 0, (unsigned)count + 1);
    for (int i = 0; i < count; i++)
        if (pthread_create(&thread, 0, work, 0) != 0)
            return 3;
    answer("ready");
    /* Not the buffer of libc, which a next program would not have. */
    while (read(0, word, sizeof word) > 0) {
        if (word[0] == 'x') {
            setenv("TRACE_SHM", argv[3], 1);
            execl("/proc/self/exe", argv[0], argv[1], argv[2], argv[3], (char *)0);
            return 4;
        }
        calls = word[0] == 's' ? 10 : atoi(argv[2]);
        pthread_barrier_wait(&begin);
        pthread_barrier_wait(&done);
        answer("done");
    }
    return 0;
}
