/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Communicators: parts of the job, messages that stay within theirs, and threads with one each. */
#include "frame.h"

#include <pthread.h>

CLAIM(split)
{
	int colour = rank % 2, size = 0, place = -1, sum = 0, want = 0;
	MPI_Comm half;

	MPI_Comm_split(world, colour, ranks - rank, &half);
	MPI_Comm_size(half, &size);
	MPI_Comm_rank(half, &place);
	CHECK(size == (ranks + 1 - colour) / 2, "%d ranks of colour %d", size, colour);
	CHECK(place == (ranks - 1 - rank) / 2, "rank %d is %d of the split, whose order is reversed", rank, place);
	MPI_Allreduce(&rank, &sum, 1, MPI_INT, MPI_SUM, half);
	for (int who = colour; who < ranks; who += 2)
		want += who;
	CHECK(sum == want, "the sum of the half is %d, not %d", sum, want);
	MPI_Comm_free(&half);

	MPI_Comm_split(world, rank == 0 ? MPI_UNDEFINED : 1, rank, &half);
	CHECK((half == MPI_COMM_NULL) == (rank == 0), "who is of no colour has no communicator");
	if (half != MPI_COMM_NULL) {
		MPI_Barrier(half);
		MPI_Comm_free(&half);
	}
}

/* The same tag and the same peers in eight communicators, received in the opposite order. */
CLAIM(contexts_do_not_mix)
{
	enum { MANY = 8 };
	MPI_Comm comms[MANY];
	MPI_Request requests[MANY];
	int to[MANY], from[MANY], next = (rank + 1) % ranks, previous = (rank + ranks - 1) % ranks;

	for (int i = 0; i < MANY; i++)
		MPI_Comm_dup(world, &comms[i]);
	for (int i = 0; i < MANY; i++) {
		to[i] = rank * 100 + i;
		MPI_Isend(&to[i], 1, MPI_INT, next, 3, comms[i], &requests[i]);
	}
	for (int i = MANY - 1; i >= 0; i--) {
		MPI_Recv(&from[i], 1, MPI_INT, previous, 3, comms[i], MPI_STATUS_IGNORE);
		CHECK(from[i] == previous * 100 + i, "communicator %d has %d", i, from[i]);
	}
	MPI_Waitall(MANY, requests, MPI_STATUSES_IGNORE);
	for (int i = 0; i < MANY; i++)
		MPI_Comm_free(&comms[i]);
}

CLAIM(many_in_a_row)
{
	for (int i = 0; i < count_of(200, 20); i++) {
		MPI_Comm one;
		int most = -1;

		MPI_Comm_dup(world, &one);
		MPI_Allreduce(&rank, &most, 1, MPI_INT, MPI_MAX, one);
		CHECK(most == ranks - 1, "round %d: %d", i, most);
		MPI_Comm_free(&one);
	}
}

/* Two groups that see each other from outside, and become one. */
CLAIM(between_groups)
{
	int colour = rank % 2, others = 0, from = -1, merged_size = 0, sum = -1;
	MPI_Comm half, between, merged;

	MPI_Comm_split(world, colour, rank, &half);
	MPI_Intercomm_create(half, 0, world, 1 - colour, 12, &between);
	MPI_Comm_remote_size(between, &others);
	CHECK(others == (ranks + colour) / 2, "%d on the other side", others);
	MPI_Sendrecv(&rank, 1, MPI_INT, rank / 2 < others ? rank / 2 : MPI_PROC_NULL, 1, &from, 1, MPI_INT,
		     rank / 2 < others ? rank / 2 : MPI_PROC_NULL, 1, between, MPI_STATUS_IGNORE);
	if (rank / 2 < others)
		CHECK(from == (rank ^ 1), "%d came from the other side", from);
	MPI_Allreduce(&rank, &sum, 1, MPI_INT, MPI_SUM, between);
	for (int who = 1 - colour; who < ranks; who += 2)
		sum -= who;
	CHECK(sum == 0, "the sum of the other side is off by %d", sum);
	MPI_Intercomm_merge(between, colour, &merged);
	MPI_Comm_size(merged, &merged_size);
	CHECK(merged_size == ranks, "%d merged", merged_size);
	MPI_Barrier(merged);
	MPI_Comm_free(&merged);
	MPI_Comm_free(&between);
	MPI_Comm_free(&half);
}

/* A ring and a grid, and exchanges with the neighbours there. */
CLAIM(cartesian)
{
	int edge[2] = {0, 0}, periods[2] = {1, 0}, left, right, to[2], from[4] = {-1, -1, -1, -1};
	MPI_Comm ring, grid;

	MPI_Cart_create(world, 1, &ranks, periods, 0, &ring);
	MPI_Cart_shift(ring, 0, 1, &left, &right);
	CHECK(left == (rank + ranks - 1) % ranks && right == (rank + 1) % ranks, "neighbours %d and %d", left, right);
	to[0] = rank * 10;
	to[1] = rank * 10 + 1;
	MPI_Neighbor_alltoall(to, 1, MPI_INT, from, 1, MPI_INT, ring);
	/* With two ranks both neighbours are the same one, and its two messages come in the order it sent them. */
	if (ranks > 2)
		CHECK(from[0] == left * 10 + 1 && from[1] == right * 10, "%d and %d", from[0], from[1]);
	else
		CHECK(from[0] / 10 == left && from[1] / 10 == right, "%d and %d", from[0], from[1]);
	MPI_Neighbor_allgather(&rank, 1, MPI_INT, from, 1, MPI_INT, ring);
	CHECK(from[0] == left && from[1] == right, "%d and %d are the neighbours' ranks", from[0], from[1]);
	MPI_Comm_free(&ring);

	MPI_Dims_create(ranks, 2, edge);
	MPI_Cart_create(world, 2, edge, periods, 0, &grid);
	MPI_Cart_shift(grid, 1, 1, &left, &right);
	from[0] = -1;
	MPI_Sendrecv(&rank, 1, MPI_INT, right, 1, from, 1, MPI_INT, left, 1, grid, MPI_STATUS_IGNORE);
	CHECK(from[0] == (left == MPI_PROC_NULL ? -1 : left), "%d came from %d", from[0], left);
	MPI_Comm_free(&grid);
}

/* ---- MPI_THREAD_MULTIPLE: four threads of each rank at once, each in a communicator of its own, and all in one */

enum { THREADS = 4 };
static MPI_Comm own[THREADS];

static void *one_thread(void *argument)
{
	int number = *(int *)argument, next = (rank + 1) % ranks, previous = (rank + ranks - 1) % ranks;
	const int rounds = count_of(100, 20), most = 40000;
	char *to = room((size_t)most), *from = room((size_t)most);

	for (int i = 0; i < rounds; i++) {
		int n = i % 20 == 0 ? most : i * 53 % 2000;
		uint32_t what = (uint32_t)(number * 1000 + i);
		MPI_Comm comm = i % 2 ? own[number] : world;
		MPI_Request requests[2];
		int64_t sum = -1, mine = rank + i + number;

		fill(to, (size_t)n, (uint32_t)rank, what);
		MPI_Irecv(from, n, MPI_BYTE, previous, number, comm, &requests[0]);
		MPI_Isend(to, n, MPI_BYTE, next, number, comm, &requests[1]);
		MPI_Waitall(2, requests, MPI_STATUSES_IGNORE);
		SAME(from, (size_t)n, (uint32_t)previous, what);
		if (i % 10 == 0) {
			MPI_Allreduce(&mine, &sum, 1, MPI_INT64_T, MPI_SUM, own[number]);
			CHECK(sum == (int64_t)ranks * (ranks - 1) / 2 + (int64_t)ranks * (i + number),
			      "thread %d, round %d: %lld", number, i, (long long)sum);
		}
	}
	free(to);
	free(from);
	return NULL;
}

CLAIM_OF(NEEDS_THREADS, threads)
{
	pthread_t threads[THREADS];
	int numbers[THREADS];

	for (int i = 0; i < THREADS; i++)
		MPI_Comm_dup(world, &own[i]);
	for (int i = 0; i < THREADS; i++) {
		numbers[i] = i;
		if (pthread_create(&threads[i], NULL, one_thread, &numbers[i]) != 0)
			MPI_Abort(MPI_COMM_WORLD, 1);
	}
	for (int i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
	for (int i = 0; i < THREADS; i++)
		MPI_Comm_free(&own[i]);
}
