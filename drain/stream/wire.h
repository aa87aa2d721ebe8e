/* The stream: a connection, and chunks on it.
 *
 * In: bytes, and where to send them. Out: the chunks of the wire (trace_shm.h), each one zstd
 * frame. Returns only when the bytes are in the socket; a connection that fails ends the program,
 * with the ring as it was. Knows nothing of rings.
 */

struct stream {
    const char *host;
    const char *port;
    struct addrinfo *addresses;
    int socket;
    ZSTD_CCtx *zstd;
    unsigned char *packet; /* a chunk header and a zstd frame */
    size_t packet_bytes;
    uint64_t dropped_told;
    size_t raw_bytes;
    unsigned char raw[CALLSIGHT_CHUNK_RAW_BYTES];
};

static void stream_prepare(struct stream *stream, const char *host, const char *port)
{
    struct addrinfo hints;
    memset(&hints, 0, sizeof hints);
    hints.ai_socktype = SOCK_STREAM;
    int error = getaddrinfo(host, port, &hints, &stream->addresses);
    if (error != 0)
        fail(EXIT_REFUSED, "find the server %s: %s", host, gai_strerror(error));
    stream->host = host;
    stream->port = port;
    stream->socket = -1;
    stream->packet_bytes =
        sizeof(struct callsight_chunk_header) + ZSTD_compressBound(CALLSIGHT_CHUNK_RAW_BYTES);
    stream->packet = malloc(stream->packet_bytes);
    stream->zstd = ZSTD_createCCtx();
    if (stream->packet == NULL || stream->zstd == NULL)
        fail(EXIT_BROKEN, "get memory for the compressor: there is none left");
}

static void stream_lost(const struct stream *stream, const char *why) __attribute__((noreturn));
static void stream_lost(const struct stream *stream, const char *why)
{
    fail(EXIT_BROKEN,
         "send to %s port %s: %s; what was not sent is still in the ring, for the next "
         "trace_stream, but what the server had not read is lost", stream->host, stream->port, why);
}

/* A socket connected to `address` within `wait_ms`; -1 with errno. */
static int connect_to(const struct addrinfo *address, int wait_ms)
{
    int type = address->ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK;
    int handle = socket(address->ai_family, type, address->ai_protocol);
    if (handle < 0)
        return -1;
    int error = connect(handle, address->ai_addr, address->ai_addrlen) == 0 ? 0 : errno;
    if (error == EINPROGRESS) {
        struct pollfd ready = { handle, POLLOUT, 0 };
        socklen_t error_bytes = sizeof error;
        if (poll(&ready, 1, wait_ms) <= 0)
            error = ETIMEDOUT;
        else
            getsockopt(handle, SOL_SOCKET, SO_ERROR, &error, &error_bytes);
    }
    if (error == 0)
        return handle;
    close(handle);
    errno = error;
    return -1;
}

static void set_socket_options(int handle)
{
    int on = 1, idle_s = 10, interval_s = 5, probes = 3;
    setsockopt(handle, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    setsockopt(handle, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
    setsockopt(handle, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof idle_s);
    setsockopt(handle, IPPROTO_TCP, TCP_KEEPINTVL, &interval_s, sizeof interval_s);
    setsockopt(handle, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof probes);
}

/* Connects, trying again for some seconds: the server may be starting. */
static void stream_connect(struct stream *stream)
{
    uint64_t end = now_ns() + CONNECT_TRIES_NS;
    for (;;) {
        const struct addrinfo *address = stream->addresses;
        for (; address != NULL && stream->socket < 0; address = address->ai_next) {
            uint64_t now = now_ns();
            stream->socket = connect_to(address, now < end ? (int)((end - now) / MS) : 0);
        }
        if (stream->socket >= 0)
            break;
        if (stop_asked) {
            say("stopped before it could connect to %s port %s", stream->host, stream->port);
            release_claim();
            exit(0);
        }
        if (now_ns() >= end)
            fail(EXIT_BROKEN, "connect to %s port %s: %s; is `callsight serve` running there?",
                 stream->host, stream->port, strerror(errno));
        nap(100 * MS);
    }
    set_socket_options(stream->socket);
}

/* Waits as long as the server takes to read, but not for ever once we are told to stop. */
static void send_all(struct stream *stream, const void *bytes, size_t count)
{
    const unsigned char *at = bytes;
    uint64_t end = 0;
    while (count > 0) {
        ssize_t sent = send(stream->socket, at, count, MSG_NOSIGNAL);
        if (sent > 0) {
            at += sent;
            count -= (size_t)sent;
            end = 0;
            continue;
        }
        if (sent < 0 && errno != EAGAIN && errno != EINTR)
            stream_lost(stream, errno == EPIPE || errno == ECONNRESET
                                    ? "the server closed the connection" : strerror(errno));
        struct pollfd ready = { stream->socket, POLLOUT, 0 };
        poll(&ready, 1, 100);
        if (stop_asked && end == 0)
            end = now_ns() + STOP_NS;
        if (stop_asked && now_ns() > end)
            stream_lost(stream, "told to stop, and the server has not read for some time");
    }
}

static void send_chunk(struct stream *stream, uint32_t kind, const void *raw, size_t raw_bytes)
{
    struct callsight_chunk_header header = { kind, (uint32_t)raw_bytes, 0 };
    size_t room = stream->packet_bytes - sizeof header;
    size_t packed = ZSTD_compressCCtx(stream->zstd, stream->packet + sizeof header, room, raw,
                                      raw_bytes, 1);
    if (ZSTD_isError(packed))
        fail(EXIT_BROKEN, "compress %zu bytes: %s", raw_bytes, ZSTD_getErrorName(packed));
    header.zstd_len = (uint32_t)packed;
    memcpy(stream->packet, &header, sizeof header);
    send_all(stream, stream->packet, sizeof header + packed);
}

/* Tells how many events were dropped so far, if that has grown. */
static void send_dropped(struct stream *stream, uint64_t dropped)
{
    if (dropped <= stream->dropped_told)
        return;
    send_chunk(stream, CALLSIGHT_CHUNK_DROPPED, &dropped, sizeof dropped);
    stream->dropped_told = dropped;
}

/* The server never speaks in this version of the wire; what it sends is read and left. */
static void stream_check_peer(struct stream *stream)
{
    char ignored[512];
    ssize_t count;
    while ((count = recv(stream->socket, ignored, sizeof ignored, MSG_DONTWAIT)) > 0)
        ;
    if (count == 0)
        stream_lost(stream, "the server closed the connection");
    if (errno != EAGAIN && errno != EINTR)
        stream_lost(stream, strerror(errno));
}

/* Ends the stream, and gives the server a moment to take what is under way. */
static void stream_finish(struct stream *stream)
{
    uint64_t begin = now_ns(), now = begin;
    shutdown(stream->socket, SHUT_WR);
    for (; now - begin < 3 * SECOND; now = now_ns()) {
        struct pollfd ready = { stream->socket, POLLIN, 0 };
        char ignored[512];
        int unsent = 0;
        if (poll(&ready, 1, 50) > 0) {
            ssize_t count = recv(stream->socket, ignored, sizeof ignored, MSG_DONTWAIT);
            if (count < 0 && errno != EAGAIN && errno != EINTR)
                fail(EXIT_BROKEN, "end the stream to %s port %s: %s; its last events may be lost",
                     stream->host, stream->port, strerror(errno));
            if (count == 0)
                break;
        }
        /* Some servers never close; once their kernel has it all, we need not stay. */
        if (ioctl(stream->socket, TIOCOUTQ, &unsent) == 0 && unsent == 0
            && now - begin > 300 * MS)
            break;
    }
    close(stream->socket);
}
