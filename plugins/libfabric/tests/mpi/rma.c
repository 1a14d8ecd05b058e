/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* One-sided operations: windows of every kind, put, get and the atomic calls, under each kind of synchronisation. */
#include "frame.h"

static const int lengths[] = {1, 8, 100, 4096, 20000, 200000, 1500000};

static int lengths_used(void)
{
	return count_of(7, 6);
}

static int next_rank(void)
{
	return (rank + 1) % ranks;
}

static int previous_rank(void)
{
	return (rank + ranks - 1) % ranks;
}

/* Puts into the next rank and gets from the one before, in one epoch, into different halves. */
static void put_and_get(MPI_Win win, char *base, size_t half, int item)
{
	char *to = room(half), *from = room(half);

	for (int i = 0; i < lengths_used(); i++) {
		size_t n = (size_t)lengths[i];

		fill(to, n, (uint32_t)rank, (uint32_t)(item + i));
		MPI_Win_fence(0, win);
		memset(base, 0, half);
		fill(base + half, n, (uint32_t)rank, (uint32_t)(item + i + 50));
		MPI_Win_fence(0, win);
		MPI_Put(to, (int)n, MPI_BYTE, next_rank(), 0, (int)n, MPI_BYTE, win);
		MPI_Get(from, (int)n, MPI_BYTE, previous_rank(), (MPI_Aint)half, (int)n, MPI_BYTE, win);
		MPI_Win_fence(0, win);
		SAME(base, n, (uint32_t)previous_rank(), (uint32_t)(item + i));
		SAME(from, n, (uint32_t)previous_rank(), (uint32_t)(item + i + 50));
	}
	free(to);
	free(from);
}

CLAIM(window_of_own_memory)
{
	const size_t half = 1500000;
	char *base = room(2 * half);
	MPI_Win win;

	MPI_Win_create(base, (MPI_Aint)(2 * half), 1, MPI_INFO_NULL, world, &win);
	put_and_get(win, base, half, 0);
	MPI_Win_free(&win);
	free(base);
}

CLAIM(window_allocated)
{
	const size_t half = 1500000;
	char *base;
	MPI_Win win;

	MPI_Win_allocate((MPI_Aint)(2 * half), 1, MPI_INFO_NULL, world, &base, &win);
	put_and_get(win, base, half, 100);
	MPI_Win_free(&win);
}

/* Memory that joins the window later; its addresses are sent by messages. */
CLAIM(window_dynamic)
{
	const int n = 30000;
	int32_t *mine = room((size_t)n * sizeof(*mine)), *to = room((size_t)n * sizeof(*to));
	MPI_Aint address, *addresses = room((size_t)ranks * sizeof(*addresses));
	MPI_Win win;

	MPI_Win_create_dynamic(MPI_INFO_NULL, world, &win);
	MPI_Win_attach(win, mine, (MPI_Aint)n * (MPI_Aint)sizeof(*mine));
	MPI_Get_address(mine, &address);
	MPI_Allgather(&address, 1, MPI_AINT, addresses, 1, MPI_AINT, world);
	for (int i = 0; i < n; i++)
		to[i] = rank * 5 + i;
	MPI_Win_fence(0, win);
	MPI_Put(to, n, MPI_INT32_T, next_rank(), addresses[next_rank()], n, MPI_INT32_T, win);
	MPI_Win_fence(0, win);
	for (int i = 0; i < n; i++)
		CHECK(mine[i] == previous_rank() * 5 + i, "element %d is %d", i, mine[i]);
	MPI_Win_fence(0, win);
	MPI_Win_detach(win, mine);
	MPI_Win_free(&win);
	free(mine);
	free(to);
	free(addresses);
}

/* The value of element i of the next claim after all ranks have added theirs. */
static int64_t summed(int i)
{
	return 3 + (int64_t)ranks * i + ranks * (ranks - 1) / 2;
}

/* All ranks add into all windows at once, so no addition may be lost; each call returns the value before it. */
CLAIM(accumulate)
{
	const int n = 20000;
	int64_t *base, *mine = room((size_t)n * sizeof(*mine)), *before = room((size_t)n * sizeof(*before));
	MPI_Win win;

	MPI_Win_allocate((MPI_Aint)n * (MPI_Aint)sizeof(*base), sizeof(*base), MPI_INFO_NULL, world, &base, &win);
	for (int i = 0; i < n; i++) {
		base[i] = 3;
		mine[i] = rank + i;
	}
	MPI_Win_fence(0, win);
	for (int who = 0; who < ranks; who++)
		MPI_Accumulate(mine, n, MPI_INT64_T, who, 0, n, MPI_INT64_T, MPI_SUM, win);
	MPI_Win_fence(0, win);
	for (int i = 0; i < n; i++)
		CHECK(base[i] == summed(i), "element %d is %lld", i, (long long)base[i]);
	MPI_Win_fence(0, win);
	MPI_Get_accumulate(mine, n, MPI_INT64_T, before, n, MPI_INT64_T, next_rank(), 0, n, MPI_INT64_T, MPI_MAX, win);
	MPI_Win_fence(0, win);
	for (int i = 0; i < n; i++)
		CHECK(before[i] == summed(i), "element %d was %lld", i, (long long)before[i]);
	MPI_Win_fence(0, win);
	MPI_Accumulate(mine, n, MPI_INT64_T, next_rank(), 0, n, MPI_INT64_T, MPI_REPLACE, win);
	MPI_Win_fence(0, win);
	for (int i = 0; i < n; i++)
		CHECK(base[i] == previous_rank() + i, "element %d was replaced by %lld", i, (long long)base[i]);
	MPI_Win_free(&win);
	free(mine);
	free(before);
}

/* A counter from which each rank draws tickets: each ticket is drawn once. Rank 0 draws in the same way. */
CLAIM(tickets)
{
	const int draws = count_of(300, 30);
	int64_t *base, *drawn = room((size_t)draws * sizeof(*drawn));
	int64_t *all = room((size_t)(draws * ranks) * sizeof(*all));
	char *taken = room((size_t)(draws * ranks));
	MPI_Win win;

	MPI_Win_allocate(rank == 0 ? (MPI_Aint)sizeof(*base) : 0, sizeof(*base), MPI_INFO_NULL, world, &base, &win);
	if (rank == 0)
		*base = 0;
	MPI_Barrier(world);
	MPI_Win_lock_all(0, win);
	for (int i = 0; i < draws; i++) {
		const int64_t one = 1;
		MPI_Fetch_and_op(&one, &drawn[i], MPI_INT64_T, 0, 0, MPI_SUM, win);
		MPI_Win_flush(0, win);
		CHECK(i == 0 || drawn[i] > drawn[i - 1], "draw %d is %lld after %lld", i, (long long)drawn[i],
		      i ? (long long)drawn[i - 1] : -1);
	}
	MPI_Win_unlock_all(win);
	MPI_Allgather(drawn, draws, MPI_INT64_T, all, draws, MPI_INT64_T, world);
	for (int i = 0; i < draws * ranks; i++) {
		bool good = all[i] >= 0 && all[i] < draws * ranks && !taken[all[i]];
		CHECK(good, "ticket %lld, twice or out of range", (long long)all[i]);
		if (good)
			taken[all[i]] = 1;
	}
	MPI_Win_free(&win);
	free(drawn);
	free(all);
	free(taken);
}

/* A lock made of compare-and-swap protects a number that is read and written back. */
CLAIM(compare_and_swap)
{
	const int rounds = count_of(30, 5);
	int64_t *base, want = (int64_t)rounds * ranks, got = 0;
	MPI_Win win;

	MPI_Win_allocate(2 * (MPI_Aint)sizeof(*base), sizeof(*base), MPI_INFO_NULL, world, &base, &win);
	base[0] = base[1] = 0;
	MPI_Barrier(world);
	MPI_Win_lock_all(0, win);
	for (int i = 0; i < rounds; i++) {
		const int64_t open = 0, closed = rank + 1;
		int64_t was, number;

		do {
			MPI_Compare_and_swap(&closed, &open, &was, MPI_INT64_T, 0, 0, win);
			MPI_Win_flush(0, win);
		} while (was != open);
		MPI_Get(&number, 1, MPI_INT64_T, 0, 1, 1, MPI_INT64_T, win);
		MPI_Win_flush(0, win);
		number++;
		MPI_Put(&number, 1, MPI_INT64_T, 0, 1, 1, MPI_INT64_T, win);
		MPI_Win_flush(0, win);
		MPI_Accumulate(&open, 1, MPI_INT64_T, 0, 0, 1, MPI_INT64_T, MPI_REPLACE, win);
		MPI_Win_flush(0, win);
	}
	MPI_Win_unlock_all(win);
	MPI_Barrier(world);
	MPI_Win_lock(MPI_LOCK_SHARED, 0, 0, win);
	MPI_Get(&got, 1, MPI_INT64_T, 0, 1, 1, MPI_INT64_T, win);
	MPI_Win_unlock(0, win);
	CHECK(got == want, "counted %lld, not %lld", (long long)got, (long long)want);
	MPI_Barrier(world);
	MPI_Win_free(&win);
}

/* Exclusive locks on each rank's window in turn. */
CLAIM(exclusive_locks)
{
	const int rounds = count_of(50, 8), n = 5000;
	int32_t *base, *copy = room((size_t)n * sizeof(*copy));
	MPI_Win win;

	MPI_Win_allocate((MPI_Aint)n * (MPI_Aint)sizeof(*base), sizeof(*base), MPI_INFO_NULL, world, &base, &win);
	memset(base, 0, (size_t)n * sizeof(*base));
	MPI_Barrier(world);
	for (int i = 0; i < rounds; i++) {
		int target = (rank + i) % ranks;

		MPI_Win_lock(MPI_LOCK_EXCLUSIVE, target, 0, win);
		MPI_Get(copy, n, MPI_INT32_T, target, 0, n, MPI_INT32_T, win);
		MPI_Win_flush(target, win);
		for (int k = 0; k < n; k++)
			copy[k] += k + 1;
		MPI_Put(copy, n, MPI_INT32_T, target, 0, n, MPI_INT32_T, win);
		MPI_Win_unlock(target, win);
	}
	MPI_Barrier(world);
	MPI_Win_lock(MPI_LOCK_SHARED, rank, 0, win);
	MPI_Get(copy, n, MPI_INT32_T, rank, 0, n, MPI_INT32_T, win);
	MPI_Win_unlock(rank, win);
	for (int k = 0; k < n; k++) {
		int turns = 0;
		for (int who = 0; who < ranks; who++)
			for (int i = 0; i < rounds; i++)
				turns += (who + i) % ranks == rank;
		CHECK(copy[k] == turns * (k + 1), "element %d is %d, not %d", k, copy[k], turns * (k + 1));
		if (copy[k] != turns * (k + 1))
			break;
	}
	MPI_Win_free(&win);
	free(copy);
}

/* Only ranks that name each other take part: each rank exposes its window to the one before, and puts into the next
 * one's. */
CLAIM(post_and_start)
{
	const int n = 50000;
	int32_t *base, *to = room((size_t)n * sizeof(*to));
	int next = next_rank(), previous = previous_rank();
	MPI_Group all, targets, origins;
	MPI_Win win;

	MPI_Win_allocate((MPI_Aint)n * (MPI_Aint)sizeof(*base), sizeof(*base), MPI_INFO_NULL, world, &base, &win);
	MPI_Comm_group(world, &all);
	MPI_Group_incl(all, 1, &next, &targets);
	MPI_Group_incl(all, 1, &previous, &origins);
	for (int round = 0; round < count_of(20, 4); round++) {
		for (int i = 0; i < n; i++)
			to[i] = rank + i * (round + 1);
		MPI_Win_post(origins, 0, win);
		MPI_Win_start(targets, 0, win);
		MPI_Put(to, n, MPI_INT32_T, next, 0, n, MPI_INT32_T, win);
		MPI_Win_complete(win);
		MPI_Win_wait(win);
		for (int i = 0; i < n; i++)
			CHECK(base[i] == previous + i * (round + 1), "round %d, element %d is %d", round, i, base[i]);
	}
	MPI_Group_free(&all);
	MPI_Group_free(&targets);
	MPI_Group_free(&origins);
	MPI_Win_free(&win);
	free(to);
}

/* Requests of their own, and a target that is a column of a matrix. */
CLAIM(requests_and_types)
{
	enum { EDGE = 64 };
	int32_t *base, column[EDGE], back[EDGE];
	MPI_Datatype type;
	MPI_Request request;
	MPI_Win win;

	MPI_Win_allocate(EDGE * EDGE * (MPI_Aint)sizeof(*base), sizeof(*base), MPI_INFO_NULL, world, &base, &win);
	memset(base, 0xff, EDGE * EDGE * sizeof(*base));
	MPI_Type_vector(EDGE, 1, EDGE, MPI_INT32_T, &type);
	MPI_Type_commit(&type);
	for (int i = 0; i < EDGE; i++)
		column[i] = rank * 1000 + i;
	MPI_Barrier(world);
	MPI_Win_lock_all(0, win);
	MPI_Rput(column, EDGE, MPI_INT32_T, next_rank(), rank, 1, type, win, &request);
	MPI_Wait(&request, MPI_STATUS_IGNORE);
	memset(column, 0, sizeof(column));
	MPI_Win_flush(next_rank(), win);
	MPI_Rget(back, EDGE, MPI_INT32_T, next_rank(), rank, 1, type, win, &request);
	MPI_Wait(&request, MPI_STATUS_IGNORE);
	for (int i = 0; i < EDGE; i++)
		CHECK(back[i] == rank * 1000 + i, "element %d of the column is %d", i, back[i]);
	MPI_Win_unlock_all(win);
	MPI_Barrier(world);
	MPI_Win_lock(MPI_LOCK_SHARED, rank, 0, win);
	for (int i = 0; i < EDGE * EDGE; i++) {
		int want = i % EDGE == previous_rank() ? previous_rank() * 1000 + i / EDGE : -1;
		CHECK(base[i] == want, "cell %d is %d, not %d", i, base[i], want);
	}
	MPI_Win_unlock(rank, win);
	MPI_Type_free(&type);
	MPI_Win_free(&win);
}
