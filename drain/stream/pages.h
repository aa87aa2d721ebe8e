/* Version 3 of the ring: a pool of pages, each filled by one thread at a time.
 *
 * In: pages and writer slots that traced processes change while we look. Out: each writer's
 * records in its own order, a loss note where some are missing, and the pages given back. A page
 * moves on in three steps: what it holds is copied to the chunk, the chunk is sent, `read` is
 * advanced (and a page that is over is freed). A drain killed between two of them loses nothing.
 */

/* What the drain knows of a page. Words of the map are checked once, when it is first seen. */
struct page {
    uint64_t start;
    uint64_t first;
    uint64_t lost_total;
    uint64_t last_ts;
    uint64_t stuck_since_ns;
    uint32_t lost_before[4];
    uint32_t pid;
    uint32_t tid;
    uint32_t read;     /* behind what is in a chunk, sent or not */
    uint32_t stuck_at; /* where an unstored slot was met, as `read` */
    uint32_t slot;
    uint32_t look;     /* the last look that has seen it */
    uint8_t known;
    uint8_t retired; /* by its writer */
    uint8_t over;    /* nothing will come behind `read` */
    uint8_t pending; /* in the chunk being filled */
};

/* What the drain knows of the writer in a slot, from its pages. */
struct slot {
    uint64_t start;
    uint64_t next;       /* number of the record behind the last page that is over */
    uint64_t lost_total; /* as in the last page */
    uint64_t newest_first;
    uint64_t lead_ts;
    uint64_t last_ts;
    uint32_t lost_before[4];
    uint32_t pid;
    uint32_t tid;
    uint32_t newest_tid;
    uint32_t look;
};

struct pool {
    struct ring *ring;
    struct stream *stream;
    struct counts counts; /* `delivered` as we go, the rest at the end */
    uint64_t delivered_before;
    uint64_t now_ns;
    uint64_t stuck; /* pages that wait for a slot to be stored, in the last pass */
    uint64_t moved; /* records in the last pass */
    uint32_t chunk_records;
    uint32_t chunk_torn;
    uint32_t look;
    int out_of_step; /* a page seen for the first time is not the next of its writer */
    uint32_t order_count;
    uint32_t pending_count;
    uint16_t order[CALLSIGHT_RING_MAX_PAGES];
    uint16_t pending[CALLSIGHT_RING_MAX_PAGES];
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

static uint64_t slot_ts(const unsigned char *event)
{
    return __atomic_load_n((const uint64_t *)(const void *)event, __ATOMIC_ACQUIRE);
}

static int same_writer(const struct slot *slot, const struct page *page)
{
    return slot->pid == page->pid && slot->start == page->start && slot->tid == page->tid;
}

static uint64_t total_dropped(const struct callsight_ring_writer *writer)
{
    uint64_t sum = 0;
    for (int cause = 0; cause < CALLSIGHT_CAUSES; cause++)
        sum += __atomic_load_n(&writer->dropped[cause], __ATOMIC_ACQUIRE);
    return sum;
}

/* ---- Sending -------------------------------------------------------------------------------- */

/* A writer that died has not added up the page it was in, and perhaps not its last drop. The
 * numbers tell: done before the page is given back, so that no drain does it twice. */
static void add_up(struct pool *pool, const struct page *page)
{
    struct callsight_ring_writer *writer = writer_at(pool, page->slot);
    uint64_t used = (page->read - PAGE_START) / EVENT_BYTES;
    uint64_t emitted = page->first + used + (total_dropped(writer) - page->lost_total);
    if (writer->pid == page->pid && writer->start == page->start && writer->emitted < emitted)
        writer->emitted = emitted;
}

/* Sets the free bit of a page. A claimer that was late may have it already: then not. */
static void set_free_bit(struct pool *pool, uint32_t index)
{
    uint64_t bit = 1ull << index % 64;
    __atomic_fetch_or(free_bits_at(pool, index), bit, __ATOMIC_SEQ_CST);
    if (__atomic_load_n(&page_header(pool, index)->owner, __ATOMIC_SEQ_CST) != 0)
        __atomic_fetch_and(free_bits_at(pool, index), ~bit, __ATOMIC_SEQ_CST);
}

static void page_free(struct pool *pool, uint32_t index)
{
    struct page *page = &pool->pages[index];
    struct callsight_page_header *header = page_header(pool, index);
    if (page->known && is_dead(page->pid, page->start, pool->now_ns))
        add_up(pool, page);
    __atomic_fetch_or(&header->owner, CALLSIGHT_PAGE_RETIRED, __ATOMIC_ACQ_REL);
    memset((unsigned char *)header + PAGE_START, 0, pool->ring->layout.page_bytes - PAGE_START);
    memset((unsigned char *)header + sizeof header->owner, 0, PAGE_START - sizeof header->owner);
    __atomic_store_n(&header->owner, 0, __ATOMIC_SEQ_CST);
    set_free_bit(pool, index);
    memset(page, 0, sizeof *page);
}

/* Advances `read` of every page in the chunk, now that the chunk was handed over. */
static void chunk_commit(struct pool *pool)
{
    struct callsight_ring_header *header = pool->ring->header;
    for (uint32_t at = 0; at < pool->pending_count; at++) {
        uint32_t index = pool->pending[at];
        struct page *page = &pool->pages[index];
        page->pending = 0;
        __atomic_store_n(&page_header(pool, index)->read, page->read, __ATOMIC_RELEASE);
        if (page->over)
            page_free(pool, index);
    }
    pool->pending_count = 0;
    __atomic_fetch_add(&header->tail, (uint64_t)pool->chunk_records * EVENT_BYTES,
                       __ATOMIC_RELEASE);
    /* Kept in the ring, so that the next drain of it counts them too. */
    __atomic_fetch_add(&pool->ring->control->retired_dropped[CALLSIGHT_CAUSE_TORN],
                       pool->chunk_torn, __ATOMIC_RELEASE);
    pool->counts.delivered += pool->chunk_records;
    pool->moved += pool->chunk_records;
    pool->chunk_records = pool->chunk_torn = 0;
}

static void chunk_send(struct pool *pool)
{
    struct stream *stream = pool->stream;
    if (stream->raw_bytes > 0)
        send_chunk(stream, CALLSIGHT_CHUNK_EVENTS, stream->raw, stream->raw_bytes);
    stream->raw_bytes = 0;
    chunk_commit(pool);
}

static void chunk_room(struct pool *pool, size_t count)
{
    if (sizeof pool->stream->raw - pool->stream->raw_bytes < count)
        chunk_send(pool);
}

static void page_pend(struct pool *pool, uint32_t index)
{
    if (pool->pages[index].pending)
        return;
    pool->pages[index].pending = 1;
    pool->pending[pool->pending_count++] = (uint16_t)index;
}

struct loss {
    uint32_t tid;
    uint32_t cause;
    uint64_t events;
    uint64_t ts; /* where in the writer's time the note belongs */
    uint64_t first;
    uint64_t last;
};

/* A loss note, as the writer itself would have left it (note.rs). */
static void chunk_note(struct pool *pool, const struct loss *loss)
{
    unsigned char note[3 * CALLSIGHT_NOTE_PIECE_BYTES] = { 0 };
    struct callsight_event event = { 0, 0, 0, 0, CALLSIGHT_KIND_MARKER, { 0, 0, 0 } };
    put_le(note, CALLSIGHT_LOSS_NOTE_BYTES, 2);
    put_le(note + 2, loss->cause, 4);
    put_le(note + 6, loss->events, 8);
    put_le(note + 14, loss->first, 8);
    put_le(note + 22, loss->last, 8);
    event.ts = loss->ts != 0 ? loss->ts : pool->ring->header->t0_ticks | 1;
    event.tid = loss->tid;
    chunk_room(pool, 3 * EVENT_BYTES);
    for (uint32_t piece = 0; piece < 3; piece++) {
        const unsigned char *bytes = note + piece * CALLSIGHT_NOTE_PIECE_BYTES;
        event.func = CALLSIGHT_NOTE_LOSS | piece << 16 | get_le(bytes, 4) << 32;
        event.call_site = get_le(bytes + 4, 8);
        memcpy(pool->stream->raw + pool->stream->raw_bytes, &event, EVENT_BYTES);
        pool->stream->raw_bytes += EVENT_BYTES;
    }
}

static void note_torn(struct pool *pool, const struct page *page, uint32_t events)
{
    struct loss loss = { page->tid, CALLSIGHT_CAUSE_TORN, events, page->last_ts, 0, 0 };
    chunk_note(pool, &loss);
    pool->chunk_torn += events;
}

/* ---- Looking -------------------------------------------------------------------------------- */

static void ring_damaged(const struct pool *pool, uint32_t index) __attribute__((noreturn));
static void ring_damaged(const struct pool *pool, uint32_t index)
{
    fail(EXIT_REFUSED, "read the ring %s: the header of page %" PRIu32 " is damaged",
         pool->ring->path, index);
}

/* Copies the header of a page that has just been found owned. */
static void page_meet(struct pool *pool, uint32_t index, uint32_t pid)
{
    struct page *page = &pool->pages[index];
    struct callsight_page_header header;
    memcpy(&header, page_header(pool, index), sizeof header);
    if (header.read == 0)
        header.read = PAGE_START;
    if (header.read < PAGE_START || header.read > pool->ring->layout.page_bytes
        || header.read % EVENT_BYTES != 0)
        ring_damaged(pool, index);
    page->known = 1;
    page->pid = pid;
    page->tid = header.tid;
    page->start = header.start;
    page->first = header.first;
    page->lost_total = header.lost_total;
    page->read = header.read;
    page->stuck_at = 0;
    page->last_ts = 0;
    memcpy(page->lost_before, header.lost_before, sizeof page->lost_before);
    const struct slot *slot = &pool->slots[page->slot];
    if (page->first != 0
        && (!same_writer(slot, page)
            || page->first != slot->next + (page->lost_total - slot->lost_total)))
        pool->out_of_step = 1;
}

/* Whether the page has been given back unused, and perhaps claimed again, since it was met. */
static int page_is_another(const struct pool *pool, uint32_t index, uint64_t slot, uint32_t pid)
{
    const struct page *page = &pool->pages[index];
    const struct callsight_page_header *header = page_header(pool, index);
    return page->slot != slot || page->pid != pid
           || page->tid != __atomic_load_n(&header->tid, __ATOMIC_RELAXED)
           || page->first != __atomic_load_n(&header->first, __ATOMIC_RELAXED);
}

/* Whether page `index` has a writer. */
static int page_look(struct pool *pool, uint32_t index)
{
    struct callsight_page_header *header = page_header(pool, index);
    struct page *page = &pool->pages[index];
    uint64_t owner = __atomic_load_n(&header->owner, __ATOMIC_ACQUIRE);
    uint64_t slot = (owner & ~CALLSIGHT_PAGE_RETIRED) - 1;
    if (owner == 0) {
        page->known = 0;
        return 0;
    }
    if (slot >= pool->ring->layout.slot_count)
        ring_damaged(pool, index);
    uint32_t pid = __atomic_load_n(&header->pid, __ATOMIC_ACQUIRE);
    pool->slots[slot].look = pool->look;
    if (page->known && page_is_another(pool, index, slot, pid))
        page->known = 0;
    page->slot = (uint32_t)slot;
    if (!page->known && pid == 0)
        return 0; /* its header is being filled; see free_orphans */
    if (!page->known)
        page_meet(pool, index, pid);
    page->retired = (owner & CALLSIGHT_PAGE_RETIRED) != 0;
    return 1;
}

/* In the first look every page counts. In the second only those seen in the first, and those of
 * a lower number than one of them: a page claimed and left while the first look went on. */
static int page_counts(struct pool *pool, uint32_t index, int second)
{
    struct page *page = &pool->pages[index];
    struct slot *slot = &pool->slots[page->slot];
    if (second)
        return page->look == pool->look
               || (slot->newest_tid == page->tid && page->first < slot->newest_first);
    if (page->look != pool->look && (slot->newest_tid != page->tid
                                     || slot->newest_first < page->first)) {
        slot->newest_tid = page->tid;
        slot->newest_first = page->first;
    }
    page->look = pool->look;
    return 1;
}

static void look(struct pool *pool, int at_all, int second)
{
    uint64_t bits = 0;
    pool->order_count = 0;
    for (uint32_t index = 0; index < pool->ring->layout.page_count; index++) {
        if (index % 64 == 0)
            bits = __atomic_load_n(free_bits_at(pool, index), __ATOMIC_RELAXED);
        if (!at_all && !pool->pages[index].known && (bits >> index % 64 & 1) != 0)
            continue;
        if (page_look(pool, index) && page_counts(pool, index, second))
            pool->order[pool->order_count++] = (uint16_t)index;
    }
}

/* The pool being sorted; qsort hands nothing through. */
static const struct pool *sorted_pool;

static int compare(uint64_t left, uint64_t right)
{
    return (left > right) - (left < right);
}

/* Writers by the time of what they have, so that a reused thread id comes after its former life;
 * the pages of a writer by number. */
static int compare_pages(const void *left_index, const void *right_index)
{
    const struct page *left = &sorted_pool->pages[*(const uint16_t *)left_index];
    const struct page *right = &sorted_pool->pages[*(const uint16_t *)right_index];
    const struct slot *slots = sorted_pool->slots;
    int order = compare(slots[left->slot].lead_ts, slots[right->slot].lead_ts);
    if (order == 0)
        order = compare(left->slot, right->slot);
    return order != 0 ? order : compare(left->first, right->first);
}

static void sort_pages(struct pool *pool)
{
    for (uint32_t at = 0; at < pool->order_count; at++)
        pool->slots[pool->pages[pool->order[at]].slot].lead_ts = UINT64_MAX;
    for (uint32_t at = 0; at < pool->order_count; at++) {
        const struct page *page = &pool->pages[pool->order[at]];
        struct slot *slot = &pool->slots[page->slot];
        uint64_t ts = page->read < pool->ring->layout.page_bytes
                          ? slot_ts(page_bytes_at(pool, pool->order[at]) + page->read) : 0;
        if (ts != 0 && ts < slot->lead_ts)
            slot->lead_ts = ts;
    }
    sorted_pool = pool;
    qsort(pool->order, pool->order_count, sizeof pool->order[0], compare_pages);
}

/* ---- Moving --------------------------------------------------------------------------------- */

/* Copies whole events from `read` on, as far as they and the chunk reach. */
static void copy_events(struct pool *pool, uint32_t index)
{
    struct page *page = &pool->pages[index];
    struct stream *stream = pool->stream;
    const unsigned char *bytes = page_bytes_at(pool, index);
    uint32_t end = pool->ring->layout.page_bytes, from = page->read;
    size_t room = sizeof stream->raw - stream->raw_bytes;
    uint64_t ts;
    while (page->read < end && room >= EVENT_BYTES && (ts = slot_ts(bytes + page->read)) != 0) {
        unsigned char *out = stream->raw + stream->raw_bytes;
        memcpy(out, bytes + page->read, EVENT_BYTES);
        memcpy(out, &ts, sizeof ts);
        stream->raw_bytes += EVENT_BYTES;
        room -= EVENT_BYTES;
        page->read += EVENT_BYTES;
        page->last_ts = ts;
    }
    pool->chunk_records += (page->read - from) / EVENT_BYTES;
    if (page->read != from)
        page_pend(pool, index);
}

/* How many slots from `at` on have no time; `count` when none has. */
static uint32_t unstored(const unsigned char *at, uint32_t count)
{
    uint32_t run = 0;
    while (run < count && slot_ts(at + (size_t)run * EVENT_BYTES) == 0)
        run++;
    return run;
}

/* How many slots from `at` on have no time, but some other word. */
static uint32_t half_stored(const unsigned char *at, uint32_t count)
{
    static const unsigned char nothing[EVENT_BYTES];
    uint32_t run = 0;
    while (run < count && memcmp(at + (size_t)run * EVENT_BYTES, nothing, EVENT_BYTES) != 0)
        run++;
    return run;
}

/* Whether the page has waited long enough for the slot at `read`. */
static int page_waited(struct pool *pool, struct page *page)
{
    if (page->stuck_at != page->read) {
        page->stuck_at = page->read;
        page->stuck_since_ns = pool->now_ns;
    }
    if (pool->now_ns - page->stuck_since_ns >= UNSTORED_NS)
        return 1;
    pool->stuck++;
    return 0;
}

/* How many records the writer put into a page that it has left for another: the number of the
 * other tells. 0 when there is no other; if `page` is retired full, there is one by then. */
static uint64_t records_put(const struct pool *pool, const struct page *page)
{
    uint64_t next = UINT64_MAX, lost_total = 0;
    for (uint32_t index = 0; index < pool->ring->layout.page_count; index++) {
        const struct callsight_page_header *header = page_header(pool, index);
        uint64_t owner = __atomic_load_n(&header->owner, __ATOMIC_ACQUIRE);
        uint32_t pid = __atomic_load_n(&header->pid, __ATOMIC_ACQUIRE);
        if ((owner & ~CALLSIGHT_PAGE_RETIRED) != (uint64_t)page->slot + 1 || pid != page->pid
            || header->start != page->start || header->first <= page->first
            || header->first >= next)
            continue;
        next = header->first;
        lost_total = header->lost_total;
    }
    return next == UINT64_MAX ? 0 : next - page->first - (lost_total - page->lost_total);
}

/* Of the slots from `read` on, which all have no time: how many were reserved for an event. */
static uint32_t reserved_last(const struct pool *pool, uint32_t index, int dead)
{
    const struct page *page = &pool->pages[index];
    uint32_t slots = (pool->ring->layout.page_bytes - page->read) / EVENT_BYTES;
    uint64_t used = (page->read - PAGE_START) / EVENT_BYTES;
    uint64_t put = records_put(pool, page);
    if (put > used)
        return put - used < slots ? (uint32_t)(put - used) : slots;
    /* Killed while it stored: what it had reserved shows only by what it had stored of it. */
    return dead && !page->retired
               ? half_stored(page_bytes_at(pool, index) + page->read, slots) : 0;
}

/* Looks behind an unstored slot at `read`: returns how many slots to give up, and sets `over` when
 * nothing more will come. */
static uint32_t torn_slots(struct pool *pool, uint32_t index, int dead)
{
    struct page *page = &pool->pages[index];
    const unsigned char *at = page_bytes_at(pool, index) + page->read;
    uint32_t slots = (pool->ring->layout.page_bytes - page->read) / EVENT_BYTES;
    int left = dead || page->retired;
    uint32_t seen = left || slots < NESTED_HOOKS ? slots : NESTED_HOOKS;
    uint32_t gap = unstored(at, seen);
    if (gap < seen)
        return dead || page_waited(pool, page) ? gap : 0;
    if (!left)
        return 0;
    uint32_t reserved = reserved_last(pool, index, dead);
    if (reserved > 0 && !dead && !page_waited(pool, page))
        return 0;
    page->over = 1;
    return reserved;
}

/* Takes note that all of a page is in the chunk, and of the number its successor will have. */
static void page_end(struct pool *pool, uint32_t index)
{
    const struct page *page = &pool->pages[index];
    struct slot *slot = &pool->slots[page->slot];
    uint64_t next = page->first + (page->read - PAGE_START) / EVENT_BYTES;
    if (!same_writer(slot, page) || next > slot->next) {
        slot->pid = page->pid;
        slot->tid = page->tid;
        slot->start = page->start;
        slot->next = next;
        slot->lost_total = page->lost_total;
        memcpy(slot->lost_before, page->lost_before, sizeof slot->lost_before);
    }
    slot->last_ts = page->last_ts;
    page_pend(pool, index);
}

/* Moves what a page holds into the chunk; 0 when an event of it is still to come, and the
 * writer's next page must wait. */
static int page_move(struct pool *pool, uint32_t index)
{
    struct page *page = &pool->pages[index];
    uint32_t end = pool->ring->layout.page_bytes;
    /* Both before the slots are read: what is unstored after that stays so. */
    int dead = is_dead(page->pid, page->start, pool->now_ns);
    uint64_t owner = __atomic_load_n(&page_header(pool, index)->owner, __ATOMIC_ACQUIRE);
    page->retired = (owner & CALLSIGHT_PAGE_RETIRED) != 0;
    while (!page->over) {
        chunk_room(pool, EVENT_BYTES);
        copy_events(pool, index);
        if (page->read == end || slot_ts(page_bytes_at(pool, index) + page->read) != 0) {
            if (page->read == end)
                break;
            continue; /* the chunk is full */
        }
        uint32_t torn = torn_slots(pool, index, dead);
        if (torn == 0)
            break;
        note_torn(pool, page, torn);
        page->read += torn * EVENT_BYTES;
        page_pend(pool, index);
    }
    page->over |= page->read == end && (page->retired || dead);
    if (page->over)
        page_end(pool, index);
    return page->over || page->read == end;
}

/* Moves everything there is at this moment. */
static void pool_pass(struct pool *pool, int at_all)
{
    pool->now_ns = now_ns();
    pool->moved = pool->stuck = 0;
    pool->look++;
    pool->out_of_step = 0;
    look(pool, at_all, 0);
    /* A page may have been claimed, filled and left behind the look, and its successor seen. */
    if (pool->out_of_step)
        look(pool, 1, 1);
    sort_pages(pool);
    const struct page *waiting = NULL;
    for (uint32_t at = 0; at < pool->order_count; at++) {
        const struct page *page = &pool->pages[pool->order[at]];
        int behind = waiting != NULL && waiting->slot == page->slot && waiting->tid == page->tid;
        if (!behind && !page_move(pool, pool->order[at]))
            waiting = page;
    }
    chunk_send(pool);
}
