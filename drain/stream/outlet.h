/* The outlet: records → blocks and raw chunks → sinks.
 *
 * In: records of writers, and what they hold of the ring's pages. Out: parcels in the queues of the
 * sinks, and the parts of pages that may be given back: in the order they were read, once a sink
 * has them, or sooner when the ring gets short of pages. Whoever kills the drain loses what was
 * given back and is in no sink yet; the numbers of the records tell how much that is.
 */

#define PACKERS 64u
#define BLOCK_AGE_NS (50 * MS) /* how long a record may wait for others of its writer */
#define MEETING_NS (2 * SECOND) /* how long the file waits for the server to say what it takes */
#define PROMPT_PARCELS 256u   /* with more in every queue, blocks wait until they are full */

struct writer_id {
    uint64_t start;
    uint32_t pid;
    uint32_t tid;
};

/* Where records come from. */
struct feed {
    struct writer_id writer;
    uint64_t number;     /* of the next record */
    uint64_t lost_total; /* before it */
    uint32_t lost[4];
    int numbered; /* 0 in a version 2 ring, which has no pages either */
    struct part part; /* all before the next record */
    uint64_t last_ts;
};

/* A block that is being filled, and what it holds of the ring. */
struct packer {
    struct pack *pack; /* NULL until it is first used */
    struct writer_id writer;
    int filling;
    int numbered;
    uint64_t begun_ns;
    uint32_t records;
    uint32_t torn;
    struct told told;
    uint32_t over; /* pages that it holds to their end */
    struct parts parts;
};

/* Raw events for a server of version 2. Holds parts of pages only where no blocks are made. */
struct raw {
    size_t count;
    uint64_t events;
    uint32_t numbered; /* all but our own notes */
    uint32_t records;
    uint32_t torn;
    struct told told;
    struct parts parts;
    unsigned char bytes[CALLSIGHT_CHUNK_RAW_BYTES];
};

struct outlet {
    struct live live;
    struct save save;
    ZSTD_CCtx *zstd;
    unsigned char *opening; /* handshake and first chunk, for both sinks */
    unsigned char *block;   /* PACK_MAX_BYTES */
    int makes_raw;    /* the live sink takes raw events */
    int makes_blocks; /* some sink takes blocks */
    struct raw raw;
    struct packer *current; /* that took the last record */
    struct packer packers[PACKERS];
    uint32_t open_pages;   /* that packers hold to their end */
    struct parcel *oldest; /* that holds parts of pages */
    struct parcel *newest;
    uint64_t added;  /* parcels, and how many of them were given back */
    uint64_t given;
    uint64_t blocks; /* how many were made */
    uint64_t events; /* enters and exits that were taken */
    uint64_t dropped_told;
    uint64_t opened_ns;
    uint64_t now_ns;
};

/* ---- Parcels --------------------------------------------------------------------------------- */

static void outlet_prepare(struct outlet *outlet)
{
    crc_prepare();
    outlet->zstd = ZSTD_createCCtx();
    outlet->block = get_memory(NULL, PACK_MAX_BYTES);
    if (outlet->zstd == NULL)
        fail(EXIT_BROKEN, "get memory for the compressor: there is none left");
    ZSTD_CCtx_setParameter(outlet->zstd, ZSTD_C_COMPRESSION_LEVEL, 1);
}

/* Puts a chunk to `out`, which has room for ZSTD_compressBound more; returns its size. */
static size_t outlet_squeeze(struct outlet *outlet, uint32_t kind, const void *raw,
                             size_t raw_bytes, unsigned char *out)
{
    struct callsight_chunk_header header = { kind, (uint32_t)raw_bytes, 0 };
    /* A block has its own checksum, and raw events are as they always were. */
    int checked = kind != CALLSIGHT_CHUNK_BLOCK && kind != CALLSIGHT_CHUNK_EVENTS;
    ZSTD_CCtx_setParameter(outlet->zstd, ZSTD_C_CHECKSUM_FLAG, checked);
    size_t squeezed = ZSTD_compress2(outlet->zstd, out + sizeof header,
                                     ZSTD_compressBound(raw_bytes), raw, raw_bytes);
    if (ZSTD_isError(squeezed))
        fail(EXIT_BROKEN, "compress %zu bytes: %s", raw_bytes, ZSTD_getErrorName(squeezed));
    header.zstd_len = (uint32_t)squeezed;
    memcpy(out, &header, sizeof header);
    return sizeof header + squeezed;
}

/* A chunk as a parcel, handed to no sink yet. */
static struct parcel *outlet_chunk(struct outlet *outlet, uint32_t kind, const void *raw,
                                   size_t raw_bytes, struct parts *parts)
{
    size_t room = sizeof(struct callsight_chunk_header) + ZSTD_compressBound(raw_bytes);
    struct parcel *parcel = parcel_new(room, parts);
    parcel->count = outlet_squeeze(outlet, kind, raw, raw_bytes, parcel->bytes);
    parcel->bytes = get_memory(parcel->bytes, parcel->count);
    return parcel;
}

/* Puts a parcel behind the others that hold parts of pages. */
static void outlet_add(struct outlet *outlet, struct parcel *parcel)
{
    if (outlet->newest != NULL)
        outlet->newest->next = parcel;
    else
        outlet->oldest = parcel;
    outlet->newest = parcel;
    outlet->added++;
}

/* Whether a file without a server beside it is full, and counts what it leaves out. Where there is a
 * server, or nothing could be stored at all, what nobody takes is left in the ring for the next
 * drain. */
static int outlet_only_counts(const struct outlet *outlet)
{
    return !outlet->live.sink.on && outlet->save.sink.dead && !outlet->save.is_gone
           && outlet->save.stored > 0;
}

/* Whether what a parcel holds may be given back: a sink has it, or none ever will. In the end of
 * all sinks it stays in the ring. */
static int outlet_is_settled(const struct outlet *outlet, const struct parcel *parcel)
{
    int works = sink_works(&outlet->live.sink) || sink_works(&outlet->save.sink)
                || outlet_only_counts(outlet);
    return parcel->settled || (parcel->users == 0 && works);
}

/* The oldest parcel that is settled, or that is `wanted` all the same; NULL for none. The caller
 * gives its parts back, then it may be freed. */
static struct parcel *outlet_release(struct outlet *outlet, int wanted)
{
    struct parcel *parcel = outlet->oldest;
    if (parcel == NULL || (!wanted && !outlet_is_settled(outlet, parcel)))
        return NULL;
    outlet->oldest = parcel->next;
    if (outlet->oldest == NULL)
        outlet->newest = NULL;
    parcel->released = 1;
    outlet->given++;
    return parcel;
}

/* ---- Raw events ------------------------------------------------------------------------------ */

static void raw_send(struct outlet *outlet)
{
    struct raw *raw = &outlet->raw;
    if (raw->count == 0 && raw->parts.count == 0 && raw->torn == 0)
        return;
    struct parcel *parcel = outlet_chunk(outlet, CALLSIGHT_CHUNK_EVENTS, raw->bytes, raw->count,
                                         &raw->parts);
    parcel->events = raw->events;
    parcel->numbered = raw->numbered;
    parcel->records = raw->records;
    parcel->torn = raw->torn;
    parcel->told = raw->told;
    if (raw->count > 0)
        sink_offer(&outlet->live.sink, parcel);
    /* Where blocks are made it is given those, or counts them. */
    if (!outlet->makes_blocks)
        sink_offer(&outlet->save.sink, parcel);
    outlet_add(outlet, parcel);
    raw->count = 0;
    raw->events = 0;
    raw->numbered = raw->records = raw->torn = 0;
    memset(&raw->told, 0, sizeof raw->told);
}

/* Makes room for `count` more bytes of `feed`. */
static void raw_room(struct outlet *outlet, const struct feed *feed, size_t count)
{
    if (sizeof outlet->raw.bytes - outlet->raw.count >= count)
        return;
    if (!outlet->makes_blocks && feed->numbered)
        parts_add(&outlet->raw.parts, &feed->part);
    raw_send(outlet);
}

static void raw_add(struct outlet *outlet, const struct callsight_event *event)
{
    memcpy(outlet->raw.bytes + outlet->raw.count, event, EVENT_BYTES);
    outlet->raw.count += EVENT_BYTES;
}

/* ---- Blocks ---------------------------------------------------------------------------------- */

/* Hands a block to the live sink, unless it was given the same events raw, or has just turned out
 * to take raw events only. */
static void block_to_live(struct outlet *outlet, struct parcel *parcel)
{
    struct live *live = &outlet->live;
    if (outlet->makes_raw)
        return;
    if (live_takes_raw(live))
        sink_count(&live->sink, parcel, CALLSIGHT_CAUSE_REJECTED);
    else
        sink_offer(&live->sink, parcel);
}

static void packer_seal(struct outlet *outlet, struct packer *packer)
{
    struct callsight_block_header *header = &packer->pack->header;
    struct parcel *parcel;
    packer->filling = 0;
    if (outlet->current == packer)
        outlet->current = NULL;
    if (header->records == 0) {
        parcel = parcel_new(0, &packer->parts);
    } else {
        header->number = ++outlet->blocks;
        header->numbered = packer->numbered ? header->numbered : 0;
        size_t count = pack_block(packer->pack, outlet->block);
        parcel = outlet_chunk(outlet, CALLSIGHT_CHUNK_BLOCK, outlet->block, count, &packer->parts);
        parcel->number = header->number;
        parcel->events = header->calls;
        /* Those of a version 2 ring have none, and are told all the same. */
        parcel->numbered = packer->numbered ? header->numbered : header->records;
        block_to_live(outlet, parcel);
        sink_offer(&outlet->save.sink, parcel);
    }
    parcel->records = packer->records;
    parcel->torn = packer->torn;
    parcel->told = packer->told;
    outlet->open_pages -= packer->over;
    packer->records = packer->torn = packer->over = 0;
    memset(&packer->told, 0, sizeof packer->told);
    outlet_add(outlet, parcel);
}

static int packer_is_of(const struct packer *packer, const struct writer_id *writer)
{
    return packer->filling && packer->writer.tid == writer->tid
           && packer->writer.pid == writer->pid && packer->writer.start == writer->start;
}

/* Whether the next record of `feed` follows the last one of the block. */
static int packer_goes_on(const struct packer *packer, const struct feed *feed)
{
    const struct callsight_block_header *header = &packer->pack->header;
    return !feed->numbered || header->first + header->numbered == feed->number;
}

static void packer_begin(struct packer *packer, const struct feed *feed, uint64_t now_ns)
{
    struct callsight_block_header header;
    memset(&header, 0, sizeof header);
    header.start = feed->writer.start;
    header.pid = feed->writer.pid;
    header.tid = feed->writer.tid;
    header.first = feed->number;
    header.lost_total = feed->lost_total;
    memcpy(header.lost, feed->lost, sizeof header.lost);
    if (packer->pack == NULL)
        packer->pack = get_memory(NULL, sizeof *packer->pack);
    pack_begin(packer->pack, &header);
    packer->writer = feed->writer;
    packer->filling = 1;
    packer->numbered = feed->numbered;
    packer->begun_ns = now_ns;
}

/* The packer that takes the next record of `feed`. What a former life of the thread id has left is
 * sealed before this one's block is begun. */
static struct packer *outlet_find_packer(struct outlet *outlet, const struct feed *feed)
{
    struct packer *chosen = NULL;
    for (struct packer *at = outlet->packers; at < outlet->packers + PACKERS; at++) {
        if (at->filling && at->writer.tid == feed->writer.tid
            && at->writer.pid == feed->writer.pid) {
            if (packer_is_of(at, &feed->writer) && packer_goes_on(at, feed)
                && pack_room(at->pack) > 0)
                return at;
            if (feed->numbered && packer_is_of(at, &feed->writer))
                parts_add(&at->parts, &feed->part);
            packer_seal(outlet, at);
        }
        if (chosen == NULL || (chosen->filling && (!at->filling
                                                   || at->begun_ns < chosen->begun_ns)))
            chosen = at;
    }
    if (chosen->filling)
        packer_seal(outlet, chosen);
    packer_begin(chosen, feed, outlet->now_ns);
    return chosen;
}

static struct packer *outlet_packer(struct outlet *outlet, const struct feed *feed)
{
    struct packer *packer = outlet->current;
    if (packer == NULL || !packer_is_of(packer, &feed->writer) || !packer_goes_on(packer, feed)
        || pack_room(packer->pack) == 0)
        packer = outlet->current = outlet_find_packer(outlet, feed);
    return packer;
}

/* ---- What comes in --------------------------------------------------------------------------- */

static int is_call(const struct callsight_event *event)
{
    return event->kind == CALLSIGHT_KIND_ENTER || event->kind == CALLSIGHT_KIND_EXIT;
}

/* Takes the next record of `feed` as it is. */
static void outlet_take_raw(struct outlet *outlet, const struct feed *feed,
                            const struct callsight_event *event)
{
    raw_room(outlet, feed, EVENT_BYTES);
    raw_add(outlet, event);
    outlet->raw.events += (uint64_t)is_call(event);
    outlet->raw.numbered++;
    outlet->raw.records += !outlet->makes_blocks && feed->numbered;
}

/* Takes the next record of `feed`. */
static void outlet_take(struct outlet *outlet, const struct feed *feed,
                        const struct callsight_event *event)
{
    outlet->events += (uint64_t)is_call(event);
    if (outlet->makes_raw)
        outlet_take_raw(outlet, feed, event);
    if (outlet->makes_blocks) {
        struct packer *packer = outlet_packer(outlet, feed);
        pack_record(packer->pack, event, 0);
        packer->records += (uint32_t)feed->numbered;
    }
}

/* Takes the records of the page at `bytes` that follow one another, up to one that is no call, or
 * to `end`; `feed` goes on. Returns that one's kind, or -1 when all are taken. */
static int outlet_take_run(struct outlet *outlet, struct feed *feed, const unsigned char *bytes,
                           uint32_t end)
{
    struct callsight_event event;
    struct packer *packer = NULL;
    uint32_t room = 0, calls = 0;
    int stopped = -1;
    uint64_t ts;
    while (stopped < 0 && feed->part.read < end
           && (ts = slot_ts(bytes + feed->part.read)) != 0) {
        const unsigned char *at = bytes + feed->part.read;
        uint32_t taken = 0;
        if (outlet->makes_blocks && room == 0) {
            packer = outlet_packer(outlet, feed);
            room = pack_room(packer->pack);
        }
        if (packer != NULL && !outlet->makes_raw) {
            taken = pack_known(packer->pack, at, least(room, (end - feed->part.read) / EVENT_BYTES));
            ts = packer->pack->last_ts;
            calls += taken;
        }
        if (taken == 0) {
            memcpy(&event, at, EVENT_BYTES);
            event.ts = ts = slot_ts(at);
            if (outlet->makes_raw)
                outlet_take_raw(outlet, feed, &event);
            if (packer != NULL)
                pack_record(packer->pack, &event, 0);
            calls += (uint32_t)is_call(&event);
            stopped = is_call(&event) ? -1 : event.kind;
            taken = 1;
        }
        if (packer != NULL) {
            packer->records += taken;
            room -= taken;
        }
        feed->number += taken;
        feed->part.read += taken * EVENT_BYTES;
        feed->last_ts = ts;
    }
    outlet->events += calls;
    return stopped;
}

/* Takes `count` records that the drain itself says of the writer of `feed`. */
static void outlet_note(struct outlet *outlet, const struct feed *feed,
                        const struct callsight_event *events, uint32_t count)
{
    if (outlet->makes_raw)
        raw_room(outlet, feed, count * EVENT_BYTES);
    for (uint32_t at = 0; at < count; at++) {
        if (outlet->makes_raw)
            raw_add(outlet, &events[at]);
        if (outlet->makes_blocks)
            pack_record(outlet_packer(outlet, feed)->pack, &events[at], 1);
    }
}

/* The packer with a block of this writer; NULL for none. */
static struct packer *outlet_packer_of(struct outlet *outlet, const struct writer_id *writer)
{
    if (outlet->current != NULL && packer_is_of(outlet->current, writer))
        return outlet->current;
    for (struct packer *at = outlet->packers; at < outlet->packers + PACKERS; at++)
        if (packer_is_of(at, writer))
            return at;
    return NULL;
}

/* Takes note of how far the page of `feed` was read, and how many events of it were torn. */
static void outlet_hold(struct outlet *outlet, const struct feed *feed, uint32_t torn)
{
    if (!outlet->makes_blocks) {
        parts_add(&outlet->raw.parts, &feed->part);
        outlet->raw.torn += torn;
        return;
    }
    struct packer *packer = outlet_packer_of(outlet, &feed->writer);
    if (packer != NULL) {
        parts_add(&packer->parts, &feed->part);
        packer->torn += torn;
        packer->over += feed->part.over;
        outlet->open_pages += feed->part.over;
        return;
    }
    struct parts parts = { 0, 0, NULL };
    parts_add(&parts, &feed->part);
    struct parcel *parcel = parcel_new(0, &parts);
    parcel->torn = torn;
    outlet_add(outlet, parcel);
}

/* Takes note that the note that `writer` has come to tells a loss. */
static void outlet_told(struct outlet *outlet, const struct writer_id *writer, uint64_t cause,
                        uint64_t events)
{
    struct packer *packer = outlet->makes_blocks ? outlet_packer_of(outlet, writer) : NULL;
    struct told *told = packer != NULL ? &packer->told : &outlet->raw.told;
    told->events[cause < CALLSIGHT_RING_CAUSES ? cause : CALLSIGHT_CAUSE_FULL] += events;
}
