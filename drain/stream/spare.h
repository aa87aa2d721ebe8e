/* The spare ring: made while we wait for a traced process, so that it need not.
 *
 * All memory of a ring must be there before anybody stores to it, and to get it takes milliseconds
 * that a starting program should not lose. So there is a whole, empty ring beside the name; the
 * first process that would make the ring gives this one the name instead, if it is of the size that
 * it asks for.
 */

/* Where everything is in a version 3 ring: RingLayout of callsight-format. */
struct layout {
    uint32_t page_bytes;
    uint32_t page_count;
    uint32_t slot_count;
    uint32_t pages_offset;
    uint32_t capacity;
    uint64_t total_bytes;
};

static struct layout layout_of(uint64_t asked)
{
    if (asked < CALLSIGHT_RING_MIN_BYTES || asked > UINT32_MAX)
        asked = CALLSIGHT_RING_DEFAULT_BYTES;
    uint64_t page_bytes = 1024;
    while (page_bytes < 16 << 10 && page_bytes * 2 * 64 <= asked)
        page_bytes *= 2;
    while (asked / page_bytes > CALLSIGHT_RING_MAX_PAGES)
        page_bytes *= 2;
    uint64_t pages = asked / page_bytes;
    uint64_t slots = pages * 2 < 64 ? 64 : pages * 2;
    uint64_t align = page_bytes > 4096 ? page_bytes : 4096;
    uint64_t end = CALLSIGHT_RING_WRITERS_OFFSET + slots * CALLSIGHT_RING_WRITER_BYTES;
    uint64_t pages_offset = (end + align - 1) / align * align;
    struct layout layout = {
        (uint32_t)page_bytes, (uint32_t)pages, (uint32_t)slots, (uint32_t)pages_offset,
        (uint32_t)(pages * page_bytes), pages_offset + pages * page_bytes,
    };
    return layout;
}

#define SPARE_PREFIX "/dev/shm/" CALLSIGHT_RING_SPARE_PREFIX

struct spare {
    char path[sizeof SPARE_PREFIX + NAME_MAX]; /* empty where there is none of ours */
    int file; /* locked, which ends with us: those who cannot see our pid see that we wait */
};

static struct spare spare;

static void spare_remove(void)
{
    if (spare.path[0] == 0)
        return;
    unlink(spare.path);
    close(spare.file);
    spare.path[0] = 0;
}

static void spare_name(char *path, const char *ring_path)
{
    snprintf(path, sizeof spare.path, SPARE_PREFIX "%s", strrchr(ring_path, '/') + 1);
}

static int spare_is_left(int file, const struct callsight_ring_control *control)
{
    return is_foreign(control->pid_namespace) ? flock(file, LOCK_EX | LOCK_NB) == 0
                                              : !is_alive_now(control->spare_maker, 0);
}

/* Removes the spare of this ring that a drain left which was killed; 0 where there is one that a drain
 * of another pid namespace waits with. */
static int spare_remove_left(const char *ring_path)
{
    char path[sizeof spare.path];
    struct callsight_ring_control control;
    struct stat stat;
    spare_name(path, ring_path);
    int file = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (file < 0)
        return 1;
    int is_ours = fstat(file, &stat) == 0 && S_ISREG(stat.st_mode) && stat.st_uid == geteuid()
                  && pread(file, &control, sizeof control, CALLSIGHT_RING_CONTROL_OFFSET)
                         == (ssize_t)sizeof control;
    int is_left = is_ours && strcmp(path, spare.path) != 0 && spare_is_left(file, &control);
    if (is_left)
        unlink(path);
    close(file);
    return is_left || !is_ours || !is_foreign(control.pid_namespace);
}

static void spare_fill(unsigned char *map, const struct layout *layout)
{
    struct callsight_ring_header *header = (void *)map;
    struct callsight_ring_control *control = (void *)(map + CALLSIGHT_RING_CONTROL_OFFSET);
    uint64_t *free_bits = (void *)(map + CALLSIGHT_RING_BITMAP_OFFSET);
    memcpy(header->magic, CALLSIGHT_RING_MAGIC, sizeof header->magic);
    header->version = CALLSIGHT_RING_VERSION;
    header->capacity = layout->capacity;
    control->page_bytes = layout->page_bytes;
    control->page_count = layout->page_count;
    control->slot_count = layout->slot_count;
    control->pages_offset = layout->pages_offset;
    control->command = CALLSIGHT_COMMAND_RECORD;
    control->spare_maker = (uint32_t)getpid();
    control->pid_namespace = own_namespace();
    for (uint32_t page = 0; page < layout->page_count; page++)
        free_bits[page / 64] |= 1ull << page % 64;
}

/* Gives the file all its memory, filled as an empty ring; 0 where that cannot be had. */
static int spare_write(int file, const struct layout *layout)
{
    size_t bytes = (size_t)layout->total_bytes;
    void *map = MAP_FAILED;
    if (bytes == layout->total_bytes && posix_fallocate(file, 0, (off_t)layout->total_bytes) == 0)
        map = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (map == MAP_FAILED)
        return 0;
    spare_fill(map, layout);
    munmap(map, bytes);
    return 1;
}

/* By what number a ring is named that we are making: those of other pid namespaces with our pid, as each
 * container has a process 1, make theirs at the same time. */
static uint32_t unborn_number(void)
{
    const uint32_t behind_pids = 4194305, count = 4000000000;
    uint64_t namespace_number = own_namespace(), pid = (uint64_t)getpid();
    if (namespace_number == 0 || namespace_number == CALLSIGHT_FIRST_PID_NAMESPACE)
        return (uint32_t)pid;
    return behind_pids + (uint32_t)((namespace_number * 0x9e3779b97f4a7c15 + pid) % count);
}

/* The size that TRACE_SHM_SIZE asks for here, as the runtime reads it; 0 where it is no number. */
static uint64_t asked_bytes(void)
{
    const char *text = getenv("TRACE_SHM_SIZE");
    errno = 0;
    unsigned long long asked = text != NULL ? strtoull(text, NULL, 10) : 0;
    if (errno != 0)
        return 0;
    return asked < UINT32_MAX ? asked : UINT32_MAX;
}

/* Makes a spare for the ring that is waited for. One that cannot be made is no harm: the process makes
 * its own. */
static void spare_make(const char *ring_path)
{
    struct layout layout = layout_of(asked_bytes());
    struct statvfs room;
    char path[sizeof spare.path], unborn[64];
    if (!spare_remove_left(ring_path))
        fail(EXIT_REFUSED, "wait for the ring %s: another trace_stream does, and " FOREIGN, ring_path);
    /* It must not take the room from a ring of another size, that the process makes itself. */
    if (statvfs("/dev/shm", &room) != 0
        || room.f_bavail < 4 * layout.total_bytes / (room.f_frsize != 0 ? room.f_frsize : 1))
        return;
    spare_name(path, ring_path);
    snprintf(unborn, sizeof unborn, "/dev/shm/" CALLSIGHT_RING_UNBORN_PREFIX "%" PRIu32,
             unborn_number());
    unlink(unborn);
    spare.file = open(unborn, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (spare.file < 0)
        return;
    /* Named when it is whole. Where there is one already another drain waits for the same ring, and
     * that one will do. */
    if (flock(spare.file, LOCK_EX | LOCK_NB) == 0 && spare_write(spare.file, &layout)
        && link(unborn, path) == 0)
        memcpy(spare.path, path, sizeof path);
    else
        close(spare.file);
    unlink(unborn);
}
