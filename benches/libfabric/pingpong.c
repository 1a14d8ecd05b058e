/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Two ranks of an MPI: half a round trip of a few sizes, and the bandwidth of a window of sends. Prints one line per
 * figure for run.sh: <what> <bytes> <value>; us and GB/s, medians of batches.
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BATCHES = 11, WINDOW = 16 };

static int ascending(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static double median(double *values)
{
	qsort(values, BATCHES, sizeof *values, ascending);
	return values[BATCHES / 2];
}

int main(int argc, char **argv)
{
	static const int sizes[] = {8, 4096, 65536, 1048576, 16777216}, rounds[] = {2000, 1000, 200, 20, 2};
	enum { SIZES = sizeof sizes / sizeof *sizes, LARGEST = 16777216 };
	double times[BATCHES];
	int rank;
	char *buffer = malloc(LARGEST);

	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	if (!buffer)
		MPI_Abort(MPI_COMM_WORLD, 1);
	memset(buffer, rank, LARGEST);
	for (int s = 0; s < SIZES; s++) {
		/* The first batch warms up and is not counted. */
		for (int batch = -1; batch < BATCHES; batch++) {
			double start;

			MPI_Barrier(MPI_COMM_WORLD);
			start = MPI_Wtime();
			for (int i = 0; i < rounds[s]; i++) {
				for (int turn = 0; turn < 2; turn++) {
					if (turn == rank)
						MPI_Send(buffer, sizes[s], MPI_BYTE, 1 - rank, 1, MPI_COMM_WORLD);
					else
						MPI_Recv(buffer, sizes[s], MPI_BYTE, 1 - rank, 1, MPI_COMM_WORLD,
							 MPI_STATUS_IGNORE);
				}
			}
			if (batch >= 0)
				times[batch] = (MPI_Wtime() - start) / rounds[s] / 2 * 1e6;
		}
		if (rank == 0)
			printf("latency %d %.3f\n", sizes[s], median(times));
	}
	for (int s = 0; s < SIZES; s++) {
		int windows = rounds[s] / 8 + 1;

		for (int batch = -1; batch < BATCHES; batch++) {
			MPI_Request requests[WINDOW];
			double start;
			char done = 0;

			MPI_Barrier(MPI_COMM_WORLD);
			start = MPI_Wtime();
			for (int i = 0; i < windows; i++) {
				for (int k = 0; k < WINDOW; k++) {
					if (rank == 0)
						MPI_Isend(buffer, sizes[s], MPI_BYTE, 1, 2, MPI_COMM_WORLD,
							  &requests[k]);
					else
						MPI_Irecv(buffer, sizes[s], MPI_BYTE, 0, 2, MPI_COMM_WORLD,
							  &requests[k]);
				}
				MPI_Waitall(WINDOW, requests, MPI_STATUSES_IGNORE);
			}
			/* The receiver says when it has received everything. */
			if (rank == 0)
				MPI_Recv(&done, 1, MPI_BYTE, 1, 3, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
			else
				MPI_Send(&done, 1, MPI_BYTE, 0, 3, MPI_COMM_WORLD);
			if (batch >= 0)
				times[batch] = (double)sizes[s] * WINDOW * windows / (MPI_Wtime() - start) * 1e-9;
		}
		if (rank == 0)
			printf("bandwidth %d %.4f\n", sizes[s], median(times));
	}
	MPI_Finalize();
	free(buffer);
	return 0;
}
