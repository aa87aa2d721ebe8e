/* Version 2 of the ring: one stream of bytes behind the header, filled under a lock.
 *
 * In: `head`, `tail` and the bytes between them. Out: the same events. Such a ring does not say
 * who writes to it, so a writer that was killed is found out by asking the kernel who still has
 * the ring mapped.
 */

struct byte_ring {
    struct ring *ring;
    struct outlet *outlet;
    unsigned char raw[CALLSIGHT_CHUNK_RAW_BYTES];
    uint64_t delivered_before;
    uint64_t delivered;
    uint64_t taken; /* of these, in no sink yet */
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

/* Copies whole events out of the ring, one chunk at most; returns how many bytes. */
static size_t bytes_copy(struct byte_ring *bytes)
{
    struct ring *ring = bytes->ring;
    struct callsight_ring_header *header = ring->header;
    const unsigned char *data = ring->map + CALLSIGHT_RING_HEADER_BYTES;
    uint64_t tail = load64(&header->tail);
    if (load64(&header->head) == tail)
        return 0;
    int locked = bytes_lock(ring);
    uint64_t used = load64(&header->head) - tail;
    size_t take = used < sizeof bytes->raw ? (size_t)used : sizeof bytes->raw;
    take -= take % EVENT_BYTES;
    size_t at = (size_t)(tail % ring->capacity);
    size_t straight = take < ring->capacity - at ? take : ring->capacity - at;
    if (used <= ring->capacity) {
        memcpy(bytes->raw, data + at, straight);
        memcpy(bytes->raw + straight, data, take - straight);
    }
    if (locked)
        store32(&header->lock, 0);
    if (used > ring->capacity)
        ring_refuse(ring, "its header is damaged: it holds more bytes than it has room for");
    return take;
}

/* Gives the room of the oldest bytes back that a sink has. */
static void bytes_release(struct byte_ring *bytes)
{
    struct parcel *parcel;
    while ((parcel = outlet_release(bytes->outlet, 0)) != NULL) {
        add64(&bytes->ring->header->tail, (uint64_t)parcel->records * EVENT_BYTES);
        bytes->taken -= parcel->records;
        parcel_done(parcel);
    }
}

/* Moves what there is, a chunk at most; returns its bytes. */
static size_t bytes_move(struct byte_ring *bytes)
{
    outlet_pump(bytes->outlet);
    bytes_release(bytes);
    outlet_hurry(bytes->outlet, bytes->ring->header, bytes->ring->capacity);
    size_t count = outlet_has_room(bytes->outlet) && bytes->taken == 0 ? bytes_copy(bytes) : 0;
    if (count == 0)
        return 0;
    for (size_t at = 0; at < count; at += EVENT_BYTES) {
        struct callsight_event event;
        memcpy(&event, bytes->raw + at, sizeof event);
        struct feed feed = {
            { 0, bytes->mapped_by, event.tid }, 0, 0, { 0, 0, 0, 0 }, 0, { 0, 0, 0 }, 0,
        };
        outlet_take(bytes->outlet, &feed, &event);
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

static uint32_t bytes_run(struct byte_ring *bytes)
{
    uint64_t checked_ns = 0, quiet_since_ns = now_ns();
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
        outlet_tell_dropped(bytes->outlet, load64(&bytes->ring->header->dropped), 0);
        if (now != quiet_since_ns)
            outlet_wait(bytes->outlet, MS);
    }
    outlet_meet_server(bytes->outlet);
    uint64_t end = now_ns() + STOP_NS;
    while ((bytes_move(bytes) > 0 || bytes->taken > 0) && now_ns() < end)
        outlet_wait(bytes->outlet, bytes->taken > 0 ? MS : 0);
    return CALLSIGHT_END_STOPPED;
}

/* Drains a version 2 ring to its end. */
static uint32_t drain_bytes(struct ring *ring, struct outlet *outlet, struct counts *counts)
{
    static struct byte_ring bytes;
    struct callsight_handshake handshake;
    bytes.ring = ring;
    bytes.outlet = outlet;
    bytes.delivered_before = load64(&ring->header->tail) / EVENT_BYTES;
    bytes.mapped_by = ring_mapped_by(ring, 0);
    fill_handshake(&handshake, ring->header);
    outlet_open(outlet, &handshake, make_hello(bytes.mapped_by, "", 0));
    uint32_t reason = bytes_run(&bytes);
    memset(counts, 0, sizeof *counts);
    uint64_t dropped = load64(&ring->header->dropped);
    counts->delivered = bytes.delivered;
    counts->events = outlet->events;
    counts->emitted = load64(&ring->header->head) / EVENT_BYTES + dropped
                      - bytes.delivered_before;
    /* Nothing in such a ring says what was told of it, so its last drain tells all. */
    if (reason == CALLSIGHT_END_DONE)
        counts->dropped[CALLSIGHT_CAUSE_FULL] = dropped;
    outlet_tell_dropped(outlet, sum_dropped(counts), 0);
    const struct fields *end = make_end(reason, counts, outlet->blocks);
    outlet_finish(outlet, end);
    outlet_finish_save(outlet, end);
    bytes_release(&bytes);
    counts->delivered -= bytes.taken;
    return reason;
}
