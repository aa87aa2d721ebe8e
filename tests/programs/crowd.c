/* Threads one after the other, or all at once. Usage: prog FILE turn|once THREADS CALLS
 * Each calls `leaf` CALLS times; nothing else is traced. At the end FILE holds "PEAK_KIB\n", the
 * most memory the process ever had. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#define QUIET __attribute__((no_instrument_function))

static pthread_barrier_t all_here;
static int calls, at_once;

__attribute__((noinline)) static int leaf(int x) { return x + 1; }

QUIET static void *work(void *unused)
{
    if (at_once)
        pthread_barrier_wait(&all_here);
    for (int i = 0; i < calls; i++)
        leaf(i);
    if (at_once)
        pthread_barrier_wait(&all_here);
    return unused;
}

QUIET int main(int argc, char **argv)
{
    pthread_attr_t small;
    struct rusage usage;
    if (argc != 5)
        return 2;
    int count = atoi(argv[3]), made = 0;
    pthread_t *threads = calloc((size_t)count, sizeof *threads);
    at_once = !strcmp(argv[2], "once");
    calls = atoi(argv[4]);
    pthread_barrier_init(&all_here, 0, (unsigned)count);
    pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, 64 << 10);
    for (; made < count; made++) {
        if (pthread_create(&threads[made], &small, work, 0) != 0)
            return 3;
        if (!at_once)
            pthread_join(threads[made], 0);
    }
    for (int i = 0; at_once && i < count; i++)
        pthread_join(threads[i], 0);
    getrusage(RUSAGE_SELF, &usage);
    FILE *peak = fopen(argv[1], "w");
    if (!peak)
        return 3;
    fprintf(peak, "%ld\n", usage.ru_maxrss);
    fclose(peak);
    printf("done %d\n", made);
    return 0;
}
