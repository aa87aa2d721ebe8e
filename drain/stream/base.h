/* What every part needs: the numbers, messages, time, signals, and whether a process is alive. */

#define EXIT_BROKEN 1  /* the server or the file failed */
#define EXIT_REFUSED 2 /* bad arguments, or a ring that cannot be used */

#define MS 1000000ull
#define SECOND 1000000000ull

#define CONNECT_TRIES_NS (5 * SECOND)
#define CLAIM_TRIES_NS (500 * MS)  /* a drain that was killed may not be quite dead yet */
#define HALF_MADE_NS (2 * SECOND)  /* a ring without a header: its maker is slow, or dead */
#define UNBORN_S 60                 /* in seconds: nobody makes a ring for so long */
#define UNSTORED_NS (1 * SECOND)   /* a reserved slot of a live thread that nobody stores to */
#define OVER_NS (200 * MS)         /* a forking daemon's child attaches at its first hook */
#define OVER_MAPPED_NS (2 * SECOND) /* the same while a process still has the ring mapped */
#define LIFE_CHECK_NS (20 * MS)
#define LOOK_AT_ALL_NS (10 * MS)
#define SWEEP_NS (50 * MS)
#define STOP_NS (2 * SECOND)
#define SETTLE_NS (200 * MS)
#define NAP_SHORT_NS (50 * 1000ull)
#define NAP_LONG_NS (2 * MS)
#define FILL_BYTES_PER_NS 3 /* how fast two busy cores fill a ring */
/* A hook interrupted by a signal whose handler is traced leaves its slot open for a while; this
 * many of them inside one another are looked for in a page that is still written. */
#define NESTED_HOOKS 8

#define FOREIGN                                                                                  \
    "it is of another pid namespace, as of another container: run trace_stream there, or share " \
    "the namespace"

#define EVENT_BYTES CALLSIGHT_EVENT_BYTES
#define PAGE_START CALLSIGHT_PAGE_HEADER_BYTES
#define MAX_SLOTS (2 * CALLSIGHT_RING_MAX_PAGES)

/* ---- Words that others change meanwhile ----------------------------------------------------- */

/* The layouts keep them aligned; on i386 the compiler must be told. */
typedef uint64_t aligned_word __attribute__((aligned(8)));

static uint32_t load16(const uint16_t *at)
{
    return __atomic_load_n(at, __ATOMIC_ACQUIRE);
}

static uint32_t load32(const uint32_t *at)
{
    return __atomic_load_n(at, __ATOMIC_ACQUIRE);
}

static uint64_t load64(const uint64_t *at)
{
    return __atomic_load_n((const aligned_word *)(const void *)at, __ATOMIC_ACQUIRE);
}

static void store16(uint16_t *at, uint16_t value)
{
    __atomic_store_n(at, value, __ATOMIC_RELEASE);
}

static void store32(uint32_t *at, uint32_t value)
{
    __atomic_store_n(at, value, __ATOMIC_RELEASE);
}

static void store64(uint64_t *at, uint64_t value)
{
    __atomic_store_n((aligned_word *)(void *)at, value, __ATOMIC_RELEASE);
}

static void add64(uint64_t *at, uint64_t value)
{
    __atomic_fetch_add((aligned_word *)(void *)at, value, __ATOMIC_ACQ_REL);
}

static void set_bits64(uint64_t *at, uint64_t bits)
{
    __atomic_fetch_or((aligned_word *)(void *)at, bits, __ATOMIC_ACQ_REL);
}

static void clear_bits64(uint64_t *at, uint64_t bits)
{
    __atomic_fetch_and((aligned_word *)(void *)at, ~bits, __ATOMIC_ACQ_REL);
}

/* Changes `expected` to `value`; 0 when it was something else. */
static int replace32(uint32_t *at, uint32_t expected, uint32_t value)
{
    return __atomic_compare_exchange_n(at, &expected, value, 0, __ATOMIC_ACQ_REL,
                                       __ATOMIC_ACQUIRE);
}

/* The time of a stored event; 0 where none is stored yet. */
static uint64_t slot_ts(const unsigned char *event)
{
    return load64((const uint64_t *)(const void *)event);
}

/* ---- Messages, time, signals ---------------------------------------------------------------- */

static volatile sig_atomic_t stop_asked;
/* The control block whose `drain_pid` is ours, to give it back on every way out. */
static struct callsight_ring_control *claimed;

static void release_claim(void)
{
    if (claimed != NULL) {
        /* Still there, so it is not finished after all: the next drain will go on with it. */
        replace32(&claimed->command, CALLSIGHT_COMMAND_CLOSED, CALLSIGHT_COMMAND_RECORD);
        store64(&claimed->drain_start, 0);
        store32(&claimed->drain_pid, 0);
    }
    claimed = NULL;
}

static void say_with(const char *format, va_list arguments) __attribute__((format(printf, 1, 0)));
static void say_with(const char *format, va_list arguments)
{
    static const char digits[] = "0123456789abcdef";
    char text[2048], line[4 * sizeof text];
    size_t count = (size_t)snprintf(line, sizeof line, "trace_stream: ");
    if (vsnprintf(text, sizeof text, format, arguments) < 0)
        return;
    /* What others chose, like a name, may hold anything, and is to stay in its line. */
    for (const char *at = text; *at != 0 && count < sizeof line - 5; at++) {
        if (!iscntrl((unsigned char)*at)) {
            line[count++] = *at;
            continue;
        }
        memcpy(line + count, "\\x", 2);
        line[count + 2] = digits[(unsigned char)*at >> 4];
        line[count + 3] = digits[*at & 15];
        count += 4;
    }
    line[count++] = '\n';
    /* In one piece: another process may write there too. */
    ssize_t written = write(STDERR_FILENO, line, count);
    (void)written;
}

static void say(const char *format, ...) __attribute__((format(printf, 1, 2)));
static void say(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    say_with(format, arguments);
    va_end(arguments);
}

static void fail(int code, const char *format, ...)
    __attribute__((noreturn, format(printf, 2, 3)));
static void fail(int code, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    say_with(format, arguments);
    va_end(arguments);
    release_claim();
    exit(code);
}

static uint64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * SECOND + (uint64_t)now.tv_nsec;
}

/* Ends early when a signal comes. */
static void nap(uint64_t ns)
{
    struct timespec time = { (time_t)(ns / SECOND), (long)(ns % SECOND) };
    nanosleep(&time, NULL);
}

static void on_stop(int signal_number)
{
    (void)signal_number;
    stop_asked = 1;
}

/* The file behind the map was cut short while we read it. Nothing can be taken from it any more. */
static void on_bus_error(int signal_number)
{
    static const char message[] =
        "trace_stream: read the ring: its file was made smaller while it was in use\n";
    ssize_t written = write(STDERR_FILENO, message, sizeof message - 1);
    (void)written;
    (void)signal_number;
    _exit(EXIT_REFUSED);
}

/* Sets the action of a signal, unless whoever started us had it ignored, as nohup does. */
static void set_unless_ignored(int signal_number, const struct sigaction *action)
{
    struct sigaction before;
    if (sigaction(signal_number, NULL, &before) == 0 && before.sa_handler != SIG_IGN)
        sigaction(signal_number, action, NULL);
}

static void install_signals(void)
{
    struct sigaction action;
    memset(&action, 0, sizeof action);
    sigemptyset(&action.sa_mask);
    action.sa_handler = on_stop;
    set_unless_ignored(SIGTERM, &action);
    set_unless_ignored(SIGINT, &action);
    set_unless_ignored(SIGHUP, &action);
    action.sa_handler = on_bus_error;
    sigaction(SIGBUS, &action, NULL);
    signal(SIGPIPE, SIG_IGN);
    /* A file may be no larger than `ulimit -f` says; what would be fails with an error instead. */
    signal(SIGXFSZ, SIG_IGN);
}

/* `value` as `count` bytes, low byte first. */
static void put_le(unsigned char *out, uint64_t value, size_t count)
{
    for (size_t at = 0; at < count; at++)
        out[at] = (unsigned char)(value >> (8 * at));
}

static uint64_t get_le(const unsigned char *bytes, size_t count)
{
    uint64_t value = 0;
    for (size_t at = 0; at < count; at++)
        value |= (uint64_t)bytes[at] << (8 * at);
    return value;
}

/* A word in the order of this machine, wherever it stands. */
static inline uint64_t word_at(const unsigned char *bytes)
{
    uint64_t word;
    memcpy(&word, bytes, sizeof word);
    return word;
}

/* get_le of four bytes, in the form that compilers know for one load. */
static inline uint32_t get_le32(const unsigned char *bytes)
{
    return bytes[0] | (uint32_t)bytes[1] << 8 | (uint32_t)bytes[2] << 16
           | (uint32_t)bytes[3] << 24;
}

/* ---- Processes ------------------------------------------------------------------------------ */

struct process_stat {
    char state;
    uint64_t threads;
    uint64_t start;
};

static size_t read_text(const char *path, char *out, size_t out_bytes)
{
    int file = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t count = file < 0 ? 0 : read(file, out, out_bytes - 1);
    if (file >= 0)
        close(file);
    out[count > 0 ? count : 0] = 0;
    return count > 0 ? (size_t)count : 0;
}

/* Fields 3, 20 and 22 of /proc/PID/stat; 0 where it cannot be read. */
static int read_process_stat(uint32_t pid, struct process_stat *stat)
{
    char path[64], text[1024];
    snprintf(path, sizeof path, "/proc/%" PRIu32 "/stat", pid);
    read_text(path, text, sizeof text);
    /* The name in field 2 may hold anything, but the last parenthesis is its end. */
    char *at = strrchr(text, ')');
    for (unsigned field = 3; at != NULL && (at = strchr(at, ' ')) != NULL; field++) {
        at++;
        if (field == 3)
            stat->state = *at;
        else if (field == 20)
            stat->threads = strtoull(at, NULL, 10);
        else if (field == 22) {
            stat->start = strtoull(at, NULL, 10);
            return 1;
        }
    }
    return 0;
}

/* The pid namespace we are in: inode of /proc/self/ns/pid; 0 where there is no /proc. */
static uint64_t own_namespace(void)
{
    char link[64];
    uint64_t number = 0;
    ssize_t count = readlink("/proc/self/ns/pid", link, sizeof link - 1);
    link[count > 0 ? count : 0] = 0;
    return sscanf(link, "pid:[%" SCNu64 "]", &number) == 1 ? number : 0;
}

/* Whether /proc is that of another pid namespace: it says nothing of the pids that we know. */
static int proc_is_anothers(void)
{
    char shown[16];
    ssize_t count = readlink("/proc/self", shown, sizeof shown - 1);
    shown[count > 0 ? count : 0] = 0;
    if (count >= 0 || errno != ENOENT)
        return count >= 0 && strtol(shown, NULL, 10) != (long)getpid();
    /* In a namespace that it does not show we have no number, but the link is there. */
    int link = open("/proc/self", O_PATH | O_NOFOLLOW | O_CLOEXEC);
    if (link >= 0)
        close(link);
    return link >= 0;
}

/* Whether what was made in this pid namespace is for others than us: pids tell the living from the
 * dead in one only. 0 is one that is not known. */
static int is_foreign(uint64_t made_in)
{
    uint64_t own = own_namespace();
    return made_in != 0 && own != 0 && made_in != own;
}

/* `start` 0 means that it is not known. */
static int is_alive_now(uint32_t pid, uint64_t start)
{
    struct process_stat stat = { 0, 0, 0 };
    if (pid == 0 || pid > INT32_MAX)
        return 0;
    if (kill((pid_t)pid, 0) != 0 && errno == ESRCH)
        return 0;
    if (!read_process_stat(pid, &stat))
        return 1; /* there, but hidden from us */
    /* A zombie is dead, unless it is only the first thread that has ended. */
    if ((stat.state == 'Z' || stat.state == 'X') && stat.threads <= 1)
        return 0;
    return start == 0 || stat.start == start;
}

/* The same, asked again at most every LIFE_CHECK_NS. Who is dead stays dead. */
static int is_dead(uint32_t pid, uint64_t start, uint64_t now)
{
    static struct life {
        uint32_t pid;
        int dead;
        uint64_t start;
        uint64_t checked_ns;
    } lives[256];
    struct life *life = &lives[pid % 256];
    int same = life->pid == pid && life->start == start && life->checked_ns != 0;
    if (same && (life->dead || now - life->checked_ns < LIFE_CHECK_NS))
        return life->dead;
    life->pid = pid;
    life->start = start;
    life->dead = !is_alive_now(pid, start);
    life->checked_ns = now;
    return life->dead;
}
