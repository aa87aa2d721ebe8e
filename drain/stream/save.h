/* The file sink: a process of its own that appends the chunks of the stream to a capture.
 *
 * In: the very bytes that a server would get, over a socket pair. Out: a capture of version 3
 * (file.rs), and a report for each chunk that stands in it. A disk that blocks holds up this
 * process and its queue, nothing else. When the disk is full, the file ends on a whole chunk with
 * the reason behind it: room for that is kept from the start. A file that somebody removes or cuts
 * short meanwhile is given up: what is gone with it is reported, and another capture of the same stream
 * begun.
 */

#define TAIL_BYTES 2048u            /* kept for the last two chunks */
#define GROW_BYTES (4u << 20)       /* how much room is asked of the file system at a time */
#define CAPTURE_TRIES 10000u
#define FOLDER_MS 500

/* What the process says. */
enum save_state {
    SAVE_STORED,
    SAVE_FAILED, /* with errno; nothing more is stored */
    SAVE_BUDGET, /* the same, because of the budget */
};

struct save_report {
    uint64_t chunks; /* that were stored */
    uint64_t gone_from; /* of these, those from here ... */
    uint64_t gone_to;   /* ... to here are in no file any more */
    uint32_t state;
    int32_t error;
};

/* ---- The process that writes ------------------------------------------------------------------ */

struct capture {
    int socket;
    int file; /* to append to: less than 0 where there is none */
    int has_links; /* the file system counts them */
    uint64_t bytes;
    uint64_t spent; /* bytes of files that were given up and are there */
    uint64_t first; /* chunks that were stored before this file */
    uint64_t room; /* up to here the file system has promised us */
    uint64_t budget; /* 0 for none */
    int made_folder;
    const char *folder;
    struct callsight_file_header header;
    struct save_report report;
    char path[PATH_MAX];
    unsigned char *chunk;
    unsigned char *hello; /* the first chunk, for each file */
    size_t hello_count;
};

static int read_whole(int file, void *bytes, size_t count)
{
    unsigned char *at = bytes;
    while (count > 0) {
        ssize_t got = read(file, at, count);
        if (got == 0 || (got < 0 && errno != EINTR))
            return 0;
        at += got > 0 ? got : 0;
        count -= got > 0 ? (size_t)got : 0;
    }
    return 1;
}

/* Writes at the end of what is whole; a write that fails half-way changes nothing. Not to a place but to
 * the end: into a file that was cut short meanwhile it would make a hole, which hides that. */
static int capture_write(struct capture *capture, const void *bytes, size_t count)
{
    size_t done = 0;
    while (done < count) {
        ssize_t put = write(capture->file, (const char *)bytes + done, count - done);
        if (put < 0 && errno != EINTR) {
            int error = errno;
            if (done > 0 && ftruncate(capture->file, (off_t)capture->bytes) != 0)
                say("cut %s to its last whole chunk: %s", capture->path, strerror(errno));
            errno = error;
            return 0;
        }
        done += put > 0 ? (size_t)put : 0;
    }
    capture->bytes += count;
    return 1;
}

/* Whether the file system has room for `count` more bytes and for the tail. One that promises
 * nothing is asked by writing. */
static int capture_has_room(struct capture *capture, uint64_t count)
{
    uint64_t need = capture->bytes + count + TAIL_BYTES;
    if (need <= capture->room)
        return 1;
    uint64_t ask = capture->budget != 0 ? need : need + GROW_BYTES;
    for (int try = 0; try < 2; try++, ask = need) {
        if (fallocate(capture->file, FALLOC_FL_KEEP_SIZE, (off_t)capture->room,
                      (off_t)(ask - capture->room)) == 0) {
            capture->room = ask;
            return 1;
        }
        if (errno == EOPNOTSUPP || errno == ENOSYS)
            return 1;
    }
    return 0;
}

/* The highest number of a capture in the folder. */
static uint32_t last_capture(const char *folder)
{
    static const char prefix[] = "trace.stream.";
    uint32_t highest = 0;
    struct dirent *entry;
    DIR *files = opendir(folder);
    while (files != NULL && (entry = readdir(files)) != NULL) {
        if (strncmp(entry->d_name, prefix, sizeof prefix - 1) != 0)
            continue;
        unsigned long number = strtoul(entry->d_name + sizeof prefix - 1, NULL, 10);
        if (number > highest && number < UINT32_MAX - CAPTURE_TRIES)
            highest = (uint32_t)number;
    }
    if (files != NULL)
        closedir(files);
    return highest;
}

/* Makes the folder where there is none, and tells whether files can be made in it; 0 with errno. */
static int capture_try_folder(struct capture *capture, const char *folder)
{
    int handle;
    capture->made_folder = mkdir(folder, 0777) == 0;
    if (!capture->made_folder && errno != EEXIST)
        return 0;
    handle = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (handle < 0)
        return 0;
    close(handle);
    return access(folder, W_OK | X_OK) == 0;
}

/* Writes what stands before the events of a file, where it has none yet; 0 with errno. */
static int capture_head(struct capture *capture)
{
    if (capture->bytes > 0)
        return 1;
    if (capture_write(capture, &capture->header, sizeof capture->header)
        && capture_write(capture, capture->hello, capture->hello_count))
        return 1;
    int error = errno;
    if (capture->bytes > 0 && ftruncate(capture->file, 0) == 0)
        capture->bytes = 0;
    errno = error;
    return 0;
}

/* Makes a file, and writes what stands before its events; 0 with errno. */
static int capture_open(struct capture *capture)
{
    struct stat stat;
    if (mkdir(capture->folder, 0777) != 0 && errno != EEXIST)
        return 0;
    uint32_t id = last_capture(capture->folder) + 1, tries = CAPTURE_TRIES;
    do {
        snprintf(capture->path, sizeof capture->path, "%s/trace.stream.%" PRIu32 ".0.bin",
                 capture->folder, id++);
        capture->file = open(capture->path, O_RDWR | O_APPEND | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    } while (capture->file < 0 && errno == EEXIST && --tries > 0);
    if (capture->file < 0)
        return 0;
    capture->has_links = fstat(capture->file, &stat) == 0 && stat.st_nlink > 0;
    capture->bytes = capture->room = 0;
    capture->header.pid = id - 1;
    size_t count = sizeof capture->header + capture->hello_count;
    if (!capture_has_room(capture, count) || !capture_head(capture))
        return 0;
    say("writing %s", capture->path);
    return 1;
}

/* Waits for the beginning of the stream, and makes the file; 0 with errno. */
static int capture_begin(struct capture *capture)
{
    struct callsight_handshake handshake;
    struct callsight_file_header *header = &capture->header;
    if (!read_whole(capture->socket, &handshake, sizeof handshake)) {
        /* Stopped before there was anything to write. */
        if (capture->made_folder)
            rmdir(capture->folder);
        _exit(0);
    }
    memcpy(header->magic, CALLSIGHT_FILE_MAGIC, sizeof header->magic);
    header->version = CALLSIGHT_FILE_VERSION_CHUNKS;
    header->event_size = EVENT_BYTES;
    header->header_size = sizeof *header;
    header->flags = handshake.flags;
    header->load_bias = handshake.load_bias;
    header->tick_hz = handshake.tick_hz;
    header->t0_ticks = handshake.t0_ticks;
    header->t0_ns = handshake.t0_ns;
    header->hook_ns = handshake.hook_ns;
    return capture_open(capture);
}

/* Reads the next chunk; 0 when there is none any more. */
static size_t capture_read(const struct capture *capture, struct callsight_chunk_header *header)
{
    size_t room = sizeof *header + CALLSIGHT_CHUNK_MAX_ZSTD_BYTES;
    if (!read_whole(capture->socket, capture->chunk, sizeof *header))
        return 0;
    memcpy(header, capture->chunk, sizeof *header);
    size_t count = sizeof *header + header->zstd_len;
    if (count > room || !read_whole(capture->socket, capture->chunk + sizeof *header,
                                    header->zstd_len))
        return 0;
    return count;
}

static void capture_report(const struct capture *capture)
{
    ssize_t sent = send(capture->socket, &capture->report, sizeof capture->report, MSG_NOSIGNAL);
    (void)sent;
}

/* How many of its chunks stand in the first `bytes` bytes of the file. */
static uint64_t capture_chunks_in(const struct capture *capture, uint64_t bytes)
{
    struct callsight_chunk_header header;
    uint64_t chunks = 0, at = sizeof capture->header;
    while (pread(capture->file, &header, sizeof header, (off_t)at) == (ssize_t)sizeof header) {
        at += sizeof header + header.zstd_len;
        if (at > bytes)
            break;
        chunks += header.kind != CALLSIGHT_CHUNK_HELLO;
    }
    return chunks;
}

/* Whether the file has all that was written to it. What is gone is reported, and the file given up. */
static int capture_is_whole(struct capture *capture)
{
    struct save_report *report = &capture->report;
    struct stat stat;
    if (capture->file < 0 || fstat(capture->file, &stat) != 0)
        return 1;
    int removed = capture->has_links && stat.st_nlink == 0;
    uint64_t bytes = removed ? 0 : (uint64_t)stat.st_size;
    if (bytes >= capture->bytes)
        return 1;
    say("%s was %s while it was written to; what is gone is lost", capture->path,
        removed ? "removed" : "cut short");
    report->gone_from = capture->first + (removed ? 0 : capture_chunks_in(capture, bytes));
    report->gone_to = report->chunks;
    capture_report(capture);
    report->gone_from = report->gone_to;
    capture->first = report->chunks;
    capture->spent += bytes;
    close(capture->file);
    capture->file = -1;
    return 0;
}

/* Whether the budget has room for `count` more bytes and for the tail. */
static int capture_is_within(const struct capture *capture, uint64_t count)
{
    return capture->budget == 0
           || capture->spent + capture->bytes + count + TAIL_BYTES <= capture->budget;
}

/* Stores a chunk; 0 where it cannot. The last two need no room: it is there, unless there was none for
 * the head of the file; that may be there by now. */
static int capture_store_in(struct capture *capture, uint32_t kind, size_t count, int is_tail)
{
    /* With the very last chunk alone a file would be of no use. */
    if (kind != CALLSIGHT_CHUNK_SINK && !capture_is_whole(capture) && !capture_open(capture))
        return 0;
    return (is_tail ? capture_head(capture) : capture_has_room(capture, count))
           && capture_write(capture, capture->chunk, count);
}

/* Stores a chunk, or says why it cannot. */
static void capture_store(struct capture *capture, uint32_t kind, size_t count)
{
    struct save_report *report = &capture->report;
    int is_tail = kind == CALLSIGHT_CHUNK_SINK || kind == CALLSIGHT_CHUNK_END;
    if (report->state != SAVE_STORED && !is_tail)
        return;
    if (!is_tail && !capture_is_within(capture, count))
        report->state = SAVE_BUDGET;
    else if (!capture_store_in(capture, kind, count, is_tail))
        report->state = SAVE_FAILED;
    if (report->state == SAVE_FAILED && report->error == 0)
        report->error = errno;
    if (report->state == SAVE_STORED && kind != CALLSIGHT_CHUNK_HELLO)
        report->chunks++;
}

/* Keeps the first chunk for files that have to be begun later. */
static void capture_keep_hello(struct capture *capture, size_t count)
{
    capture->hello = get_memory(NULL, count);
    memcpy(capture->hello, capture->chunk, count);
    capture->hello_count = count;
}

/* Writes until the other end of the socket is closed. */
static void capture_run(int socket, const char *folder, uint64_t budget)
    __attribute__((noreturn));
static void capture_run(int socket, const char *folder, uint64_t budget)
{
    static struct capture capture;
    struct callsight_chunk_header header;
    size_t count;
    signal(SIGTERM, SIG_IGN);
    signal(SIGINT, SIG_IGN);
    signal(SIGHUP, SIG_IGN);
    capture.socket = socket;
    capture.folder = folder;
    capture.file = -1;
    capture.budget = budget;
    capture.chunk = get_memory(NULL, sizeof header
                                         + CALLSIGHT_CHUNK_MAX_ZSTD_BYTES);
    if (!capture_try_folder(&capture, folder)) {
        capture.report.state = SAVE_FAILED;
        capture.report.error = errno;
    }
    capture_report(&capture);
    if (!capture_begin(&capture)) {
        capture.report.state = SAVE_FAILED;
        capture.report.error = errno;
        capture_report(&capture);
    }
    while ((count = capture_read(&capture, &header)) > 0) {
        capture_store(&capture, header.kind, count);
        if (header.kind == CALLSIGHT_CHUNK_HELLO && capture.hello_count == 0)
            capture_keep_hello(&capture, count);
        capture_report(&capture);
    }
    capture_is_whole(&capture);
    /* What was kept for the tail and not needed; a half chunk never counted. */
    if (capture.file >= 0 && ftruncate(capture.file, (off_t)capture.bytes) != 0)
        say("cut %s to its last whole chunk: %s", capture.path, strerror(errno));
    _exit(0);
}

/* ---- Our end of it ---------------------------------------------------------------------------- */

/* What is counted of chunks. */
struct stored {
    uint64_t events;
    uint64_t numbered;
};

/* Chunks are counted one by one, as they may be gone later, and together in a long stream. */
#define STORED_COUNTS (1u << 16)

struct save {
    struct sink sink;
    const char *folder;
    int socket;
    pid_t process;
    const unsigned char *opening; /* handshake and first chunk */
    size_t opening_count;
    size_t opening_sent;
    uint32_t sent;     /* parcels at the front of the queue that the socket has */
    size_t sent_bytes; /* of the parcel behind them */
    uint64_t stored;   /* parcels that the process has reported */
    uint64_t together; /* so many of them are one of the counts */
    struct stored counts[STORED_COUNTS];
    int has_lost;      /* some are gone */
    int is_gone;       /* the process */
    size_t rest_count; /* what is left of a parcel that was half sent when the process failed */
    size_t rest_sent;
    unsigned char *rest;
    size_t heard_count;
    unsigned char heard[sizeof(struct save_report)];
};

/* This sink is at its end. What is left of a parcel that the process has begun to read is kept for
 * it, so that the last chunk is read as one. */
static void save_end(struct save *save, unsigned cause, const char *why)
{
    const struct parcel *parcel = sink_at(&save->sink, save->sent);
    snprintf(save->sink.why, sizeof save->sink.why, "write to %s: %s", save->folder, why);
    if (parcel != NULL && save->sent_bytes > 0) {
        save->rest_count = parcel->count - save->sent_bytes;
        save->rest = get_memory(NULL, save->rest_count);
        memcpy(save->rest, parcel->bytes + save->sent_bytes, save->rest_count);
    }
    say("%s; nothing more is kept there", save->sink.why);
    sink_fail(&save->sink, cause);
}

static void stored_add(struct stored *to, const struct stored *from)
{
    to->events += from->events;
    to->numbered += from->numbered;
}

static void save_count(struct save *save, const struct parcel *parcel)
{
    struct stored *counts = save->counts, one = { parcel->events, parcel->numbered };
    if (save->together == 0)
        save->together = 1;
    if (save->stored / save->together == STORED_COUNTS) {
        for (uint32_t at = 0; at < STORED_COUNTS; at++) {
            struct stored moved = counts[at];
            counts[at] = (struct stored){ 0, 0 };
            stored_add(&counts[at / 2], &moved);
        }
        save->together *= 2;
    }
    stored_add(&counts[save->stored++ / save->together], &one);
}

/* The oldest parcel of the queue is stored. */
static void save_delivered(struct save *save)
{
    const struct parcel *parcel = sink_at(&save->sink, 0);
    save_count(save, parcel);
    save->sent--;
    sink_delivered(&save->sink);
}

/* What was stored from one parcel to another is gone; with it, what is counted together with that. */
static void save_lose(struct save *save, uint64_t from, uint64_t to)
{
    struct sink *sink = &save->sink;
    to = to < save->stored ? to : save->stored;
    if (from >= to)
        return;
    for (uint64_t at = from / save->together; at <= (to - 1) / save->together; at++) {
        struct stored *stored = &save->counts[at];
        sink->delivered -= stored->events;
        sink->dropped[CALLSIGHT_CAUSE_IO] += stored->events;
        sink->dropped_records[CALLSIGHT_CAUSE_IO] += stored->numbered;
        *stored = (struct stored){ 0, 0 };
    }
    save->has_lost = 1;
}

static void save_hear_one(struct save *save, const struct save_report *report)
{
    while (save->stored < report->chunks && save->sent > 0)
        save_delivered(save);
    save_lose(save, report->gone_from, report->gone_to);
    if (report->state == SAVE_STORED || save->sink.dead)
        return;
    if (report->state == SAVE_BUDGET)
        save_end(save, CALLSIGHT_CAUSE_BUDGET, "the capture has reached its budget");
    else
        save_end(save, CALLSIGHT_CAUSE_IO, strerror(report->error));
}

/* Hears what the process reports; 0 when it is gone. */
static int save_hear(struct save *save)
{
    struct save_report report;
    for (;;) {
        ssize_t count = recv(save->socket, save->heard + save->heard_count,
                             sizeof save->heard - save->heard_count, MSG_DONTWAIT);
        if (count <= 0)
            return count < 0 && (errno == EAGAIN || errno == EINTR);
        save->heard_count += (size_t)count;
        if (save->heard_count < sizeof save->heard)
            continue;
        memcpy(&report, save->heard, sizeof report);
        save->heard_count = 0;
        save_hear_one(save, &report);
    }
}

/* A folder that cannot be used is said before there is a program. One that takes long to say so may
 * be on a disk that blocks, for which nothing waits. */
static void save_meet(struct save *save)
{
    struct pollfd ready = { save->socket, POLLIN, 0 };
    if (poll(&ready, 1, FOLDER_MS) > 0)
        save_hear(save);
}

/* Starts the process, before there is a ring that it would hold. */
static void save_prepare(struct save *save, const char *folder, uint64_t budget)
{
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0
        || (save->process = fork()) < 0)
        fail(EXIT_BROKEN, "start the process that writes to %s: %s", folder, strerror(errno));
    if (save->process == 0) {
        close(pair[0]);
        capture_run(pair[1], folder, budget);
    }
    close(pair[1]);
    fcntl(pair[0], F_SETFL, O_NONBLOCK);
    save->folder = folder;
    save->socket = pair[0];
    save->sink.on = 1;
    save_meet(save);
}

/* Sends what the socket takes; returns how much. */
static size_t save_send(const struct save *save, const unsigned char *bytes, size_t count)
{
    ssize_t sent = count > 0 ? send(save->socket, bytes, count, MSG_NOSIGNAL) : 0;
    return sent > 0 ? (size_t)sent : 0;
}

static void save_send_queue(struct save *save)
{
    struct parcel *parcel;
    while ((parcel = sink_at(&save->sink, save->sent)) != NULL) {
        size_t sent = save_send(save, parcel->bytes + save->sent_bytes,
                                parcel->count - save->sent_bytes);
        if (sent == 0)
            return;
        save->sent_bytes += sent;
        if (save->sent_bytes < parcel->count)
            continue;
        save->sent_bytes = 0;
        save->sent++;
    }
}

/* Does what can be done at once. */
static void save_pump(struct save *save)
{
    if (!save->sink.on || save->opening_count == 0)
        return;
    save->is_gone = !save_hear(save);
    if (save->is_gone && !save->sink.dead)
        save_end(save, CALLSIGHT_CAUSE_IO, "the process that writes there is gone");
    save->opening_sent += save_send(save, save->opening + save->opening_sent,
                                    save->opening_count - save->opening_sent);
    if (save->opening_sent < save->opening_count)
        return;
    save->rest_sent += save_send(save, save->rest + save->rest_sent,
                                 save->rest_count - save->rest_sent);
    if (save->rest_sent == save->rest_count)
        save_send_queue(save);
}

static struct pollfd save_poll(const struct save *save)
{
    int sends = save->opening_sent < save->opening_count
                || sink_at(&save->sink, save->sent) != NULL;
    struct pollfd ready = { sink_works(&save->sink) ? save->socket : -1,
                            (short)(POLLIN | (sends ? POLLOUT : 0)), 0 };
    return ready;
}

/* Puts the last chunks behind what the process has, and waits for its end; 0 if it did not end. */
static int save_finish(struct save *save, const unsigned char *tail, size_t count)
{
    uint64_t end = now_ns() + STOP_NS;
    size_t sent = 0;
    pid_t over = 0;
    save->rest = get_memory(save->rest, save->rest_count + count);
    memcpy(save->rest + save->rest_count, tail, count);
    save->rest_count += count;
    for (; now_ns() < end && save->rest_sent < save->rest_count; save->rest_sent += sent) {
        sent = save_send(save, save->rest + save->rest_sent, save->rest_count - save->rest_sent);
        if (sent == 0)
            nap(MS);
    }
    shutdown(save->socket, SHUT_WR);
    while ((over = waitpid(save->process, NULL, WNOHANG)) == 0 && now_ns() < end)
        nap(MS);
    save_hear(save);
    return over == save->process;
}
