/* Sending: what the outlet has made leaves for the sinks.
 *
 * In: packers that are filled, parcels in queues. Out: blocks sealed when it is time, sinks served
 * and buried, the first and the last chunks of a stream. Knows nothing of rings but how full they
 * are.
 */

/* ---- What goes out --------------------------------------------------------------------------- */

static void outlet_seal_all(struct outlet *outlet)
{
    raw_send(outlet);
    for (struct packer *at = outlet->packers; at < outlet->packers + PACKERS; at++)
        if (at->filling)
            packer_seal(outlet, at);
}

/* Whether every sink has enough to do. */
static int outlet_has_backlog(const struct outlet *outlet)
{
    const struct sink *live = &outlet->live.sink, *save = &outlet->save.sink;
    return (!sink_works(live) || live->count > PROMPT_PARCELS)
           && (!sink_works(save) || save->count > PROMPT_PARCELS);
}

/* Seals what has waited long enough for more. */
static void outlet_seal_old(struct outlet *outlet)
{
    raw_send(outlet);
    if (outlet_has_backlog(outlet))
        return;
    for (struct packer *at = outlet->packers; at < outlet->packers + PACKERS; at++)
        if (at->filling && outlet->now_ns - at->begun_ns >= BLOCK_AGE_NS)
            packer_seal(outlet, at);
}

/* Whether the file waits until it is known what the server takes, so that nothing is packed for one
 * that takes raw events only. It does not once the ring fills up, but for a moment where the server
 * is there: that one would answer at once. */
static int outlet_awaits_server(const struct outlet *outlet)
{
    const struct live *live = &outlet->live;
    uint64_t now = outlet->now_ns;
    if (live->was_refused || now - outlet->opened_ns >= MEETING_NS)
        return 0;
    return live->hurries_ns == 0
           || (live->state > LIVE_DOWN && now - live->hurries_ns < 2 * HURRIED_NS);
}

/* Whether records should be taken: some sink has room for them, and it is known in which form the
 * server wants them, or the file waits no longer. */
static int outlet_has_room(const struct outlet *outlet)
{
    const struct live *live = &outlet->live;
    int meets = sink_works(&live->sink) && live->form == FORM_UNKNOWN;
    return (sink_has_room(&outlet->save.sink) && !(meets && outlet_awaits_server(outlet)))
           || (sink_has_room(&live->sink) && !meets) || outlet_only_counts(outlet);
}

/* Takes note of how full the ring is while nothing is taken. */
static void outlet_hurry(struct outlet *outlet, const struct callsight_ring_header *ring,
                         uint32_t capacity)
{
    if (outlet->live.hurries_ns == 0
        && load64(&ring->head) - load64(&ring->tail) > capacity / 2)
        outlet->live.hurries_ns = outlet->now_ns;
}

/* Whether no sink is left. */
static int outlet_is_dead(const struct outlet *outlet)
{
    return !sink_works(&outlet->live.sink) && !sink_works(&outlet->save.sink)
           && !outlet_only_counts(outlet);
}

/* Whether all that was taken is where it should be, and more could be. */
static int outlet_is_idle(const struct outlet *outlet)
{
    return outlet_has_room(outlet) && outlet->oldest == NULL && outlet->live.sink.count == 0
           && outlet->save.sink.count == 0;
}

/* The live sink has ended. What it had not acknowledged is in the other sink, or in the ring as
 * far as its pages were not given back. */
static void outlet_bury_live(struct outlet *outlet)
{
    struct live *live = &outlet->live;
    uint64_t gone = sink_only_here(&live->sink);
    if (sink_works(&outlet->save.sink))
        say("%s; the capture in %s goes on", live->sink.why, outlet->save.folder);
    else if (live->doubtful_events > 0)
        say("%s; %" PRIu64 " events that it was sent may be lost, what it was not sent is still in "
            "the ring, for the next trace_stream", live->sink.why, live->doubtful_events);
    else if (gone == 0)
        say("%s; what it does not have is still in the ring, for the next trace_stream",
            live->sink.why);
    else
        say("%s; %" PRIu64 " events that it has not acknowledged are lost, the rest is still in "
            "the ring, for the next trace_stream", live->sink.why, gone);
    sink_fail(&live->sink, CALLSIGHT_CAUSE_UNACKED);
}

/* Does for the sinks what can be done at once. */
static void outlet_pump(struct outlet *outlet)
{
    struct live *live = &outlet->live;
    outlet->now_ns = now_ns();
    live->has_file_beside = sink_works(&outlet->save.sink);
    if (live->sink.on)
        live_pump(live);
    save_pump(&outlet->save);
    if (sink_works(&live->sink) && live_is_over(live))
        outlet_bury_live(outlet);
    if (live->has_file_beside)
        live_look_for_stall(live);
    int makes_raw = live_takes_raw(live);
    int makes_blocks = sink_works(&outlet->save.sink) || outlet_only_counts(outlet)
                       || (sink_works(&live->sink) && !makes_raw);
    if (makes_raw != outlet->makes_raw || makes_blocks != outlet->makes_blocks)
        outlet_seal_all(outlet);
    outlet->makes_raw = makes_raw;
    outlet->makes_blocks = makes_blocks;
}

/* Waits until a sink can go on, a signal comes, or the time is over. */
static void outlet_wait(struct outlet *outlet, uint64_t ns)
{
    struct timespec time = { (time_t)(ns / SECOND), (long)(ns % SECOND) };
    struct pollfd ready[2] = { { -1, 0, 0 }, { -1, 0, 0 } };
    if (sink_works(&outlet->live.sink))
        ready[0] = live_poll(&outlet->live);
    if (outlet->save.sink.on)
        ready[1] = save_poll(&outlet->save);
    ppoll(ready, 2, &time, NULL);
}

/* ---- Beginning and end ----------------------------------------------------------------------- */

/* Says who sends, to every sink. */
static void outlet_open(struct outlet *outlet, const struct callsight_handshake *handshake,
                        const struct fields *hello)
{
    size_t count = sizeof *handshake;
    outlet->opening = get_memory(NULL, count + sizeof(struct callsight_chunk_header)
                                           + ZSTD_compressBound(hello->count));
    memcpy(outlet->opening, handshake, count);
    count += outlet_squeeze(outlet, CALLSIGHT_CHUNK_HELLO, hello->bytes, hello->count,
                            outlet->opening + count);
    outlet->live.opening = outlet->save.opening = outlet->opening;
    outlet->live.opening_count = outlet->save.opening_count = count;
    outlet->opened_ns = now_ns();
    outlet_pump(outlet);
}

/* Told to stop before it is known what the server takes: it has a moment left to say. One that was
 * never met is no sink of this stream, of which all is still in the ring. */
static void outlet_meet_server(struct outlet *outlet)
{
    struct live *live = &outlet->live;
    uint64_t end = now_ns() + STOP_NS;
    if (!sink_works(&live->sink) || sink_works(&outlet->save.sink) || live->sink.count > 0)
        return;
    while (live->form == FORM_UNKNOWN && live->state > LIVE_CONNECTING && now_ns() < end) {
        outlet_wait(outlet, MS);
        outlet_pump(outlet);
    }
    if (live->form != FORM_UNKNOWN)
        return;
    say("stopped before it could connect to %s port %s", live->host, live->port);
    live->sink.on = 0;
}

/* Tells how many events were dropped so far, where no block tells it. */
static void outlet_tell_dropped(struct outlet *outlet, uint64_t dropped, int paged)
{
    int unknown = sink_works(&outlet->live.sink) && outlet->live.form == FORM_UNKNOWN;
    if (dropped <= outlet->dropped_told || unknown)
        return;
    outlet->dropped_told = dropped;
    if (paged && outlet->live.form != FORM_RAW)
        return;
    struct parcel *parcel = outlet_chunk(outlet, CALLSIGHT_CHUNK_DROPPED, &dropped, sizeof dropped,
                                         NULL);
    outlet_seal_all(outlet);
    sink_offer(&outlet->live.sink, parcel);
    if (!paged)
        sink_offer(&outlet->save.sink, parcel);
    outlet_add(outlet, parcel);
}

/* Where both sinks stand. */
static uint64_t outlet_progress(const struct outlet *outlet)
{
    const struct live *live = &outlet->live;
    return live->sent_bytes + live->sent + outlet->save.stored + outlet->save.sent_bytes
           - live->sink.count;
}

/* What a sink did not get. */
static void add_sink(struct fields *fields, unsigned key, const struct sink *sink)
{
    for (uint32_t cause = 0; cause < CALLSIGHT_CAUSES; cause++) {
        unsigned char value[20];
        put_le(value, cause, 4);
        put_le(value + 4, sink->dropped[cause], 8);
        put_le(value + 12, sink->dropped_records[cause], 8);
        if (sink->dropped[cause] != 0 || sink->dropped_records[cause] != 0)
            add_field(fields, key, value, sizeof value);
    }
}

/* Sends the counts of the end, and waits until every sink has all, or will not get it: as long as
 * the server takes, but not for ever once we are told to stop. */
static void outlet_finish(struct outlet *outlet, const struct fields *end)
{
    static struct fields for_live;
    struct live *live = &outlet->live;
    outlet_seal_all(outlet);
    struct parcel *parcel = outlet_chunk(outlet, CALLSIGHT_CHUNK_END, end->bytes, end->count, NULL);
    sink_offer(&outlet->save.sink, parcel);
    outlet_add(outlet, parcel);
    for_live = *end;
    add_sink(&for_live, CALLSIGHT_END_SINK_DROPPED, &live->sink);
    parcel = outlet_chunk(outlet, CALLSIGHT_CHUNK_END, for_live.bytes, for_live.count, NULL);
    parcel->number = live->form == FORM_RAW ? 0 : outlet->blocks + 1;
    sink_offer(&live->sink, parcel);
    outlet_add(outlet, parcel);
    uint64_t progress = 0, since_ns = now_ns();
    while (live->sink.count > 0 || outlet->save.sink.count > 0) {
        outlet_pump(outlet);
        if (outlet_progress(outlet) != progress) {
            progress = outlet_progress(outlet);
            since_ns = now_ns();
        }
        if (stop_asked && now_ns() - since_ns > STOP_NS)
            break;
        outlet_wait(outlet, 20 * MS);
    }
    if (sink_works(&live->sink) && live->sink.count > 0) {
        live_end(live, "send to", live->state > LIVE_CONNECTING
                                      ? "told to stop, and the server has not read for some time"
                                      : "told to stop, and there is no connection to it");
        outlet_bury_live(outlet);
    } else if (sink_works(&live->sink) && live->form == FORM_RAW && !live_finish_raw(live)) {
        say("%s; %" PRIu64 " events that it was sent may be lost", live->sink.why,
            live->doubtful_events);
    }
}

/* The last chunks of the capture: what was sent in all, and what did not get into it. */
static void outlet_finish_save(struct outlet *outlet, const struct fields *end)
{
    static struct fields tail;
    unsigned char chunks[TAIL_BYTES];
    size_t count = 0;
    struct save *save = &outlet->save;
    if (!save->sink.on)
        return;
    if (save->sink.count > 0)
        save_end(save, CALLSIGHT_CAUSE_UNACKED, "it did not keep up before the end");
    add_sink(&tail, CALLSIGHT_SINK_DROPPED, &save->sink);
    add_number(&tail, CALLSIGHT_SINK_REASON, CALLSIGHT_STOP_REASON_CLOSED, 4);
    /* One that works has it already. */
    if (save->sink.dead)
        count = outlet_squeeze(outlet, CALLSIGHT_CHUNK_END, end->bytes, end->count, chunks);
    count += outlet_squeeze(outlet, CALLSIGHT_CHUNK_SINK, tail.bytes, tail.count, chunks + count);
    if (!save_finish(save, chunks, count) && !save->sink.dead)
        say("write to %s: its last chunk is not there yet; it is left to the process that writes",
            save->folder);
}
