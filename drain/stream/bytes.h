/* Version 2 of the ring: one stream of bytes behind the header, filled under a lock.
 *
 * In: `head`, `tail` and the bytes between them. Out: the same events. Such a ring does not say
 * who writes to it, so a writer that was killed is found out by asking the kernel who still has
 * the ring mapped. Nor does it number its records: what is given back and in no sink yet is in no
 * count when the drain is killed, so that is done only when the ring gets short of room.
 */

/* A smaller ring has no room to spare for what no sink has yet. */
#define BYTES_TO_HOLD (64u << 10)

struct byte_ring {
    struct ring *ring;
    struct outlet *outlet;
    unsigned char raw[CALLSIGHT_CHUNK_RAW_BYTES];
    uint64_t delivered_before;
    uint64_t told_before; /* losses, by notes that earlier drains took */
    uint64_t delivered;
    uint64_t taken; /* of these, still in the ring */
    struct told told; /* by the notes of this stream */
    uint32_t pieces;  /* of a loss note that came last */
    unsigned char note[LOSS_PIECES * CALLSIGHT_NOTE_PIECE_BYTES];
    uint32_t mapped_by;
};

/* Waits for the lock, yielding; 0 when its holder must be dead, and then nobody else writes. */
static int bytes_lock(const struct ring *ring)
{
    uint64_t end = now_ns() + SECOND;
    for (unsigned try = 1; __atomic_exchange_n(&ring->header->lock, 1, __ATOMIC_ACQUIRE) != 0;
         try++) {
        if (now_ns() > end)
            return 0;
        sched_yield();
        if (try % 64 == 0)
            nap(MS);
    }
    return 1;
}

/* Copies whole events out of the ring behind those that are taken, one chunk at most; returns how many
 * bytes. */
static size_t bytes_copy(struct byte_ring *bytes)
{
    struct ring *ring = bytes->ring;
    struct callsight_ring_header *header = ring->header;
    const unsigned char *data = ring->map + CALLSIGHT_RING_HEADER_BYTES;
    uint64_t tail = load64(&header->tail), from = tail + bytes->taken * EVENT_BYTES;
    if (load64(&header->head) == from)
        return 0;
    int locked = bytes_lock(ring);
    uint64_t head = load64(&header->head), used = head - tail, left = head - from;
    size_t take = left < sizeof bytes->raw ? (size_t)left : sizeof bytes->raw;
    take -= take % EVENT_BYTES;
    size_t at = (size_t)(from % ring->capacity);
    size_t straight = take < ring->capacity - at ? take : ring->capacity - at;
    if (used <= ring->capacity && left <= used) {
        memcpy(bytes->raw, data + at, straight);
        memcpy(bytes->raw + straight, data, take - straight);
    }
    if (locked)
        store32(&header->lock, 0);
    if (used > ring->capacity || left > used)
        ring_refuse(ring, "its header is damaged: it holds more bytes than it has room for");
    return take;
}

/* Gives the room of the oldest bytes back: of those that a sink has, and of others where more than half
 * of the ring is taken, or the traced processes would lose events before the sinks do. */
static void bytes_release(struct byte_ring *bytes)
{
    struct callsight_ring_header *header = bytes->ring->header;
    uint32_t capacity = bytes->ring->capacity, half = capacity < BYTES_TO_HOLD ? 0 : capacity / 2;
    struct parcel *parcel;
    while ((parcel = outlet_release(bytes->outlet, !outlet_is_dead(bytes->outlet)
                                        && bytes->taken * EVENT_BYTES > half)) != NULL) {
        uint64_t told = load32(&header->told) + parcel->told.events[CALLSIGHT_CAUSE_FULL];
        store32(&header->told, told < UINT32_MAX ? (uint32_t)told : UINT32_MAX);
        add64(&header->tail, (uint64_t)parcel->records * EVENT_BYTES);
        bytes->taken -= parcel->records;
        parcel_done(parcel);
    }
}

/* The last piece of a loss note has come. One without times is of what its thread did before it was
 * recorded, for a cause that is in no count of the ring. */
static void bytes_told(struct byte_ring *bytes, const struct feed *feed)
{
    uint64_t cause = get_le(bytes->note + 2, 4), events = get_le(bytes->note + 6, 8);
    if ((get_le(bytes->note + 14, 8) | get_le(bytes->note + 22, 8)) != 0
        || cause >= CALLSIGHT_RING_CAUSES)
        cause = CALLSIGHT_CAUSE_FULL;
    bytes->told.events[cause] += events;
    outlet_told(bytes->outlet, &feed->writer, cause, events);
}

/* Looks for loss notes, whose pieces follow one another. */
static void bytes_hear(struct byte_ring *bytes, const struct feed *feed,
                       const struct callsight_event *event)
{
    unsigned char *at = bytes->note + bytes->pieces * CALLSIGHT_NOTE_PIECE_BYTES;
    uint32_t code = (uint32_t)event->func;
    if (event->kind != CALLSIGHT_KIND_MARKER || (code & 0xffff) != CALLSIGHT_NOTE_LOSS
        || code >> 16 != bytes->pieces) {
        bytes->pieces = 0;
        return;
    }
    put_le(at, event->func >> 32, 4);
    put_le(at + 4, event->call_site, 8);
    if (++bytes->pieces == LOSS_PIECES) {
        bytes->pieces = 0;
        bytes_told(bytes, feed);
    }
}

/* Moves what there is, a chunk at most; returns its bytes. */
static size_t bytes_move(struct byte_ring *bytes)
{
    outlet_pump(bytes->outlet);
    bytes_release(bytes);
    outlet_hurry(bytes->outlet, bytes->ring->header, bytes->ring->capacity);
    size_t count = outlet_has_room(bytes->outlet) ? bytes_copy(bytes) : 0;
    if (count == 0)
        return 0;
    for (size_t at = 0; at < count; at += EVENT_BYTES) {
        struct callsight_event event;
        memcpy(&event, bytes->raw + at, sizeof event);
        struct feed feed = {
            { 0, bytes->mapped_by, event.tid }, 0, 0, { 0, 0, 0, 0 }, 0, { 0, 0, 0 }, 0,
        };
        outlet_take(bytes->outlet, &feed, &event);
        bytes_hear(bytes, &feed, &event);
    }
    outlet_seal_all(bytes->outlet);
    /* Its records are in several parcels, and leave the ring with the last of them. */
    bytes->outlet->newest->records = (uint32_t)(count / EVENT_BYTES);
    bytes->taken += count / EVENT_BYTES;
    bytes->delivered += count / EVENT_BYTES;
    outlet_pump(bytes->outlet);
    bytes_release(bytes);
    return count;
}

static int bytes_over(struct byte_ring *bytes, uint64_t quiet_ns)
{
    uint32_t writers = load32(&bytes->ring->header->writers);
    if (quiet_ns < OVER_NS)
        return 0;
    if (access("/proc/self/maps", R_OK) != 0)
        return writers == 0;
    bytes->mapped_by = ring_mapped_by(bytes->ring, bytes->mapped_by);
    return bytes->mapped_by == 0 || (writers == 0 && quiet_ns >= OVER_MAPPED_NS);
}

/* Events that were dropped, but for those of which earlier drains have taken the notes. */
static uint64_t bytes_dropped(const struct byte_ring *bytes)
{
    uint64_t dropped = load64(&bytes->ring->header->dropped);
    uint64_t told = bytes->told.events[CALLSIGHT_CAUSE_FULL];
    uint64_t ours = dropped > bytes->told_before ? dropped - bytes->told_before : 0;
    return ours > told ? ours : told;
}

static uint32_t bytes_run(struct byte_ring *bytes)
{
    uint64_t checked_ns = 0, nap_ns = 0, quiet_since_ns = now_ns();
    while (!stop_asked) {
        uint64_t now = now_ns();
        if (bytes_move(bytes) > 0) {
            quiet_since_ns = now;
        } else if (now - checked_ns >= SWEEP_NS) {
            ring_is_gone(bytes->ring);
            if (outlet_is_idle(bytes->outlet) && bytes_over(bytes, now - quiet_since_ns)) {
                ring_unlink(bytes->ring);
                return CALLSIGHT_END_DONE;
            }
            checked_ns = now;
        }
        if (outlet_is_dead(bytes->outlet))
            return CALLSIGHT_END_STOPPED;
        outlet_tell_dropped(bytes->outlet, bytes_dropped(bytes), 0);
        /* Threads that run in step fill a small ring again at once. */
        nap_ns = now == quiet_since_ns ? 0 : nap_ns * 2 + NAP_SHORT_NS;
        nap_ns = nap_ns < MS ? nap_ns : MS;
        if (nap_ns > 0)
            outlet_wait(bytes->outlet, nap_ns);
    }
    outlet_meet_server(bytes->outlet);
    uint64_t end = now_ns() + STOP_NS;
    while ((bytes_move(bytes) > 0 || bytes->taken > 0) && now_ns() < end)
        outlet_wait(bytes->outlet, bytes->taken > 0 ? MS : 0);
    return CALLSIGHT_END_STOPPED;
}

/* Losses that no note tells are told by the last drain. */
static void bytes_count(const struct byte_ring *bytes, uint32_t reason, struct counts *counts)
{
    uint64_t dropped = bytes_dropped(bytes);
    memset(counts, 0, sizeof *counts);
    counts->delivered = bytes->delivered;
    counts->events = bytes->outlet->events;
    counts->emitted = load64(&bytes->ring->header->head) / EVENT_BYTES + dropped
                      - bytes->delivered_before;
    for (uint32_t cause = 0; cause < CALLSIGHT_RING_CAUSES; cause++) {
        counts->dropped[cause] = bytes->told.events[cause];
        counts->emitted += cause != CALLSIGHT_CAUSE_FULL ? bytes->told.events[cause] : 0;
    }
    if (reason == CALLSIGHT_END_DONE)
        counts->dropped[CALLSIGHT_CAUSE_FULL] = dropped;
}

/* Drains a version 2 ring to its end. */
static uint32_t drain_bytes(struct ring *ring, struct outlet *outlet, struct counts *counts)
{
    static struct byte_ring bytes;
    struct callsight_handshake handshake;
    bytes.ring = ring;
    bytes.outlet = outlet;
    bytes.delivered_before = load64(&ring->header->tail) / EVENT_BYTES;
    bytes.told_before = load32(&ring->header->told);
    bytes.mapped_by = ring_mapped_by(ring, 0);
    fill_handshake(&handshake, ring->header);
    outlet_open(outlet, &handshake, make_hello(bytes.mapped_by, "", 0));
    uint32_t reason = bytes_run(&bytes);
    bytes_count(&bytes, reason, counts);
    outlet_tell_dropped(outlet, sum_dropped(counts), 0);
    const struct fields *end = make_end(reason, counts, outlet->blocks);
    outlet_finish(outlet, end);
    outlet_finish_save(outlet, end);
    bytes_release(&bytes);
    uncount_kept(outlet, reason, counts);
    return reason;
}
