/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Collective operations that compute. Values are small integers in every type, so that each order of adding them gives
 * the same bits, and a result can be compared without a tolerance.
 */
#include "frame.h"

static const int counts[] = {0, 1, 5, 700, 5000, 40000, 200000};

static int counts_used(void)
{
	return count_of(7, 6);
}

/* Element i that rank `who` contributes: 1 to 4, so that products of 4 ranks stay small. */
static int term(int who, int i)
{
	return 1 + (who * 3 + i) % 4;
}

enum op { SUM, PROD, MAX, MIN, BAND, BOR, BXOR, LAND, LOR, OPS };
static const char *const op_names[OPS] = {"sum", "prod", "max", "min", "band", "bor", "bxor", "land", "lor"};

static int combine(enum op op, int a, int b)
{
	switch (op) {
	case SUM: return a + b;
	case PROD: return a * b;
	case MAX: return a > b ? a : b;
	case MIN: return a < b ? a : b;
	case BAND: return a & b;
	case BOR: return a | b;
	case BXOR: return a ^ b;
	case LAND: return a && b;
	default: return a || b;
	}
}

/* The result over the ranks from `first` to before `end`. */
static int result(enum op op, int first, int end, int i)
{
	int all = term(first, i);

	for (int who = first + 1; who < end; who++)
		all = combine(op, all, term(who, i));
	/* A logical operation of one operand leaves it as it is. */
	return all;
}

enum kind { INT8, UINT8, INT16, INT32, INT64, FLOAT, DOUBLE, KINDS };
static const char *const kind_names[KINDS] = {"int8", "uint8", "int16", "int32", "int64", "float", "double"};
static const size_t kind_sizes[KINDS] = {1, 1, 2, 4, 8, 4, 8};

static MPI_Datatype kind_type(enum kind kind)
{
	MPI_Datatype all[KINDS] = {MPI_INT8_T,	MPI_UINT8_T, MPI_INT16_T, MPI_INT32_T,
				   MPI_INT64_T, MPI_FLOAT,   MPI_DOUBLE};
	return all[kind];
}

static MPI_Op op_handle(enum op op)
{
	MPI_Op all[OPS] = {MPI_SUM, MPI_PROD, MPI_MAX, MPI_MIN, MPI_BAND, MPI_BOR, MPI_BXOR, MPI_LAND, MPI_LOR};
	return all[op];
}

static void put(void *at, enum kind kind, int i, int value)
{
	switch (kind) {
	case INT8: ((int8_t *)at)[i] = (int8_t)value; break;
	case UINT8: ((uint8_t *)at)[i] = (uint8_t)value; break;
	case INT16: ((int16_t *)at)[i] = (int16_t)value; break;
	case INT32: ((int32_t *)at)[i] = value; break;
	case INT64: ((int64_t *)at)[i] = value; break;
	case FLOAT: ((float *)at)[i] = (float)value; break;
	default: ((double *)at)[i] = value;
	}
}

static double get(const void *at, enum kind kind, int i)
{
	switch (kind) {
	case INT8: return ((const int8_t *)at)[i];
	case UINT8: return ((const uint8_t *)at)[i];
	case INT16: return ((const int16_t *)at)[i];
	case INT32: return ((const int32_t *)at)[i];
	case INT64: return (double)((const int64_t *)at)[i];
	case FLOAT: return ((const float *)at)[i];
	default: return ((const double *)at)[i];
	}
}

/* Compares n elements that begin with element `from` of the whole. */
static void expect(const void *at, enum kind kind, enum op op, int n, int from, int first, int end, const char *what)
{
	for (int i = 0; i < n; i++) {
		int want = result(op, first, end, from + i);
		if (get(at, kind, i) == want)
			continue;
		wrong(__FILE__, __LINE__, "%s, %s of %s: element %d of %d is %g, not %d", what, op_names[op],
		      kind_names[kind], i, n, get(at, kind, i), want);
		return;
	}
}

static bool pair_exists(enum kind kind, enum op op)
{
	return kind < FLOAT || op <= MIN;
}

/* Every type with every operation, and every count with the first of them. */
CLAIM(reduce_and_allreduce)
{
	for (int kind = 0; kind < KINDS; kind++) {
		for (int op = 0; op < OPS; op++) {
			for (int c = 0; c < counts_used(); c++) {
				int n = counts[c], root = (kind + op + c) % ranks;
				size_t bytes = (size_t)n * kind_sizes[kind];
				MPI_Datatype type = kind_type((enum kind)kind);
				void *mine, *all;

				if (!pair_exists((enum kind)kind, (enum op)op) || (c != 3 && (op != SUM || kind % 3)))
					continue;
				mine = room(bytes);
				all = room(bytes);
				for (int i = 0; i < n; i++)
					put(mine, (enum kind)kind, i, term(rank, i));
				MPI_Reduce(mine, all, n, type, op_handle((enum op)op), root, world);
				if (rank == root)
					expect(all, (enum kind)kind, (enum op)op, n, 0, 0, ranks, "reduce");
				memset(all, 0, bytes);
				MPI_Allreduce(mine, all, n, type, op_handle((enum op)op), world);
				expect(all, (enum kind)kind, (enum op)op, n, 0, 0, ranks, "allreduce");
				MPI_Allreduce(MPI_IN_PLACE, mine, n, type, op_handle((enum op)op), world);
				expect(mine, (enum kind)kind, (enum op)op, n, 0, 0, ranks, "allreduce in place");
				free(mine);
				free(all);
			}
		}
	}
}

/* Prefixes over the ranks, with and without the rank's own term. */
CLAIM(scan_and_exscan)
{
	for (int c = 0; c < counts_used(); c++) {
		int n = counts[c];
		int64_t *mine = room((size_t)n * sizeof(*mine)), *all = room((size_t)n * sizeof(*all));

		for (int i = 0; i < n; i++)
			mine[i] = term(rank, i);
		MPI_Scan(mine, all, n, MPI_INT64_T, MPI_SUM, world);
		expect(all, INT64, SUM, n, 0, 0, rank + 1, "scan");
		MPI_Exscan(mine, all, n, MPI_INT64_T, MPI_MAX, world);
		if (rank > 0)
			expect(all, INT64, MAX, n, 0, 0, rank, "exscan");
		free(mine);
		free(all);
	}
}

/* Each rank keeps its part of the result: even parts, and parts of 2, 0, 3, ... times the count. */
CLAIM(reduce_scatter)
{
	int *lengths = room((size_t)ranks * sizeof(int));

	for (int c = 0; c < counts_used() - 1; c++) {
		int n = counts[c], total = 0, before = 0;
		int32_t *mine = room((size_t)n * (size_t)ranks * 4 * sizeof(*mine));
		int32_t *part = room((size_t)n * 4 * sizeof(*part));

		for (int i = 0; i < n * ranks * 4; i++)
			mine[i] = term(rank, i);
		MPI_Reduce_scatter_block(mine, part, n, MPI_INT32_T, MPI_SUM, world);
		expect(part, INT32, SUM, n, rank * n, 0, ranks, "reduce_scatter_block");
		for (int who = 0; who < ranks; who++) {
			lengths[who] = (who * 3 + 2) % 5 * n;
			lengths[who] = lengths[who] > 3 * n ? 3 * n : lengths[who];
			before += who < rank ? lengths[who] : 0;
			total += lengths[who];
		}
		CHECK(total <= n * ranks * 4, "the test's own bounds");
		MPI_Reduce_scatter(mine, part, lengths, MPI_INT32_T, MPI_MAX, world);
		expect(part, INT32, MAX, lengths[rank], before, 0, ranks, "reduce_scatter");
		free(mine);
		free(part);
	}
	free(lengths);
}

CLAIM(maxloc_and_minloc)
{
	struct {
		double value;
		int where;
	} mine[50], most[50], least[50];

	for (int i = 0; i < 50; i++) {
		mine[i].value = (rank * 7 + i) % ranks;
		mine[i].where = rank;
	}
	MPI_Allreduce(mine, most, 50, MPI_DOUBLE_INT, MPI_MAXLOC, world);
	MPI_Allreduce(mine, least, 50, MPI_DOUBLE_INT, MPI_MINLOC, world);
	for (int i = 0; i < 50; i++) {
		int max = 0, min = 0;
		for (int who = 1; who < ranks; who++) {
			max = (who * 7 + i) % ranks > (max * 7 + i) % ranks ? who : max;
			min = (who * 7 + i) % ranks < (min * 7 + i) % ranks ? who : min;
		}
		CHECK(most[i].where == max && least[i].where == min, "element %d: %d and %d, not %d and %d", i,
		      most[i].where, least[i].where, max, min);
	}
}

/* x -> a * x + b, one after the other: the order of the ranks is seen in the result. */
static void compose(void *in, void *inout, int *n, MPI_Datatype *type)
{
	uint32_t *first = in, *then = inout;

	(void)type;
	for (int i = 0; i < *n; i++) {
		then[2 * i + 1] = then[2 * i] * first[2 * i + 1] + then[2 * i + 1];
		then[2 * i] = then[2 * i] * first[2 * i];
	}
}

CLAIM(own_operation_in_order)
{
	enum { N = 3000 };
	uint32_t *mine = room(N * 8), *all = room(N * 8);
	MPI_Datatype pair;
	MPI_Op op;

	MPI_Type_contiguous(2, MPI_UINT32_T, &pair);
	MPI_Type_commit(&pair);
	MPI_Op_create(compose, 0, &op);
	for (int i = 0; i < N; i++) {
		mine[2 * i] = (uint32_t)(2 * (rank + i) + 3);
		mine[2 * i + 1] = (uint32_t)(rank * 5 + i);
	}
	for (int root = 0; root <= ranks; root++) {
		memset(all, 0, N * 8);
		if (root < ranks)
			MPI_Reduce(mine, all, N, pair, op, root, world);
		else
			MPI_Allreduce(mine, all, N, pair, op, world);
		for (int i = 0; (root == rank || root == ranks) && i < N; i++) {
			uint32_t a = 1, b = 0;
			for (int who = 0; who < ranks; who++) {
				uint32_t next = (uint32_t)(2 * (who + i) + 3);
				b = next * b + (uint32_t)(who * 5 + i);
				a = next * a;
			}
			CHECK(all[2 * i] == a && all[2 * i + 1] == b, "element %d, root %d", i, root);
		}
	}
	MPI_Op_free(&op);
	MPI_Type_free(&pair);
	free(mine);
	free(all);
}

CLAIM(nonblocking_reductions)
{
	for (int c = 0; c < counts_used(); c++) {
		int n = counts[c];
		size_t bytes = (size_t)n * sizeof(int32_t);
		int32_t *mine = room(bytes), *all = room(bytes), *one = room(bytes);
		int32_t *before = room(bytes), *part = room(bytes);
		int32_t *long_one = room(bytes * (size_t)ranks);
		MPI_Request requests[4];
		int left = 4;

		for (int i = 0; i < n; i++)
			mine[i] = term(rank, i);
		for (int i = 0; i < n * ranks; i++)
			long_one[i] = term(rank, i);
		MPI_Iallreduce(mine, all, n, MPI_INT32_T, MPI_SUM, world, &requests[0]);
		MPI_Ireduce(mine, one, n, MPI_INT32_T, MPI_PROD, 1, world, &requests[1]);
		MPI_Iscan(mine, before, n, MPI_INT32_T, MPI_MIN, world, &requests[2]);
		MPI_Ireduce_scatter_block(long_one, part, n, MPI_INT32_T, MPI_BXOR, world, &requests[3]);
		while (left > 0) {
			int index;
			MPI_Waitany(4, requests, &index, MPI_STATUS_IGNORE);
			left--;
		}
		expect(all, INT32, SUM, n, 0, 0, ranks, "iallreduce");
		if (rank == 1)
			expect(one, INT32, PROD, n, 0, 0, ranks, "ireduce");
		expect(before, INT32, MIN, n, 0, 0, rank + 1, "iscan");
		expect(part, INT32, BXOR, n, rank * n, 0, ranks, "ireduce_scatter_block");
		free(mine);
		free(all);
		free(one);
		free(before);
		free(part);
		free(long_one);
	}
}
