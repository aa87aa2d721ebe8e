/* What a drain leaves in its ring for the next one.
 *
 * In: the parcels that no sink has, and the ring as it is then. Out: the counts without them, and how
 * many events are in no count of this drain. Nothing of it is lost, and nothing is told twice.
 */

/* What is held by parcels that were not given back. */
struct kept {
    uint64_t records;
    uint64_t events; /* enters and exits */
    struct told told;
};

static struct kept outlet_kept(const struct outlet *outlet)
{
    struct kept kept;
    memset(&kept, 0, sizeof kept);
    for (const struct parcel *at = outlet->oldest; at != NULL; at = at->next) {
        kept.records += at->records;
        kept.events += at->events;
        for (uint32_t cause = 0; cause < CALLSIGHT_RING_CAUSES; cause++)
            kept.told.events[cause] += at->told.events[cause];
    }
    return kept;
}

/* Takes out of the counts what no sink has; so are the losses that its notes tell, where there will
 * be a next drain. */
static void uncount_kept(const struct outlet *outlet, uint32_t reason, struct counts *counts)
{
    struct kept kept = outlet_kept(outlet);
    counts->delivered -= kept.records;
    counts->events -= kept.events;
    for (uint32_t cause = 0; cause < CALLSIGHT_RING_CAUSES && reason != CALLSIGHT_END_DONE; cause++)
        counts->dropped[cause] -= kept.told.events[cause];
}

/* Adds the losses that only notes tell: what a thread did before it was one that is recorded is in
 * no count of its ring. Where the counts are those of the notes, they are in. */
static void count_noted(const struct pool *pool, uint32_t reason, struct counts *counts)
{
    uint64_t told = 0, counted = sum_dropped(counts) - counts->dropped[CALLSIGHT_CAUSE_NO_SLOT];
    if (reason != CALLSIGHT_END_DONE || pool->taken_over)
        return;
    for (uint32_t cause = 0; cause < CALLSIGHT_RING_CAUSES; cause++)
        told += pool->told.events[cause];
    uint64_t left = told > counted ? told - counted : 0;
    counts->emitted += left;
    /* By far the most are of the last cause; a note may sum up those of others. */
    for (uint32_t cause = CALLSIGHT_RING_CAUSES; cause-- > 0;) {
        uint64_t *dropped = &counts->dropped[cause];
        uint64_t more = pool->told.events[cause] > *dropped ? pool->told.events[cause] - *dropped : 0;
        more = more < left ? more : left;
        *dropped += more;
        left -= more;
    }
    counts->dropped[CALLSIGHT_CAUSE_FULL] += left;
}

/* As uncount_kept, of the only sink's own counts. */
static void uncount_kept_of(struct outlet *outlet, struct sink *sink)
{
    uint64_t kept = outlet_kept(outlet).events;
    for (uint32_t at = 0; at < CALLSIGHT_CAUSES; at++) {
        uint64_t *dropped = &sink->dropped[(CALLSIGHT_CAUSE_UNACKED + at) % CALLSIGHT_CAUSES];
        uint64_t events = *dropped < kept ? *dropped : kept;
        *dropped -= events;
        outlet->events -= events;
        kept -= events;
    }
}

/* Events dropped in a ring's whole life, told or not. */
static uint64_t dropped_in_ring(const struct ring *ring)
{
    const unsigned char *writers = ring->map + CALLSIGHT_RING_WRITERS_OFFSET;
    uint64_t dropped = load64(&ring->control->no_slot);
    for (int cause = 0; cause < CALLSIGHT_RING_CAUSES; cause++)
        dropped += load64(&ring->control->retired_dropped[cause]);
    for (uint32_t index = 0; index < ring->layout.slot_count; index++)
        dropped += total_dropped(
            (const void *)(writers + (size_t)index * CALLSIGHT_RING_WRITER_BYTES));
    return dropped;
}

/* Enters and exits in the pages of a ring that no sink has. */
static uint64_t calls_in_pages(const struct ring *ring)
{
    uint64_t calls = 0;
    for (uint32_t index = 0; index < ring->layout.page_count; index++) {
        const unsigned char *page = ring->map + ring->layout.pages_offset
                                    + (size_t)index * ring->layout.page_bytes;
        const struct callsight_page_header *header = (const void *)page;
        uint32_t at = load32(&header->read);
        if (load64(&header->owner) == 0)
            continue;
        for (at = at < PAGE_START ? PAGE_START : at; at < ring->layout.page_bytes;
             at += EVENT_BYTES)
            calls += slot_ts(page + at) != 0 && is_call((const void *)(page + at));
    }
    return calls;
}

/* What a stopped drain of a version 3 ring leaves to the next one: calls in pages, and losses to tell. */
struct rest {
    uint64_t in_ring;
    uint64_t untold;
};

static struct rest left_to_next(const struct ring *ring, const struct outlet *outlet,
                                const struct counts *counts, int is_first)
{
    struct kept kept = outlet_kept(outlet);
    struct rest rest = { calls_in_pages(ring), counts->untold };
    for (uint32_t cause = 0; cause < CALLSIGHT_RING_CAUSES; cause++)
        rest.untold += kept.told.events[cause];
    /* What is lost meanwhile is known where all of the ring's losses are this drain's, but for what
     * only notes tell. */
    uint64_t in_ring = dropped_in_ring(ring), told = sum_dropped(counts);
    if (is_first)
        rest.untold = in_ring > told ? in_ring - told : 0;
    return rest;
}
