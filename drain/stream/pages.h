/* Version 3 of the ring: a pool of pages, each filled by one thread at a time.
 *
 * In: what look.h found and move.h took. Out: `read` advanced as far as the sinks have the records,
 * then pages that are over given back; a drain killed in between loses nothing.
 */

/* What the drain knows of a page. Words of the map are checked once, when it is first seen. */
struct page {
    uint64_t start;
    uint64_t first;
    uint64_t lost_total;
    uint64_t begin;      /* as `first` and `lost_total`, when its thread began */
    uint64_t begin_lost;
    uint64_t last_ts;
    uint64_t stuck_since_ns;
    uint32_t lost_before[4];
    uint32_t pid;
    uint32_t tid;
    uint32_t read;     /* behind what was taken, wherever it is by now */
    uint32_t stuck_at; /* where an unstored slot was met, as `read` */
    uint32_t slot;
    uint32_t torn;     /* of the slots before `read` */
    uint32_t look;     /* the last look that has seen it */
    uint8_t known;
    uint8_t retired; /* by its writer */
    uint8_t over;    /* nothing will come behind `read` */
};

/* What the drain knows of the writer in a slot, from its pages. */
struct slot {
    uint64_t start;
    uint64_t next;       /* number of the record behind the last page that is over */
    uint64_t lost_total; /* as in the last page, like the next two */
    uint64_t begin;
    uint64_t begin_lost;
    uint64_t newest_first; /* number of the newest page seen */
    uint64_t lead_ts;
    uint64_t last_ts;
    uint32_t lost_before[4];
    uint32_t torn; /* of the pages that are over */
    uint32_t pid;
    uint32_t tid;
    uint32_t look;
    uint32_t named_tid; /* whose name is in `name` */
    uint8_t open;       /* the thread of the last page that is over may have a block under way */
    uint64_t heard;     /* events that the writer's own loss notes tell */
    uint64_t told_at;   /* its last losses were told: what the outlet had been given then */
    uint64_t asked_ns;  /* when its name was asked for */
    uint64_t ask_every_ns;
    char name[16];
};

struct pool {
    struct ring *ring;
    struct outlet *outlet;
    uint64_t delivered; /* records that were taken */
    struct told told; /* by the loss notes of this stream */
    uint64_t delivered_before;
    uint64_t dropped_before; /* what earlier drains told, as far as could be seen at first */
    int taken_over;          /* from an earlier drain */
    int is_paused;
    uint64_t now_ns;
    uint64_t stuck; /* pages that wait for a slot to be stored, in the last pass */
    uint64_t moved; /* records in the last pass */
    uint32_t held;  /* pages that are over and not given back */
    uint32_t look;
    int out_of_step; /* a page seen for the first time is not the next of its writer */
    uint32_t order_count;
    uint16_t order[CALLSIGHT_RING_MAX_PAGES];
    struct page pages[CALLSIGHT_RING_MAX_PAGES];
    struct slot slots[MAX_SLOTS];
};

static unsigned char *page_bytes_at(const struct pool *pool, uint32_t index)
{
    const struct layout *layout = &pool->ring->layout;
    return pool->ring->map + layout->pages_offset + (size_t)index * layout->page_bytes;
}

static struct callsight_page_header *page_header(const struct pool *pool, uint32_t index)
{
    return (struct callsight_page_header *)(void *)page_bytes_at(pool, index);
}

static struct callsight_ring_writer *writer_at(const struct pool *pool, uint32_t slot)
{
    return (struct callsight_ring_writer *)(void *)(pool->ring->map + CALLSIGHT_RING_WRITERS_OFFSET
                                                    + (size_t)slot * CALLSIGHT_RING_WRITER_BYTES);
}

static struct callsight_ring_process *process_at(const struct pool *pool, uint32_t entry)
{
    return (struct callsight_ring_process *)(void *)(pool->ring->map
                                                     + CALLSIGHT_RING_PROCESSES_OFFSET
                                                     + entry * CALLSIGHT_RING_PROCESS_BYTES);
}

static uint64_t *free_bits_at(const struct pool *pool, uint32_t index)
{
    return (uint64_t *)(void *)(pool->ring->map + CALLSIGHT_RING_BITMAP_OFFSET) + index / 64;
}

static int same_writer(const struct slot *slot, const struct page *page)
{
    return slot->pid == page->pid && slot->start == page->start && slot->tid == page->tid;
}

static uint64_t total_dropped(const struct callsight_ring_writer *writer)
{
    uint64_t sum = 0;
    for (int cause = 0; cause < CALLSIGHT_RING_CAUSES; cause++)
        sum += load64(&writer->dropped[cause]);
    return sum;
}

/* A writer that died has not added up the page it was in. Its numbers tell whether: done before the
 * page is given back, so that no drain does it twice. */
static void add_up(struct pool *pool, const struct page *page)
{
    struct callsight_ring_writer *writer = writer_at(pool, page->slot);
    uint64_t used = (page->read - PAGE_START) / EVENT_BYTES;
    uint64_t stored = page->first - page->lost_total + used;
    if (writer->pid == page->pid && writer->start == page->start && writer->stored < stored)
        writer->stored = stored;
}

/* Sets the free bit of a page. A claimer that was late may have it already: then not. */
static void set_free_bit(struct pool *pool, uint32_t index)
{
    uint64_t bit = 1ull << index % 64;
    set_bits64(free_bits_at(pool, index), bit);
    if (load64(&page_header(pool, index)->owner) != 0)
        clear_bits64(free_bits_at(pool, index), bit);
}

static void page_free(struct pool *pool, uint32_t index)
{
    struct page *page = &pool->pages[index];
    struct callsight_page_header *header = page_header(pool, index);
    if (page->known && is_dead(page->pid, page->start, pool->now_ns))
        add_up(pool, page);
    set_bits64(&header->owner, CALLSIGHT_PAGE_RETIRED);
    /* First: from here on nobody takes what else it says for true (slots_taken). */
    store32(&header->pid, 0);
    memset((unsigned char *)header + PAGE_START, 0, pool->ring->layout.page_bytes - PAGE_START);
    memset((unsigned char *)header + sizeof header->owner, 0, PAGE_START - sizeof header->owner);
    store64(&header->owner, 0);
    set_free_bit(pool, index);
    pool->held -= page->over;
    memset(page, 0, sizeof *page);
}

/* Gives back what a parcel holds. `tail` is for onlookers: a drain that is killed behind the first
 * page leaves it as it was, so the next one counts by the pages (slots_taken). */
static void give_back(struct pool *pool, struct parcel *parcel)
{
    for (uint32_t at = 0; at < parcel->parts.count; at++) {
        const struct part *part = &parcel->parts.list[at];
        store32(&page_header(pool, part->page)->read, part->read);
        if (part->over)
            page_free(pool, part->page);
    }
    add64(&pool->ring->header->tail, (uint64_t)parcel->records * EVENT_BYTES);
    /* Kept in the ring, so that the next drain of it counts them too. */
    add64(&pool->ring->control->retired_dropped[CALLSIGHT_CAUSE_TORN], parcel->torn);
    parcel_done(parcel);
}

/* A ring of fewer pages than this has none to spare. */
#define PAGES_TO_HOLD 64u

/* Gives back all that the sinks have. What they have not is given back too when it is more than
 * half of the ring: the traced processes would lose events before the sinks do. When no sink works
 * any more, it stays for the next drain. */
static void pool_release(struct pool *pool)
{
    struct outlet *outlet = pool->outlet;
    uint32_t pages = pool->ring->layout.page_count, half = pages < PAGES_TO_HOLD ? 0 : pages / 2;
    struct parcel *parcel;
    if (outlet->open_pages > half / 2)
        outlet_seal_all(outlet);
    while ((parcel = outlet_release(outlet, !outlet_is_dead(outlet)
                                               && pool->held - outlet->open_pages > half)) != NULL)
        give_back(pool, parcel);
}

/* Says what a writer had dropped, of `lost_before` by cause since its slot is used, as far as that is
 * not of a thread that had the slot before: there is one sum for that. */
static void feed_losses(struct feed *feed, uint64_t lost, const uint32_t *lost_before,
                        uint32_t torn)
{
    feed->lost_total = lost + torn;
    for (int cause = 0; cause < 4; cause++) {
        feed->lost[cause] = lost_before[cause] < lost ? lost_before[cause] : (uint32_t)lost;
        lost -= feed->lost[cause];
    }
    feed->lost[3] += torn;
}

/* Where the next record of a page comes from. */
static struct feed feed_of(const struct pool *pool, uint32_t index)
{
    const struct page *page = &pool->pages[index];
    const struct slot *slot = &pool->slots[page->slot];
    uint32_t torn = page->torn + (same_writer(slot, page) ? slot->torn : 0);
    struct feed feed = {
        { page->start, page->pid, page->tid },
        page->first - page->begin + (page->read - PAGE_START) / EVENT_BYTES,
        0,
        { 0, 0, 0, 0 },
        1,
        { page->read, (uint16_t)index, page->over },
        page->last_ts,
    };
    feed_losses(&feed, page->lost_total - page->begin_lost, page->lost_before, torn);
    return feed;
}

/* A note of CALLSIGHT_LOSS_NOTE_BYTES and its length. */
#define LOSS_PIECES 3

struct loss {
    uint32_t cause;
    uint64_t events;
    uint64_t ts; /* where in the writer's time the note belongs */
    uint64_t first;
    uint64_t last;
};

#define NOTE_PIECES 4u

/* A note of thread `tid` (note.rs): `note` holds its length, its bytes, and zeros to whole pieces. */
static void tell_note(struct pool *pool, const struct feed *feed, uint64_t ts, uint64_t code,
                      const unsigned char *note, uint32_t pieces)
{
    struct callsight_event events[NOTE_PIECES];
    memset(events, 0, sizeof events);
    for (uint32_t piece = 0; piece < pieces; piece++) {
        const unsigned char *bytes = note + piece * CALLSIGHT_NOTE_PIECE_BYTES;
        events[piece].ts = ts != 0 ? ts : pool->ring->header->t0_ticks | 1;
        events[piece].tid = feed->writer.tid;
        events[piece].kind = CALLSIGHT_KIND_MARKER;
        events[piece].func = code | piece << 16 | get_le(bytes, 4) << 32;
        events[piece].call_site = get_le(bytes + 4, 8);
    }
    outlet_note(pool->outlet, feed, events, pieces);
}

/* The note of a pause. */
static void tell_pause_of(struct pool *pool, const struct feed *feed, uint64_t ts)
{
    static const unsigned char note[CALLSIGHT_NOTE_PIECE_BYTES];
    tell_note(pool, feed, ts, CALLSIGHT_NOTE_PAUSE, note, 1);
}

/* The last note of `feed` tells a loss. */
static void add_told(struct pool *pool, const struct feed *feed, uint64_t cause, uint64_t events)
{
    pool->told.events[cause < CALLSIGHT_RING_CAUSES ? cause : CALLSIGHT_CAUSE_FULL] += events;
    outlet_told(pool->outlet, &feed->writer, cause, events);
}

/* A loss note, as the writer itself would have left it. */
static void tell_loss(struct pool *pool, const struct feed *feed, const struct loss *loss)
{
    unsigned char note[LOSS_PIECES * CALLSIGHT_NOTE_PIECE_BYTES] = { 0 };
    put_le(note, CALLSIGHT_LOSS_NOTE_BYTES, 2);
    put_le(note + 2, loss->cause, 4);
    put_le(note + 6, loss->events, 8);
    put_le(note + 14, loss->first, 8);
    put_le(note + 22, loss->last, 8);
    tell_note(pool, feed, loss->ts, CALLSIGHT_NOTE_LOSS, note, LOSS_PIECES);
    add_told(pool, feed, loss->cause, loss->events);
}
