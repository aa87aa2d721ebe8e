/* Finding the server: its name → addresses.
 *
 * In: a host and a port. Out: where to connect. To ask for a name may take a minute, or be in vain
 * until a network is there. Who has the time to wait for that starts a process that asks, before
 * there is a ring that it would hold.
 */

#define ADDRESSES 8u
#define ASK_AGAIN_NS SECOND

struct answer {
    int error; /* of getaddrinfo */
    uint32_t count;
    struct {
        int family;
        int type;
        int protocol;
        socklen_t bytes;
        struct sockaddr_storage address;
    } places[ADDRESSES];
};

struct finder {
    int pipe;
    pid_t process;
    struct addrinfo addresses[ADDRESSES];
    struct answer answer;
};

/* The host of `[::1]`, as it stands in front of a port. */
static const char *without_brackets(const char *host)
{
    static char bare[256];
    size_t count = strlen(host);
    if (count < 3 || count - 2 >= sizeof bare || host[0] != '[' || host[count - 1] != ']')
        return host;
    memcpy(bare, host + 1, count - 2);
    return bare;
}

static void find_ask(struct answer *answer, const char *host, const char *port, int flags)
{
    struct addrinfo hints, *found = NULL;
    memset(answer, 0, sizeof *answer);
    memset(&hints, 0, sizeof hints);
    hints.ai_socktype = SOCK_STREAM;
    hints.ai_flags = flags;
    answer->error = getaddrinfo(host, port, &hints, &found);
    if (answer->error != 0)
        return;
    for (const struct addrinfo *at = found; at != NULL && answer->count < ADDRESSES;
         at = at->ai_next) {
        if (at->ai_addrlen > sizeof answer->places[0].address)
            continue;
        answer->places[answer->count].family = at->ai_family;
        answer->places[answer->count].type = at->ai_socktype;
        answer->places[answer->count].protocol = at->ai_protocol;
        answer->places[answer->count].bytes = at->ai_addrlen;
        memcpy(&answer->places[answer->count++].address, at->ai_addr, at->ai_addrlen);
    }
    freeaddrinfo(found);
}

/* Asks until there is an answer, and says once that there is none yet. */
static void finder_run(int out, const char *host, const char *port) __attribute__((noreturn));
static void finder_run(int out, const char *host, const char *port)
{
    struct answer answer;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (int said = 0;; said = 1, nap(ASK_AGAIN_NS)) {
        find_ask(&answer, host, port, 0);
        if (answer.error == 0 && answer.count > 0)
            break;
        if (!said)
            say("find the server %s: %s; trying again", host, gai_strerror(answer.error));
    }
    ssize_t written = write(out, &answer, sizeof answer);
    (void)written;
    _exit(0);
}

static void finder_start(struct finder *finder, const char *host, const char *port)
{
    int ends[2];
    if (pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0 || (finder->process = fork()) < 0)
        fail(EXIT_BROKEN, "start the process that finds the server %s: %s", host, strerror(errno));
    if (finder->process == 0) {
        signal(SIGTERM, SIG_DFL);
        signal(SIGINT, SIG_DFL);
        close(ends[0]);
        finder_run(ends[1], host, port);
    }
    close(ends[1]);
    finder->pipe = ends[0];
}

/* The addresses of the answer as a list. */
static struct addrinfo *finder_addresses(struct finder *finder)
{
    struct addrinfo *next = NULL;
    for (uint32_t at = finder->answer.count; at-- > 0; next = &finder->addresses[at]) {
        struct addrinfo *address = &finder->addresses[at];
        address->ai_family = finder->answer.places[at].family;
        address->ai_socktype = finder->answer.places[at].type;
        address->ai_protocol = finder->answer.places[at].protocol;
        address->ai_addrlen = finder->answer.places[at].bytes;
        address->ai_addr = (struct sockaddr *)(void *)&finder->answer.places[at].address;
        address->ai_next = next;
    }
    return next;
}

/* Finds the server, unless a process has to go on asking for it: NULL then. */
static struct addrinfo *finder_begin(struct finder *finder, const char *host, const char *port,
                                     int is_patient)
{
    find_ask(&finder->answer, host, port, AI_NUMERICHOST);
    if (finder->answer.error != 0 && is_patient)
        finder_start(finder, host, port);
    else if (finder->answer.error != 0)
        find_ask(&finder->answer, host, port, 0);
    if (finder->answer.error != 0 && !is_patient)
        fail(EXIT_REFUSED, "find the server %s: %s", host, gai_strerror(finder->answer.error));
    return finder_addresses(finder);
}

/* What the process has found; NULL for nothing yet, and then `is_gone` says that it never will. */
static struct addrinfo *finder_hear(struct finder *finder, int *is_gone)
{
    /* Written in one piece: it is smaller than PIPE_BUF. */
    ssize_t count = read(finder->pipe, &finder->answer, sizeof finder->answer);
    *is_gone = count == 0;
    if (count != (ssize_t)sizeof finder->answer)
        return NULL;
    close(finder->pipe);
    waitpid(finder->process, NULL, 0);
    return finder_addresses(finder);
}
