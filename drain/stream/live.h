/* The live sink: one connection to a server, and the parcels it has not acknowledged.
 *
 * In: a queue of parcels. Out: their bytes, in order, on a socket that never blocks us. A server
 * that greets is sent blocks, which stay in the queue until it acknowledges them, so that after a
 * reconnect it gets those it does not have; to one that does not greet in time (version 2) chunks
 * of raw events are sent, which are done with when the socket has them, and count as unacked if it
 * breaks. A server that is stopped looks like that one, until it reads nothing more: then it is given
 * blocks all the same, of which the queue holds many more events, in case it greets when it goes on. One
 * that has greeted a drain before this one, as the ring tells, is waited for: its raw events would have no
 * numbers, and nobody would know which of them that drain had sent.
 * One that has greeted and is silent for too long is connected to anew where that was asked for.
 */

#define GREETING_NS SECOND      /* how long a server may take to greet that will be sent blocks */
#define HURRIED_NS (50 * MS)    /* ... when the ring fills up meanwhile */
#define AT_STAKE_NS (5 * SECOND) /* ... when blocks are lost if it does not */
#define STALL_NS (100 * MS)     /* a server that takes nothing for so long does not read ... */
#define FULL_STALL_NS (10 * MS) /* ... when there is no time to wait for it */
#define RETRY_NS (100 * MS)
#define ANSWER_NS (500 * MS) /* after so long it is said that nobody answers */
#define DEAD_PEER_MS 6000 /* for so long the other kernel has answered nothing */
#define PEER_CHECK_NS (500 * MS)
/* For so long a server that greets may acknowledge nothing of what it has. A slow disk or a busy machine
 * takes less, and `callsight run` gives its drain 10 s beyond the end of the program. Where a new
 * connection brings no word either, the next silence may be twice as long, up to the most. */
#define QUIET_NS (8 * SECOND)
#define QUIET_MOST_NS (60 * SECOND)
#define QUIET_FORGET_NS (600 * SECOND) /* behind the last silence it is as if there had been none */

enum live_state {
    LIVE_DOWN,
    LIVE_CONNECTING,
    LIVE_OPENING,  /* says who is sending, and listens for a greeting */
    LIVE_RESUMING, /* greeted; waits for the first acknowledgement */
    LIVE_SENDING,
};

/* What the server is sent. */
enum live_form {
    FORM_UNKNOWN, /* it has not said yet */
    FORM_RAW,
    FORM_BLOCKS,
};

struct live {
    struct sink sink;
    const char *host;
    const char *port;
    struct finder finder;
    struct addrinfo *addresses; /* NULL while they are not found */
    const struct addrinfo *address; /* that is tried */
    int reconnects;
    int has_file_beside;
    int socket;
    enum live_state state;
    enum live_form form;
    int said_down;
    int said_silent;
    int was_refused; /* it has failed to connect */
    int stalls;      /* it takes no more raw events, and is given blocks */
    uint64_t hurries_ns; /* since when the ring fills up; 0 while it does not */
    uint64_t took_ns;    /* when the socket last took something */
    uint64_t unshown_events; /* raw, that this connection took: nothing shows that the server read them */
    uint64_t unshown_records;
    uint64_t doubtful_events; /* of connections that are gone */
    uint64_t since_ns; /* when the state began; in LIVE_DOWN when it ends */
    uint64_t first_try_ns;
    size_t opening_count;
    size_t opening_sent;
    const unsigned char *opening; /* handshake and first chunk */
    uint32_t sent;          /* parcels at the front of the queue that the socket has */
    size_t sent_bytes;      /* of the parcel behind them */
    uint64_t peer_checked_ns;
    int64_t arrived;      /* bytes of the queue, then */
    uint64_t quiet_ns;    /* how long the server has said nothing that it should have */
    uint64_t patience_ns; /* how long it may, from the second time on */
    uint64_t gave_up_ns;  /* when it was too long; 0 for never */
    int said_quiet;
    size_t heard_count;
    unsigned char heard[CALLSIGHT_REPLY_HEADER_BYTES + CALLSIGHT_REPLY_MAX_BYTES];
    void (*on_command)(uint32_t command);
};

static void live_prepare(struct live *live, const char *host, const char *port, int reconnects)
{
    live->host = without_brackets(host);
    live->addresses = finder_begin(&live->finder, live->host, port, reconnects);
    live->port = port;
    live->reconnects = reconnects;
    live->socket = -1;
    live->sink.on = 1;
}

/* What the ring remembers the server by. */
static uint32_t live_mark(const struct live *live)
{
    uint32_t of_host = crc32c((const unsigned char *)live->host, strlen(live->host));
    return (31 * of_host + crc32c((const unsigned char *)live->port, strlen(live->port))) | 1;
}

/* Learns whether the server has greeted a drain before this one. */
static void live_recall(struct live *live)
{
    if (claimed != NULL && live->sink.on && load32(&claimed->greeted_by) == live_mark(live))
        live->form = FORM_BLOCKS;
}

static void live_enter(struct live *live, enum live_state state)
{
    live->state = state;
    live->since_ns = now_ns();
}

/* What the connection took and the server did not show to have read is not acknowledged. */
static void live_doubt(struct live *live)
{
    live->sink.delivered -= live->unshown_events;
    live->sink.dropped[CALLSIGHT_CAUSE_UNACKED] += live->unshown_events;
    live->sink.dropped_records[CALLSIGHT_CAUSE_UNACKED] += live->unshown_records;
    live->doubtful_events += live->unshown_events;
    live->unshown_events = live->unshown_records = 0;
}

static void live_close(struct live *live)
{
    live_doubt(live);
    if (live->socket >= 0)
        close(live->socket);
    live->socket = -1;
    live->stalls = 0;
    live->sent = 0;
    live->sent_bytes = live->opening_sent = live->heard_count = 0;
    live->arrived = 0;
    live->quiet_ns = 0;
}

/* This sink is at its end; `why` is for who reads the last lines. */
static void live_end(struct live *live, const char *what, const char *why)
{
    snprintf(live->sink.why, sizeof live->sink.why, "%s %s port %s: %s", what, live->host,
             live->port, why);
    live_close(live);
    live->state = LIVE_DOWN;
}

/* The connection is of no more use. Either another one is made, or this sink is at its end. */
static void live_lost(struct live *live, const char *why)
{
    if (live->reconnects) {
        uint64_t unshown = live->unshown_events;
        if (!live->said_down)
            say("send to %s port %s: %s; trying to connect again", live->host, live->port, why);
        if (unshown > 0)
            say("send to %s port %s: %" PRIu64 " events were sent there, and may be lost", live->host,
                live->port, unshown);
        live->said_down = 1;
        live_close(live);
        live->state = LIVE_DOWN;
        live->since_ns = now_ns() + RETRY_NS;
        return;
    }
    live_end(live, "send to", why);
}

static int live_is_over(const struct live *live)
{
    return live->sink.why[0] != 0;
}

/* ---- Connecting ------------------------------------------------------------------------------ */

static void set_socket_options(int handle)
{
    int on = 1, idle_s = 2, interval_s = 1, probes = 3;
    setsockopt(handle, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    setsockopt(handle, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
    setsockopt(handle, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof idle_s);
    setsockopt(handle, IPPROTO_TCP, TCP_KEEPINTVL, &interval_s, sizeof interval_s);
    setsockopt(handle, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof probes);
}

/* Asks again whether the server is found. */
static void live_find(struct live *live)
{
    int is_gone;
    live->addresses = finder_hear(&live->finder, &is_gone);
    live->since_ns = now_ns() + RETRY_NS;
    live->was_refused = 1;
    if (is_gone)
        live_end(live, "find", "the process that asks for it is gone");
}

/* Begins to connect to the next address of the server. */
static void live_dial(struct live *live)
{
    live->address = live->address != NULL && live->address->ai_next != NULL
                        ? live->address->ai_next : live->addresses;
    int type = live->address->ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK;
    live->socket = socket(live->address->ai_family, type, live->address->ai_protocol);
    live_enter(live, LIVE_CONNECTING);
    live->peer_checked_ns = live->since_ns;
    if (live->first_try_ns == 0)
        live->first_try_ns = live->since_ns;
    if (live->socket >= 0)
        set_socket_options(live->socket);
}

/* Connecting has failed: again soon, but not for ever if that was not asked for. */
static void live_refused(struct live *live, int error)
{
    char why[256];
    live->was_refused = 1;
    snprintf(why, sizeof why, "%s; is `callsight serve` running there?", strerror(error));
    if (!live->reconnects && now_ns() - live->first_try_ns >= CONNECT_TRIES_NS) {
        live_end(live, "connect to", why);
        return;
    }
    if (!live->said_down)
        say("connect to %s port %s: %s Trying again%s", live->host, live->port, why,
            live->reconnects ? "" : ", for some seconds");
    live->said_down = 1;
    live_close(live);
    live->state = LIVE_DOWN;
    live->since_ns = now_ns() + RETRY_NS;
}

static void live_connect(struct live *live)
{
    const struct addrinfo *address = live->address;
    int error = live->socket < 0 ? errno : 0;
    if (error == 0 && connect(live->socket, address->ai_addr, address->ai_addrlen) != 0)
        error = errno;
    if (error == 0 || error == EISCONN) {
        live_enter(live, LIVE_OPENING);
    } else if (error == EINPROGRESS || error == EALREADY || error == EINTR) {
        if (!live->said_down && now_ns() - live->since_ns >= ANSWER_NS) {
            say("connect to %s port %s: no answer yet; waiting", live->host, live->port);
            live->said_down = 1;
        }
        if (now_ns() - live->since_ns >= CONNECT_TRIES_NS)
            live_refused(live, ETIMEDOUT);
    } else {
        live_refused(live, error);
    }
}

/* ---- Sending --------------------------------------------------------------------------------- */

/* Events were packed before it was known that this server does not take blocks. Those that a block
 * which is still being filled has are counted later. */
static void live_say_rejected(const struct live *live, uint64_t events)
{
    if (events > 0)
        say("send to %s port %s: the server is older than this trace_stream, and does not take what "
            "was packed before it came; what comes from now on is sent as it takes it", live->host,
            live->port);
}

/* Sends what the socket takes; returns how much, or 0 where it takes none or is lost. */
static size_t live_send(struct live *live, const unsigned char *bytes, size_t count)
{
    ssize_t sent = send(live->socket, bytes, count, MSG_NOSIGNAL);
    if (sent >= 0) {
        live->took_ns = now_ns();
        return (size_t)sent;
    }
    if (errno != EAGAIN && errno != EINTR)
        live_lost(live, errno == EPIPE || errno == ECONNRESET ? "the server closed the connection"
                                                              : strerror(errno));
    return 0;
}

/* The server takes raw events only: blocks in the queue are not for it. */
static void live_reject_blocks(struct live *live)
{
    uint64_t before = live->sink.dropped[CALLSIGHT_CAUSE_REJECTED];
    for (uint32_t left = live->sink.count; left > 0; left--) {
        if (parcel_is_block(sink_at(&live->sink, 0))) {
            sink_drop(&live->sink, CALLSIGHT_CAUSE_REJECTED);
            continue;
        }
        struct parcel *parcel = sink_take(&live->sink);
        parcel->number = 0;
        sink_offer(&live->sink, parcel);
    }
    live->stalls = 0;
    live_say_rejected(live, live->sink.dropped[CALLSIGHT_CAUSE_REJECTED] - before);
}

/* The next parcel for the server; NULL for none. A block is for one that has greeted. */
static struct parcel *live_next(const struct live *live)
{
    struct parcel *parcel = sink_at(&live->sink, live->sent);
    int waits = parcel != NULL && live->form == FORM_RAW && parcel_is_block(parcel);
    return waits ? NULL : parcel;
}

/* The connection has all of a parcel that nobody will acknowledge. */
static void live_took_raw(struct live *live, const struct parcel *parcel)
{
    live->unshown_events += parcel->events;
    live->unshown_records += parcel->numbered;
    sink_delivered(&live->sink);
}

static void live_send_queue(struct live *live)
{
    struct parcel *parcel;
    while ((parcel = live_next(live)) != NULL) {
        size_t sent = live_send(live, parcel->bytes + live->sent_bytes,
                                parcel->count - live->sent_bytes);
        if (sent == 0)
            return;
        live->sent_bytes += sent;
        if (live->sent_bytes < parcel->count)
            continue;
        live->sent_bytes = 0;
        if (parcel->number != 0 || live->sent > 0)
            live->sent++; /* until it is acknowledged */
        else
            live_took_raw(live, parcel);
    }
}

/* ---- Listening ------------------------------------------------------------------------------- */

/* The server has all up to `number`. On a new connection that may be more than this one has sent,
 * later it cannot be. */
static void live_acknowledge(struct live *live, uint64_t number)
{
    struct parcel *parcel;
    int resumes = live->state == LIVE_RESUMING;
    while ((parcel = sink_at(&live->sink, 0)) != NULL && parcel->number <= number
           && (live->sent > 0 || (resumes && parcel->number != 0))) {
        if (live->sent > 0) {
            live->sent--;
            /* It has read this, and so all that came before. */
            live->unshown_events = live->unshown_records = 0;
        }
        sink_delivered(&live->sink);
    }
    if (resumes)
        live_enter(live, LIVE_SENDING);
}

static void live_hear_one(struct live *live, uint32_t kind, const unsigned char *payload,
                          size_t count)
{
    if (kind == CALLSIGHT_REPLY_GREETING && count >= CALLSIGHT_GREETING_BYTES
        && memcmp(payload, CALLSIGHT_GREETING_MAGIC, 8) == 0) {
        live->form = FORM_BLOCKS;
        if (claimed != NULL)
            store32(&claimed->greeted_by, live_mark(live));
        live->said_down = live->said_silent = live->stalls = 0;
        if (live->state == LIVE_OPENING)
            live_enter(live, LIVE_RESUMING);
    } else if (kind == CALLSIGHT_REPLY_ACKNOWLEDGE && count >= 8 && live->form == FORM_BLOCKS) {
        live_acknowledge(live, get_le(payload, 8));
    } else if (kind == CALLSIGHT_REPLY_COMMAND && count >= 4 && live->on_command != NULL) {
        live->on_command((uint32_t)get_le(payload, 4));
    }
}

/* Takes the whole replies out of what was heard; 0 when it is no reply. */
static int live_take_replies(struct live *live)
{
    size_t at = 0;
    while (live->heard_count - at >= CALLSIGHT_REPLY_HEADER_BYTES) {
        const unsigned char *reply = live->heard + at;
        uint32_t kind = (uint32_t)get_le(reply, 4), count = (uint32_t)get_le(reply + 4, 4);
        if (count > CALLSIGHT_REPLY_MAX_BYTES)
            return 0;
        if (live->heard_count - at - CALLSIGHT_REPLY_HEADER_BYTES < count)
            break;
        at += CALLSIGHT_REPLY_HEADER_BYTES + count;
        live_hear_one(live, kind, reply + CALLSIGHT_REPLY_HEADER_BYTES, count);
    }
    memmove(live->heard, live->heard + at, live->heard_count - at);
    live->heard_count -= at;
    return 1;
}

static void live_hear(struct live *live)
{
    for (;;) {
        ssize_t count = recv(live->socket, live->heard + live->heard_count,
                             sizeof live->heard - live->heard_count, MSG_DONTWAIT);
        if (count > 0) {
            live->heard_count += (size_t)count;
            live->quiet_ns = 0;
            if (!live_take_replies(live)) {
                live_lost(live, "the server says what is no reply");
                return;
            }
            continue;
        }
        if (count == 0)
            live_lost(live, "the server closed the connection");
        else if (errno != EAGAIN && errno != EINTR)
            live_lost(live, strerror(errno));
        return;
    }
}

/* ---- All of it ------------------------------------------------------------------------------- */

/* Nobody has greeted us in time: a server that knows raw events only. One that has greeted before
 * may only be slow, and another one in its place could not go on with our blocks: nothing is sent. */
static void live_speak_raw(struct live *live)
{
    if (live->form == FORM_BLOCKS) {
        if (!live->said_silent)
            say("send to %s port %s: the server does not greet any more, as an older one would not; "
                "it is sent nothing until it does", live->host, live->port);
        live->said_silent = 1;
        return;
    }
    live->form = FORM_RAW;
    live->said_down = 0;
    live->took_ns = now_ns();
    live_reject_blocks(live);
    live_enter(live, LIVE_SENDING);
}

static void live_open(struct live *live)
{
    live->opening_sent += live_send(live, live->opening + live->opening_sent,
                                    live->opening_count - live->opening_sent);
}

/* Whether the link is down: we send again and again, and nobody answers. A server that is only
 * stopped or slow lets its kernel answer, which TCP_USER_TIMEOUT does not tell apart. */
static int live_is_cut(const struct live *live)
{
    struct tcp_info info;
    socklen_t count = sizeof info;
    return getsockopt(live->socket, IPPROTO_TCP, TCP_INFO, &info, &count) == 0
           && (info.tcpi_retransmits > 0 || info.tcpi_probes > 1)
           && info.tcpi_last_ack_recv > DEAD_PEER_MS;
}

/* Whether the server should say something: that it has what it was sent or, where it has greeted this
 * stream before, who it is. Of one that says nothing it is known only that it takes nothing. */
static int live_is_owed(const struct live *live)
{
    if (live->form == FORM_BLOCKS)
        return live->state != LIVE_SENDING || live->sink.count > 0;
    return live->state == LIVE_SENDING && live_next(live) != NULL;
}

/* How many bytes of the queue the other kernel has; less than 0 when it lacks some of what was sent
 * before them. */
static int64_t live_arrived(const struct live *live)
{
    int unsent = 0;
    int64_t bytes = (int64_t)live->sent_bytes;
    for (uint32_t at = 0; at < live->sent; at++)
        bytes += (int64_t)sink_at(&live->sink, at)->count;
    return ioctl(live->socket, TIOCOUTQ, &unsent) == 0 ? bytes - unsent : bytes;
}

/* Takes note of how long the server has been silent. It is not while its kernel still gets the oldest
 * parcel, as on a slow link; and time in which we did not look, as we were stopped, does not count. */
static void live_count_silence(struct live *live, uint64_t passed_ns)
{
    const struct parcel *oldest = sink_at(&live->sink, 0);
    int64_t arrived = live_arrived(live);
    int arrives = arrived != live->arrived
                  && (oldest == NULL || arrived < (int64_t)oldest->count);
    live->arrived = arrived;
    if (arrives || !live_is_owed(live))
        live->quiet_ns = 0;
    else
        live->quiet_ns += passed_ns < SECOND ? passed_ns : SECOND;
}

/* Whether another connection would be sent again what this one has not acknowledged. */
static int live_can_resume(const struct live *live)
{
    return live->reconnects && live->form == FORM_BLOCKS;
}

/* How long the server may be silent. Raw events that it was sent are lost with the connection, and it
 * may be alive. Once we are told to stop, there is the time to try one other connection. */
static uint64_t live_patience(const struct live *live, uint64_t now)
{
    if (live->unshown_events > 0 && live_can_resume(live))
        return QUIET_MOST_NS;
    if (live->gave_up_ns != 0 && now - live->gave_up_ns < QUIET_FORGET_NS)
        return live->patience_ns;
    return stop_asked && live_can_resume(live) ? STOP_NS / 2 : QUIET_NS;
}

/* The server has been silent for too long: it is stopped, or the connection hangs on its way, in a
 * proxy or a tunnel. A new one costs no more than the bytes that are sent again; where there can be
 * none the server is waited for. */
static void live_mind_silence(struct live *live, uint64_t now)
{
    uint64_t patience_ns = live_patience(live, now), longer_ns = 2 * QUIET_NS;
    char why[64];
    if (live->quiet_ns < patience_ns)
        return;
    snprintf(why, sizeof why, "the server has %s nothing for %u s",
             live->form == FORM_BLOCKS ? "acknowledged" : "read",
             (unsigned)(live->quiet_ns / SECOND));
    if (!live_can_resume(live)) {
        if (!live->said_quiet)
            say("send to %s port %s: %s; waiting for it%s", live->host, live->port, why,
                live->form == FORM_BLOCKS ? " (--reconnect would try another connection)" : "");
        live->said_quiet = 1;
        return;
    }
    if (patience_ns > QUIET_NS)
        longer_ns = 2 * patience_ns;
    live->patience_ns = longer_ns < QUIET_MOST_NS ? longer_ns : QUIET_MOST_NS;
    live->gave_up_ns = now;
    live_lost(live, why);
}

/* Looks, not too often, whether the connection is still good for something. */
static void live_mind_peer(struct live *live)
{
    uint64_t now = now_ns(), passed_ns = now - live->peer_checked_ns;
    if (live->state < LIVE_OPENING || passed_ns < PEER_CHECK_NS)
        return;
    live->peer_checked_ns = now;
    live_count_silence(live, passed_ns);
    if (live_is_cut(live))
        live_lost(live, "nothing was heard of it for some time");
    else
        live_mind_silence(live, now);
}

/* Whether the server has had the time to greet. Raw events that were sent before it does cannot be
 * resumed, so who wants that rather waits, though the ring fills up; a file beside does not wait.
 * Where blocks are at stake it has longer: they are lost if it is taken for an older one. */
static int live_is_silent(const struct live *live)
{
    uint64_t silent = now_ns() - live->since_ns;
    int hurries = live->hurries_ns != 0 && (!live->reconnects || live->has_file_beside);
    if (live->form == FORM_BLOCKS || live->sink.count > 0)
        return silent >= AT_STAKE_NS;
    return silent >= (hurries ? HURRIED_NS : GREETING_NS);
}

/* Whether the server, which has not greeted, has taken all raw events that stand before a block: it
 * reads, and has had the time to greet. */
static int live_reads_raw(const struct live *live)
{
    return live->form == FORM_RAW && live->sink.count > 0 && live_next(live) == NULL
           && now_ns() - live->took_ns >= GREETING_NS;
}

/* Does what can be done at once. */
static void live_pump(struct live *live)
{
    if (!sink_works(&live->sink) || live_is_over(live))
        return;
    if (live->state == LIVE_DOWN && live->addresses == NULL && now_ns() >= live->since_ns)
        live_find(live);
    if (live->state == LIVE_DOWN && live->addresses != NULL && now_ns() >= live->since_ns)
        live_dial(live);
    if (live->state == LIVE_CONNECTING)
        live_connect(live);
    if (live->state >= LIVE_OPENING)
        live_hear(live);
    live_mind_peer(live);
    if (live->state >= LIVE_OPENING && live->opening_sent < live->opening_count)
        live_open(live);
    if (live->state == LIVE_OPENING && live_is_silent(live))
        live_speak_raw(live);
    if (live->state == LIVE_SENDING && live->opening_sent == live->opening_count)
        live_send_queue(live);
    if (live->state == LIVE_SENDING && live_reads_raw(live))
        live_reject_blocks(live);
}

/* Whether the server is given raw events. */
static int live_takes_raw(const struct live *live)
{
    return sink_works(&live->sink) && live->form == FORM_RAW && !live->stalls;
}

/* Notes that the server reads nothing: half of its queue is full, and the socket takes no more. */
static void live_look_for_stall(struct live *live)
{
    uint64_t wait_ns = live->sink.bytes > QUEUE_BYTES / 4 * 3 ? FULL_STALL_NS : STALL_NS;
    if (live->state == LIVE_SENDING && live_takes_raw(live) && !sink_has_room(&live->sink)
        && now_ns() - live->took_ns >= wait_ns)
        live->stalls = 1;
}

/* What to wait for before the next pump; the socket is -1 for none. */
static struct pollfd live_poll(const struct live *live)
{
    int sends = live->state == LIVE_CONNECTING || live->opening_sent < live->opening_count
                || (live->state == LIVE_SENDING && live_next(live) != NULL);
    struct pollfd ready = { live->socket, (short)(POLLIN | (sends ? POLLOUT : 0)), 0 };
    return ready;
}

/* What an older server does not show is believed; who reads the last lines should know of it. */
static void live_believe(struct live *live)
{
    say("send to %s port %s: the server, which is of an older version or does not answer, is not known "
        "to have read the %" PRIu64 " events that count as delivered there", live->host, live->port,
        live->unshown_events);
    live->unshown_events = live->unshown_records = 0;
}

/* Ends a stream that no acknowledgement ends, and gives the server a moment to take what is under
 * way; 0 if it is known that it did not. One that closes the connection then has read all of it. Some
 * never do: when their kernel has it all, we need not stay. */
static int live_finish_raw(struct live *live)
{
    uint64_t begin = now_ns(), now = begin;
    shutdown(live->socket, SHUT_WR);
    for (; now - begin < 3 * SECOND; now = now_ns()) {
        struct pollfd ready = { live->socket, POLLIN, 0 };
        char ignored[512];
        int unsent = 0;
        if (poll(&ready, 1, 50) > 0) {
            ssize_t count = recv(live->socket, ignored, sizeof ignored, MSG_DONTWAIT);
            if (count == 0) {
                live->unshown_events = live->unshown_records = 0;
                return 1;
            }
            if (count < 0 && errno != EAGAIN && errno != EINTR) {
                live_end(live, "end the stream to", strerror(errno));
                return 0;
            }
        }
        if (ioctl(live->socket, TIOCOUTQ, &unsent) == 0 && unsent == 0 && now - begin > 300 * MS) {
            live_believe(live);
            return 1;
        }
    }
    live_end(live, "end the stream to", "the server does not read what it is sent");
    return 0;
}
