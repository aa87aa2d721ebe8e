/* The first and the last chunk of a stream: who sends, and what became of every record. */

/* What the times of the ring mean. */
static void fill_handshake(struct callsight_handshake *handshake,
                           const struct callsight_ring_header *ring)
{
    memset(handshake, 0, sizeof *handshake);
    memcpy(handshake->magic, CALLSIGHT_STREAM_MAGIC, sizeof handshake->magic);
    handshake->version = CALLSIGHT_STREAM_VERSION;
    handshake->event_size = EVENT_BYTES;
    handshake->flags = ring->flags;
    handshake->load_bias = ring->load_bias;
    handshake->tick_hz = ring->tick_hz;
    handshake->t0_ticks = ring->t0_ticks;
    handshake->t0_ns = ring->t0_ns;
    handshake->hook_ns = ring->hook_ns;
}

/* ---- Who sends ------------------------------------------------------------------------------ */

struct fields {
    size_t count;
    unsigned char bytes[8192];
};

static void add_field(struct fields *fields, unsigned key, const void *value, size_t count)
{
    if (count == 0 || count > UINT16_MAX || fields->count + 4 + count > sizeof fields->bytes)
        return;
    unsigned char *at = fields->bytes + fields->count;
    put_le(at, key, 2);
    put_le(at + 2, count, 2);
    memcpy(at + 4, value, count);
    fields->count += 4 + count;
}

static void add_number(struct fields *fields, unsigned key, uint64_t value, size_t count)
{
    unsigned char bytes[8];
    put_le(bytes, value, count);
    add_field(fields, key, bytes, count);
}

/* The GNU build-id among the notes in `notes`; returns its length, 0 for none. */
static size_t find_build_id(const unsigned char *notes, size_t count, unsigned char *out,
                            size_t out_bytes)
{
    size_t at = 0;
    ElfW(Nhdr) note;
    while (count - at >= sizeof note) {
        memcpy(&note, notes + at, sizeof note);
        at += sizeof note;
        if (note.n_namesz > count || note.n_descsz > count)
            return 0;
        size_t name = ((size_t)note.n_namesz + 3) & ~(size_t)3;
        size_t whole = name + (((size_t)note.n_descsz + 3) & ~(size_t)3);
        if (whole > count - at)
            return 0;
        if (note.n_type == NT_GNU_BUILD_ID && note.n_namesz == 4
            && memcmp(notes + at, "GNU", 4) == 0 && note.n_descsz <= out_bytes) {
            memcpy(out, notes + at + name, note.n_descsz);
            return note.n_descsz;
        }
        at += whole;
    }
    return 0;
}

/* The build-id of an ELF file of our own class and byte order; returns its length, 0 for none. */
static size_t read_build_id(const char *path, unsigned char *out, size_t out_bytes)
{
    unsigned char notes[4096];
    ElfW(Ehdr) header;
    ElfW(Phdr) segment;
    size_t found = 0;
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0)
        return 0;
    if (pread(file, &header, sizeof header, 0) == (ssize_t)sizeof header
        && memcmp(header.e_ident, ELFMAG, SELFMAG) == 0
        && header.e_ident[EI_CLASS] == (sizeof(void *) == 8 ? ELFCLASS64 : ELFCLASS32)
        && header.e_phentsize == sizeof segment) {
        for (unsigned at = 0; at < header.e_phnum && found == 0; at++) {
            off_t offset = (off_t)(header.e_phoff + at * sizeof segment);
            if (pread(file, &segment, sizeof segment, offset) != (ssize_t)sizeof segment)
                break;
            if (segment.p_type != PT_NOTE || segment.p_filesz > sizeof notes)
                continue;
            ssize_t count = pread(file, notes, segment.p_filesz, (off_t)segment.p_offset);
            found = find_build_id(notes, count > 0 ? (size_t)count : 0, out, out_bytes);
        }
    }
    close(file);
    return found;
}

/* `noted` is the path that its own note gives, for a process that is gone already. */
static void add_process(struct fields *fields, uint32_t pid, const char *noted)
{
    char link[64], exe[PATH_MAX];
    unsigned char build_id[64];
    add_number(fields, CALLSIGHT_HELLO_PID, pid, 4);
    snprintf(link, sizeof link, "/proc/%" PRIu32 "/exe", pid);
    ssize_t count = readlink(link, exe, sizeof exe);
    if (count > 0)
        add_field(fields, CALLSIGHT_HELLO_EXE, exe, (size_t)count);
    else
        add_field(fields, CALLSIGHT_HELLO_EXE, noted, strlen(noted));
    add_field(fields, CALLSIGHT_HELLO_BUILD_ID, build_id,
              read_build_id(link, build_id, sizeof build_id));
}

/* Which stream this is: the same on every connection of it. */
static void add_stream(struct fields *fields)
{
    unsigned char id[CALLSIGHT_STREAM_ID_BYTES];
    int random = open("/dev/urandom", O_RDONLY | O_CLOEXEC);
    int drawn = random >= 0 && read(random, id, sizeof id) == (ssize_t)sizeof id;
    if (random >= 0)
        close(random);
    /* Without random bytes: no other drain has had our pid at this time. */
    if (!drawn) {
        put_le(id, now_ns(), 8);
        put_le(id + 8, (uint64_t)time(NULL) << 32 | (uint32_t)getpid(), 8);
    }
    add_field(fields, CALLSIGHT_HELLO_STREAM, id, sizeof id);
}

/* What this machine is, the first traced process (0 where it is not known), and how many records
 * of the ring other drains have taken. */
static const struct fields *make_hello(uint32_t pid, const char *noted, uint64_t taken)
{
    static struct fields fields;
    struct utsname machine;
    char text[2 * sizeof machine.sysname + 2];
    fields.count = 0;
    if (uname(&machine) == 0) {
        add_field(&fields, CALLSIGHT_HELLO_HOSTNAME, machine.nodename, strlen(machine.nodename));
        snprintf(text, sizeof text, "%s %s", machine.sysname, machine.release);
        add_field(&fields, CALLSIGHT_HELLO_OS, text, strlen(text));
        add_field(&fields, CALLSIGHT_HELLO_ARCH, machine.machine, strlen(machine.machine));
    }
    size_t count = read_text("/proc/sys/kernel/random/boot_id", text, sizeof text);
    while (count > 0 && isspace((unsigned char)text[count - 1]))
        count--;
    add_field(&fields, CALLSIGHT_HELLO_CLOCK, text, count);
    if (pid != 0)
        add_process(&fields, pid, noted);
    add_stream(&fields);
    if (taken != 0)
        add_number(&fields, CALLSIGHT_HELLO_TAKEN, taken, 8);
    return &fields;
}

/* ---- The counts at the end ------------------------------------------------------------------ */

/* In records, but for `events`. Of the ring's whole life, less what earlier drains of it have
 * delivered and told. */
struct counts {
    uint64_t emitted;
    uint64_t delivered;
    uint64_t events; /* those delivered that are no markers or counters */
    uint64_t dropped[CALLSIGHT_CAUSES];
    uint64_t untold; /* of those dropped: not in the data yet */
    uint64_t ring_dropped[CALLSIGHT_CAUSES]; /* with what earlier drains told, where that is to be told */
};

static const char *const cause_names[CALLSIGHT_CAUSES] = {
    "full", "no_slot", "reentrant", "fork",    "torn",      "budget",
    "io",   "stopped", "queue",     "unacked", "sink_dead", "rejected",
};

static uint64_t sum_dropped(const struct counts *counts)
{
    uint64_t sum = 0;
    for (int cause = 0; cause < CALLSIGHT_CAUSES; cause++)
        sum += counts->dropped[cause];
    return sum;
}

static void add_dropped(struct fields *fields, unsigned key, uint32_t cause, uint64_t events)
{
    unsigned char value[12];
    put_le(value, cause, 4);
    put_le(value + 4, events, 8);
    if (events != 0)
        add_field(fields, key, value, sizeof value);
}

/* `blocks` is the number of the last one. */
static const struct fields *make_end(uint32_t reason, const struct counts *counts,
                                     uint64_t blocks)
{
    static struct fields fields;
    fields.count = 0;
    add_number(&fields, CALLSIGHT_END_REASON, reason, 4);
    add_number(&fields, CALLSIGHT_END_EMITTED, counts->emitted, 8);
    add_number(&fields, CALLSIGHT_END_DELIVERED, counts->delivered, 8);
    add_number(&fields, CALLSIGHT_END_BLOCKS, blocks, 8);
    for (uint32_t cause = 0; cause < CALLSIGHT_CAUSES; cause++)
        add_dropped(&fields, CALLSIGHT_END_DROPPED, cause, counts->dropped[cause]);
    for (uint32_t cause = 0; cause < CALLSIGHT_CAUSES; cause++)
        add_dropped(&fields, CALLSIGHT_END_RING_DROPPED, cause, counts->ring_dropped[cause]);
    return &fields;
}

/* What was dropped, by cause, to stand behind the number of it. */
static const char *dropped_text(const uint64_t *dropped)
{
    static char text[CALLSIGHT_CAUSES * 40];
    const char *opening = " (";
    size_t count = 0;
    text[0] = 0;
    for (int cause = 0; cause < CALLSIGHT_CAUSES; cause++) {
        if (dropped[cause] == 0)
            continue;
        count += (size_t)snprintf(text + count, sizeof text - count, "%s%s %" PRIu64, opening,
                                  cause_names[cause], dropped[cause]);
        opening = ", ";
    }
    snprintf(text + count, sizeof text - count, "%s", count > 0 ? ")" : "");
    return text;
}

/* The last line: what became of every event. Of a ring that is finished the `rest` should be none; one
 * that lives on has some still in it, and losses that no stream has told. */
static void say_counts(const struct counts *counts, uint32_t reason, int64_t rest, uint64_t untold)
{
    uint64_t dropped = sum_dropped(counts);
    int done = reason == CALLSIGHT_END_DONE;
    char more[64] = "";
    if (untold > 0)
        snprintf(more, sizeof more, ", %" PRIu64 " dropped for the next drain to tell", untold);
    say("%s, %" PRIu64 " events forwarded, %" PRIu64 " dropped%s, %s=%" PRId64 "%s",
        done ? "done" : "stopped", counts->events, dropped, dropped_text(counts->dropped),
        done ? "unaccounted" : "left_in_ring", rest, more);
}
