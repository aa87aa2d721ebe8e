/* The live sink: one connection to a server, and the parcels it has not acknowledged.
 *
 * In: a queue of parcels. Out: their bytes, in order, on a socket that never blocks us. A server
 * that greets is sent blocks, which stay in the queue until it acknowledges them, so that after a
 * reconnect it gets those it does not have; to one that does not greet in time (version 2) chunks
 * of raw events are sent, which are done with when the socket has them.
 */

#define GREETING_NS (300 * MS)  /* how long a server of version 3 may take to greet */
#define RESUME_NS (5 * SECOND)  /* ... and to say what it has of our stream */
#define RETRY_NS (100 * MS)
#define DEAD_PEER_MS 6000       /* sent, and not even received by the other kernel */

enum live_state {
    LIVE_DOWN,
    LIVE_CONNECTING,
    LIVE_OPENING,  /* says who is sending, and listens for a greeting */
    LIVE_RESUMING, /* greeted; waits for the first acknowledgement */
    LIVE_SENDING,
};

struct live {
    struct sink sink;
    const char *host;
    const char *port;
    struct addrinfo *addresses;
    const struct addrinfo *address; /* that is tried */
    int reconnects;
    int socket;
    enum live_state state;
    int packs;    /* the server has greeted us, now or on an earlier connection */
    int was_up;
    uint64_t since_ns; /* when the state began; in LIVE_DOWN when it ends */
    uint64_t first_try_ns;
    size_t opening_count;
    size_t opening_sent;
    unsigned char *opening; /* handshake and first chunk */
    uint32_t sent;          /* parcels at the front of the queue that the socket has */
    size_t sent_bytes;      /* of the parcel behind them */
    uint64_t acknowledged;
    size_t heard_count;
    unsigned char heard[CALLSIGHT_REPLY_HEADER_BYTES + CALLSIGHT_REPLY_MAX_BYTES];
    void (*on_command)(uint32_t command);
};

static void live_prepare(struct live *live, const char *host, const char *port)
{
    struct addrinfo hints;
    memset(&hints, 0, sizeof hints);
    hints.ai_socktype = SOCK_STREAM;
    int error = getaddrinfo(host, port, &hints, &live->addresses);
    if (error != 0)
        fail(EXIT_REFUSED, "find the server %s: %s", host, gai_strerror(error));
    live->host = host;
    live->port = port;
    live->socket = -1;
    live->sink.name = "live";
    live->sink.on = 1;
}

static void live_enter(struct live *live, enum live_state state)
{
    live->state = state;
    live->since_ns = now_ns();
}

static void live_close(struct live *live)
{
    if (live->socket >= 0)
        close(live->socket);
    live->socket = -1;
    live->sent = 0;
    live->sent_bytes = live->opening_sent = live->heard_count = 0;
}

/* The connection is of no more use. Either another one is made, or this sink is at its end. */
static void live_lost(struct live *live, const char *why)
{
    int was_up = live->state > LIVE_CONNECTING;
    live_close(live);
    if (live->reconnects && (live->packs || live->sink.delivered == 0)) {
        if (was_up)
            say("send to %s port %s: %s; connecting again", live->host, live->port, why);
        live->state = LIVE_DOWN;
        live->since_ns = now_ns() + RETRY_NS;
        return;
    }
    say("send to %s port %s: %s", live->host, live->port, why);
    live->state = LIVE_DOWN;
    sink_fail(&live->sink, CALLSIGHT_CAUSE_UNACKED);
}

/* ---- Connecting ------------------------------------------------------------------------------ */

static void set_socket_options(int handle)
{
    int on = 1, idle_s = 2, interval_s = 1, probes = 3;
    unsigned dead_peer_ms = DEAD_PEER_MS;
    setsockopt(handle, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    setsockopt(handle, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
    setsockopt(handle, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof idle_s);
    setsockopt(handle, IPPROTO_TCP, TCP_KEEPINTVL, &interval_s, sizeof interval_s);
    setsockopt(handle, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof probes);
    setsockopt(handle, IPPROTO_TCP, TCP_USER_TIMEOUT, &dead_peer_ms, sizeof dead_peer_ms);
}

/* Begins to connect to the next address of the server. */
static void live_dial(struct live *live)
{
    live->address = live->address != NULL && live->address->ai_next != NULL
                        ? live->address->ai_next : live->addresses;
    int type = live->address->ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK;
    live->socket = socket(live->address->ai_family, type, live->address->ai_protocol);
    live_enter(live, LIVE_CONNECTING);
    if (live->first_try_ns == 0)
        live->first_try_ns = live->since_ns;
    if (live->socket >= 0)
        set_socket_options(live->socket);
}

/* Connecting has failed: again soon, but not for ever if that was not asked for. */
static void live_refused(struct live *live, int error)
{
    if (!live->reconnects && now_ns() - live->first_try_ns >= CONNECT_TRIES_NS)
        fail(EXIT_BROKEN, "connect to %s port %s: %s; is `callsight serve` running there?",
             live->host, live->port, strerror(error));
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
    if (error == 0 || error == EISCONN)
        live_enter(live, LIVE_OPENING);
    else if (error == EINPROGRESS || error == EALREADY || error == EINTR) {
        if (now_ns() - live->since_ns >= CONNECT_TRIES_NS)
            live_refused(live, ETIMEDOUT);
    } else
        live_refused(live, error);
}

/* ---- Sending --------------------------------------------------------------------------------- */

/* Sends what the socket takes; returns how much, or 0 where it takes none or is lost. */
static size_t live_send(struct live *live, const unsigned char *bytes, size_t count)
{
    ssize_t sent = send(live->socket, bytes, count, MSG_NOSIGNAL);
    if (sent >= 0)
        return (size_t)sent;
    if (errno != EAGAIN && errno != EINTR)
        live_lost(live, errno == EPIPE || errno == ECONNRESET ? "the server closed the connection"
                                                              : strerror(errno));
    return 0;
}

static void live_send_queue(struct live *live)
{
    struct parcel *parcel;
    while ((parcel = sink_at(&live->sink, live->sent)) != NULL) {
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
            sink_delivered(&live->sink);
    }
}

/* ---- Listening ------------------------------------------------------------------------------- */

static void live_acknowledge(struct live *live, uint64_t number)
{
    struct parcel *parcel;
    if (number > live->acknowledged)
        live->acknowledged = number;
    while ((parcel = sink_front(&live->sink)) != NULL && parcel->number <= number) {
        if (live->sent > 0)
            live->sent--;
        else
            live->sent_bytes = 0;
        sink_delivered(&live->sink);
    }
    if (live->state == LIVE_RESUMING)
        live_enter(live, LIVE_SENDING);
}

static void live_hear_one(struct live *live, uint32_t kind, const unsigned char *payload,
                          size_t count)
{
    if (kind == CALLSIGHT_REPLY_GREETING && count >= CALLSIGHT_GREETING_BYTES
        && memcmp(payload, CALLSIGHT_GREETING_MAGIC, 8) == 0) {
        live->packs = 1;
        if (live->state == LIVE_OPENING)
            live_enter(live, LIVE_RESUMING);
    } else if (kind == CALLSIGHT_REPLY_ACKNOWLEDGE && count >= 8 && live->packs) {
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

static void live_open(struct live *live)
{
    if (live->opening_sent < live->opening_count)
        live->opening_sent += live_send(live, live->opening + live->opening_sent,
                                        live->opening_count - live->opening_sent);
    if (live->state != LIVE_OPENING || now_ns() - live->since_ns < GREETING_NS)
        return;
    if (live->packs)
        live_lost(live, "the server greets no more");
    else
        live_enter(live, LIVE_SENDING);
}

/* Does what can be done at once. */
static void live_pump(struct live *live)
{
    if (!live->sink.on || live->sink.dead)
        return;
    if (live->state == LIVE_DOWN && now_ns() >= live->since_ns)
        live_dial(live);
    if (live->state == LIVE_CONNECTING)
        live_connect(live);
    if (live->state >= LIVE_OPENING)
        live_hear(live);
    if (live->state == LIVE_OPENING || (live->state == LIVE_RESUMING
                                        && live->opening_sent < live->opening_count))
        live_open(live);
    if (live->state == LIVE_RESUMING && now_ns() - live->since_ns > RESUME_NS)
        live_lost(live, "the server greets, but does not say what it has");
    if (live->state == LIVE_SENDING)
        live_send_queue(live);
}

/* What to wait for before the next pump; -1 for no socket. */
static int live_poll(const struct live *live, short *events)
{
    int sends = live->state == LIVE_CONNECTING || live->opening_sent < live->opening_count
                || (live->state == LIVE_SENDING && sink_at(&live->sink, live->sent) != NULL);
    *events = (short)(POLLIN | (sends ? POLLOUT : 0));
    return live->sink.dead ? -1 : live->socket;
}
