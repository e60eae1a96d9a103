/* The two processes that a program becomes before it touches the network, and a wire that they
 * exchange addresses over. */
#ifndef PAIR_H
#define PAIR_H
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

static int rank, wire; /* 0 or 1; a socket to the other one */
static pid_t second;   /* of rank 0: the other process */

static void pair_fail(const char *what)
{
    fprintf(stderr, "pair: rank %d: %s\n", rank, what);
    exit(2);
}

static void pair_begin(void)
{
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends) || (second = fork()) < 0)
        pair_fail("no second process");
    rank = second ? 0 : 1;
    wire = ends[rank];
    close(ends[!rank]);
}

/* Rank 0 waits for the other process and returns its exit code, 3 when a signal ended it. */
static int pair_end(void)
{
    int status = 0;
    if (second && waitpid(second, &status, 0) != second)
        pair_fail("no process to wait for");
    return WIFEXITED(status) ? WEXITSTATUS(status) : 3;
}

static void pair_exchange(const void *mine, void *theirs, size_t size)
{
    if (write(wire, mine, size) != (ssize_t)size ||
        recv(wire, theirs, size, MSG_WAITALL) != (ssize_t)size)
        pair_fail("the other process is gone");
}

/* Both processes reach this; what they communicate with makes progress meanwhile. */
static void pair_meet(void (*progress)(void))
{
    char byte = 1;
    struct pollfd ready = {.fd = wire, .events = POLLIN};
    if (write(wire, &byte, 1) != 1)
        pair_fail("the other process is gone");
    while (!poll(&ready, 1, 0))
        progress();
    if (read(wire, &byte, 1) != 1)
        pair_fail("the other process is gone");
}
#endif
