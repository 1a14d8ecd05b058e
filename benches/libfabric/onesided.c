/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Two ranks of an MPI: small operations of one rank on the other's window, each with its flush. Prints one line per
 * figure for run.sh: <what> <bytes> <us>, medians of batches.
 *
 *   onesided create|allocate    the window's memory: the program's, or that of MPI_Win_allocate
 */
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BATCHES = 11, ROUNDS = 1000, LARGEST = 4096 };
enum what { PUT, GET, FETCH_AND_OP };

static int ascending(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static void one(MPI_Win window, enum what what, char *local, int size)
{
	if (what == PUT)
		MPI_Put(local, size, MPI_BYTE, 1, 0, size, MPI_BYTE, window);
	else if (what == GET)
		MPI_Get(local, size, MPI_BYTE, 1, 0, size, MPI_BYTE, window);
	else
		MPI_Fetch_and_op(local, local + 8, MPI_INT64_T, 1, 0, MPI_SUM, window);
	MPI_Win_flush(1, window);
}

int main(int argc, char **argv)
{
	static const struct {
		const char *name;
		enum what what;
		int size;
	} rows[] = {{"put", PUT, 8}, {"put", PUT, LARGEST}, {"get", GET, 8}, {"get", GET, LARGEST}, {"fetch_and_op", FETCH_AND_OP, 8}};
	double times[BATCHES];
	int rank, wrong = 0;
	char *base = NULL, *local = calloc(2, LARGEST);
	MPI_Win window;

	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	if (argc == 2 && !strcmp(argv[1], "allocate")) {
		MPI_Win_allocate(LARGEST, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &base, &window);
	} else {
		base = malloc(LARGEST);
		MPI_Win_create(base, LARGEST, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &window);
	}
	memset(base, 0, LARGEST);
	MPI_Barrier(MPI_COMM_WORLD);
	MPI_Win_lock_all(0, window);
	*(int64_t *)local = 1;
	for (size_t r = 0; r < sizeof rows / sizeof *rows; r++) {
		/* The first batch warms up and is not counted. */
		for (int batch = -1; rank == 0 && batch < BATCHES; batch++) {
			double start = MPI_Wtime();

			for (int i = 0; i < ROUNDS; i++)
				one(window, rows[r].what, local, rows[r].size);
			if (batch >= 0)
				times[batch] = (MPI_Wtime() - start) / ROUNDS * 1e6;
		}
		MPI_Barrier(MPI_COMM_WORLD);
		if (rank == 0) {
			qsort(times, BATCHES, sizeof *times, ascending);
			printf("%s %d %.3f\n", rows[r].name, rows[r].size, times[BATCHES / 2]);
		}
	}
	MPI_Win_unlock_all(window);
	/* The first put wrote 1, and each addition added 1. */
	if (rank == 1)
		wrong = *(int64_t *)base != 1 + (BATCHES + 1) * ROUNDS;
	MPI_Bcast(&wrong, 1, MPI_INT, 1, MPI_COMM_WORLD);
	if (wrong && rank == 0)
		fprintf(stderr, "the window does not hold what was put and added\n");
	MPI_Win_free(&window);
	MPI_Finalize();
	if (argc != 2 || strcmp(argv[1], "allocate"))
		free(base);
	free(local);
	return wrong;
}
