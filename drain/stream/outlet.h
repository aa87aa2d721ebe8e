/* The outlet: records → blocks and raw chunks → sinks.
 *
 * In: records of writers, and what they hold of the ring's pages. Out: parcels in the queues of the
 * sinks, and the parts of pages that may be given back: in the order they were read, once a sink
 * has them, or sooner when the ring gets short of pages. Whoever kills the drain loses what was
 * given back and is in no sink yet; the numbers of the records tell how much that is.
 */

#define PACKERS 24u
#define BLOCK_AGE_NS (5 * MS) /* how long a record may wait for others of its writer */

/* The writer of a record. */
struct writer_id {
    uint64_t start;
    uint32_t pid;
    uint32_t tid;
};

/* A block that is being filled, and what it holds of the ring. */
struct packer {
    struct pack *pack; /* NULL until it is first used */
    struct writer_id writer;
    uint64_t begun_ns;
    uint32_t torn;
    uint32_t part_count;
    uint32_t part_room;
    struct part *parts;
    int filling;
};

/* Raw events for a server of version 2. */
struct raw {
    size_t count;
    uint64_t events;
    uint32_t records;
    uint32_t torn;
    uint32_t part_count;
    struct part *parts; /* one a page at most */
    unsigned char bytes[CALLSIGHT_CHUNK_RAW_BYTES];
};

struct outlet {
    struct live live;
    struct save save;
    ZSTD_CCtx *zstd;
    unsigned char *block;    /* PACK_MAX_BYTES */
    unsigned char *squeezed; /* ZSTD_compressBound of that */
    struct raw raw;
    struct packer packers[PACKERS];
    struct parcel *oldest; /* that holds parts of pages */
    struct parcel *newest;
    uint64_t blocks; /* how many were made */
    uint64_t now_ns;
};

/* ---- Parcels and pages ------------------------------------------------------------------------ */

/* Gives the parts of pages back that the oldest parcels hold, as far as sinks have them, and of
 * `forced` more parcels. `give_back` gets each part once, in the order they were read. */
static void outlet_release(struct outlet *outlet, uint32_t forced,
                           void (*give_back)(void *, const struct parcel *), void *to)
{
    struct parcel *parcel;
    while ((parcel = outlet->oldest) != NULL && (parcel->settled || forced > 0)) {
        if (!parcel->settled)
            forced--;
        outlet->oldest = parcel->next;
        if (outlet->oldest == NULL)
            outlet->newest = NULL;
        give_back(to, parcel);
        parcel->released = 1;
        parcel_done(parcel);
    }
}

/* A chunk as a parcel, handed to no sink yet. */
static struct parcel *outlet_chunk(struct outlet *outlet, uint32_t kind, const void *raw,
                                   size_t raw_bytes, uint32_t parts)
{
    struct callsight_chunk_header header = { kind, (uint32_t)raw_bytes, 0 };
    size_t squeezed = ZSTD_compressCCtx(outlet->zstd, outlet->squeezed,
                                        ZSTD_compressBound(PACK_MAX_BYTES), raw, raw_bytes, 1);
    if (ZSTD_isError(squeezed))
        fail(EXIT_BROKEN, "compress %zu bytes: %s", raw_bytes, ZSTD_getErrorName(squeezed));
    header.zstd_len = (uint32_t)squeezed;
    struct parcel *parcel = parcel_new(sizeof header + squeezed, parts);
    memcpy(parcel->bytes, &header, sizeof header);
    memcpy(parcel->bytes + sizeof header, outlet->squeezed, squeezed);
    parcel->count = sizeof header + squeezed;
    return parcel;
}

/* Puts a parcel behind the others that hold parts of pages. One that no sink took is settled: it
 * is counted there. */
static void outlet_add(struct outlet *outlet, struct parcel *parcel)
{
    parcel->settled = parcel->users == 0;
    if (outlet->newest != NULL)
        outlet->newest->next = parcel;
    else
        outlet->oldest = parcel;
    outlet->newest = parcel;
}

/* Whether some sink could take another parcel. */
static int outlet_has_room(const struct outlet *outlet)
{
    return sink_has_room(&outlet->live.sink) || sink_has_room(&outlet->save.sink);
}

/* Whether the live sink wants raw events: its server has not greeted us. */
static int outlet_wants_raw(const struct outlet *outlet)
{
    return outlet->live.sink.on && !outlet->live.packs;
}

static int outlet_wants_blocks(const struct outlet *outlet)
{
    return outlet->save.sink.on || outlet->live.packs;
}

/* ---- Raw events ------------------------------------------------------------------------------- */

static void outlet_send_raw(struct outlet *outlet)
{
    struct raw *raw = &outlet->raw;
    if (raw->count == 0 && raw->part_count == 0 && raw->torn == 0)
        return;
    struct parcel *parcel = outlet_chunk(outlet, CALLSIGHT_CHUNK_EVENTS, raw->bytes, raw->count,
                                         raw->part_count);
    parcel->events = raw->events;
    if (!outlet_wants_blocks(outlet)) {
        parcel->records = raw->records;
        parcel->torn = raw->torn;
        parcel->part_count = raw->part_count;
        memcpy(parcel->parts, raw->parts, raw->part_count * sizeof *raw->parts);
    }
    if (raw->count > 0)
        sink_offer(&outlet->live.sink, parcel);
    outlet_add(outlet, parcel);
    raw->count = raw->events = raw->records = raw->torn = raw->part_count = 0;
}
