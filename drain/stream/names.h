/* Names: of threads, and of the executable of a process that is gone. Most threads get theirs after
 * their first hooks, and a hook that asked again would make a system call; so the drain asks, on
 * the machine both run on. An executable is named by notes in the ring.
 */

/* Asked for at first soon, then ever less often. */
#define FIRST_ASK_NS (50 * MS)
#define LAST_ASK_NS (2000 * MS)

static size_t read_thread_name(const struct page *page, char *name, size_t name_bytes)
{
    char path[64], text[64];
    snprintf(path, sizeof path, "/proc/%" PRIu32 "/task/%" PRIu32 "/comm", page->pid, page->tid);
    size_t count = read_text(path, text, sizeof text);
    if (count > 0 && text[count - 1] == '\n')
        count--;
    count = count < name_bytes - 1 ? count : name_bytes - 1;
    memset(name, 0, name_bytes);
    memcpy(name, text, count);
    return count;
}

/* Whether a note may stand behind what was moved of a page: not between the pieces of another. */
static int is_between_notes(const struct pool *pool, uint32_t index)
{
    const struct page *page = &pool->pages[index];
    const struct callsight_event *last
        = (const void *)(page_bytes_at(pool, index) + page->read - EVENT_BYTES);
    return page->read > PAGE_START && last->kind != CALLSIGHT_KIND_MARKER;
}

static void tell_name(struct pool *pool, uint32_t index)
{
    const struct page *page = &pool->pages[index];
    struct slot *slot = &pool->slots[page->slot];
    unsigned char note[2 * CALLSIGHT_NOTE_PIECE_BYTES] = { 0 };
    char name[sizeof slot->name];
    if (slot->named_tid != page->tid) {
        slot->named_tid = page->tid;
        slot->asked_ns = pool->now_ns;
        slot->ask_every_ns = FIRST_ASK_NS;
        slot->name[0] = 0;
    }
    if (pool->now_ns - slot->asked_ns < slot->ask_every_ns || !is_between_notes(pool, index))
        return;
    slot->asked_ns = pool->now_ns;
    slot->ask_every_ns = slot->ask_every_ns * 2 < LAST_ASK_NS ? slot->ask_every_ns * 2
                                                              : LAST_ASK_NS;
    size_t count = read_thread_name(page, name, sizeof name);
    if (count == 0 || memcmp(name, slot->name, sizeof name) == 0)
        return;
    memcpy(slot->name, name, sizeof name);
    put_le(note, count, 2);
    memcpy(note + 2, name, count);
    struct feed feed = feed_of(pool, index);
    tell_note(pool, &feed, page->last_ts, CALLSIGHT_NOTE_THREAD_NAME, note,
              (uint32_t)((count + 2 + CALLSIGHT_NOTE_PIECE_BYTES - 1)
                         / CALLSIGHT_NOTE_PIECE_BYTES));
}

/* Tells the names of the threads that write now, where they have changed. */
static void tell_names(struct pool *pool)
{
    for (uint32_t index = 0; index < pool->ring->layout.page_count; index++) {
        const struct page *page = &pool->pages[index];
        if (page->known && !page->retired && !page->over)
            tell_name(pool, index);
    }
}

/* Puts the note that begins at `at`, and ends before `end`, into `note`; returns whether it is
 * there, with code `code`. */
static int read_note(const unsigned char *at, const unsigned char *end, uint32_t code,
                     unsigned char *note, size_t note_bytes)
{
    struct callsight_event event;
    size_t have = 0, whole = 2;
    for (; have < whole; at += EVENT_BYTES, have += CALLSIGHT_NOTE_PIECE_BYTES) {
        if (at == end || slot_ts(at) == 0 || note_bytes - have < CALLSIGHT_NOTE_PIECE_BYTES)
            return 0;
        memcpy(&event, at, sizeof event);
        uint32_t piece = (uint32_t)(have / CALLSIGHT_NOTE_PIECE_BYTES);
        if (event.kind != CALLSIGHT_KIND_MARKER || (uint32_t)event.func != (code | piece << 16))
            return 0;
        put_le(note + have, event.func >> 32, 4);
        put_le(note + have + 4, event.call_site, 8);
        whole = 2 + (size_t)get_le(note, 2);
    }
    return 1;
}

/* The executable of a process as its threads note it at the start of their first pages; empty
 * where none of them is in the ring. */
static void noted_exe(const struct pool *pool, uint32_t pid, char *exe, size_t exe_bytes)
{
    const size_t path = 2 + CALLSIGHT_PROCESS_NOTE_BYTES;
    unsigned char note[1024];
    exe[0] = 0;
    for (uint32_t index = 0; index < pool->ring->layout.page_count && exe[0] == 0; index++) {
        const unsigned char *at = page_bytes_at(pool, index);
        const unsigned char *end = at + pool->ring->layout.page_bytes;
        const struct callsight_page_header *header = page_header(pool, index);
        if (load64(&header->owner) == 0 || load32(&header->pid) != pid || header->first != 0)
            continue;
        for (at += PAGE_START; at < end && slot_ts(at) != 0; at += EVENT_BYTES) {
            if (!read_note(at, end, CALLSIGHT_NOTE_PROCESS, note, sizeof note))
                continue;
            size_t count = 2 + (size_t)get_le(note, 2);
            if (count > path && count - path < exe_bytes) {
                memcpy(exe, note + path, count - path);
                exe[count - path] = 0;
            }
            break;
        }
    }
}
