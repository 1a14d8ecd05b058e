/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Collective operations that move data: every root, counts from none to more than a megabyte, even and uneven parts. */
#include "frame.h"

#include <time.h>

/* Elements for each rank; the last of them make more than 1 MiB. */
static const int counts[] = {0, 1, 3, 100, 1024, 5000, 40000, 300000};

static int counts_used(void)
{
	return count_of(8, 7);
}

/* Element i that rank `from` has for rank `to`. */
static int32_t value(int from, int to, int i)
{
	return from * 1000003 + to * 7919 + i * 31 + 5;
}

static void make(int32_t *at, int n, int from, int to)
{
	for (int i = 0; i < n; i++)
		at[i] = value(from, to, i);
}

static void expect(const int32_t *at, int n, int from, int to, const char *what)
{
	for (int i = 0; i < n; i++) {
		if (at[i] == value(from, to, i))
			continue;
		wrong(__FILE__, __LINE__, "%s: element %d of %d of rank %d for rank %d is %d", what, i, n, from, to,
		      at[i]);
		return;
	}
}

/* Uneven parts: the number of elements for each rank; the parts lie at offsets with gaps between them. */
static int part(int who, int n)
{
	return who % 3 == 1 ? 0 : n + who;
}

static int parts(int *lengths, int *places, int n)
{
	int total = 0;

	for (int who = 0; who < ranks; who++) {
		lengths[who] = part(who, n);
		places[who] = total;
		total += lengths[who] + 2;
	}
	return total;
}

/* MPI_Wtime() may begin anew in each process; this clock is one for the whole host. */
static double now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

/* No rank leaves before the last has come. */
CLAIM(barrier)
{
	double *in = room((size_t)ranks * sizeof(*in)), *out = room((size_t)ranks * sizeof(*out));

	for (int round = 0; round < count_of(50, 10); round++) {
		double before, after, start = now();

		while (rank == round % ranks && now() - start < 0.005)
			;
		before = now();
		MPI_Barrier(world);
		after = now();
		MPI_Allgather(&before, 1, MPI_DOUBLE, in, 1, MPI_DOUBLE, world);
		MPI_Allgather(&after, 1, MPI_DOUBLE, out, 1, MPI_DOUBLE, world);
		for (int a = 0; a < ranks; a++)
			for (int b = 0; b < ranks; b++)
				CHECK(in[a] <= out[b], "rank %d left %g s before rank %d came", b, in[a] - out[b], a);
	}
	free(in);
	free(out);
}

CLAIM(bcast)
{
	for (int c = 0; c < counts_used(); c++) {
		int n = counts[c];
		int32_t *data = room((size_t)n * sizeof(*data));

		for (int root = 0; root < ranks; root++) {
			memset(data, 0, (size_t)n * sizeof(*data));
			if (rank == root)
				make(data, n, root, c);
			MPI_Bcast(data, n, MPI_INT32_T, root, world);
			expect(data, n, root, c, "bcast");
		}
		free(data);
	}
}

CLAIM(gather_and_scatter)
{
	for (int c = 0; c < counts_used(); c++) {
		int n = counts[c];
		size_t bytes = (size_t)n * sizeof(int32_t);
		int32_t *one = room(bytes), *all = room(bytes * (size_t)ranks);

		for (int root = 0; root < ranks; root++) {
			make(one, n, rank, root);
			memset(all, 0, bytes * (size_t)ranks);
			MPI_Gather(one, n, MPI_INT32_T, all, n, MPI_INT32_T, root, world);
			for (int who = 0; rank == root && who < ranks; who++)
				expect(all + (size_t)who * (size_t)n, n, who, root, "gather");
			for (int who = 0; rank == root && who < ranks; who++)
				make(all + (size_t)who * (size_t)n, n, root, who);
			memset(one, 0, bytes);
			MPI_Scatter(all, n, MPI_INT32_T, one, n, MPI_INT32_T, root, world);
			expect(one, n, root, rank, "scatter");
		}
		free(one);
		free(all);
	}
}

CLAIM(gatherv_and_scatterv)
{
	int *lengths = room((size_t)ranks * sizeof(int)), *places = room((size_t)ranks * sizeof(int));

	for (int c = 0; c < counts_used(); c++) {
		int total = parts(lengths, places, counts[c]), mine = part(rank, counts[c]);
		int32_t *one = room((size_t)mine * sizeof(*one)), *all = room((size_t)total * sizeof(*all));

		for (int root = 0; root < ranks; root++) {
			make(one, mine, rank, root);
			memset(all, 0xff, (size_t)total * sizeof(*all));
			MPI_Gatherv(one, mine, MPI_INT32_T, all, lengths, places, MPI_INT32_T, root, world);
			for (int who = 0; rank == root && who < ranks; who++) {
				expect(all + places[who], lengths[who], who, root, "gatherv");
				CHECK(all[places[who] + lengths[who]] == -1, "wrote behind rank %d's part", who);
				make(all + places[who], lengths[who], root, who);
			}
			memset(one, 0, (size_t)mine * sizeof(*one));
			MPI_Scatterv(all, lengths, places, MPI_INT32_T, one, mine, MPI_INT32_T, root, world);
			expect(one, mine, root, rank, "scatterv");
		}
		free(one);
		free(all);
	}
	free(lengths);
	free(places);
}

CLAIM(allgather)
{
	int *lengths = room((size_t)ranks * sizeof(int)), *places = room((size_t)ranks * sizeof(int));

	for (int c = 0; c < counts_used(); c++) {
		int n = counts[c], total = parts(lengths, places, n), mine = part(rank, n);
		size_t bytes = (size_t)n * sizeof(int32_t);
		int32_t *one = room(bytes + 64 * sizeof(*one)), *all = room(bytes * (size_t)ranks);
		int32_t *uneven = room((size_t)total * sizeof(*uneven));

		make(one, n, rank, 1);
		MPI_Allgather(one, n, MPI_INT32_T, all, n, MPI_INT32_T, world);
		for (int who = 0; who < ranks; who++)
			expect(all + (size_t)who * (size_t)n, n, who, 1, "allgather");
		memset(all, 0, bytes * (size_t)ranks);
		make(all + (size_t)rank * (size_t)n, n, rank, 2);
		MPI_Allgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, all, n, MPI_INT32_T, world);
		for (int who = 0; who < ranks; who++)
			expect(all + (size_t)who * (size_t)n, n, who, 2, "allgather in place");

		make(one, mine, rank, 3);
		memset(uneven, 0xff, (size_t)total * sizeof(*uneven));
		MPI_Allgatherv(one, mine, MPI_INT32_T, uneven, lengths, places, MPI_INT32_T, world);
		for (int who = 0; who < ranks; who++) {
			expect(uneven + places[who], lengths[who], who, 3, "allgatherv");
			CHECK(uneven[places[who] + lengths[who]] == -1, "allgatherv wrote behind rank %d's part", who);
		}
		free(one);
		free(all);
		free(uneven);
	}
	free(lengths);
	free(places);
}

CLAIM(alltoall)
{
	for (int c = 0; c < counts_used(); c++) {
		int n = counts[c];
		size_t bytes = (size_t)n * sizeof(int32_t);
		int32_t *to = room(bytes * (size_t)ranks), *from = room(bytes * (size_t)ranks);

		for (int who = 0; who < ranks; who++)
			make(to + (size_t)who * (size_t)n, n, rank, who);
		MPI_Alltoall(to, n, MPI_INT32_T, from, n, MPI_INT32_T, world);
		for (int who = 0; who < ranks; who++)
			expect(from + (size_t)who * (size_t)n, n, who, rank, "alltoall");
		free(to);
		free(from);
	}
}

/* (a + 2 * b) % 5 times the count goes from rank a to rank b, so some pairs exchange nothing. */
CLAIM(alltoallv)
{
	int *out = room((size_t)ranks * sizeof(int)), *out_at = room((size_t)ranks * sizeof(int));
	int *in = room((size_t)ranks * sizeof(int)), *in_at = room((size_t)ranks * sizeof(int));

	for (int c = 0; c < counts_used() - 1; c++) {
		int outs = 0, ins = 0;
		int32_t *to, *from;

		for (int who = 0; who < ranks; who++) {
			out[who] = (rank + 2 * who) % 5 * counts[c];
			in[who] = (who + 2 * rank) % 5 * counts[c];
			out_at[who] = outs;
			in_at[who] = ins;
			outs += out[who];
			ins += in[who] + 1;
		}
		to = room((size_t)outs * sizeof(*to));
		from = room((size_t)ins * sizeof(*from));
		memset(from, 0xff, (size_t)ins * sizeof(*from));
		for (int who = 0; who < ranks; who++)
			make(to + out_at[who], out[who], rank, who);
		MPI_Alltoallv(to, out, out_at, MPI_INT32_T, from, in, in_at, MPI_INT32_T, world);
		for (int who = 0; who < ranks; who++) {
			expect(from + in_at[who], in[who], who, rank, "alltoallv");
			CHECK(from[in_at[who] + in[who]] == -1, "alltoallv wrote behind rank %d's part", who);
		}
		free(to);
		free(from);
	}
	free(out);
	free(out_at);
	free(in);
	free(in_at);
}

/* Several at once on one communicator; none waits for another. */
CLAIM(nonblocking_moves)
{
	for (int c = 0; c < counts_used(); c++) {
		int n = counts[c];
		size_t bytes = (size_t)n * sizeof(int32_t);
		int32_t *one = room(bytes), *cast = room(bytes), *mine = room(bytes);
		int32_t *gathered = room(bytes * (size_t)ranks), *all = room(bytes * (size_t)ranks);
		int32_t *to = room(bytes * (size_t)ranks), *from = room(bytes * (size_t)ranks);
		MPI_Request requests[6];

		make(one, n, rank, 0);
		if (rank == ranks - 1)
			make(cast, n, rank, 9);
		for (int who = 0; who < ranks; who++)
			make(to + (size_t)who * (size_t)n, n, rank, who);
		MPI_Ibcast(cast, n, MPI_INT32_T, ranks - 1, world, &requests[0]);
		MPI_Igather(one, n, MPI_INT32_T, gathered, n, MPI_INT32_T, 0, world, &requests[1]);
		MPI_Iallgather(one, n, MPI_INT32_T, all, n, MPI_INT32_T, world, &requests[2]);
		MPI_Ialltoall(to, n, MPI_INT32_T, from, n, MPI_INT32_T, world, &requests[3]);
		MPI_Iscatter(to, n, MPI_INT32_T, mine, n, MPI_INT32_T, 1, world, &requests[4]);
		MPI_Ibarrier(world, &requests[5]);
		MPI_Waitall(6, requests, MPI_STATUSES_IGNORE);
		expect(cast, n, ranks - 1, 9, "ibcast");
		expect(mine, n, 1, rank, "iscatter");
		for (int who = 0; who < ranks; who++) {
			if (rank == 0)
				expect(gathered + (size_t)who * (size_t)n, n, who, 0, "igather");
			expect(all + (size_t)who * (size_t)n, n, who, 0, "iallgather");
			expect(from + (size_t)who * (size_t)n, n, who, rank, "ialltoall");
		}
		free(one);
		free(cast);
		free(mine);
		free(gathered);
		free(all);
		free(to);
		free(from);
	}
}
