/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* The effect of flags, formats and limits on messages: the completions and their format, and refused calls. */
#include "fi.h"

#define SENT (FI_SEND | FI_MSG)
#define RECEIVED (FI_RECV | FI_MSG)

static ssize_t send_flags(struct node *n, const void *at, size_t len, uint64_t flags, void *context)
{
	struct iovec iov = {(void *)(uintptr_t)at, len};
	void *desc = local_desc(n, at, len);
	struct fi_msg msg = {&iov, desc ? &desc : NULL, 1, 0, context, 0};
	ssize_t rc;
	uint64_t until = test_now_ms() + (uint64_t)test_ms(5000);
	while ((rc = fi_sendmsg(n->ep, &msg, flags)) == -FI_EAGAIN && test_now_ms() < until)
		drive(n);
	return rc;
}

static ssize_t recv_flags(struct node *n, void *at, size_t len, uint64_t flags, void *context)
{
	struct iovec iov = {at, len};
	void *desc = local_desc(n, at, len);
	struct fi_msg msg = {&iov, desc ? &desc : NULL, 1, 0, context, 0};
	return fi_recvmsg(n->ep, &msg, flags);
}

/* --- messages longer than their receive --- */

static void long_sender(struct node *n)
{
	unsigned char *at = (unsigned char *)pages(70000);
	done entry;
	fill(at, 70000, 0, 3);
	node_up(n);
	for (size_t len = 10; len <= 70000; len *= 7) {
		barrier(n);
		POST(n->cq, fi_send(n->ep, at, len, local_desc(n, at, len), 0, at));
		/* The sender may or may not get an error, depending on when its buffer was free again. */
		int came = cq_next(n->cq, &entry, 10000);
		CHECK(came != 0);
		if (came < 0)
			FAILED(n->cq, at, 0, NULL);
		else
			CHECK(entry.op_context == at && entry.flags == SENT);
		barrier(n);
		if (!survives_failures())
			break;
	}
	if (survives_failures()) {
		barrier(n);
		POST(n->cq, fi_send(n->ep, at, 100, local_desc(n, at, 100), 0, at));
		DONE(n->cq, at, SENT, NULL);
	}
	local_forget_all(n);
	free(at);
	node_down(n);
}

static void short_receiver(struct node *n)
{
	unsigned char *at = (unsigned char *)pages(70000);
	struct failure f;
	done entry;
	node_up(n);
	for (size_t len = 10; len <= 70000; len *= 7) {
		size_t room = len / 2;
		memset(at, 0x5a, 70000);
		POST(n->cq, fi_recv(n->ep, at, room, local_desc(n, at, room), 0, at));
		barrier(n);
		FAILED(n->cq, at, survives_failures() ? FI_ETRUNC : 0, &f);
		if (is_gdrfab())
			CHECK(f.words[0] != 0);
		if (survives_failures()) {
			CHECK_EQ(f.entry.flags, RECEIVED);
			CHECK_EQ(f.entry.len, room);
			CHECK_EQ(f.entry.olen, len - room);
			CHECK_FILLED("what fitted", at, room, 0, 3);
		}
		for (size_t beyond = room; beyond < len; beyond++)
			CHECK_EQ(at[beyond], 0x5a);
		barrier(n);
		if (!survives_failures())
			break;
	}
	if (survives_failures()) {
		POST(n->cq, fi_recv(n->ep, at, 100, local_desc(n, at, 100), 0, at));
		barrier(n);
		DONE(n->cq, at, RECEIVED, &entry);
		CHECK_EQ(entry.len, 100);
	}
	local_forget_all(n);
	free(at);
	node_down(n);
}

TEST(too_long_for_the_receive)
{
	skip_unless(is_gdrfab(), "ends the connection, and says so in more than one way");
	pair(NULL, short_receiver, long_sender, NULL);
}

/* --- formats of completions --- */

union any_entry {
	struct fi_cq_entry context;
	struct fi_cq_msg_entry msg;
	struct fi_cq_data_entry data;
	struct fi_cq_tagged_entry tagged;
};

static const size_t entry_size[] = {0, sizeof(struct fi_cq_entry), sizeof(struct fi_cq_msg_entry),
				    sizeof(struct fi_cq_data_entry), sizeof(struct fi_cq_tagged_entry)};

static void check_formatted(struct node *n, const void *context, uint64_t flags, size_t len, bool from)
{
	struct {
		union any_entry entry;
		unsigned char after[64];
	} room;
	enum fi_cq_format format = n->setup->format;
	fi_addr_t source = 5;
	uint64_t until = test_now_ms() + (uint64_t)test_ms(10000);
	ssize_t got;
	do {
		memset(&room, 0xa5, sizeof room);
		got = from ? fi_cq_readfrom(n->cq, &room, 1, &source) : fi_cq_read(n->cq, &room, 1);
	} while (got == -FI_EAGAIN && test_now_ms() < until);
	CHECK_EQ(got, 1);
	for (size_t i = entry_size[format]; i < sizeof room; i++)
		CHECK_EQ(((unsigned char *)&room)[i], 0xa5);
	CHECK(room.entry.context.op_context == context);
	if (format != FI_CQ_FORMAT_CONTEXT) {
		CHECK_EQ(room.entry.msg.flags, flags);
		if (flags & FI_RECV)
			CHECK_EQ(room.entry.msg.len, len);
	}
	if (format >= FI_CQ_FORMAT_DATA && flags & FI_REMOTE_CQ_DATA)
		CHECK_EQ(room.entry.data.data, 0x4321);
	if (format == FI_CQ_FORMAT_TAGGED)
		CHECK_EQ(room.entry.tagged.tag, 0);
	/* A connected endpoint reports no source address. */
	if (from)
		CHECK(source == FI_ADDR_NOTAVAIL || source == 5);
}

static void formats_sender(struct node *n)
{
	char byte[16] = "0123456789abcde";
	node_up(n);
	for (int i = 0; i < 4; i++) {
		barrier(n);
		POST(n->cq, fi_senddata(n->ep, byte, 10, local_desc(n, byte, sizeof byte), 0x4321, 0, &byte[i]));
		check_formatted(n, &byte[i], SENT, 10, i & 1);
	}
	node_down(n);
}

static void formats_receiver(struct node *n)
{
	char byte[16];
	node_up(n);
	for (int i = 0; i < 4; i++) {
		POST(n->cq, fi_recv(n->ep, byte, 16, local_desc(n, byte, sizeof byte), 0, &byte[i]));
		barrier(n);
		check_formatted(n, &byte[i], RECEIVED | FI_REMOTE_CQ_DATA, 10, i & 1);
	}
	node_down(n);
}

static void format_claim(const void *arg)
{
	struct setup setup = {.format = *(const enum fi_cq_format *)arg};
	pair(&setup, formats_receiver, formats_sender, NULL);
}

TEST_TABLE(formats)
{
	static const enum fi_cq_format format[] = {FI_CQ_FORMAT_CONTEXT, FI_CQ_FORMAT_MSG, FI_CQ_FORMAT_DATA,
						   FI_CQ_FORMAT_TAGGED};
	test_add("format_context", format_claim, &format[0], 20);
	test_add("format_msg", format_claim, &format[1], 20);
	test_add("format_data", format_claim, &format[2], 20);
	test_add("format_tagged", format_claim, &format[3], 20);
}

/* --- selective completion --- */

/* The endpoint's op_flags apply to calls without flags. A call with flags goes by its own flags alone, as
 * fi_endpoint(3) says. libfabric's own providers combine the two. */
static bool adds_up(const struct node *n)
{
	return !is_gdrfab() && (n->setup->tx_op_flags & FI_COMPLETION);
}

static void selective_sender(struct node *n)
{
	char at[8] = "1234567";
	bool by_default = n->setup->tx_op_flags & FI_COMPLETION;
	node_up(n);
	void *desc = local_desc(n, at, sizeof at);
	barrier(n);
	POST(n->cq, fi_send(n->ep, at, 8, desc, 0, &at[1]));
	CHECK_EQ(send_flags(n, at, 8, 0, &at[2]), 0);
	CHECK_EQ(send_flags(n, at, 8, FI_COMPLETION, &at[3]), 0);
	POST(n->cq, fi_inject(n->ep, at, 8, 0));
	POST(n->cq, fi_send(n->ep, at, 8, desc, 0, &at[4]));
	CHECK_EQ(send_flags(n, at, 8, FI_COMPLETION, &at[5]), 0);
	if (by_default)
		DONE(n->cq, &at[1], SENT, NULL);
	if (adds_up(n))
		DONE(n->cq, &at[2], SENT, NULL);
	DONE(n->cq, &at[3], SENT, NULL);
	if (by_default)
		DONE(n->cq, &at[4], SENT, NULL);
	DONE(n->cq, &at[5], SENT, NULL);
	barrier(n);
	QUIET(n->cq, 20);
	node_down(n);
}

static void selective_receiver(struct node *n)
{
	char at[6][8];
	bool by_default = n->setup->rx_op_flags & FI_COMPLETION;
	node_up(n);
	local_desc(n, at, sizeof at);
	void *desc = local_desc(n, at, 1);
	POST(n->cq, fi_recv(n->ep, at[0], 8, desc, 0, at[0]));
	CHECK_EQ(recv_flags(n, at[1], 8, 0, at[1]), 0);
	CHECK_EQ(recv_flags(n, at[2], 8, FI_COMPLETION, at[2]), 0);
	POST(n->cq, fi_recv(n->ep, at[3], 8, desc, 0, at[3]));
	CHECK_EQ(recv_flags(n, at[4], 8, 0, at[4]), 0);
	CHECK_EQ(recv_flags(n, at[5], 8, FI_COMPLETION, at[5]), 0);
	barrier(n);
	if (by_default)
		DONE(n->cq, at[0], RECEIVED, NULL);
	if (adds_up(n))
		DONE(n->cq, at[1], RECEIVED, NULL);
	DONE(n->cq, at[2], RECEIVED, NULL);
	if (by_default)
		DONE(n->cq, at[3], RECEIVED, NULL);
	if (adds_up(n))
		DONE(n->cq, at[4], RECEIVED, NULL);
	DONE(n->cq, at[5], RECEIVED, NULL);
	for (int i = 0; i < 6; i++)
		CHECK_EQ(memcmp(at[i], "1234567", 8), 0);
	barrier(n);
	QUIET(n->cq, 20);
	node_down(n);
}

TEST(selective)
{
	struct setup setup = {.cq_flags = FI_SELECTIVE_COMPLETION};
	pair(&setup, selective_receiver, selective_sender, NULL);
}

TEST(selective_by_default)
{
	struct setup setup = {.cq_flags = FI_SELECTIVE_COMPLETION,
			      .tx_op_flags = FI_COMPLETION,
			      .rx_op_flags = FI_COMPLETION};
	pair(&setup, selective_receiver, selective_sender, NULL);
}

/* --- levels of completion, and flags that are only hints --- */

static const uint64_t levels[] = {
	FI_INJECT_COMPLETE, FI_TRANSMIT_COMPLETE, FI_DELIVERY_COMPLETE, FI_MORE, FI_FENCE, FI_INJECT | FI_MORE,
};
#define LEVELS (sizeof levels / sizeof levels[0])

static void level_sender(struct node *n)
{
	unsigned char at[64];
	struct fi_info *hints = hints_new(n->setup), *info;
	node_up(n);
	fill(at, sizeof at, 0, 1);
	for (size_t i = 0; i < LEVELS; i++) {
		/* Only a provider that accepts delivery as a default promises it. */
		hints->tx_attr->op_flags = levels[i] & (FI_TRANSMIT_COMPLETE | FI_DELIVERY_COMPLETE);
		int has = provider_getinfo(NULL, NULL, 0, hints, &info) == 0;
		if (has)
			fi_freeinfo(info);
		barrier(n);
		oob_send(n, &has, sizeof has);
		if (!has)
			continue;
		if (levels[i] & FI_FENCE && !is_gdrfab()) {
			/* Some providers do not accept it. */
			CHECK_EQ(send_flags(n, at, 64, FI_COMPLETION, at), 0);
		} else {
			CHECK_EQ(send_flags(n, at, 64, levels[i] | FI_COMPLETION, at), 0);
		}
		/* A run of operations that began with FI_MORE is ended. */
		if (levels[i] & FI_MORE)
			CHECK_EQ(send_flags(n, at, 64, FI_COMPLETION, at), 0);
		DONE(n->cq, at, SENT, NULL);
		if (levels[i] & FI_MORE)
			DONE(n->cq, at, SENT, NULL);
	}
	fi_freeinfo(hints);
	node_down(n);
}

static void level_receiver(struct node *n)
{
	unsigned char at[2][64];
	node_up(n);
	for (size_t i = 0; i < LEVELS; i++) {
		int has;
		barrier(n);
		oob_recv(n, &has, sizeof has);
		if (!has)
			continue;
		for (int m = 0; m < (levels[i] & FI_MORE ? 2 : 1); m++)
			POST(n->cq, fi_recv(n->ep, at[m], 64, local_desc(n, at, sizeof at), 0, at[m]));
		for (int m = 0; m < (levels[i] & FI_MORE ? 2 : 1); m++) {
			DONE(n->cq, at[m], RECEIVED, NULL);
			CHECK_FILLED("the message", at[m], 64, 0, 1);
		}
	}
	node_down(n);
}

TEST(levels)
{
	pair(NULL, level_receiver, level_sender, NULL);
}

/* --- refused calls, which leave nothing behind --- */

static bool refused(ssize_t rc)
{
	return rc == -FI_EINVAL || rc == -FI_EBADFLAGS || rc == -FI_EOPNOTSUPP || rc == -FI_EMSGSIZE ||
	       rc == -FI_ENOSYS;
}

static void wrong_sender(struct node *n)
{
	unsigned char *at = (unsigned char *)pages(1 << 20);
	struct iovec iov[256];
	node_up(n);
	size_t inject = n->info->tx_attr->inject_size, limit = n->info->tx_attr->iov_limit;
	CHECK(limit < 255 && inject < 1 << 20);
	/* gdrfab reports a smaller limit than it accepts, for the sake of ofi_rxm. */
	size_t many = is_gdrfab() ? 255 : limit + 1, many_rx = is_gdrfab() ? 255 : n->info->rx_attr->iov_limit + 1;
	for (size_t i = 0; i < 256; i++) {
		iov[i].iov_base = at + i;
		iov[i].iov_len = 1;
	}
	void *descs[256];
	CHECK(refused(fi_sendv(n->ep, iov, local_descs(n, iov, 1, descs), many, 0, at)));
	CHECK(refused(fi_recvv(n->ep, iov, local_descs(n, iov, 1, descs), many_rx, 0, at)));
	CHECK(refused(fi_inject(n->ep, at, inject + 1, 0)));
	CHECK(refused(fi_injectdata(n->ep, at, inject + 1, 1, 0)));
	CHECK(refused(send_flags(n, at, inject + 1, FI_INJECT | FI_COMPLETION, at)));
	CHECK(refused(send_flags(n, at, 8, 1ull << 63 | FI_COMPLETION, at)));
	CHECK(refused(send_flags(n, at, 8, FI_MULTI_RECV | FI_COMPLETION, at)));
	CHECK(refused(recv_flags(n, at, 8, FI_MULTI_RECV | FI_COMPLETION, at)));
	CHECK(refused(recv_flags(n, at, 8, 1ull << 62 | FI_COMPLETION, at)));
	if (n->info->ep_attr->max_msg_size < SIZE_MAX)
		CHECK(refused(fi_send(n->ep, at, n->info->ep_attr->max_msg_size + 1, local_desc(n, at, 8), 0, at)));
	QUIET(n->cq, 20);
	barrier(n);
	fill(at, 8, 0, 1);
	POST(n->cq, fi_send(n->ep, at, 8, local_desc(n, at, 8), 0, at));
	DONE(n->cq, at, SENT, NULL);
	local_forget_all(n);
	free(at);
	node_down(n);
}

static void wrong_receiver(struct node *n)
{
	unsigned char at[8];
	done entry;
	node_up(n);
	POST(n->cq, fi_recv(n->ep, at, 8, local_desc(n, at, 8), 0, at));
	barrier(n);
	DONE(n->cq, at, RECEIVED, &entry);
	CHECK_EQ(entry.len, 8);
	CHECK_FILLED("the message", at, 8, 0, 1);
	node_down(n);
}

TEST(refused_calls)
{
	skip_unless(is_gdrfab(), "takes what it does not check");
	pair(NULL, wrong_receiver, wrong_sender, NULL);
}
