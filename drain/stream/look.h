/* Version 3 of the ring: which pages have a writer, and in which order they are read.
 *
 * In: page headers that traced processes change while we look. Out: `order`, in which every
 * writer's pages stand by number and none is left out before one that is there.
 */

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
    page->begin = header.begin;
    page->begin_lost = header.begin_lost;
    page->read = header.read;
    page->stuck_at = page->torn = 0;
    /* Of what another drain has read, too: a note behind it must not seem to be older. */
    page->last_ts = page->read > PAGE_START
                        ? slot_ts(page_bytes_at(pool, index) + page->read - EVENT_BYTES) : 0;
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
           || page->tid != load32(&header->tid)
           || page->first != load64(&header->first);
}

/* Whether page `index` has a writer. */
static int page_look(struct pool *pool, uint32_t index)
{
    struct callsight_page_header *header = page_header(pool, index);
    struct page *page = &pool->pages[index];
    uint64_t owner = load64(&header->owner);
    uint64_t slot = (owner & ~CALLSIGHT_PAGE_RETIRED) - 1;
    if (owner == 0) {
        page->known = 0;
        return 0;
    }
    if (slot >= pool->ring->layout.slot_count)
        ring_damaged(pool, index);
    uint32_t pid = load32(&header->pid);
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
    /* Numbers go on when a thread takes over the slot of one that has ended. */
    if (second)
        return page->look == pool->look || page->first < slot->newest_first;
    if (slot->newest_first < page->first)
        slot->newest_first = page->first;
    page->look = pool->look;
    return 1;
}

static void look(struct pool *pool, int at_all, int second)
{
    uint64_t bits = 0;
    pool->order_count = 0;
    for (uint32_t index = 0; index < pool->ring->layout.page_count; index++) {
        if (index % 64 == 0)
            bits = load64(free_bits_at(pool, index));
        if (!at_all && !pool->pages[index].known && (bits >> index % 64 & 1) != 0)
            continue;
        if (page_look(pool, index) && page_counts(pool, index, second)
            && !pool->pages[index].over)
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
