/* An independent count of what -finstrument-functions reports, the truth our reports are held to.
 *
 * In: the environment word COUNT_DIR, a folder; without it nothing is counted.
 * Out: one file a process image, COUNT_DIR/count.PID.N, shared memory from its first count on, so
 * that nothing is lost by _exit, a signal or a late destructor. `tests/src/count.rs` reads it and
 * hands in the sizes as macros, so that they are said once:
 *     COUNT_FUNCTIONS  entries of the function table, a power of two
 *     COUNT_MODULES    entries of the module table
 *     COUNT_PATH       bytes of a path
 *
 * Calls no function of the program or of libc (both may be traced themselves), keeps no
 * thread-local state and takes no lock: it counts before libc is set up, inside an IFUNC resolver,
 * in a signal handler that interrupts itself, and in a forked child. Leaves errno alone.
 *
 * A module is known by the mapping its first counted function was in; one loaded later at the same
 * addresses is taken for it.
 */
#include <stddef.h>
#include <stdint.h>

#define QUIET __attribute__((no_instrument_function))

struct module {
    uint64_t start, end, offset; /* addresses of one mapping, and its place in the file */
    char path[COUNT_PATH];
};

struct function {
    uint64_t address, enters, exits;
};

struct counts {
    uint64_t pid, missed; /* events that found the table full */
    struct module modules[COUNT_MODULES];
    struct function functions[COUNT_FUNCTIONS];
};

/* Points at a page that the kernel empties in a forked child: there the counts start anew. */
static struct counts **cell;
static int off;

#if defined(__x86_64__)
enum { READ = 0, CLOSE = 3, MMAP = 9, MUNMAP = 11, MADVISE = 28, GETPID = 39, TRUNCATE = 77,
       UNLINK = 87, OPENAT = 257 };
QUIET static long call(long n, long a, long b, long c, long d, long e, long f)
{
    register long r10 __asm__("r10") = d;
    register long r8 __asm__("r8") = e;
    register long r9 __asm__("r9") = f;
    long result;
    __asm__ volatile("syscall" : "=a"(result)
                     : "a"(n), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
                     : "rcx", "r11", "memory");
    return result;
}
#else
#error "the counting hook makes its own system calls, and only knows those of x86-64"
#endif

enum { AT_CWD = -100, RDWR = 2, CREAT = 0100, EXCL = 0200, CLOEXEC = 02000000 };
enum { PROT_RW = 3, MAP_SHARED_ = 1, MAP_PRIVATE_ANON = 0x22, WIPE_ON_FORK = 18 };
enum { TEXT_BYTES = 1 << 17 };

QUIET static int map_failed(long address)
{
    return address < 0 && address > -4096;
}

/* The whole of a text file into fresh pages; 0 where it cannot be read. */
QUIET static char *slurp(const char *path, long *bytes)
{
    long fd = call(OPENAT, AT_CWD, (long)path, CLOEXEC, 0, 0, 0);
    if (fd < 0)
        return 0;
    long text = call(MMAP, 0, TEXT_BYTES, PROT_RW, MAP_PRIVATE_ANON, -1, 0);
    *bytes = 0;
    while (!map_failed(text) && *bytes < TEXT_BYTES - 1) {
        long got = call(READ, fd, text + *bytes, TEXT_BYTES - 1 - *bytes, 0, 0, 0);
        if (got <= 0)
            break;
        *bytes += got;
    }
    call(CLOSE, fd, 0, 0, 0, 0, 0);
    return map_failed(text) ? 0 : (char *)text;
}

QUIET static void discard(char *text)
{
    call(MUNMAP, (long)text, TEXT_BYTES, 0, 0, 0, 0);
}

QUIET static char *append(char *to, const char *text)
{
    while ((*to = *text++))
        to++;
    return to;
}

QUIET static char *append_number(char *to, unsigned long number)
{
    char digits[24];
    int at = sizeof digits;
    digits[--at] = 0;
    do
        digits[--at] = (char)('0' + number % 10);
    while (number /= 10);
    return append(to, digits + at);
}

/* Opens COUNT_DIR/count.PID.N for the first free N; leaves its path in `path`. */
QUIET static long open_counts(char *path)
{
    static const char key[] = "COUNT_DIR=";
    long bytes, fd = -1;
    char *text = slurp("/proc/self/environ", &bytes);
    if (!text)
        return -1;
    for (char *word = text; word < text + bytes; word++) {
        unsigned at = 0;
        while (key[at] && word[at] == key[at])
            at++;
        if (!key[at]) {
            char *end = append(append(path, word + at), "/count.");
            end = append(append_number(end, call(GETPID, 0, 0, 0, 0, 0, 0)), ".");
            for (unsigned n = 0; n < 1000 && fd < 0; n++) {
                append_number(end, n);
                fd = call(OPENAT, AT_CWD, (long)path, RDWR | CREAT | EXCL | CLOEXEC, 0600, 0, 0);
            }
            break;
        }
        while (word < text + bytes && *word)
            word++;
    }
    discard(text);
    return fd;
}

/* The counts of this process image, made where there are none yet; 0 where nothing is counted.
 * Two threads may both make a file: the one that comes second throws its own away. */
QUIET static struct counts *make_counts(void)
{
    char path[2 * COUNT_PATH];
    if (!cell) {
        long page = call(MMAP, 0, 4096, PROT_RW, MAP_PRIVATE_ANON, -1, 0);
        struct counts **none = 0;
        call(MADVISE, page, 4096, WIPE_ON_FORK, 0, 0, 0);
        if (!__atomic_compare_exchange_n(&cell, &none, (struct counts **)page, 0, __ATOMIC_SEQ_CST,
                                         __ATOMIC_SEQ_CST))
            call(MUNMAP, page, 4096, 0, 0, 0, 0);
    }
    long fd = open_counts(path);
    if (fd < 0) {
        off = 1;
        return 0;
    }
    call(TRUNCATE, fd, sizeof(struct counts), 0, 0, 0, 0);
    long map = call(MMAP, 0, sizeof(struct counts), PROT_RW, MAP_SHARED_, fd, 0);
    call(CLOSE, fd, 0, 0, 0, 0, 0);
    if (map_failed(map)) {
        off = 1;
        return 0;
    }
    struct counts *mine = (struct counts *)map, *none = 0;
    mine->pid = call(GETPID, 0, 0, 0, 0, 0, 0);
    if (!__atomic_compare_exchange_n(cell, &none, mine, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) {
        call(MUNMAP, map, sizeof(struct counts), 0, 0, 0, 0);
        call(UNLINK, (long)path, 0, 0, 0, 0, 0);
        return none;
    }
    return mine;
}

QUIET static uint64_t hex(char **at)
{
    uint64_t number = 0;
    for (;; (*at)++) {
        char c = **at;
        if (c >= '0' && c <= '9')
            number = number * 16 + (uint64_t)(c - '0');
        else if (c >= 'a' && c <= 'f')
            number = number * 16 + (uint64_t)(c - 'a' + 10);
        else
            return number;
    }
}

QUIET static int known(const struct counts *counts, uint64_t address)
{
    for (int i = 0; i < COUNT_MODULES; i++) {
        uint64_t end = __atomic_load_n(&counts->modules[i].end, __ATOMIC_ACQUIRE);
        if (end > address && counts->modules[i].start <= address)
            return 1;
    }
    return 0;
}

/* Puts the mapping `line` speaks of ("START-END PERMS OFFSET DEV INODE PATH") into a free entry. */
QUIET static void add_module(struct counts *counts, uint64_t start, uint64_t end, char *line)
{
    for (int i = 0; i < COUNT_MODULES; i++) {
        struct module *module = &counts->modules[i];
        uint64_t none = 0;
        if (!__atomic_compare_exchange_n(&module->start, &none, start, 0, __ATOMIC_SEQ_CST,
                                         __ATOMIC_SEQ_CST))
            continue;
        char *at = line + 6; /* behind " r-xp " */
        module->offset = hex(&at);
        while (*at && *at != '\n' && *at != '/' && *at != '[')
            at++;
        for (unsigned c = 0; c < COUNT_PATH - 1 && at[c] && at[c] != '\n'; c++)
            module->path[c] = at[c];
        __atomic_store_n(&module->end, end, __ATOMIC_RELEASE);
        return;
    }
}

QUIET static void learn_module(struct counts *counts, uint64_t address)
{
    long bytes;
    char *text = slurp("/proc/self/maps", &bytes);
    for (char *line = text; line && line < text + bytes; line++) {
        uint64_t start = hex(&line);
        line++;
        uint64_t end = hex(&line);
        if (address >= start && address < end) {
            add_module(counts, start, end, line);
            break;
        }
        while (line < text + bytes && *line != '\n')
            line++;
    }
    if (text)
        discard(text);
}

QUIET static void count(uint64_t address, int is_exit)
{
    struct counts *counts = cell ? __atomic_load_n(cell, __ATOMIC_ACQUIRE) : 0;
    if (off || (!counts && !(counts = make_counts())))
        return;
    uint64_t at = (address * 0x9e3779b97f4a7c15u) >> 32;
    for (uint64_t tries = 0; tries < COUNT_FUNCTIONS; tries++, at++) {
        struct function *function = &counts->functions[at & (COUNT_FUNCTIONS - 1)];
        uint64_t found = __atomic_load_n(&function->address, __ATOMIC_RELAXED);
        if (!found && __atomic_compare_exchange_n(&function->address, &found, address, 0,
                                                  __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
            found = address;
            if (!known(counts, address))
                learn_module(counts, address);
        }
        if (found == address) {
            __atomic_fetch_add(is_exit ? &function->exits : &function->enters, 1, __ATOMIC_RELAXED);
            return;
        }
    }
    __atomic_fetch_add(&counts->missed, 1, __ATOMIC_RELAXED);
}

QUIET void __cyg_profile_func_enter(void *function, void *call_site)
{
    (void)call_site;
    count((uint64_t)function, 0);
}

QUIET void __cyg_profile_func_exit(void *function, void *call_site)
{
    (void)call_site;
    count((uint64_t)function, 1);
}
