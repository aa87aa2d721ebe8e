/* What a worker does in a round: some arithmetic, some text. */
#ifndef DEMO_WORK_H
#define DEMO_WORK_H

#include <stdint.h>

/* Sorts numbers made from `seed` and adds a recursion to their median. */
uint32_t crunch_numbers(uint32_t seed);

/* Makes a text from `seed` and hashes its words. */
uint32_t read_text(uint32_t seed);

#endif
