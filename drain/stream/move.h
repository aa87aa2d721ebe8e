/* Version 3 of the ring: from the slots of a page to the outlet.
 *
 * In: `order`. Out: each writer's records in its own order, with a loss note where a slot was
 * reserved and never stored.
 */

/* Counts what a writer's own loss note tells. Its pieces stand one behind the other in a page;
 * `last` is where the last of them may be. One without times is of what its thread did before it was
 * recorded: that is in no count of the ring, and was no drop of this writer. */
static void hear_loss(struct pool *pool, const struct feed *feed, struct slot *slot,
                      const unsigned char *last)
{
    unsigned char note[LOSS_PIECES * CALLSIGHT_NOTE_PIECE_BYTES];
    struct callsight_event event;
    for (uint32_t piece = LOSS_PIECES; piece-- > 0; last -= EVENT_BYTES) {
        unsigned char *bytes = note + piece * CALLSIGHT_NOTE_PIECE_BYTES;
        memcpy(&event, last, EVENT_BYTES);
        if (event.kind != CALLSIGHT_KIND_MARKER
            || (uint32_t)event.func != (CALLSIGHT_NOTE_LOSS | piece << 16))
            return;
        put_le(bytes, event.func >> 32, 4);
        put_le(bytes + 4, event.call_site, 8);
    }
    add_told(pool, feed, get_le(note + 2, 4), get_le(note + 6, 8));
    if ((get_le(note + 14, 8) | get_le(note + 22, 8)) != 0)
        slot->heard += get_le(note + 6, 8);
}

/* Takes whole events from `read` on, as far as they reach. */
static void take_events(struct pool *pool, uint32_t index)
{
    struct page *page = &pool->pages[index];
    const unsigned char *bytes = page_bytes_at(pool, index);
    uint32_t end = pool->ring->layout.page_bytes, from = page->read;
    struct feed feed = feed_of(pool, index);
    int kind;
    while ((kind = outlet_take_run(pool->outlet, &feed, bytes, end)) >= 0) {
        const uint32_t last = feed.part.read - EVENT_BYTES;
        if (kind == CALLSIGHT_KIND_MARKER && last >= PAGE_START + (LOSS_PIECES - 1) * EVENT_BYTES)
            hear_loss(pool, &feed, &pool->slots[page->slot], bytes + last);
    }
    page->read = feed.part.read;
    page->last_ts = feed.last_ts;
    pool->delivered += (page->read - from) / EVENT_BYTES;
    pool->moved += (page->read - from) / EVENT_BYTES;
    if (page->read != from)
        outlet_hold(pool->outlet, &feed, 0);
}

/* Gives up `count` slots that were reserved and never stored. */
static void give_up_slots(struct pool *pool, uint32_t index, uint32_t count)
{
    struct page *page = &pool->pages[index];
    struct loss loss = { CALLSIGHT_CAUSE_TORN, count, page->last_ts, 0, 0 };
    struct feed feed = feed_of(pool, index);
    tell_loss(pool, &feed, &loss);
    page->read += count * EVENT_BYTES;
    page->torn += count;
    feed.part.read = page->read;
    outlet_hold(pool->outlet, &feed, count);
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

/* How many records the writer put into a page that it has left: up to where the next page of its
 * slot begins, or to what it has stored in all the pages that it has left. 0 when nothing tells. */
static uint64_t records_put(const struct pool *pool, uint32_t index)
{
    const struct page *page = &pool->pages[index];
    uint64_t begin = page->first - page->lost_total, none = UINT64_MAX;
    /* Counted before a page is retired, and loaded before the others are looked at: whoever has
     * stored more by then has a page that will be met. */
    uint64_t end = page->retired ? load64(&writer_at(pool, page->slot)->stored) : none;
    for (uint32_t other = 0; other < pool->ring->layout.page_count; other++) {
        const struct callsight_page_header *header = page_header(pool, other);
        uint64_t owner = load64(&header->owner);
        if (other == index || (owner & ~CALLSIGHT_PAGE_RETIRED) != (uint64_t)page->slot + 1
            || load32(&header->pid) != page->pid || load64(&header->start) != page->start)
            continue;
        uint64_t at = load64(&header->first) - load64(&header->lost_total);
        /* One that was given back unused meanwhile may be another writer's. */
        int is_same = ((load64(&header->owner) ^ owner) & ~CALLSIGHT_PAGE_RETIRED) == 0;
        if (is_same && at >= begin && at < end)
            end = at;
    }
    return end != none && end > begin ? end - begin : 0;
}

/* Of the slots from `read` on, which all have no time: how many were reserved for an event. */
static uint32_t reserved_last(const struct pool *pool, uint32_t index, int dead)
{
    const struct page *page = &pool->pages[index];
    uint32_t slots = (pool->ring->layout.page_bytes - page->read) / EVENT_BYTES;
    uint64_t used = (page->read - PAGE_START) / EVENT_BYTES;
    uint64_t put = records_put(pool, index);
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

/* Takes note that all of a page was taken, and of the number its successor will have. */
static void page_end(struct pool *pool, uint32_t index)
{
    const struct page *page = &pool->pages[index];
    struct slot *slot = &pool->slots[page->slot];
    uint64_t next = page->first + (page->read - PAGE_START) / EVENT_BYTES;
    struct feed feed = feed_of(pool, index);
    outlet_hold(pool->outlet, &feed, 0);
    pool->held++;
    slot->torn = page->torn + (same_writer(slot, page) ? slot->torn : 0);
    if (!same_writer(slot, page) || next > slot->next) {
        slot->pid = page->pid;
        slot->tid = page->tid;
        slot->start = page->start;
        slot->next = next;
        slot->lost_total = page->lost_total;
        slot->begin = page->begin;
        slot->begin_lost = page->begin_lost;
        memcpy(slot->lost_before, page->lost_before, sizeof slot->lost_before);
    }
    slot->last_ts = page->last_ts;
    slot->open = 1;
}

/* Seals what the thread holds that had the slot before. The pages of a slot are given back in the
 * order of their numbers, whoever filled them: by that the next drain tells what was taken
 * (slots_taken), and how much is in a page (records_put). */
static void seal_former(struct pool *pool, const struct page *page)
{
    struct slot *slot = &pool->slots[page->slot];
    if (!slot->open || same_writer(slot, page))
        return;
    struct writer_id former = { slot->start, slot->pid, slot->tid };
    struct packer *packer = outlet_packer_of(pool->outlet, &former);
    if (packer != NULL)
        packer_seal(pool->outlet, packer);
    slot->open = 0;
}

/* Takes what a page holds; 0 when an event of it is still to come, and the next page of its slot
 * must wait. */
static int page_move(struct pool *pool, uint32_t index)
{
    struct page *page = &pool->pages[index];
    uint32_t end = pool->ring->layout.page_bytes;
    /* Both before the slots are read: what is unstored after that stays so. */
    int dead = is_dead(page->pid, page->start, pool->now_ns);
    uint64_t owner = load64(&page_header(pool, index)->owner);
    page->retired = (owner & CALLSIGHT_PAGE_RETIRED) != 0;
    seal_former(pool, page);
    while (!page->over) {
        take_events(pool, index);
        if (page->read == end)
            break;
        uint32_t torn = torn_slots(pool, index, dead);
        if (torn == 0)
            break;
        give_up_slots(pool, index, torn);
    }
    page->over |= page->read == end && (page->retired || dead);
    if (page->over)
        page_end(pool, index);
    return page->over || page->read == end;
}

/* Whether `page` must wait for `waiting`. Whoever has a slot has retired what the thread before had
 * there: a page of that one that is not retired by then will never be, and nobody waits for it. */
static int is_behind(const struct page *page, const struct page *waiting)
{
    return waiting != NULL && waiting->slot == page->slot
           && (waiting->tid == page->tid || waiting->retired);
}

/* Takes everything there is at this moment, as far as the sinks have room. */
static void pool_pass(struct pool *pool, int at_all)
{
    pool->now_ns = now_ns();
    pool->moved = pool->stuck = 0;
    outlet_pump(pool->outlet);
    pool_release(pool);
    if (!outlet_has_room(pool->outlet)) {
        outlet_hurry(pool->outlet, pool->ring->header, pool->ring->capacity);
        return;
    }
    pool->look++;
    pool->out_of_step = 0;
    look(pool, at_all, 0);
    /* A page may have been claimed, filled and left behind the look, and its successor seen. */
    if (pool->out_of_step)
        look(pool, 1, 1);
    sort_pages(pool);
    const struct page *waiting = NULL;
    for (uint32_t at = 0; at < pool->order_count && outlet_has_room(pool->outlet); at++) {
        const struct page *page = &pool->pages[pool->order[at]];
        if (!is_behind(page, waiting) && !page_move(pool, pool->order[at]))
            waiting = page;
    }
    outlet_seal_old(pool->outlet);
    outlet_pump(pool->outlet);
    pool_release(pool);
}
