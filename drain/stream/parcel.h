/* Parcels: chunks that are ready to leave, each kept until every sink is done with it.
 *
 * In: the bytes of a chunk, and which parts of the ring's pages are in it. Out: queues, one a sink,
 * in the order the parcels were made. A sink that does not keep up drops its newest parcel, and
 * counts the events; it never holds up another one.
 */

#define QUEUE_PARCELS 16384u
#define QUEUE_BYTES (8u << 20)

/* What a parcel holds of a page: all up to `read`. */
struct part {
    uint32_t read;
    uint16_t page;
    uint8_t over; /* nothing will come behind it */
};

struct parts {
    uint32_t count;
    uint32_t room;
    struct part *list;
};

/* Losses that notes tell, by cause. */
struct told {
    uint64_t events[CALLSIGHT_RING_CAUSES];
};

struct parcel {
    struct parcel *next; /* in the order they were made, until its parts were given back */
    uint64_t number;     /* of a block or of the end; 0 for what nobody acknowledges */
    uint64_t events;     /* enters and exits */
    uint32_t numbered;   /* records that have numbers */
    uint32_t records;    /* of the ring, that leave it with this parcel */
    uint32_t torn;
    struct told told;
    uint32_t users;    /* queues that it is in */
    uint8_t settled;   /* some sink has it */
    uint8_t released;  /* its parts were given back */
    struct parts parts;
    size_t count;
    unsigned char *bytes;
};

struct sink {
    int on;
    int dead; /* takes nothing more */
    struct parcel *queue[QUEUE_PARCELS];
    uint32_t first;
    uint32_t count;
    size_t bytes;
    uint64_t delivered; /* enters and exits, as all counts here */
    uint64_t dropped[CALLSIGHT_CAUSES];
    uint64_t dropped_records[CALLSIGHT_CAUSES]; /* those with numbers */
    char why[512]; /* it is dead */
};

/* ---- Parcels --------------------------------------------------------------------------------- */

static void *get_memory(void *old, size_t bytes)
{
    void *memory = realloc(old, bytes);
    if (memory == NULL)
        fail(EXIT_BROKEN, "get %zu bytes of memory: there are none left", bytes);
    return memory;
}

/* One of a page that follows one of the same page takes its place. */
static void parts_add(struct parts *parts, const struct part *part)
{
    if (parts->count > 0 && parts->list[parts->count - 1].page == part->page) {
        parts->list[parts->count - 1] = *part;
        return;
    }
    if (parts->count == parts->room) {
        parts->room = parts->room * 2 + 4;
        parts->list = get_memory(parts->list, parts->room * sizeof *parts->list);
    }
    parts->list[parts->count++] = *part;
}

/* A parcel of `count` bytes that takes over `parts`. */
static struct parcel *parcel_new(size_t count, struct parts *parts)
{
    struct parcel *parcel = get_memory(NULL, sizeof *parcel);
    memset(parcel, 0, sizeof *parcel);
    parcel->bytes = get_memory(NULL, count + 1);
    parcel->count = count;
    if (parts != NULL) {
        parcel->parts = *parts;
        memset(parts, 0, sizeof *parts);
    }
    return parcel;
}

static int parcel_is_block(const struct parcel *parcel)
{
    uint32_t kind = 0;
    if (parcel->count >= sizeof kind)
        memcpy(&kind, parcel->bytes, sizeof kind);
    return kind == CALLSIGHT_CHUNK_BLOCK;
}

/* Frees what nobody needs any more. */
static void parcel_done(struct parcel *parcel)
{
    if (parcel->users > 0 || !parcel->released)
        return;
    free(parcel->parts.list);
    free(parcel->bytes);
    free(parcel);
}

/* ---- Queues ---------------------------------------------------------------------------------- */

static int sink_works(const struct sink *sink)
{
    return sink->on && !sink->dead;
}

/* Whether it should be given more: half of the queue is left for what is under way to it. */
static int sink_has_room(const struct sink *sink)
{
    return sink_works(sink) && sink->count < QUEUE_PARCELS / 2 && sink->bytes < QUEUE_BYTES / 2;
}

/* The sink will not get this parcel. */
static void sink_count(struct sink *sink, const struct parcel *parcel, unsigned cause)
{
    sink->dropped[cause] += parcel->events;
    sink->dropped_records[cause] += parcel->numbered;
}

/* Hands a parcel to a sink; it is counted where the sink cannot take it. */
static void sink_offer(struct sink *sink, struct parcel *parcel)
{
    if (!sink->on)
        return;
    if (sink->dead || sink->count == QUEUE_PARCELS || sink->bytes + parcel->count > QUEUE_BYTES) {
        sink_count(sink, parcel,
                   sink->dead ? CALLSIGHT_CAUSE_SINK_DEAD : CALLSIGHT_CAUSE_QUEUE);
        return;
    }
    sink->queue[(sink->first + sink->count++) % QUEUE_PARCELS] = parcel;
    sink->bytes += parcel->count;
    parcel->users++;
}

static struct parcel *sink_at(const struct sink *sink, uint32_t at)
{
    return at < sink->count ? sink->queue[(sink->first + at) % QUEUE_PARCELS] : NULL;
}

static struct parcel *sink_take(struct sink *sink)
{
    struct parcel *parcel = sink->queue[sink->first];
    sink->first = (sink->first + 1) % QUEUE_PARCELS;
    sink->count--;
    sink->bytes -= parcel->count;
    parcel->users--;
    return parcel;
}

/* The sink has the oldest parcel of its queue for good. */
static void sink_delivered(struct sink *sink)
{
    struct parcel *parcel = sink_take(sink);
    sink->delivered += parcel->events;
    parcel->settled = 1;
    parcel_done(parcel);
}

/* The sink will not get the oldest parcel of its queue. */
static void sink_drop(struct sink *sink, unsigned cause)
{
    struct parcel *parcel = sink_take(sink);
    sink_count(sink, parcel, cause);
    parcel_done(parcel);
}

/* Nothing in the queue will be delivered, nor anything later. */
static void sink_fail(struct sink *sink, unsigned cause)
{
    sink->dead = 1;
    while (sink->count > 0)
        sink_drop(sink, cause);
}

static uint64_t sink_dropped(const struct sink *sink)
{
    uint64_t sum = 0;
    for (unsigned cause = 0; cause < CALLSIGHT_CAUSES; cause++)
        sum += sink->dropped[cause];
    return sum;
}

/* Events in the queue of which no page of the ring holds a copy any more. */
static uint64_t sink_only_here(const struct sink *sink)
{
    uint64_t events = 0;
    for (uint32_t at = 0; at < sink->count; at++)
        if (sink_at(sink, at)->released)
            events += sink_at(sink, at)->events;
    return events;
}
