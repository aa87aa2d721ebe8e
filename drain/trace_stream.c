/* The drain of callsight: moves the events of a ring in shared memory to a server over TCP.
 *
 * In: a ring, version 2 or 3 (trace_shm.h), that traced processes are filling. Out: one stream of
 * events, with every loss told and counted. Nothing it finds in the map is trusted, nothing it
 * does makes a traced process wait, and what was not handed to the socket stays in the ring for
 * the next drain. It writes no file, starts no thread and knows nothing of functions.
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
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

#include "trace_shm.h"
#include "zstd.h"

#include "stream/base.h"
#include "stream/wire.h"
#include "stream/hello.h"
#include "stream/ring.h"
#include "stream/pages.h"
#include "stream/look.h"
#include "stream/move.h"
#include "stream/names.h"
#include "stream/pool.h"
#include "stream/bytes.h"

static const char usage[] =
    "usage: trace_stream SHM HOST PORT\n"
    "\n"
    "Sends the events of the ring SHM (the name in TRACE_SHM, like /callsight0) to the\n"
    "`callsight serve` on HOST, which listens on PORT (9001 unless told otherwise).\n"
    "Waits for the ring, and ends when every traced process is gone and all is sent.\n"
    "SIGTERM, SIGINT and SIGHUP end it early; the ring stays for the next trace_stream.\n"
    "\n"
    "Exit codes: 0 done, 1 the connection failed, 2 bad arguments or an unusable ring.\n";

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

static void send_handshake(struct stream *stream, const struct ring *ring)
{
    struct callsight_handshake handshake;
    memset(&handshake, 0, sizeof handshake);
    memcpy(handshake.magic, CALLSIGHT_STREAM_MAGIC, sizeof handshake.magic);
    handshake.version = CALLSIGHT_STREAM_VERSION;
    handshake.event_size = EVENT_BYTES;
    handshake.flags = ring->header->flags;
    handshake.load_bias = ring->header->load_bias;
    handshake.tick_hz = ring->header->tick_hz;
    handshake.t0_ticks = ring->header->t0_ticks;
    handshake.t0_ns = ring->header->t0_ns;
    handshake.hook_ns = ring->header->hook_ns;
    send_all(stream, &handshake, sizeof handshake);
}

/* Sends one ring, to its end or until told to stop. */
static void drain_ring(struct ring *ring, struct stream *stream)
{
    struct counts counts;
    uint32_t reason;
    stream_connect(stream);
    send_handshake(stream, ring);
    if (ring->version == CALLSIGHT_RING_VERSION)
        reason = drain_pages(ring, stream, &counts);
    else
        reason = drain_bytes(ring, stream, &counts);
    send_end(stream, reason, &counts);
    release_claim();
    say_counts(&counts, reason);
}

static void check_port(const char *port)
{
    char *end;
    long number = strtol(port, &end, 10);
    if (!isdigit((unsigned char)port[0]) || *end != 0 || number < 1 || number > 65535)
        fail(EXIT_REFUSED, "use the port \"%s\": it must be a number from 1 to 65535", port);
}

int main(int argc, char **argv)
{
    static struct ring ring;
    static struct stream stream;
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
    if (argc != 4) {
        fputs(usage, stderr);
        return EXIT_REFUSED;
    }
    ring_name(&ring, argv[1]);
    check_port(argv[3]);
    install_signals();
    stream_prepare(&stream, argv[2], argv[3]);
    remove_unborn();
    while (ring_wait(&ring)) {
        ring_claim(&ring);
        if (wait_for_process(&ring)) {
            drain_ring(&ring, &stream);
            return 0;
        }
        release_claim();
        ring_unmap(&ring);
    }
    say("stopped before a traced program had begun");
    return 0;
}
