/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Derived datatypes: bytes in their gaps stay untouched, whether the message is short or needs a rendezvous. */
#include "frame.h"

static int next_rank(void)
{
	return (rank + 1) % ranks;
}

static int previous_rank(void)
{
	return (rank + ranks - 1) % ranks;
}

/* Sends with one type and receives with another of the same signature. */
static void exchange(const void *to, MPI_Datatype out, int outs, void *from, MPI_Datatype in, int ins)
{
	MPI_Status status;
	int elements = 0, wanted = 0, size;

	MPI_Sendrecv(to, outs, out, next_rank(), 1, from, ins, in, previous_rank(), 1, world, &status);
	MPI_Get_elements(&status, in, &elements);
	MPI_Type_size(out, &size);
	wanted = size * outs;
	MPI_Get_count(&status, MPI_BYTE, &size);
	CHECK(size == wanted && elements > 0, "%d bytes and %d elements, not %d bytes", size, elements, wanted);
}

/* A column of a matrix becomes a row, and a row a column. */
CLAIM(column)
{
	for (int n = 8; n <= count_of(512, 128); n *= 4) {
		size_t cells = (size_t)n * (size_t)n;
		int32_t *matrix = room(cells * sizeof(*matrix)), *row = room((size_t)n * sizeof(*row));
		MPI_Datatype column;

		MPI_Type_vector(n, 1, n, MPI_INT32_T, &column);
		MPI_Type_commit(&column);
		for (size_t i = 0; i < cells; i++)
			matrix[i] = rank * 1000000 + (int)i;
		exchange(matrix + 3, column, 1, row, MPI_INT32_T, n);
		for (int i = 0; i < n; i++)
			CHECK(row[i] == previous_rank() * 1000000 + i * n + 3, "element %d of %d is %d", i, n, row[i]);
		for (int i = 0; i < n; i++)
			row[i] = rank * 7 + i;
		exchange(row, MPI_INT32_T, n, matrix + 5, column, 1);
		for (size_t i = 0; i < cells; i++) {
			int32_t want = i % (size_t)n == 5 ? previous_rank() * 7 + (int)(i / (size_t)n) :
							    rank * 1000000 + (int)i;
			CHECK(matrix[i] == want, "cell %zu of %d x %d is %d, not %d", i, n, n, matrix[i], want);
		}
		MPI_Type_free(&column);
		free(matrix);
		free(row);
	}
}

struct record {
	char kind;
	double value;
	int16_t pair[3];
	char unused[5];
};

/* Gaps of a struct are unchanged; 6000 records need more than one rendezvous. */
CLAIM(records)
{
	static const int counts[] = {1, 50, 6000};
	int lengths[3] = {1, 1, 3};
	MPI_Aint places[3] = {offsetof(struct record, kind), offsetof(struct record, value),
			      offsetof(struct record, pair)};
	MPI_Datatype kinds[3] = {MPI_CHAR, MPI_DOUBLE, MPI_INT16_T}, packed, spaced;

	MPI_Type_create_struct(3, lengths, places, kinds, &packed);
	MPI_Type_create_resized(packed, 0, sizeof(struct record), &spaced);
	MPI_Type_commit(&spaced);
	for (int k = 0; k < 3; k++) {
		int n = counts[k];
		struct record *to = room((size_t)n * sizeof(*to)), *from = room((size_t)n * sizeof(*from));

		memset(from, 0x33, (size_t)n * sizeof(*from));
		for (int i = 0; i < n; i++) {
			to[i].kind = (char)(i + rank);
			to[i].value = rank + i * 0.5;
			for (int j = 0; j < 3; j++)
				to[i].pair[j] = (int16_t)(i * 3 + j - rank);
			memset(to[i].unused, 0x44, sizeof(to[i].unused));
		}
		exchange(to, spaced, n, from, spaced, n);
		for (int i = 0; i < n; i++) {
			int who = previous_rank();
			bool good = from[i].kind == (char)(i + who) && from[i].value == who + i * 0.5;

			for (int j = 0; j < 3; j++)
				good = good && from[i].pair[j] == (int16_t)(i * 3 + j - who);
			for (size_t j = 0; j < sizeof(from[i].unused); j++)
				good = good && from[i].unused[j] == 0x33;
			CHECK(good, "record %d of %d", i, n);
		}
		free(to);
		free(from);
	}
	MPI_Type_free(&spaced);
	MPI_Type_free(&packed);
}

/* Blocks of different lengths, in no order, and a box out of a cube. */
CLAIM(indexed_and_subarray)
{
	enum { EDGE = 40 };
	int lengths[4] = {3, 1, 7, 2}, places[4] = {20, 0, 5, 30}, edges[3] = {EDGE, EDGE, EDGE};
	int box[3] = {20, 30, 35}, corner[3] = {7, 5, 2};
	int32_t pieces[64], flat[13], *cube = room(EDGE * EDGE * EDGE * sizeof(*cube));
	int32_t *inside = room(20 * 30 * 35 * sizeof(*inside));
	MPI_Datatype scattered, part;
	int at = 0;

	MPI_Type_indexed(4, lengths, places, MPI_INT32_T, &scattered);
	MPI_Type_commit(&scattered);
	for (int i = 0; i < 64; i++)
		pieces[i] = rank * 100 + i;
	exchange(pieces, scattered, 1, flat, MPI_INT32_T, 13);
	for (int b = 0; b < 4; b++)
		for (int i = 0; i < lengths[b]; i++, at++)
			CHECK(flat[at] == previous_rank() * 100 + places[b] + i, "piece %d is %d", at, flat[at]);
	MPI_Type_free(&scattered);

	MPI_Type_create_subarray(3, edges, box, corner, MPI_ORDER_C, MPI_INT32_T, &part);
	MPI_Type_commit(&part);
	for (int i = 0; i < 20 * 30 * 35; i++)
		inside[i] = rank + i * 3;
	memset(cube, 0xff, EDGE * EDGE * EDGE * sizeof(*cube));
	exchange(inside, MPI_INT32_T, 20 * 30 * 35, cube, part, 1);
	for (int x = 0; x < EDGE; x++) {
		for (int y = 0; y < EDGE; y++) {
			for (int z = 0; z < EDGE; z++) {
				int u = x - corner[0], v = y - corner[1], w = z - corner[2], want = -1;
				if (u >= 0 && u < box[0] && v >= 0 && v < box[1] && w >= 0 && w < box[2])
					want = previous_rank() + ((u * box[1] + v) * box[2] + w) * 3;
				CHECK(cube[(x * EDGE + y) * EDGE + z] == want, "cell %d,%d,%d", x, y, z);
			}
		}
	}
	MPI_Type_free(&part);
	free(inside);
	free(cube);
}

/* Absolute addresses, and bytes packed by hand. */
CLAIM(absolute_and_packed)
{
	int32_t one = rank + 1, others[3] = {rank + 2, rank + 3, rank + 4}, got[4];
	MPI_Aint places[2];
	int lengths[2] = {1, 3}, at = 0, size = 0;
	MPI_Datatype both;
	char packed[256];

	MPI_Get_address(&one, &places[0]);
	MPI_Get_address(others, &places[1]);
	MPI_Type_create_hindexed(2, lengths, places, MPI_INT32_T, &both);
	MPI_Type_commit(&both);
	exchange(MPI_BOTTOM, both, 1, got, MPI_INT32_T, 4);
	for (int i = 0; i < 4; i++)
		CHECK(got[i] == previous_rank() + 1 + i, "element %d is %d", i, got[i]);
	MPI_Pack(MPI_BOTTOM, 1, both, packed, sizeof(packed), &at, world);
	MPI_Pack_size(1, both, world, &size);
	CHECK(at <= size, "%d bytes packed where %d were announced", at, size);
	MPI_Sendrecv(packed, at, MPI_PACKED, next_rank(), 5, got, 4, MPI_INT32_T, previous_rank(), 5, world,
		     MPI_STATUS_IGNORE);
	for (int i = 0; i < 4; i++)
		CHECK(got[i] == previous_rank() + 1 + i, "packed element %d is %d", i, got[i]);
	MPI_Type_free(&both);
}
