/* Parcels: chunks that are ready to leave, each kept until every sink is done with it.
 *
 * In: the bytes of a chunk, and which parts of the ring's pages are in it. Out: queues, one a sink,
 * in the order the parcels were made. A sink that does not keep up drops its newest parcel, and
 * counts the events; it never holds up another one.
 */

#define QUEUE_PARCELS 4096u
#define QUEUE_BYTES (8u << 20)

/* What a parcel holds of a page: all up to `read`. */
struct part {
    uint32_t read;
    uint16_t page;
    uint8_t over; /* nothing will come behind it */
};

struct parcel {
    struct parcel *next; /* in the order they were made, while it holds parts of pages */
    uint64_t number;     /* of a block or of the end; 0 for what nobody acknowledges */
    uint64_t events;     /* enters and exits */
    uint32_t records;    /* of the ring */
    uint32_t torn;
    uint32_t users;      /* queues that it is in */
    uint8_t settled;     /* some sink has it, or no sink will */
    uint8_t released;    /* its parts were given back */
    uint32_t part_count;
    struct part *parts;
    size_t count;
    unsigned char *bytes;
};

struct sink {
    const char *name;
    int on;
    int dead; /* takes nothing more */
    struct parcel *queue[QUEUE_PARCELS];
    uint32_t first;
    uint32_t count;
    size_t bytes;
    uint64_t delivered; /* events */
    uint64_t dropped[CALLSIGHT_CAUSES];
};

static struct parcel *parcel_new(size_t bytes, uint32_t parts)
{
    struct parcel *parcel = calloc(1, sizeof *parcel);
    if (parcel != NULL) {
        parcel->bytes = malloc(bytes);
        parcel->parts = malloc((parts > 0 ? parts : 1) * sizeof *parcel->parts);
    }
    if (parcel == NULL || parcel->bytes == NULL || parcel->parts == NULL)
        fail(EXIT_BROKEN, "get %zu bytes for a chunk: there is no memory left", bytes);
    return parcel;
}

/* Frees what nobody needs any more. */
static void parcel_done(struct parcel *parcel)
{
    if (parcel->users > 0 || !parcel->released)
        return;
    free(parcel->parts);
    free(parcel->bytes);
    free(parcel);
}

static int sink_has_room(const struct sink *sink)
{
    return sink->on && !sink->dead && sink->count < QUEUE_PARCELS && sink->bytes < QUEUE_BYTES;
}

/* Hands a parcel to a sink; it is counted where the sink cannot take it. */
static void sink_offer(struct sink *sink, struct parcel *parcel)
{
    if (!sink->on)
        return;
    if (!sink_has_room(sink)) {
        sink->dropped[sink->dead ? CALLSIGHT_CAUSE_SINK_DEAD : CALLSIGHT_CAUSE_QUEUE]
            += parcel->events;
        return;
    }
    sink->queue[(sink->first + sink->count++) % QUEUE_PARCELS] = parcel;
    sink->bytes += parcel->count;
    parcel->users++;
}

static struct parcel *sink_front(const struct sink *sink)
{
    return sink->count > 0 ? sink->queue[sink->first] : NULL;
}

static struct parcel *sink_at(const struct sink *sink, uint32_t at)
{
    return at < sink->count ? sink->queue[(sink->first + at) % QUEUE_PARCELS] : NULL;
}

static struct parcel *sink_take(struct sink *sink)
{
    struct parcel *parcel = sink_front(sink);
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

/* Nothing in the queue will be delivered, nor anything later. */
static void sink_fail(struct sink *sink, unsigned cause)
{
    sink->dead = 1;
    while (sink->count > 0) {
        struct parcel *parcel = sink_take(sink);
        sink->dropped[cause] += parcel->events;
        parcel_done(parcel);
    }
}

static uint64_t sink_dropped(const struct sink *sink)
{
    uint64_t sum = 0;
    for (unsigned cause = 0; cause < CALLSIGHT_CAUSES; cause++)
        sum += sink->dropped[cause];
    return sum;
}
