// Ways to leave functions other than by their end. Usage: prog throw|jump|cancel|exit|switch
#include <csetjmp>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <pthread.h>
#include <ucontext.h>
#include <unistd.h>

enum { DEPTH = 100, ROUNDS = 50 };

static jmp_buf back;
static ucontext_t home, away;
static volatile int sink;

__attribute__((noinline)) static void leaf(int x) { sink = x; }

__attribute__((noinline)) static int thrown(int depth)
{
    if (depth == 0)
        throw depth;
    return thrown(depth - 1) + 1;
}

__attribute__((noinline)) static int caught()
{
    try {
        return thrown(DEPTH);
    } catch (int) {
        leaf(1);
        return 0;
    }
}

__attribute__((noinline)) static int jumped(int depth)
{
    if (depth == 0)
        longjmp(back, 1);
    return jumped(depth - 1) + 1;
}

__attribute__((noinline)) static void landed()
{
    if (setjmp(back) == 0)
        jumped(DEPTH);
    leaf(2);
}

__attribute__((noinline)) static int waits(int depth)
{
    if (depth == 0)
        for (;;)
            pause();
    return waits(depth - 1) + 1;
}

static void *cancelled(void *ready)
{
    leaf(3);
    *static_cast<volatile int *>(ready) = 1;
    waits(DEPTH);
    return nullptr;
}

__attribute__((noinline)) static void cancels()
{
    pthread_t thread;
    volatile int ready = 0;
    pthread_create(&thread, nullptr, cancelled, const_cast<int *>(&ready));
    while (!ready)
        usleep(100);
    pthread_cancel(thread);
    pthread_join(thread, nullptr);
}

__attribute__((noinline)) static int exits(int depth)
{
    if (depth == 0)
        exit(0);
    return exits(depth - 1) + 1;
}

static void elsewhere()
{
    for (;;) {
        leaf(4);
        swapcontext(&away, &home);
    }
}

__attribute__((noinline)) static void switches()
{
    leaf(5);
    swapcontext(&home, &away);
    leaf(6);
}

int main(int argc, char **argv)
{
    const char *way = argc > 1 ? argv[1] : "";
    std::puts(way);
    std::fflush(stdout);
    if (!std::strcmp(way, "switch")) {
        static char stack[64 << 10];
        getcontext(&away);
        away.uc_stack.ss_sp = stack;
        away.uc_stack.ss_size = sizeof stack;
        makecontext(&away, elsewhere, 0);
    }
    for (int i = 0; i < ROUNDS; i++) {
        if (!std::strcmp(way, "throw"))
            caught();
        else if (!std::strcmp(way, "jump"))
            landed();
        else if (!std::strcmp(way, "cancel"))
            cancels();
        else if (!std::strcmp(way, "switch"))
            switches();
        else
            exits(DEPTH);
    }
    return 0;
}
