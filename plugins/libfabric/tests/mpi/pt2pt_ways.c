/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Messages between two ranks: probing, synchronous, buffered and persistent sends, and requests given up. */
#include "frame.h"

#include <unistd.h>

static int next_rank(void)
{
	return (rank + 1) % ranks;
}

static int previous_rank(void)
{
	return (rank + ranks - 1) % ranks;
}

/*
 * MPI_Probe() returns the length without losing the message, and the next receive gets that very message. ofi_rxm
 * 1.17 never completes a message that it sends in segments and that was matched by a probe, over libfabric's own
 * "net" as over gdrfab: such messages are only probed.
 */
CLAIM(probe)
{
	char *to = room(1 << 20), *from = room(1 << 20);

	for (int i = 0; i < sizes_used() && sizes[i] <= 1 << 20; i++) {
		MPI_Request request;
		MPI_Status status;
		MPI_Message message;
		int flag = 0, n = sizes[i];

		fill(to, (size_t)n, (uint32_t)rank, (uint32_t)i);
		memset(from, 0, 1 << 20);
		MPI_Isend(to, n, MPI_BYTE, next_rank(), 50 + i, world, &request);
		switch (n > 16384 && n <= 131072 ? i % 2 : i % 4) {
		case 0:
			MPI_Probe(previous_rank(), MPI_ANY_TAG, world, &status);
			STATUS(&status, previous_rank(), 50 + i, n);
			MPI_Recv(from, n, MPI_BYTE, status.MPI_SOURCE, status.MPI_TAG, world, &status);
			break;
		case 1:
			while (!flag)
				MPI_Iprobe(MPI_ANY_SOURCE, 50 + i, world, &flag, &status);
			STATUS(&status, previous_rank(), 50 + i, n);
			MPI_Recv(from, n, MPI_BYTE, status.MPI_SOURCE, status.MPI_TAG, world, &status);
			break;
		case 2:
			MPI_Mprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, world, &message, &status);
			STATUS(&status, previous_rank(), 50 + i, n);
			MPI_Mrecv(from, n, MPI_BYTE, &message, &status);
			break;
		default:
			while (!flag)
				MPI_Improbe(previous_rank(), 50 + i, world, &flag, &message, &status);
			STATUS(&status, previous_rank(), 50 + i, n);
			MPI_Mrecv(from, n, MPI_BYTE, &message, &status);
		}
		STATUS(&status, previous_rank(), 50 + i, n);
		SAME(from, (size_t)n, (uint32_t)previous_rank(), (uint32_t)i);
		MPI_Wait(&request, MPI_STATUS_IGNORE);
		MPI_Barrier(world);
	}
	free(to);
	free(from);
}

/* A synchronous send is not done before its receive has begun, however small it is. */
CLAIM(synchronous)
{
	static const int lengths[] = {0, 16, 4000, 100000};
	char *to = room(100000), *from = room(100000);

	for (int i = 0; i < 4; i++) {
		MPI_Request request;
		int done = 0;

		fill(to, (size_t)lengths[i], (uint32_t)rank, (uint32_t)i);
		MPI_Issend(to, lengths[i], MPI_BYTE, next_rank(), 1, world, &request);
		for (int turn = 0; turn < 50; turn++) {
			MPI_Test(&request, &done, MPI_STATUS_IGNORE);
			CHECK(!done, "done although no receive was posted, %d bytes", lengths[i]);
			if (done)
				break;
		}
		MPI_Barrier(world);
		MPI_Recv(from, lengths[i], MPI_BYTE, previous_rank(), 1, world, MPI_STATUS_IGNORE);
		SAME(from, (size_t)lengths[i], (uint32_t)previous_rank(), (uint32_t)i);
		if (!done)
			MPI_Wait(&request, MPI_STATUS_IGNORE);
		MPI_Barrier(world);
	}
	for (int turn = 0; turn < 2; turn++) {
		if (rank % 2 == turn)
			MPI_Ssend(to, 64, MPI_BYTE, rank ^ 1, 2, world);
		else
			MPI_Recv(from, 64, MPI_BYTE, rank ^ 1, 2, world, MPI_STATUS_IGNORE);
	}
	free(to);
	free(from);
}

CLAIM(buffered)
{
	enum { MANY = 40, LENGTH = 3000 };
	int size = MANY * (LENGTH + MPI_BSEND_OVERHEAD);
	char to[LENGTH], from[LENGTH], *buffer = room((size_t)size);

	MPI_Buffer_attach(buffer, size);
	for (int i = 0; i < MANY; i++) {
		fill(to, sizeof(to), (uint32_t)rank, (uint32_t)i);
		MPI_Bsend(to, LENGTH, MPI_BYTE, next_rank(), 3, world);
		memset(to, 0, sizeof(to));
	}
	for (int i = 0; i < MANY; i++) {
		MPI_Recv(from, LENGTH, MPI_BYTE, previous_rank(), 3, world, MPI_STATUS_IGNORE);
		SAME(from, sizeof(from), (uint32_t)previous_rank(), (uint32_t)i);
	}
	MPI_Buffer_detach(&buffer, &size);
	free(buffer);
}

CLAIM(persistent)
{
	static const int lengths[] = {24, 12000, 300000};
	char *to[3], *from[3];
	MPI_Request requests[6];

	for (int i = 0; i < 3; i++) {
		to[i] = room((size_t)lengths[i]);
		from[i] = room((size_t)lengths[i]);
		MPI_Recv_init(from[i], lengths[i], MPI_BYTE, previous_rank(), i, world, &requests[i]);
	}
	MPI_Send_init(to[0], lengths[0], MPI_BYTE, next_rank(), 0, world, &requests[3]);
	MPI_Ssend_init(to[1], lengths[1], MPI_BYTE, next_rank(), 1, world, &requests[4]);
	MPI_Send_init(to[2], lengths[2], MPI_BYTE, next_rank(), 2, world, &requests[5]);
	for (int round = 0; round < count_of(100, 10); round++) {
		for (int i = 0; i < 3; i++)
			fill(to[i], (size_t)lengths[i], (uint32_t)rank, (uint32_t)(round * 3 + i));
		MPI_Startall(6, requests);
		MPI_Waitall(6, requests, MPI_STATUSES_IGNORE);
		for (int i = 0; i < 3; i++)
			SAME(from[i], (size_t)lengths[i], (uint32_t)previous_rank(), (uint32_t)(round * 3 + i));
	}
	for (int i = 0; i < 6; i++)
		MPI_Request_free(&requests[i]);
	for (int i = 0; i < 3; i++) {
		free(to[i]);
		free(from[i]);
	}
}

CLAIM(waiting_for_some)
{
	enum { MANY = 64 };
	uint32_t to[MANY], from[MANY];
	MPI_Request in[MANY], out[MANY];
	int indices[MANY], got = 0, count, flag = 0;

	for (int i = 0; i < MANY; i++) {
		to[i] = (uint32_t)(rank * 1000 + i);
		from[i] = 0;
		MPI_Irecv(&from[i], 1, MPI_UINT32_T, previous_rank(), i, world, &in[i]);
	}
	for (int i = MANY - 1; i >= 0; i--)
		MPI_Isend(&to[i], 1, MPI_UINT32_T, next_rank(), i, world, &out[i]);
	while (got < MANY) {
		int index;

		MPI_Waitany(MANY, in, &index, MPI_STATUS_IGNORE);
		CHECK(index >= 0 && index < MANY, "MPI_Waitany gives index %d", index);
		got++;
		if (got == MANY)
			break;
		MPI_Testsome(MANY, in, &count, indices, MPI_STATUSES_IGNORE);
		got += count == MPI_UNDEFINED ? 0 : count;
	}
	while (!flag)
		MPI_Testall(MANY, out, &flag, MPI_STATUSES_IGNORE);
	for (int i = 0; i < MANY; i++)
		CHECK(from[i] == (uint32_t)(previous_rank() * 1000 + i), "message %d is %u", i, from[i]);
}

/* Persistent sends from MPI_BOTTOM. Open MPI 4.1 then passes no address on; the send must end with an error, and the
 * job must not wait for ever. */
CLAIM(persistent_at_bottom)
{
	const char *over = getenv("TEST_FI_PROVIDER");
	int length = 64, rc = MPI_SUCCESS, ended = 0, previous = MPI_SUCCESS;
	char to[64], from[64];
	MPI_Datatype types[2], bytes = MPI_BYTE;
	MPI_Aint places[2];
	MPI_Request requests[2];

	if (over && strcmp(over, "gdrfab") != 0) {
		skip("others end the process");
		return;
	}
	fill(to, sizeof(to), (uint32_t)rank, 6);
	MPI_Get_address(from, &places[0]);
	MPI_Get_address(to, &places[1]);
	for (int i = 0; i < 2; i++) {
		MPI_Type_create_struct(1, &length, &places[i], &bytes, &types[i]);
		MPI_Type_commit(&types[i]);
	}
	MPI_Comm_set_errhandler(world, MPI_ERRORS_RETURN);
	MPI_Recv_init(MPI_BOTTOM, 1, types[0], previous_rank(), 78, world, &requests[0]);
	MPI_Send_init(MPI_BOTTOM, 1, types[1], next_rank(), 78, world, &requests[1]);
	MPI_Startall(2, requests);
	for (double until = MPI_Wtime() + 10; !ended && rc == MPI_SUCCESS && MPI_Wtime() < until;)
		rc = MPI_Test(&requests[1], &ended, MPI_STATUS_IGNORE);
	CHECK(ended || rc != MPI_SUCCESS, "the send has neither gone nor failed");
	MPI_Sendrecv(&rc, 1, MPI_INT, next_rank(), 79, &previous, 1, MPI_INT, previous_rank(), 79, world, MPI_STATUS_IGNORE);
	if (previous != MPI_SUCCESS)
		MPI_Cancel(&requests[0]);
	MPI_Wait(&requests[0], MPI_STATUS_IGNORE);
	if (previous == MPI_SUCCESS)
		SAME(from, sizeof(from), (uint32_t)previous_rank(), 6);
	MPI_Comm_set_errhandler(world, MPI_ERRORS_ARE_FATAL);
	for (int i = 0; i < 2; i++) {
		if (requests[i] != MPI_REQUEST_NULL)
			MPI_Request_free(&requests[i]);
		MPI_Type_free(&types[i]);
	}
}

/* A cancelled receive takes no message, and leaves the next receive untouched. */
CLAIM(cancelled_receive)
{
	char lost[64], from[64], to[64];
	MPI_Request request;
	MPI_Status status;
	int cancelled = 0;

	MPI_Irecv(lost, sizeof(lost), MPI_BYTE, previous_rank(), 77, world, &request);
	MPI_Cancel(&request);
	MPI_Wait(&request, &status);
	MPI_Test_cancelled(&status, &cancelled);
	CHECK(cancelled, "a receive that nothing matched was not cancelled");
	MPI_Barrier(world);
	fill(to, sizeof(to), (uint32_t)rank, 5);
	MPI_Sendrecv(to, sizeof(to), MPI_BYTE, next_rank(), 77, from, sizeof(from), MPI_BYTE, previous_rank(), 77,
		     world, MPI_STATUS_IGNORE);
	SAME(from, sizeof(from), (uint32_t)previous_rank(), 5);
}

/* A peer that calls MPI late is only late. */
CLAIM(late_peers)
{
	char *to = room(500000), *from = room(500000);

	for (int late = 0; late < ranks; late++) {
		MPI_Request request;

		fill(to, 500000, (uint32_t)rank, (uint32_t)late);
		memset(from, 0, 500000);
		if (rank == late)
			usleep(200000);
		MPI_Isend(to, 500000, MPI_BYTE, next_rank(), late, world, &request);
		MPI_Recv(from, 500000, MPI_BYTE, previous_rank(), late, world, MPI_STATUS_IGNORE);
		SAME(from, 500000, (uint32_t)previous_rank(), (uint32_t)late);
		MPI_Wait(&request, MPI_STATUS_IGNORE);
	}
	free(to);
	free(from);
}
