/* Text: words made up, found again and hashed. */
#include "work.h"

enum { LENGTH = 240 };

/* Its namesake in numbers.c is another function. */
static uint32_t mix(uint32_t hash, char letter)
{
    return (hash ^ (uint32_t)letter) * 16777619u;
}

static void write_text(char *text, uint32_t seed)
{
    uint32_t state = seed + 1;
    for (int at = 0; at < LENGTH; at++) {
        state = state * 1103515245u + 12345u;
        uint32_t letter = (state >> 16) % 32;
        text[at] = letter < 26 ? (char)('a' + letter) : ' ';
    }
    text[LENGTH] = '\0';
}

static const char *skip_spaces(const char *text)
{
    while (*text == ' ')
        text++;
    return text;
}

static const char *hash_word(const char *word, uint32_t *hash)
{
    for (; *word != '\0' && *word != ' '; word++)
        *hash = mix(*hash, *word);
    return word;
}

uint32_t read_text(uint32_t seed)
{
    char text[LENGTH + 1];
    uint32_t hash = 2166136261u;
    write_text(text, seed);
    for (const char *word = skip_spaces(text); *word != '\0'; word = skip_spaces(word))
        word = hash_word(word, &hash);
    return hash;
}
