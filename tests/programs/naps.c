/* Measures a call from inside and from outside. Usage: prog FILE ROUNDS; FILE holds the sum of both
 * in ns at the end: what a trace says of `nap` stands between them. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#define QUIET __attribute__((no_instrument_function))

static uint64_t inside_ns;

QUIET static uint64_t now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

__attribute__((noinline)) static void nap(void)
{
    uint64_t begin = now();
    usleep(5000);
    inside_ns += now() - begin;
}

QUIET int main(int argc, char **argv)
{
    uint64_t outside_ns = 0;
    if (argc != 3)
        return 2;
    for (int i = 0; i < atoi(argv[2]); i++) {
        uint64_t begin = now();
        nap();
        outside_ns += now() - begin;
    }
    FILE *file = fopen(argv[1], "w");
    if (!file)
        return 3;
    fprintf(file, "%llu %llu\n", (unsigned long long)inside_ns, (unsigned long long)outside_ns);
    fclose(file);
    puts("done");
    return 0;
}
