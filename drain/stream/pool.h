/* Version 3 of the ring: who is attached, what was lost, and when it is over.
 *
 * In: the entries of processes and writers. Out: entries of the dead freed, their untold losses
 * told, the counts, and the end of the ring. Pages are moved by move.h.
 */

/* ---- The lock for attaching and detaching --------------------------------------------------- */

/* Takes the lock, from a dead holder if need be; 0 if it stays held for `tries` tries. */
static int ring_lock(const struct ring *ring, unsigned tries)
{
    uint32_t *lock = &ring->header->lock;
    uint32_t self = (uint32_t)getpid();
    for (unsigned try = 0; try < tries; try++) {
        uint32_t holder = load32(lock);
        int takeable = holder == 0 || holder == self || !is_alive_now(holder, 0);
        if (takeable && replace32(lock, holder, self))
            return 1;
        sched_yield();
        if (try % 16 == 15)
            nap(MS);
    }
    return 0;
}

static void ring_unlock(const struct ring *ring)
{
    replace32(&ring->header->lock, (uint32_t)getpid(), 0);
}

/* ---- Processes ------------------------------------------------------------------------------ */

static int is_attached(const struct callsight_ring_process *process, uint64_t now)
{
    return load32(&process->state) == CALLSIGHT_PROCESS_ATTACHED
           && !is_dead(process->pid, process->start, now);
}

static int is_in_table(const struct pool *pool, uint32_t pid, uint64_t start)
{
    for (uint32_t entry = 0; entry < CALLSIGHT_RING_PROCESSES; entry++) {
        const struct callsight_ring_process *process = process_at(pool, entry);
        if (load32(&process->state) != CALLSIGHT_PROCESS_FREE && process->pid == pid
            && process->start == start)
            return 1;
    }
    return 0;
}

static int any_attached(const struct pool *pool)
{
    for (uint32_t entry = 0; entry < CALLSIGHT_RING_PROCESSES; entry++)
        if (is_attached(process_at(pool, entry), pool->now_ns))
            return 1;
    /* Who found the table full is named by its writers only. */
    for (uint32_t slot = 0; slot < pool->ring->layout.slot_count; slot++) {
        const struct callsight_ring_writer *writer = writer_at(pool, slot);
        uint32_t pid = load32(&writer->pid);
        if (pid != 0 && !is_dead(pid, writer->start, pool->now_ns)
            && !is_in_table(pool, pid, writer->start))
            return 1;
    }
    return 0;
}

/* Pid of the first process in the table, 0 for none. */
static uint32_t first_process(const struct pool *pool)
{
    for (uint32_t entry = 0; entry < CALLSIGHT_RING_PROCESSES; entry++) {
        const struct callsight_ring_process *process = process_at(pool, entry);
        if (load32(&process->state) != CALLSIGHT_PROCESS_FREE)
            return process->pid;
    }
    return 0;
}

/* Frees the entries of dead processes, and takes back what they counted as writers. */
static void free_processes(struct pool *pool)
{
    uint32_t *writers = &pool->ring->header->writers;
    for (uint32_t entry = 0; entry < CALLSIGHT_RING_PROCESSES; entry++) {
        struct callsight_ring_process *process = process_at(pool, entry);
        uint32_t state = load32(&process->state);
        if (state == CALLSIGHT_PROCESS_FREE || !is_dead(process->pid, process->start, pool->now_ns))
            continue;
        if (!ring_lock(pool->ring, 32))
            return; /* the next sweep will try again */
        state = load32(&process->state);
        if (state != CALLSIGHT_PROCESS_FREE && !is_alive_now(process->pid, process->start)) {
            if (state == CALLSIGHT_PROCESS_ATTACHED && load32(writers) > 0)
                __atomic_fetch_sub(writers, 1, __ATOMIC_ACQ_REL);
            process->pid = 0;
            process->start = 0;
            store32(&process->state, CALLSIGHT_PROCESS_FREE);
        }
        ring_unlock(pool->ring);
    }
}

/* ---- Writers -------------------------------------------------------------------------------- */

/* Where PageHeader::lost_before keeps a cause; -1 where it does not. */
static int lost_index(uint32_t cause)
{
    switch (cause) {
    case CALLSIGHT_CAUSE_FULL: return 0;
    case CALLSIGHT_CAUSE_REENTRANT: return 1;
    case CALLSIGHT_CAUSE_FORK: return 2;
    case CALLSIGHT_CAUSE_TORN: return 3;
    default: return -1;
    }
}

/* What a writer dropped for `cause` since its last page that we know of. */
static uint64_t dropped_since(const struct pool *pool, uint32_t index, uint32_t cause)
{
    const struct callsight_ring_writer *writer = writer_at(pool, index);
    const struct slot *slot = &pool->slots[index];
    int known = slot->pid == writer->pid && slot->start == writer->start;
    int at = lost_index(cause);
    uint64_t dropped = writer->dropped[cause];
    return known && at >= 0 ? (uint32_t)dropped - slot->lost_before[at] : dropped;
}

/* Tells what a writer lost and did not tell, by cause as far as its last page shows, and that it has
 * left out calls in a pause; 0 when there was nothing to tell. */
static int tell_untold(struct pool *pool, uint32_t index)
{
    const struct callsight_ring_writer *writer = writer_at(pool, index);
    const struct slot *slot = &pool->slots[index];
    int known = slot->pid == writer->pid && slot->start == writer->start
                && slot->tid == writer->tid;
    uint64_t dropped = total_dropped(writer);
    /* One that was killed behind its loss note has not added it up. */
    uint64_t told = writer->told > slot->heard ? writer->told : slot->heard;
    uint64_t left = dropped > told ? dropped - told : 0;
    int owes_pause = load16(&writer->pause_untold) != 0;
    uint32_t by_cause[4] = { 0, 0, 0, 0 };
    struct feed feed = {
        { writer->start, load32(&writer->pid), writer->tid },
        known ? slot->next - slot->begin : 0,
        0,
        { 0, 0, 0, 0 },
        1,
        { 0, 0, 0 },
        0,
    };
    if (left == 0 && !owes_pause)
        return 0;
    /* As before a record behind all of them: so a reader knows them without their notes, too. */
    for (uint32_t cause = 0; cause < CALLSIGHT_RING_CAUSES; cause++)
        if (lost_index(cause) >= 0)
            by_cause[lost_index(cause)] = (uint32_t)writer->dropped[cause];
    if (known) {
        feed.number += dropped - slot->lost_total;
        feed_losses(&feed, dropped - slot->begin_lost, by_cause, slot->torn);
    } else if (writer->begin == 0) {
        feed.number = writer->stored + dropped;
        feed_losses(&feed, dropped, by_cause, 0);
    }
    for (uint32_t cause = 0; cause < CALLSIGHT_RING_CAUSES && left > 0; cause++) {
        uint64_t events = dropped_since(pool, index, cause);
        events = events < left ? events : left;
        uint64_t ts = writer->untold_last != 0 ? writer->untold_last : slot->last_ts;
        struct loss loss = { cause, events, ts, writer->untold_first, writer->untold_last };
        if (events > 0)
            tell_loss(pool, &feed, &loss);
        left -= events;
    }
    struct loss rest = { CALLSIGHT_CAUSE_FULL, left, writer->untold_last, writer->untold_first,
                         writer->untold_last };
    if (left > 0)
        tell_loss(pool, &feed, &rest);
    if (owes_pause)
        tell_pause_of(pool, &feed, slot->last_ts);
    return 1;
}

/* The counts of a writer, as they move: that of a cause is its number plus one. */
#define STORED_MOVES (CALLSIGHT_RING_CAUSES + 1u)

/* Ends the move of a count to the retired ones: what they come to stands in the writer already, so
 * it does not matter how far a drain that was killed had come with it. */
static void end_move(struct pool *pool, struct callsight_ring_writer *writer)
{
    struct callsight_ring_control *control = pool->ring->control;
    uint32_t moves = load16(&writer->moves);
    if (moves == 0 || moves > STORED_MOVES)
        return;
    store64(&control->retired_emitted, writer->untold_first);
    if (moves != STORED_MOVES)
        store64(&control->retired_dropped[moves - 1], writer->untold_last);
    store64(moves == STORED_MOVES ? &writer->stored : &writer->dropped[moves - 1], 0);
    store16(&writer->moves, 0);
}

/* Moves a count of a dead writer, all of whose losses are told, to the retired ones. */
static void move_count(struct pool *pool, struct callsight_ring_writer *writer, uint32_t moves)
{
    const struct callsight_ring_control *control = pool->ring->control;
    uint64_t count = moves == STORED_MOVES ? writer->stored : writer->dropped[moves - 1];
    if (count == 0)
        return;
    /* Nobody asks any more when it lost what. */
    writer->untold_first = load64(&control->retired_emitted) + count;
    if (moves != STORED_MOVES)
        writer->untold_last = load64(&control->retired_dropped[moves - 1]) + count;
    store16(&writer->moves, (uint16_t)moves);
    end_move(pool, writer);
}

/* Gives a writer's slot back, once its last losses are told and a sink has that: its counts are
 * added to the retired ones, which say of nobody what was told. */
static void free_writer(struct pool *pool, uint32_t index)
{
    struct callsight_ring_writer *writer = writer_at(pool, index);
    struct slot *slot = &pool->slots[index];
    if (slot->told_at == 0 && tell_untold(pool, index)) {
        outlet_seal_all(pool->outlet);
        slot->told_at = pool->outlet->added;
    }
    if (slot->told_at > pool->outlet->given)
        return;
    /* First, so that the next drain does not tell what is left of them here. */
    store64(&writer->told, total_dropped(writer));
    for (uint32_t moves = 1; moves <= STORED_MOVES; moves++)
        move_count(pool, writer, moves);
    memset((unsigned char *)writer + sizeof writer->pid, 0, sizeof *writer - sizeof writer->pid);
    store32(&writer->pid, 0);
    memset(&pool->slots[index], 0, sizeof pool->slots[index]);
}

/* Whether a writer owns a page, asked of the ring itself: a process may live and die between the
 * last look at the pages and now. */
static int owns_page(const struct pool *pool, uint32_t slot)
{
    for (uint32_t index = 0; index < pool->ring->layout.page_count; index++)
        if ((load64(&page_header(pool, index)->owner) & ~CALLSIGHT_PAGE_RETIRED)
            == (uint64_t)slot + 1)
            return 1;
    return 0;
}

/* Frees the slots of dead writers that own no page any more. */
static void free_writers(struct pool *pool)
{
    for (uint32_t index = 0; index < pool->ring->layout.slot_count; index++) {
        const struct callsight_ring_writer *writer = writer_at(pool, index);
        uint32_t pid = load32(&writer->pid);
        if (pid == 0 || pool->slots[index].look == pool->look)
            continue;
        if (is_dead(pid, writer->start, pool->now_ns) && !owns_page(pool, index))
            free_writer(pool, index);
    }
}

/* Tells what living writers have not told when their ring ends. */
static void tell_living(struct pool *pool)
{
    for (uint32_t index = 0; index < pool->ring->layout.slot_count; index++)
        if (load32(&writer_at(pool, index)->pid) != 0)
            tell_untold(pool, index);
}

/* Frees a page whose owner died between claiming it and filling its header, or which a drain
 * that died was freeing; and finds free ones whose bit somebody died without setting. */
static void free_orphans(struct pool *pool)
{
    for (uint32_t index = 0; index < pool->ring->layout.page_count; index++) {
        struct page *page = &pool->pages[index];
        const struct callsight_page_header *header = page_header(pool, index);
        uint64_t owner = load64(&header->owner);
        if (owner == 0 && (load64(free_bits_at(pool, index)) >> index % 64 & 1) == 0)
            set_free_bit(pool, index);
        if (page->known || owner == 0 || load32(&header->pid) != 0) {
            if (!page->known)
                page->stuck_since_ns = 0;
            continue;
        }
        uint64_t slot = (owner & ~CALLSIGHT_PAGE_RETIRED) - 1;
        if (slot >= pool->ring->layout.slot_count)
            ring_damaged(pool, index);
        const struct callsight_ring_writer *writer = writer_at(pool, (uint32_t)slot);
        uint32_t pid = load32(&writer->pid);
        if (page->stuck_since_ns == 0)
            page->stuck_since_ns = pool->now_ns;
        int waited = pool->now_ns - page->stuck_since_ns >= UNSTORED_NS;
        int left = (owner & CALLSIGHT_PAGE_RETIRED) != 0
                   || (pid != 0 ? is_dead(pid, writer->start, pool->now_ns) : waited);
        /* It may have filled the header, stored records and died since that was looked at. */
        if (left && load64(&header->owner) == owner && load32(&header->pid) == 0)
            page_free(pool, index);
    }
}

/* ---- Counts --------------------------------------------------------------------------------- */

/* Records of the page a writer is in, as far as they were moved: it has not added them up. */
static uint64_t records_in_page(const struct pool *pool, uint32_t index)
{
    uint32_t page = load32(&writer_at(pool, index)->page) - 1;
    if (page >= pool->ring->layout.page_count)
        return 0;
    const struct page *known = &pool->pages[page];
    if (!known->known || known->slot != index || known->retired)
        return 0;
    return (known->read - PAGE_START) / EVENT_BYTES;
}

static void count(const struct pool *pool, struct counts *counts)
{
    const struct callsight_ring_control *control = pool->ring->control;
    uint64_t no_slot = load64(&control->no_slot);
    counts->delivered = pool->delivered;
    counts->events = pool->outlet->events;
    counts->emitted = counts->untold = no_slot;
    memset(counts->dropped, 0, sizeof counts->dropped);
    counts->dropped[CALLSIGHT_CAUSE_NO_SLOT] = no_slot;
    for (uint32_t index = 0; index < pool->ring->layout.slot_count; index++) {
        const struct callsight_ring_writer *writer = writer_at(pool, index);
        if (load32(&writer->pid) == 0)
            continue;
        counts->emitted += load64(&writer->stored) + records_in_page(pool, index);
        uint64_t told = load64(&writer->told), dropped = 0;
        for (uint32_t cause = 0; cause < CALLSIGHT_RING_CAUSES; cause++) {
            uint64_t events = load64(&writer->dropped[cause]);
            counts->dropped[cause] += events;
            dropped += events;
        }
        /* The last losses of one that died are told, and a sink may not have them yet. */
        if (pool->slots[index].told_at == 0)
            counts->untold += dropped > told ? dropped - told : 0;
        counts->emitted += dropped;
    }
    for (uint32_t cause = 0; cause < CALLSIGHT_RING_CAUSES; cause++)
        counts->dropped[cause] += load64(&control->retired_dropped[cause]);
    counts->emitted += load64(&control->retired_emitted);
    counts->emitted -= pool->delivered_before;
}

/* Takes out of the counts what is not for this stream to tell. Its losses are those that its own
 * notes tell, so that they are told once: what earlier drains told is theirs, and what nobody has
 * told yet stays in a ring that lives on. Whoever found no slot has no notes, and is told at the
 * end of the ring. The first drain of a ring tells all of it, by cause as the ring counts them. */
static void settle(const struct pool *pool, uint32_t reason, struct counts *counts)
{
    int done = reason == CALLSIGHT_END_DONE;
    memset(counts->ring_dropped, 0, sizeof counts->ring_dropped);
    if (done && !pool->taken_over)
        return;
    if (done)
        memcpy(counts->ring_dropped, counts->dropped, sizeof counts->dropped);
    uint64_t no_slot = counts->dropped[CALLSIGHT_CAUSE_NO_SLOT];
    uint64_t told_by_all = sum_dropped(counts) - (done ? 0 : counts->untold);
    memset(counts->dropped, 0, sizeof counts->dropped);
    memcpy(counts->dropped, pool->told.events, sizeof pool->told.events);
    if (done)
        counts->dropped[CALLSIGHT_CAUSE_NO_SLOT] += no_slot;
    if (pool->taken_over)
        counts->emitted -= told_by_all - sum_dropped(counts);
}

/* Tells the sum of all drops. A slot on its way into the retired counts may be counted twice for
 * an instant, so only a sum that holds still is told. */
static void tell_dropped(struct pool *pool)
{
    struct counts first, second;
    count(pool, &first);
    uint64_t dropped = sum_dropped(&first);
    if (dropped <= pool->outlet->dropped_told + pool->dropped_before)
        return;
    count(pool, &second);
    if (dropped != sum_dropped(&second))
        return;
    outlet_tell_dropped(pool->outlet, dropped - pool->dropped_before, 1);
    store64(&pool->ring->header->dropped, dropped);
}

/* Slots that were taken from the ring so far, torn ones too: by what its pages say, each of which
 * changes in one step, so that it holds wherever a drain was killed. */
static uint64_t slots_taken(const struct pool *pool)
{
    static uint64_t oldest[MAX_SLOTS], taken[MAX_SLOTS];
    const struct layout *layout = &pool->ring->layout;
    const struct callsight_ring_control *control = pool->ring->control;
    uint64_t sum = load64(&control->retired_emitted);
    for (uint32_t cause = 0; cause < CALLSIGHT_RING_CAUSES; cause++)
        if (cause != CALLSIGHT_CAUSE_TORN)
            sum -= load64(&control->retired_dropped[cause]);
    /* Before the pages: what is counted here by then is in one that will be met, or was taken. */
    for (uint32_t slot = 0; slot < layout->slot_count; slot++) {
        int used = load32(&writer_at(pool, slot)->pid) != 0;
        oldest[slot] = taken[slot] = used ? load64(&writer_at(pool, slot)->stored) : 0;
    }
    for (uint32_t index = 0; index < layout->page_count; index++) {
        const struct callsight_page_header *header = page_header(pool, index);
        uint64_t slot = (load64(&header->owner) & ~CALLSIGHT_PAGE_RETIRED) - 1;
        if (slot >= layout->slot_count || load32(&header->pid) == 0)
            continue;
        uint64_t before = load64(&header->first) - load64(&header->lost_total);
        uint32_t read = load32(&header->read);
        if (before > oldest[slot])
            continue;
        oldest[slot] = before;
        taken[slot] = before + (read > PAGE_START ? (read - PAGE_START) / EVENT_BYTES : 0);
    }
    for (uint32_t slot = 0; slot < layout->slot_count; slot++)
        sum += taken[slot];
    return sum;
}

/* Learns what earlier drains of the ring have done. */
static void take_over(struct pool *pool)
{
    const struct callsight_ring_control *control = pool->ring->control;
    struct counts counts;
    for (uint32_t slot = 0; slot < pool->ring->layout.slot_count; slot++)
        end_move(pool, writer_at(pool, slot));
    pool->delivered_before =
        slots_taken(pool) - load64(&control->retired_dropped[CALLSIGHT_CAUSE_TORN]);
    store64(&pool->ring->header->tail, pool->delivered_before * EVENT_BYTES);
    pool->taken_over = pool->delivered_before != 0 || load64(&control->retired_emitted) != 0
                       || load64(&control->retired_dropped[CALLSIGHT_CAUSE_TORN]) != 0;
    count(pool, &counts);
    if (pool->taken_over)
        pool->dropped_before = sum_dropped(&counts) - counts.untold;
}

/* ---- The whole of it ------------------------------------------------------------------------ */

/* Says it when the programs of the ring are told to pause, or no longer: what is not recorded is no
 * loss, and in no count. */
static void tell_pause(struct pool *pool)
{
    const char *name = strrchr(pool->ring->path, '/');
    uint32_t command = load32(&pool->ring->control->command);
    int is_paused = command == CALLSIGHT_COMMAND_PAUSE;
    if (is_paused == pool->is_paused)
        return;
    pool->is_paused = is_paused;
    if (is_paused)
        say("%s is paused: its programs record nothing until `callsight rings --resume %s`", name,
            name);
    else if (command == CALLSIGHT_COMMAND_RECORD)
        say("%s records again", name);
}

/* What is done now and then, behind a pass that has looked at every page. */
static void sweep(struct pool *pool)
{
    tell_pause(pool);
    tell_names(pool);
    free_orphans(pool);
    free_writers(pool);
    free_processes(pool);
    tell_dropped(pool);
    ring_is_gone(pool->ring);
}

static int is_over(const struct pool *pool, uint64_t quiet_ns)
{
    if (quiet_ns < OVER_NS || pool->stuck > 0 || !outlet_is_idle(pool->outlet)
        || any_attached(pool))
        return 0;
    return quiet_ns >= OVER_MAPPED_NS || ring_mapped_by(pool->ring, 0) == 0;
}

/* Takes what is there until nothing comes any more, for some time at most. */
static void pool_empty(struct pool *pool, uint64_t ns)
{
    uint64_t end = now_ns() + ns;
    for (;;) {
        pool_pass(pool, 1);
        if (outlet_is_dead(pool->outlet) || now_ns() >= end)
            return;
        if (outlet_has_room(pool->outlet) && pool->moved == 0)
            return;
        if (pool->moved == 0)
            outlet_wait(pool->outlet, MS);
    }
}

/* Waits until the sinks have what was told, for a moment at most. */
static void pool_settle(struct pool *pool)
{
    uint64_t end = now_ns() + SETTLE_NS;
    outlet_seal_all(pool->outlet);
    while (!outlet_is_idle(pool->outlet) && !outlet_is_dead(pool->outlet) && now_ns() < end) {
        outlet_pump(pool->outlet);
        pool_release(pool);
        outlet_wait(pool->outlet, MS);
    }
}

/* Marks the ring as finished and takes what came in at the last moment; 0 if a process has
 * attached meanwhile. */
static int pool_close(struct pool *pool)
{
    /* Held for seconds means a holder that is stopped, or a pid used again. */
    int locked = ring_lock(pool->ring, 20000);
    pool->now_ns = now_ns();
    int attached = any_attached(pool);
    if (!attached)
        store32(&pool->ring->control->command, CALLSIGHT_COMMAND_CLOSED);
    if (locked)
        ring_unlock(pool->ring);
    if (attached)
        return 0;
    pool_empty(pool, STOP_NS);
    free_processes(pool);
    free_orphans(pool);
    pool_empty(pool, STOP_NS);
    free_writers(pool);
    tell_living(pool);
    pool_settle(pool);
    free_writers(pool);
    /* Soon, and before the last counts go out: a process that has found it closed waits. */
    ring_unlink(pool->ring);
    return 1;
}

/* How long to wait for more, from how long it was the last time. While events come, as long as it
 * takes to fill a quarter of the ring: every look costs the same, however much it finds. */
static uint64_t nap_after(const struct pool *pool, uint64_t last_ns)
{
    uint32_t capacity = pool->ring->layout.capacity;
    uint64_t busy_ns = capacity / 4 / FILL_BYTES_PER_NS;
    busy_ns = busy_ns < NAP_SHORT_NS ? NAP_SHORT_NS : busy_ns;
    if (!outlet_has_room(pool->outlet))
        return NAP_LONG_NS;
    if (pool->moved * EVENT_BYTES >= capacity / 8)
        return 0;
    uint64_t nap_ns = pool->moved > 0 ? busy_ns : last_ns * 2 + NAP_SHORT_NS;
    return nap_ns < NAP_LONG_NS ? nap_ns : NAP_LONG_NS;
}

/* Moves events until every process is gone, or until told to stop; returns which (END_*). */
static uint32_t pool_run(struct pool *pool)
{
    uint64_t looked_ns = 0, swept_ns = 0, nap_ns = 0, quiet_since_ns = now_ns();
    while (!stop_asked) {
        uint64_t now = now_ns();
        int sweeps = now - swept_ns >= SWEEP_NS;
        int at_all = sweeps || now - looked_ns >= LOOK_AT_ALL_NS;
        pool_pass(pool, at_all);
        if (outlet_is_dead(pool->outlet))
            return CALLSIGHT_END_STOPPED;
        looked_ns = at_all ? now : looked_ns;
        if (sweeps) {
            sweep(pool);
            swept_ns = now;
        }
        if (pool->moved > 0)
            quiet_since_ns = now;
        else if (sweeps && is_over(pool, now - quiet_since_ns) && pool_close(pool))
            return CALLSIGHT_END_DONE;
        nap_ns = nap_after(pool, nap_ns);
        if (nap_ns > 0)
            outlet_wait(pool->outlet, nap_ns);
    }
    outlet_meet_server(pool->outlet);
    pool_empty(pool, STOP_NS);
    return CALLSIGHT_END_STOPPED;
}

/* Does what the server asks of the traced processes: records, pauses or stops. */
static void obey(uint32_t wanted)
{
    uint32_t now = claimed != NULL ? load32(&claimed->command) : CALLSIGHT_COMMAND_CLOSED;
    if (now != CALLSIGHT_COMMAND_CLOSED && wanted >= CALLSIGHT_COMMAND_RECORD
        && wanted <= CALLSIGHT_COMMAND_STOP)
        replace32(&claimed->command, now, wanted);
}

/* Drains a version 3 ring to its end. */
static uint32_t drain_pages(struct ring *ring, struct outlet *outlet, struct counts *counts)
{
    static struct pool pool;
    struct callsight_handshake handshake;
    char exe[1024];
    pool.ring = ring;
    pool.outlet = outlet;
    outlet->live.on_command = obey;
    take_over(&pool);
    uint32_t pid = first_process(&pool);
    noted_exe(&pool, pid, exe, sizeof exe);
    fill_handshake(&handshake, ring->header);
    outlet_open(outlet, &handshake, make_hello(pid, exe, pool.delivered_before));
    uint32_t reason = pool_run(&pool);
    outlet_seal_all(outlet);
    count(&pool, counts);
    settle(&pool, reason, counts);
    outlet_tell_dropped(outlet, sum_dropped(counts), 1);
    const struct fields *end = make_end(reason, counts, outlet->blocks);
    outlet_finish(outlet, end);
    outlet_finish_save(outlet, end);
    pool_release(&pool);
    uncount_kept(outlet, reason, counts);
    count_noted(&pool, reason, counts);
    return reason;
}
