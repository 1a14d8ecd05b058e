/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Messages between two ranks: every size, every way of sending, early and late receives, and many at a time. */
#include "frame.h"

/* Every pair of ranks, first one way, then the other: each pair that does not connect fails by itself. */
CLAIM(blocking_every_size)
{
	char *buffer = room((size_t)sizes[sizes_used() - 1]);

	for (int a = 0; a < ranks; a++) {
		for (int b = a + 1; b < ranks; b++) {
			for (int i = 0; i < sizes_used(); i++) {
				size_t n = (size_t)sizes[i];
				MPI_Status status;

				if (rank == a) {
					fill(buffer, n, (uint32_t)a, (uint32_t)i);
					MPI_Send(buffer, (int)n, MPI_BYTE, b, i, world);
					memset(buffer, 0, n);
					MPI_Recv(buffer, (int)n, MPI_BYTE, b, i, world, &status);
					STATUS(&status, b, i, (int)n);
					SAME(buffer, n, (uint32_t)b, (uint32_t)i);
				} else if (rank == b) {
					MPI_Recv(buffer, (int)n, MPI_BYTE, a, i, world, &status);
					STATUS(&status, a, i, (int)n);
					SAME(buffer, n, (uint32_t)a, (uint32_t)i);
					fill(buffer, n, (uint32_t)b, (uint32_t)i);
					MPI_Send(buffer, (int)n, MPI_BYTE, a, i, world);
				}
			}
		}
	}
	free(buffer);
}

CLAIM(nonblocking_every_size)
{
	size_t most = (size_t)sizes[sizes_used() - 1];
	char *to = room(most * (size_t)ranks), *from = room(most * (size_t)ranks);
	MPI_Request *requests = room(2 * (size_t)ranks * sizeof(*requests));

	for (int i = 0; i < sizes_used(); i++) {
		size_t n = (size_t)sizes[i];
		int count = 0;

		memset(from, 0, most);
		for (int peer = 0; peer < ranks; peer++) {
			if (peer == rank)
				continue;
			fill(to + most * (size_t)peer, n, (uint32_t)(rank * ranks + peer), (uint32_t)i);
			MPI_Irecv(from + most * (size_t)peer, (int)n, MPI_BYTE, peer, i, world, &requests[count++]);
			MPI_Isend(to + most * (size_t)peer, (int)n, MPI_BYTE, peer, i, world, &requests[count++]);
		}
		MPI_Waitall(count, requests, MPI_STATUSES_IGNORE);
		for (int peer = 0; peer < ranks; peer++)
			if (peer != rank)
				SAME(from + most * (size_t)peer, n, (uint32_t)(peer * ranks + rank), (uint32_t)i);
	}
	free(requests);
	free(to);
	free(from);
}

/*
 * Received in another order than sent. Not more than 900: Open MPI's mtl/ofi waits for ever for room among the
 * receives that ofi_rxm can keep, over libfabric's tcp too. all_to_one has more sends than that room.
 */
CLAIM(many_outstanding)
{
	const int many = count_of(900, 300), most = 600;
	int next = (rank + 1) % ranks, previous = (rank + ranks - 1) % ranks;
	char *to = room((size_t)many * (size_t)most), *from = room((size_t)many * (size_t)most);
	MPI_Request *requests = room(2 * (size_t)many * sizeof(*requests));

	for (int i = 0; i < many; i++) {
		int item = many - 1 - i;
		MPI_Irecv(from + (size_t)item * (size_t)most, most, MPI_BYTE, previous, item, world, &requests[item]);
	}
	for (int i = 0; i < many; i++) {
		int n = i * 37 % (most + 1);
		fill(to + (size_t)i * (size_t)most, (size_t)n, (uint32_t)rank, (uint32_t)i);
		MPI_Isend(to + (size_t)i * (size_t)most, n, MPI_BYTE, next, i, world, &requests[many + i]);
	}
	for (int i = 0; i < many; i++) {
		MPI_Status status;
		MPI_Wait(&requests[i], &status);
		STATUS(&status, previous, i, i * 37 % (most + 1));
		SAME(from + (size_t)i * (size_t)most, (size_t)(i * 37 % (most + 1)), (uint32_t)previous, (uint32_t)i);
	}
	MPI_Waitall(many, requests + many, MPI_STATUSES_IGNORE);
	free(requests);
	free(to);
	free(from);
}

/* All of them arrive before the first receive is posted. */
CLAIM(unexpected)
{
	const int many = count_of(400, 60);
	static const int lengths[] = {0, 3, 700, 9000, 17000, 150000};
	int next = (rank + 1) % ranks, previous = (rank + ranks - 1) % ranks;
	char *to = room((size_t)many * 150000), *from = room(150000);
	MPI_Request *requests = room((size_t)many * sizeof(*requests));
	char go = 0;

	for (int i = 0; i < many; i++) {
		int n = lengths[i % 6];
		fill(to + (size_t)i * 150000, (size_t)n, (uint32_t)rank, (uint32_t)i);
		MPI_Isend(to + (size_t)i * 150000, n, MPI_BYTE, next, 100 + i % 7, world, &requests[i]);
	}
	MPI_Sendrecv(&go, 1, MPI_CHAR, next, 7, &go, 1, MPI_CHAR, previous, 7, world, MPI_STATUS_IGNORE);
	for (int i = 0; i < many; i++) {
		MPI_Status status;
		MPI_Recv(from, 150000, MPI_BYTE, previous, 100 + i % 7, world, &status);
		STATUS(&status, previous, 100 + i % 7, lengths[i % 6]);
		SAME(from, (size_t)lengths[i % 6], (uint32_t)previous, (uint32_t)i);
	}
	MPI_Waitall(many, requests, MPI_STATUSES_IGNORE);
	free(requests);
	free(to);
	free(from);
}

/* Messages of one sender do not overtake each other, whatever their size and whichever wildcard receives them. */
CLAIM(order_with_wildcards)
{
	const int many = count_of(600, 60);
	static const int lengths[] = {8, 20000, 64, 200000, 1000, 16};
	char *buffer = room(200000);
	int *seen = room((size_t)ranks * sizeof(*seen));

	if (rank != 0) {
		for (int i = 0; i < many; i++) {
			fill(buffer, (size_t)lengths[i % 6], (uint32_t)rank, (uint32_t)i);
			MPI_Send(buffer, lengths[i % 6], MPI_BYTE, 0, i % 3, world);
		}
	} else {
		for (int i = 0; i < many * (ranks - 1); i++) {
			MPI_Status status;
			int who, item;

			MPI_Recv(buffer, 200000, MPI_BYTE, MPI_ANY_SOURCE, MPI_ANY_TAG, world, &status);
			who = status.MPI_SOURCE;
			CHECK(who > 0 && who < ranks, "a message of rank %d", who);
			if (who <= 0 || who >= ranks)
				continue;
			item = seen[who]++;
			STATUS(&status, who, item % 3, lengths[item % 6]);
			SAME(buffer, (size_t)lengths[item % 6], (uint32_t)who, (uint32_t)item);
		}
	}
	free(seen);
	free(buffer);
}

/* No receive is posted while the others send; then all messages are there, once each. */
CLAIM(all_to_one)
{
	const int many = count_of(2000, 100);
	uint64_t item[2];

	if (rank != 0) {
		for (int i = 0; i < many; i++) {
			item[0] = (uint64_t)rank;
			item[1] = (uint64_t)i;
			MPI_Send(item, 2, MPI_UINT64_T, 0, 1, world);
		}
	} else {
		uint64_t sum = 0, want = 0;
		for (int i = 0; i < many * (ranks - 1); i++) {
			MPI_Recv(item, 2, MPI_UINT64_T, MPI_ANY_SOURCE, 1, world, MPI_STATUS_IGNORE);
			sum += item[0] * 1000000 + item[1];
		}
		for (int who = 1; who < ranks; who++)
			want += (uint64_t)many * (uint64_t)who * 1000000 + (uint64_t)many * (uint64_t)(many - 1) / 2;
		CHECK(sum == want, "the sum of all messages is %llu, not %llu", (unsigned long long)sum,
		      (unsigned long long)want);
	}
}

/* Both at once, so that neither side only sends or only receives. */
CLAIM(both_ways_at_once)
{
	const size_t n = (size_t)count_of(8 << 20, 1 << 20);
	int next = (rank + 1) % ranks, previous = (rank + ranks - 1) % ranks;
	char *to = room(n), *from = room(n);

	for (int round = 0; round < 4; round++) {
		fill(to, n, (uint32_t)rank, (uint32_t)round);
		memset(from, 0, n);
		MPI_Sendrecv(to, (int)n, MPI_BYTE, next, round, from, (int)n, MPI_BYTE, previous, round, world,
			     MPI_STATUS_IGNORE);
		SAME(from, n, (uint32_t)previous, (uint32_t)round);
	}
	MPI_Sendrecv_replace(to, (int)n, MPI_BYTE, previous, 9, next, 9, world, MPI_STATUS_IGNORE);
	SAME(to, n, (uint32_t)next, 3);
	free(to);
	free(from);
}

CLAIM(to_itself_and_to_nobody)
{
	char to[3000], from[3000];
	MPI_Request request;
	MPI_Status status;

	fill(to, sizeof(to), (uint32_t)rank, 1);
	MPI_Irecv(from, sizeof(from), MPI_BYTE, rank, 4, world, &request);
	MPI_Send(to, sizeof(to), MPI_BYTE, rank, 4, world);
	MPI_Wait(&request, &status);
	STATUS(&status, rank, 4, (int)sizeof(from));
	SAME(from, sizeof(from), (uint32_t)rank, 1);

	MPI_Send(to, sizeof(to), MPI_BYTE, MPI_PROC_NULL, 4, world);
	MPI_Recv(from, sizeof(from), MPI_BYTE, MPI_PROC_NULL, MPI_ANY_TAG, world, &status);
	STATUS(&status, MPI_PROC_NULL, MPI_ANY_TAG, 0);
}
