/* Packed events: records of one writer → a block.
 *
 * In: records of 32 bytes, in the writer's order. Out: the block of trace_shm.h, whose columns
 * block.rs describes. What a record says that the ones before it foretell takes no byte. A block
 * begins with empty books, so that any block can be read alone. Knows nothing of rings and sinks.
 */

#define PACK_HASH_BITS 11u
#define PACK_HASHES (1u << PACK_HASH_BITS)
#define PACK_NAME_BYTES 10u /* the most of a LEB128 number */
/* A block ends when a column is full. Its sum stays below CALLSIGHT_CHUNK_MAX_RAW_BYTES / 4. */
#define PACK_IDS (16u << 10)
#define PACK_NAMES (16u << 10)
#define PACK_TIMES (32u << 10)
#define PACK_FRAMES (12u << 10)
#define PACK_LITERALS (12u << 10)

struct pack_pair {
    uint64_t func;
    uint64_t call_site;
    uint32_t step;
    uint16_t next[2]; /* the pair that came next behind an enter and behind an exit, plus one */
};

struct pack_function {
    uint64_t func;
    uint32_t step;
};

struct pack_open {
    uint64_t func;
    uint64_t call_site;
    uint32_t frame;
    uint32_t pair;
};

/* A block that is being filled. */
struct pack {
    struct callsight_block_header header; /* in the order of this machine */
    uint64_t last_ts;
    uint64_t last_func;
    uint64_t last_site;
    uint16_t first_next;
    uint16_t *context; /* what came here the last time */
    uint32_t base;
    uint32_t depth;
    uint32_t pair_count;
    uint32_t function_count;
    struct pack_open stack[CALLSIGHT_PACK_STACK];
    struct pack_pair pairs[CALLSIGHT_PACK_PAIRS];
    struct pack_function functions[CALLSIGHT_PACK_FUNCTIONS];
    uint16_t pair_hashes[PACK_HASHES]; /* number plus one */
    uint16_t function_hashes[PACK_HASHES];
    unsigned char ops[CALLSIGHT_BLOCK_MAX_RECORDS];
    unsigned char deltas[CALLSIGHT_BLOCK_MAX_RECORDS];
    unsigned char times[PACK_TIMES];
    unsigned char ids[PACK_IDS];
    unsigned char names[PACK_NAMES];
    unsigned char frames[PACK_FRAMES];
    unsigned char literals[PACK_LITERALS];
};

#define PACK_MAX_BYTES                                                                            \
    (sizeof(struct callsight_block_header) + 2 * CALLSIGHT_BLOCK_MAX_RECORDS + PACK_TIMES          \
     + PACK_IDS + PACK_NAMES + PACK_FRAMES + PACK_LITERALS)

/* ---- Checksum ------------------------------------------------------------------------------- */

static uint32_t crc_of_byte[8][256];

/* CRC-32C, reflected: the remainder of each byte, and of each with zero bytes behind it. */
static void crc_prepare(void)
{
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t rest = byte;
        for (int bit = 0; bit < 8; bit++)
            rest = rest & 1 ? rest >> 1 ^ 0x82f63b78u : rest >> 1;
        crc_of_byte[0][byte] = rest;
    }
    for (int zeros = 1; zeros < 8; zeros++)
        for (uint32_t byte = 0; byte < 256; byte++) {
            uint32_t before = crc_of_byte[zeros - 1][byte];
            crc_of_byte[zeros][byte] = before >> 8 ^ crc_of_byte[0][before & 0xff];
        }
}

static uint32_t crc_by_table(uint32_t crc, const unsigned char *at, size_t count)
{
    for (; count >= 8; count -= 8, at += 8) {
        uint64_t word = get_le(at, 8) ^ crc;
        crc = 0;
        for (unsigned byte = 0; byte < 8; byte++)
            crc ^= crc_of_byte[7 - byte][word >> (8 * byte) & 0xff];
    }
    for (; count > 0; count--, at++)
        crc = crc >> 8 ^ crc_of_byte[0][(crc ^ *at) & 0xff];
    return crc;
}

#if defined __x86_64__ && defined __GNUC__
/* The instruction that computes it, which most of these processors have. */
__attribute__((target("sse4.2")))
static uint32_t crc_by_instruction(uint32_t crc, const unsigned char *at, size_t count)
{
    uint64_t wide = crc, word;
    for (; count >= 8; count -= 8, at += 8) {
        memcpy(&word, at, 8);
        wide = __builtin_ia32_crc32di(wide, word);
    }
    for (; count > 0; count--, at++)
        wide = __builtin_ia32_crc32qi((uint32_t)wide, *at);
    return (uint32_t)wide;
}
#endif

static uint32_t crc32c(const unsigned char *at, size_t count)
{
#if defined __x86_64__ && defined __GNUC__
    if (__builtin_cpu_supports("sse4.2"))
        return crc_by_instruction(UINT32_MAX, at, count) ^ UINT32_MAX;
#endif
    return crc_by_table(UINT32_MAX, at, count) ^ UINT32_MAX;
}

/* ---- Numbers --------------------------------------------------------------------------------- */

static uint32_t put_number(unsigned char *out, uint64_t value)
{
    uint32_t count = 0;
    for (; value >= 0x80; value >>= 7)
        out[count++] = (unsigned char)(value | 0x80);
    out[count++] = (unsigned char)value;
    return count;
}

static void pack_id(struct pack *pack, uint64_t id)
{
    pack->header.id_bytes += put_number(pack->ids + pack->header.id_bytes, id);
}

/* 0, -1, 1, -2, ... as 0, 1, 2, 3, ... */
static void pack_name(struct pack *pack, uint64_t name, uint64_t near)
{
    uint64_t distance = name - near;
    uint64_t zigzag = distance << 1 ^ (distance >> 63 ? UINT64_MAX : 0);
    pack->header.name_bytes += put_number(pack->names + pack->header.name_bytes, zigzag);
}

static void pack_frame(struct pack *pack, uint32_t frame)
{
    put_le(pack->frames + pack->header.frame_bytes, frame & 0xffffff, 3);
    pack->header.frame_bytes += 3;
}

/* Writes the time since the record before to `out`, and to `more` what does not fit there; returns
 * how many bytes that is. One that runs backwards takes eight. */
static inline uint32_t put_time(unsigned char *out, unsigned char *more, uint64_t delta)
{
    if (delta < CALLSIGHT_TIME_LONGER) {
        *out = (unsigned char)delta;
        return 0;
    }
    delta -= CALLSIGHT_TIME_LONGER;
    if (delta >> 8 < CALLSIGHT_TIME_4_BYTES - CALLSIGHT_TIME_LONGER) {
        *out = (unsigned char)(CALLSIGHT_TIME_LONGER + (delta >> 8));
        *more = (unsigned char)delta;
        return 1;
    }
    if (delta <= UINT32_MAX) {
        *out = CALLSIGHT_TIME_4_BYTES;
        put_le(more, delta, 4);
        return 4;
    }
    *out = CALLSIGHT_TIME_8_BYTES;
    put_le(more, delta, 8);
    return 8;
}

/* ---- Functions and pairs --------------------------------------------------------------------- */

static uint32_t pack_hash(uint64_t func, uint64_t call_site)
{
    uint64_t mixed = (func ^ call_site << 7) * 0x9e3779b97f4a7c15ull;
    return (uint32_t)(mixed >> (64 - PACK_HASH_BITS));
}

/* Number of a function, told in `ids` plus one; told as 0 and in `names` where it is new. */
static uint32_t pack_function(struct pack *pack, uint64_t func)
{
    uint32_t at = pack_hash(func, 0), number;
    for (; (number = pack->function_hashes[at]) != 0; at = (at + 1) % PACK_HASHES)
        if (pack->functions[number - 1].func == func) {
            pack_id(pack, number);
            return number - 1;
        }
    if (pack->function_count == CALLSIGHT_PACK_FUNCTIONS) {
        pack->function_count = 0;
        memset(pack->function_hashes, 0, sizeof pack->function_hashes);
        at = pack_hash(func, 0);
    }
    number = pack->function_count++;
    pack->function_hashes[at] = (uint16_t)(number + 1);
    pack->functions[number].func = func;
    pack->functions[number].step = 0;
    pack_id(pack, 0);
    pack_name(pack, func, pack->last_func);
    pack->last_func = func;
    return number;
}

/* Number of a pair that is known, plus one; 0 for another, and then `place` is where it belongs. */
static uint32_t find_pair(struct pack *pack, uint64_t func, uint64_t call_site, uint32_t *place)
{
    uint32_t at = pack_hash(func, call_site), number;
    for (; (number = pack->pair_hashes[at]) != 0; at = (at + 1) % PACK_HASHES)
        if (pack->pairs[number - 1].func == func && pack->pairs[number - 1].call_site == call_site)
            break;
    *place = at;
    return number;
}

/* Makes a pair and tells it; returns the number of its function. */
static uint32_t pack_new_pair(struct pack *pack, uint64_t func, uint64_t call_site, uint32_t place)
{
    if (pack->pair_count == CALLSIGHT_PACK_PAIRS) {
        pack->pair_count = 0;
        memset(pack->pair_hashes, 0, sizeof pack->pair_hashes);
        pack->context = &pack->first_next;
        find_pair(pack, func, call_site, &place);
    }
    uint32_t function = pack_function(pack, func);
    uint64_t near = pack->depth == 0
                        ? pack->last_site
                        : pack->stack[(pack->depth - 1) % CALLSIGHT_PACK_STACK].func;
    pack_name(pack, call_site, near);
    pack->last_site = call_site;
    struct pack_pair *pair = &pack->pairs[pack->pair_count++];
    pair->func = func;
    pair->call_site = call_site;
    pair->step = pack->functions[function].step;
    pair->next[0] = pair->next[1] = 0;
    pack->pair_hashes[place] = (uint16_t)pack->pair_count;
    return function;
}

/* ---- Records --------------------------------------------------------------------------------- */

static void pack_op(struct pack *pack, unsigned op)
{
    pack->ops[pack->header.records] = (unsigned char)op;
}

/* Of the call around the next one at `depth`. */
static inline uint32_t frame_above(const struct pack *pack, uint32_t depth)
{
    return depth == 0 ? pack->base : pack->stack[(depth - 1) % CALLSIGHT_PACK_STACK].frame;
}

/* Whether `number`, plus one, is this pair's. */
static inline int is_pair(const struct pack *pack, uint32_t number, uint64_t func,
                          uint64_t call_site)
{
    if (number == 0 || number > pack->pair_count)
        return 0;
    const struct pack_pair *pair = &pack->pairs[number - 1];
    return pair->func == func && pair->call_site == call_site;
}

static inline int is_open(const struct pack_open *open, uint64_t func, uint64_t call_site,
                          uint32_t frame)
{
    return open->frame == frame && open->func == func && open->call_site == call_site;
}

/* Puts an enter of the pair `number`, plus one, on the stack at `depth`, and returns its op. */
static inline unsigned put_enter(struct pack *pack, uint32_t number, unsigned op, uint32_t depth,
                                 uint32_t frame)
{
    struct pack_pair *pair = &pack->pairs[number - 1];
    struct pack_open *open = &pack->stack[depth % CALLSIGHT_PACK_STACK];
    uint32_t step = (frame_above(pack, depth) - frame) & 0xffffff;
    if (step != pair->step) {
        pack_frame(pack, step);
        pair->step = step;
        op |= CALLSIGHT_OP_FRAME;
    }
    open->func = pair->func;
    open->call_site = pair->call_site;
    open->frame = frame;
    open->pair = number - 1;
    return op;
}

/* Tells a pair that the block has, and that was not foretold; returns its number plus one. */
static uint32_t pack_pair_again(struct pack *pack, uint16_t *context, uint64_t func,
                                     uint64_t call_site)
{
    uint32_t place, number = find_pair(pack, func, call_site, &place);
    if (number != 0) {
        pack_id(pack, number - 1);
        *context = (uint16_t)number;
    }
    return number;
}

static void pack_new_enter(struct pack *pack, uint64_t func, uint64_t call_site, uint32_t frame)
{
    uint32_t place;
    find_pair(pack, func, call_site, &place);
    struct pack_function *function
        = &pack->functions[pack_new_pair(pack, func, call_site, place)];
    uint32_t number = pack->pair_count;
    *pack->context = (uint16_t)number;
    pack_op(pack, put_enter(pack, number, CALLSIGHT_OP_ENTER_NEW, pack->depth++, frame));
    function->step = pack->pairs[number - 1].step;
    pack->context = &pack->pairs[number - 1].next[0];
}

/* An exit of what is not on the stack: its call began before the block, or nobody knows of it. */
static void pack_stray_exit(struct pack *pack, uint64_t func, uint64_t call_site, uint32_t frame)
{
    uint32_t place, number = find_pair(pack, func, call_site, &place);
    if (number != 0) {
        pack_op(pack, CALLSIGHT_OP_EXIT_PAIR);
        pack_id(pack, number - 1);
    } else {
        pack_op(pack, CALLSIGHT_OP_EXIT_NEW);
        pack_new_pair(pack, func, call_site, place);
        number = pack->pair_count;
    }
    pack_frame(pack, frame - pack->base);
    if (pack->depth == 0)
        pack->base = frame;
    pack->context = &pack->pairs[number - 1].next[1];
}

/* An exit of no call on top of the stack. */
static void pack_other_exit(struct pack *pack, uint64_t func, uint64_t call_site, uint32_t frame)
{
    uint32_t looks = pack->depth < CALLSIGHT_PACK_BELOW ? pack->depth : CALLSIGHT_PACK_BELOW;
    for (uint32_t below = 1; below < looks; below++) {
        uint32_t at = pack->depth - 1 - below;
        const struct pack_open *open = &pack->stack[at % CALLSIGHT_PACK_STACK];
        if (!is_open(open, func, call_site, frame))
            continue;
        pack_op(pack, CALLSIGHT_OP_EXIT_BELOW);
        pack_id(pack, below);
        pack->depth = at;
        pack->context = &pack->pairs[open->pair].next[1];
        return;
    }
    pack_stray_exit(pack, func, call_site, frame);
}

/* ---- Blocks ---------------------------------------------------------------------------------- */

/* Begins a block of the writer that `header` names. */
static void pack_begin(struct pack *pack, const struct callsight_block_header *header)
{
    pack->header = *header;
    pack->last_func = pack->last_site = 0;
    pack->first_next = 0;
    pack->context = &pack->first_next;
    pack->depth = pack->pair_count = pack->function_count = 0;
    memset(pack->pair_hashes, 0, sizeof pack->pair_hashes);
    memset(pack->function_hashes, 0, sizeof pack->function_hashes);
}

static uint32_t least(uint32_t left, uint32_t right)
{
    return left < right ? left : right;
}

/* How many more records fit, whatever they are. */
static uint32_t pack_room(const struct pack *pack)
{
    const struct callsight_block_header *header = &pack->header;
    uint32_t room = CALLSIGHT_BLOCK_MAX_RECORDS - header->records;
    room = least(room, (PACK_TIMES - header->time_bytes) / 8);
    room = least(room, (PACK_IDS - header->id_bytes) / (2 * PACK_NAME_BYTES));
    room = least(room, (PACK_NAMES - header->name_bytes) / (2 * PACK_NAME_BYTES));
    room = least(room, (PACK_FRAMES - header->frame_bytes) / 3);
    return least(room, (PACK_LITERALS - header->literal_bytes) / (EVENT_BYTES - 8));
}

static void pack_literal(struct pack *pack, unsigned op, const struct callsight_event *event)
{
    unsigned char *out = pack->literals + pack->header.literal_bytes;
    put_le(out, event->func, 8);
    put_le(out + 8, event->call_site, 8);
    put_le(out + 16, event->tid, 4);
    out[20] = event->kind;
    memcpy(out + 21, event->frame, 3);
    pack->header.literal_bytes += EVENT_BYTES - 8;
    pack_op(pack, op);
}

/* Adds the records at `at` as long as each enters a pair that the block has, or leaves the call on
 * top of the stack, as nearly all do. Ends before any other, before a slot that is not stored yet,
 * and at `count`, which is no more than pack_room. Returns how many it took. */
static uint32_t pack_known(struct pack *pack, const unsigned char *at, uint32_t count)
{
    struct callsight_block_header *header = &pack->header;
    const unsigned char *const end = at + (size_t)count * EVENT_BYTES;
    unsigned char *times = pack->times + header->time_bytes;
    uint16_t *context = pack->context;
    uint64_t last_ts = pack->last_ts, ts;
    uint32_t depth = pack->depth, records = header->records, taken;
    if (records == 0)
        return 0;
    for (; at != end && (ts = slot_ts(at)) != 0; records++, at += EVENT_BYTES) {
        uint64_t func = word_at(at + offsetof(struct callsight_event, func));
        uint64_t call_site = word_at(at + offsetof(struct callsight_event, call_site));
        uint32_t kind_frame = get_le32(at + offsetof(struct callsight_event, kind));
        uint32_t frame = kind_frame >> 8;
        if ((kind_frame & 0xff) == CALLSIGHT_KIND_ENTER) {
            uint32_t number = *context;
            unsigned op = CALLSIGHT_OP_ENTER;
            if (!is_pair(pack, number, func, call_site)) {
                number = pack_pair_again(pack, context, func, call_site);
                if (number == 0)
                    break;
                op = CALLSIGHT_OP_ENTER_PAIR;
            }
            pack->ops[records] = (unsigned char)put_enter(pack, number, op, depth++, frame);
            context = &pack->pairs[number - 1].next[0];
        } else {
            const struct pack_open *open = &pack->stack[(depth - 1) % CALLSIGHT_PACK_STACK];
            if ((kind_frame & 0xff) != CALLSIGHT_KIND_EXIT || depth == 0
                || !is_open(open, func, call_site, frame))
                break;
            depth--;
            pack->ops[records] = CALLSIGHT_OP_EXIT;
            context = &pack->pairs[open->pair].next[1];
        }
        times += put_time(&pack->deltas[records], times, ts - last_ts);
        last_ts = ts;
    }
    taken = records - header->records;
    pack->context = context;
    pack->last_ts = last_ts;
    pack->depth = depth;
    header->time_bytes = (uint32_t)(times - pack->times);
    header->records = records;
    header->calls += taken;
    header->numbered += taken;
    return taken;
}

/* Adds a record that pack_known does not take, or with `is_note` one of the drain's own. */
static void pack_other(struct pack *pack, const struct callsight_event *event, int is_note)
{
    struct callsight_block_header *header = &pack->header;
    uint32_t frame = (uint32_t)get_le(event->frame, 3);
    if (header->records == 0) {
        header->first_ts = pack->last_ts = event->ts;
        header->frame = pack->base = frame;
    }
    header->time_bytes += put_time(&pack->deltas[header->records],
                                   pack->times + header->time_bytes, event->ts - pack->last_ts);
    pack->last_ts = event->ts;
    if (event->kind == CALLSIGHT_KIND_ENTER) {
        pack_new_enter(pack, event->func, event->call_site, frame);
        header->calls++;
    } else if (event->kind == CALLSIGHT_KIND_EXIT) {
        pack_other_exit(pack, event->func, event->call_site, frame);
        header->calls++;
    } else {
        pack_literal(pack, is_note ? CALLSIGHT_OP_NOTE : CALLSIGHT_OP_RECORD, event);
    }
    header->numbered += !is_note;
    header->records++;
}

/* Adds a record, as pack_other. */
static void pack_record(struct pack *pack, const struct callsight_event *event, int is_note)
{
    if (pack_known(pack, (const unsigned char *)event, 1) == 0)
        pack_other(pack, event, is_note);
}

/* Where a field of the header stands in a block. */
#define PACK_FIELD(out, header, field)                                                            \
    put_le((out) + offsetof(struct callsight_block_header, field), (header)->field,              \
           sizeof(header)->field)

/* Writes the block to `out`, PACK_MAX_BYTES at most; returns its size. */
static size_t pack_block(const struct pack *pack, unsigned char *out)
{
    const struct callsight_block_header *header = &pack->header;
    const struct {
        const unsigned char *bytes;
        uint32_t count;
    } columns[] = {
        { pack->ops, header->records },        { pack->deltas, header->records },
        { pack->times, header->time_bytes },   { pack->ids, header->id_bytes },
        { pack->names, header->name_bytes },   { pack->frames, header->frame_bytes },
        { pack->literals, header->literal_bytes },
    };
    put_le(out + offsetof(struct callsight_block_header, header_bytes), sizeof *header, 2);
    PACK_FIELD(out, header, flags);
    PACK_FIELD(out, header, number);
    PACK_FIELD(out, header, start);
    PACK_FIELD(out, header, first);
    PACK_FIELD(out, header, pid);
    PACK_FIELD(out, header, tid);
    PACK_FIELD(out, header, records);
    PACK_FIELD(out, header, calls);
    PACK_FIELD(out, header, numbered);
    PACK_FIELD(out, header, pad);
    PACK_FIELD(out, header, first_ts);
    PACK_FIELD(out, header, lost_total);
    for (size_t cause = 0; cause < 4; cause++)
        put_le(out + offsetof(struct callsight_block_header, lost) + 4 * cause,
               header->lost[cause], 4);
    PACK_FIELD(out, header, frame);
    PACK_FIELD(out, header, time_bytes);
    PACK_FIELD(out, header, id_bytes);
    PACK_FIELD(out, header, name_bytes);
    PACK_FIELD(out, header, frame_bytes);
    PACK_FIELD(out, header, literal_bytes);
    size_t count = sizeof *header;
    for (size_t at = 0; at < sizeof columns / sizeof columns[0]; at++) {
        memcpy(out + count, columns[at].bytes, columns[at].count);
        count += columns[at].count;
    }
    put_le(out, crc32c(out + 4, count - 4), 4);
    return count;
}
