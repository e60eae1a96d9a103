/* Two ranks that send each other messages of known sizes.
 *
 * usage: mpi_pair COUNT SIZE...
 *
 * For each size, rank 0 sends COUNT messages and gets each one back before it sends the next.
 * The first byte that differs from what was sent ends the program. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

static void check(const unsigned char *buffer, int size, int value)
{
    for (int i = 0; i < size; i++)
        if (buffer[i] != (unsigned char)(value + i)) {
            fprintf(stderr, "mpi_pair: byte %d of %d is wrong\n", i, size);
            MPI_Abort(MPI_COMM_WORLD, 2);
        }
}

static void exchange(unsigned char *buffer, int size, int tag, int rank)
{
    for (int i = 0; rank == 0 && i < size; i++)
        buffer[i] = (unsigned char)(tag + i);
    if (rank == 0)
        MPI_Send(buffer, size, MPI_BYTE, 1, tag, MPI_COMM_WORLD);
    MPI_Recv(buffer, size, MPI_BYTE, !rank, tag, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    check(buffer, size, tag);
    if (rank == 1)
        MPI_Send(buffer, size, MPI_BYTE, 0, tag, MPI_COMM_WORLD);
}

int main(int argc, char **argv)
{
    int rank;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    int count = atoi(argv[1]);
    for (int at = 2; at < argc; at++) {
        int size = atoi(argv[at]);
        unsigned char *buffer = malloc((size_t)size);
        for (int k = 0; k < count; k++)
            exchange(buffer, size, 100 * at + k, rank);
        free(buffer);
    }
    MPI_Finalize();
    return 0;
}
