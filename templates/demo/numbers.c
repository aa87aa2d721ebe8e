/* Arithmetic: a quicksort and a recursion. */
#include "work.h"

enum { COUNT = 32 };

/* Its namesake in text.c is another function. */
static uint32_t mix(uint32_t state)
{
    return state * 1664525u + 1013904223u;
}

static void fill(uint32_t *numbers, uint32_t seed)
{
    uint32_t state = seed;
    for (int at = 0; at < COUNT; at++) {
        state = mix(state);
        numbers[at] = state >> 8;
    }
}

static void swap(uint32_t *a, uint32_t *b)
{
    uint32_t kept = *a;
    *a = *b;
    *b = kept;
}

/* Moves what is smaller than the last number before it; gives its place. */
static int split(uint32_t *numbers, int low, int high)
{
    int place = low;
    for (int at = low; at < high; at++)
        if (numbers[at] < numbers[high])
            swap(&numbers[at], &numbers[place++]);
    swap(&numbers[place], &numbers[high]);
    return place;
}

static void quicksort(uint32_t *numbers, int low, int high)
{
    if (low >= high)
        return;
    int place = split(numbers, low, high);
    quicksort(numbers, low, place - 1);
    quicksort(numbers, place + 1, high);
}

static uint32_t fibonacci(uint32_t n)
{
    return n < 2 ? n : fibonacci(n - 1) + fibonacci(n - 2);
}

uint32_t crunch_numbers(uint32_t seed)
{
    uint32_t numbers[COUNT];
    fill(numbers, seed);
    quicksort(numbers, 0, COUNT - 1);
    return numbers[COUNT / 2] + fibonacci(11);
}
