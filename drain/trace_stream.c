/* The drain of callsight: moves the events of a ring in shared memory to a server, a file, or both.
 *
 * In: a ring, version 2 or 3 (trace_shm.h), that traced processes are filling. Out: one stream of
 * events, with every loss told and counted. Nothing it finds in the map is trusted, nothing it
 * does makes a traced process wait, and what no sink has stays in the ring for the next drain, as
 * far as the ring can spare it. It starts no thread and knows nothing of functions.
 *
 *     cc -O2 -o trace_stream trace_stream.c zstd.c
 */

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#ifndef _FILE_OFFSET_BITS
#define _FILE_OFFSET_BITS 64 /* inode numbers, on machines of 32 bits */
#endif

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <link.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/sysmacros.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "trace_shm.h"
#include "zstd.h"

#include "stream/base.h"
#include "stream/hello.h"
#include "stream/pack.h"
#include "stream/parcel.h"
#include "stream/find.h"
#include "stream/live.h"
#include "stream/save.h"
#include "stream/outlet.h"
#include "stream/sending.h"
#include "stream/spare.h"
#include "stream/ring.h"
#include "stream/pages.h"
#include "stream/look.h"
#include "stream/rest.h"
#include "stream/move.h"
#include "stream/names.h"
#include "stream/pool.h"
#include "stream/bytes.h"

static const char usage[] =
    "usage: trace_stream [OPTIONS] SHM [HOST PORT]\n"
    "\n"
    "Sends the events of the ring SHM (the name in TRACE_SHM, like /callsight0) to the\n"
    "`callsight serve` on HOST, which listens on PORT (9001 unless told otherwise).\n"
    "Waits for the ring, and ends when every traced process is gone and all is sent.\n"
    "SIGTERM, SIGINT and SIGHUP end it early; the ring stays for the next trace_stream.\n"
    "\n"
    "  --file DIR      keep a capture in DIR, beside the server or in its place\n"
    "  --budget BYTES  most bytes of that capture; K, M or G may follow the number\n"
    "  --reconnect     when the server is away, try again for as long as it takes\n"
    "\n"
    "Exit codes: 0 done, 1 the server or the file failed, 2 bad arguments or an unusable ring.\n";

/* Waits until the first traced process has written what its times mean; 0 to begin anew, with
 * another ring or because we were told to stop. */
static int wait_for_process(const struct ring *ring)
{
    while (load64(&ring->header->t0_ns) == 0) {
        if (stop_asked || ring_is_gone(ring))
            return 0;
        nap(MS);
    }
    return 1;
}

/* Says what became of the events in a sink, in enters and exits; the rest should be none. */
static void say_sink(const struct outlet *outlet, const struct sink *sink, const char *name)
{
    uint64_t dropped = sink_dropped(sink);
    if (!sink->on)
        return;
    say("%s: %" PRIu64 " delivered, %" PRIu64 " dropped%s, unaccounted=%" PRId64, name,
        sink->delivered, dropped, dropped_text(sink->dropped),
        (int64_t)(outlet->events - sink->delivered - dropped));
}

/* Where there is one sink, what it did not get was not forwarded. */
static void count_sink(struct counts *counts, const struct sink *sink)
{
    for (uint32_t cause = 0; cause < CALLSIGHT_CAUSES; cause++) {
        counts->dropped[cause] += sink->dropped[cause];
        counts->events -= sink->dropped[cause];
    }
}

/* Drains one ring, to its end or until told to stop; returns the exit code. */
static int drain_ring(struct ring *ring, struct outlet *outlet)
{
    struct sink *live = &outlet->live.sink, *save = &outlet->save.sink;
    struct sink *only = save->on ? save : live;
    struct counts counts;
    uint32_t reason;
    int is_first = load64(&ring->header->tail) == 0;
    if (ring->version == CALLSIGHT_RING_VERSION)
        reason = drain_pages(ring, outlet, &counts);
    else
        reason = drain_bytes(ring, outlet, &counts);
    release_claim();
    struct rest rest = { counts.emitted - counts.delivered - sum_dropped(&counts), 0 };
    if (reason != CALLSIGHT_END_DONE && ring->version == CALLSIGHT_RING_VERSION)
        rest = left_to_next(ring, outlet, &counts, is_first);
    if (live->on != save->on) {
        uncount_kept_of(outlet, only);
        count_sink(&counts, only);
    }
    /* A server alone that has everything has as many as the last line says. */
    if (save->on || sink_dropped(live) > 0)
        say_sink(outlet, live, "live");
    say_sink(outlet, save, "file");
    say_counts(&counts, reason, (int64_t)rest.in_ring, rest.untold);
    int failed = live->dead || save->dead || outlet->save.has_lost || live->why[0] != 0
                 || live->dropped[CALLSIGHT_CAUSE_REJECTED] != 0 || outlet->live.doubtful_events > 0;
    return failed ? EXIT_BROKEN : 0;
}

/* ---- Arguments ------------------------------------------------------------------------------- */

struct arguments {
    const char *ring;
    const char *host;
    const char *port;
    const char *folder;
    uint64_t budget;
    int reconnects;
};

/* `why` is of the word; NULL where none is to blame. */
static void misuse(const char *word, const char *why) __attribute__((noreturn));
static void misuse(const char *word, const char *why)
{
    if (word != NULL)
        say("use \"%s\": %s", word, why);
    fputs(usage, stderr);
    exit(EXIT_REFUSED);
}

static void check_port(const char *port)
{
    char *end;
    long number = strtol(port, &end, 10);
    if (!isdigit((unsigned char)port[0]) || *end != 0 || number < 1 || number > 65535)
        fail(EXIT_REFUSED, "use the port \"%s\": it must be a number from 1 to 65535", port);
}

static uint64_t read_budget(const char *text)
{
    static const char units[] = "KMG";
    char *end;
    errno = 0;
    unsigned long long number = strtoull(text, &end, 10);
    const char *unit = *end != 0 ? strchr(units, toupper((unsigned char)*end)) : NULL;
    unsigned shift = unit != NULL ? 10 * (unsigned)(unit - units + 1) : 0;
    if (!isdigit((unsigned char)text[0]) || errno != 0 || number == 0
        || number > UINT64_MAX >> 1 >> shift || (*end != 0 && (unit == NULL || end[1] != 0)))
        fail(EXIT_REFUSED, "use the budget \"%s\": it must be a number of bytes, like 64M", text);
    return (uint64_t)number << shift;
}

static void read_arguments(struct arguments *to, int count, char **words)
{
    const char *names[3] = { NULL, NULL, NULL };
    unsigned named = 0;
    int only_names = 0;
    for (int at = 1; at < count; at++) {
        const char *word = words[at];
        int has_value = at + 1 < count;
        if (only_names && named < 3)
            names[named++] = word;
        else if (!only_names && strcmp(word, "--") == 0)
            only_names = 1;
        else if (strcmp(word, "--file") == 0 && has_value)
            to->folder = words[++at];
        else if (strcmp(word, "--budget") == 0 && has_value)
            to->budget = read_budget(words[++at]);
        else if (strcmp(word, "--file") == 0 || strcmp(word, "--budget") == 0)
            misuse(word, "its value must follow");
        else if (strcmp(word, "--reconnect") == 0)
            to->reconnects = 1;
        else if (!only_names && word[0] == '-' && !isdigit((unsigned char)word[1]))
            misuse(word, "there is no such option");
        else if (named == 3)
            misuse(word, "it is one word too many");
        else
            names[named++] = word;
    }
    if (named == 2)
        misuse(names[1], "a host needs a port behind it");
    if (named == 0 || (named == 1 && to->folder == NULL))
        misuse(names[0], "it needs HOST PORT behind it, or --file DIR");
    to->ring = names[0];
    to->host = names[1];
    to->port = names[2];
    if (to->port != NULL)
        check_port(to->port);
}

int main(int argc, char **argv)
{
    static struct ring ring;
    static struct outlet outlet;
    static struct arguments arguments;
    if (argc == 2 && (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0)) {
        fputs(usage, stdout);
        return 0;
    }
    if (argc == 2 && strcmp(argv[1], "--version") == 0) {
        printf("trace_stream: wire version %d, ring versions %d and %d, zstd %s\n",
               CALLSIGHT_STREAM_VERSION, CALLSIGHT_RING_VERSION_STREAM, CALLSIGHT_RING_VERSION,
               ZSTD_versionString());
        return 0;
    }
    read_arguments(&arguments, argc, argv);
    ring_name(&ring, arguments.ring);
    install_signals();
    atexit(spare_remove);
    outlet_prepare(&outlet);
    if (arguments.host != NULL)
        live_prepare(&outlet.live, arguments.host, arguments.port, arguments.reconnects);
    if (arguments.folder != NULL)
        save_prepare(&outlet.save, arguments.folder, arguments.budget);
    if (outlet.save.sink.dead && !outlet.live.sink.on)
        return EXIT_BROKEN;
    remove_unborn();
    while (ring_wait(&ring)) {
        ring_claim(&ring);
        live_recall(&outlet.live);
        if (wait_for_process(&ring))
            return drain_ring(&ring, &outlet);
        release_claim();
        ring_unmap(&ring);
    }
    say("stopped before a traced program had begun");
    return 0;
}
