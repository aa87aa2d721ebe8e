/* The floor: the least that a hook which records when can do. One clock read and one 32-byte store
 * into a buffer of the thread, behind a guard against being entered twice. Nothing is kept. */
#include <stdint.h>
#if defined(__x86_64__)
#include <x86intrin.h>
static inline uint64_t ticks(void)
{
    return __rdtsc();
}
#elif defined(__aarch64__)
static inline uint64_t ticks(void)
{
    uint64_t t;
    __asm__ volatile("mrs %0, cntvct_el0" : "=r"(t));
    return t;
}
#endif

enum { SLOTS = 2048 };
struct slot {
    uint64_t ts, function, site, kind;
};

static __thread struct {
    struct slot slots[SLOTS];
    uint32_t next, busy;
} window __attribute__((tls_model("initial-exec")));

static inline __attribute__((always_inline)) void store(void *function, void *site, uint64_t kind)
{
    if (__builtin_expect(window.busy, 0))
        return;
    window.busy = 1;
    __asm__ volatile("" ::: "memory");
    if (__builtin_expect(window.next == SLOTS, 0))
        window.next = 0;
    struct slot *slot = &window.slots[window.next++];
    slot->function = (uint64_t)function;
    slot->site = (uint64_t)site;
    slot->kind = kind;
    slot->ts = ticks();
    __asm__ volatile("" ::: "memory");
    window.busy = 0;
}

void __cyg_profile_func_enter(void *function, void *site)
{
    store(function, site, 0);
}

void __cyg_profile_func_exit(void *function, void *site)
{
    store(function, site, 1);
}
