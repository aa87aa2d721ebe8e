/* 25 threads beside main, each with a fixed number of nested, recursive and leaf calls.
 * Usage: prog [ROUNDS]; ROUNDS 100 make 665,052 events: a thread enters 133 functions a round,
 * twice that in events, and one around them; main enters itself. Ends with a line on stdout. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

enum { THREADS = 25 };
static long rounds;

static int leaf(int x) { return x + 1; }
static int tree(int n) { return n < 2 ? leaf(n) : tree(n - 1) + tree(n - 2); }

static int row(int n)
{
    int sum = 0;
    for (int i = 0; i < n; i++)
        sum += leaf(i);
    return sum;
}

static int round_of_calls(void) { return tree(8) + row(30); }

static void *work(void *unused)
{
    long sum = 0;
    for (long i = 0; i < rounds; i++)
        sum += round_of_calls();
    (void)unused;
    return (void *)sum;
}

int main(int argc, char **argv)
{
    pthread_t threads[THREADS];
    long sum = 0;
    rounds = argc > 1 ? atol(argv[1]) : 100;
    for (int i = 0; i < THREADS; i++)
        pthread_create(&threads[i], 0, work, 0);
    for (int i = 0; i < THREADS; i++) {
        void *part;
        pthread_join(threads[i], &part);
        sum += (long)part;
    }
    printf("sum %ld\n", sum);
    return 0;
}
