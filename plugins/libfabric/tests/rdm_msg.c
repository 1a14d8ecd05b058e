/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Messages, RMA and completions of connectionless endpoints through libfabric. The endpoints themselves are tested
 * in c-tests; here only the conversion of libfabric's calls.
 */
#include "fi_rdm.h"

#include <rdma/fi_atomic.h>
#include <signal.h>
#include <sys/wait.h>

TEST(tags_sources_data)
{
	struct end a, b;
	struct fi_cq_tagged_entry *done;
	fi_addr_t from;
	char text[16];
	end_open(&a, TAG_CAPS);
	end_open(&b, TAG_CAPS);
	CHECK_EQ(end_knows(&a, &a), 0);
	CHECK_EQ(end_knows(&a, &b), 1);
	CHECK_EQ(end_knows(&b, &a), 0);
	OK(fi_trecv(b.ep, text, sizeof text, NULL, 0, 0x100, 0xff, &b));
	OK(fi_tinjectdata(a.ep, "data", 5, 99, 1, 0x1ab));
	OK(fi_tsend(a.ep, "wrong", 6, NULL, 1, 0x200, &a));
	done = end_next(&b, &a, &from);
	CHECK(done && done->op_context == &b && done->len == 5 && done->tag == 0x1ab && done->data == 99);
	CHECK_EQ(done->flags, FI_TAGGED | FI_RECV | FI_REMOTE_CQ_DATA);
	CHECK_EQ(from, 0);
	done = end_next(&a, &b, &from);
	CHECK(done && done->op_context == &a && from == FI_ADDR_NOTAVAIL);
	CHECK_EQ(done->flags, FI_TAGGED | FI_SEND);
	/* To the endpoint itself. */
	OK(fi_trecv(a.ep, text, sizeof text, NULL, 0, 7, 0, &b));
	OK(fi_tinject(a.ep, "self", 5, 0, 7));
	done = end_next(&a, &a, &from);
	CHECK(done && done->op_context == &b && from == 0 && strcmp(text, "self") == 0);
	end_close(&a);
	end_close(&b);
}

/* Peeks, claims, receives a claimed message, discards. */
TEST(peeks_and_claims)
{
	struct end a, b;
	struct fi_context claim;
	struct fi_cq_err_entry error;
	struct fi_cq_tagged_entry *done;
	char text[16];
	struct iovec iov = {text, sizeof text};
	struct fi_msg_tagged look = {.addr = FI_ADDR_UNSPEC, .tag = 3, .context = &claim};
	struct fi_msg_tagged take = {.msg_iov = &iov, .iov_count = 1, .addr = FI_ADDR_UNSPEC, .tag = 3, .context = &claim};
	end_open(&a, TAG_CAPS);
	end_open(&b, TAG_CAPS);
	CHECK_EQ(end_knows(&a, &b), 0);
	OK(fi_trecvmsg(b.ep, &look, FI_PEEK));
	CHECK(end_next(&b, &a, NULL) == NULL);
	end_failed(&b, FI_ENOMSG, &error);
	CHECK_EQ(error.tag, 3);
	OK(fi_tsend(a.ep, "first", 6, NULL, 0, 3, &a));
	OK(fi_tsend(a.ep, "second", 7, NULL, 0, 3, &a));
	CHECK(end_next(&a, &b, NULL) && end_next(&a, &b, NULL));
	for (bool came = false; !came;) {
		OK(fi_trecvmsg(b.ep, &look, FI_PEEK | FI_CLAIM));
		done = end_next(&b, &a, NULL);
		came = done != NULL;
		if (came)
			CHECK(done->len == 6 && done->tag == 3);
		else
			end_failed(&b, FI_ENOMSG, NULL);
	}
	/* A claimed message is invisible to other receives. */
	OK(fi_trecv(b.ep, text, sizeof text, NULL, FI_ADDR_UNSPEC, 3, 0, &b));
	done = end_next(&b, &a, NULL);
	CHECK(done && done->op_context == &b && strcmp(text, "second") == 0);
	OK(fi_trecvmsg(b.ep, &take, FI_CLAIM));
	done = end_next(&b, &a, NULL);
	CHECK(done && done->op_context == &claim && strcmp(text, "first") == 0);
	OK(fi_tsend(a.ep, "third", 6, NULL, 0, 3, &a));
	for (bool came = false; !came;) {
		OK(fi_trecvmsg(b.ep, &look, FI_PEEK | FI_DISCARD));
		came = end_next(&b, &a, NULL) != NULL;
		if (!came)
			end_failed(&b, FI_ENOMSG, NULL);
	}
	OK(fi_trecvmsg(b.ep, &look, FI_PEEK));
	CHECK(end_next(&b, &a, NULL) == NULL);
	end_failed(&b, FI_ENOMSG, NULL);
	end_close(&a);
	end_close(&b);
}

/* Messages longer than their receive, and cancelled receives. */
TEST(cut_off_and_cancelled)
{
	struct end a, b;
	struct fi_cq_err_entry error;
	char text[4];
	end_open(&a, TAG_CAPS);
	end_open(&b, TAG_CAPS);
	CHECK_EQ(end_knows(&a, &b), 0);
	OK(fi_trecv(b.ep, text, sizeof text, NULL, FI_ADDR_UNSPEC, 1, 0, &b));
	OK(fi_tsend(a.ep, "longer", 7, NULL, 0, 1, &a));
	CHECK(end_next(&b, &a, NULL) == NULL);
	end_failed(&b, FI_ETRUNC, &error);
	CHECK(error.op_context == &b && error.len == 4 && error.olen == 3 && error.tag == 1);
	CHECK(end_next(&a, &b, NULL) != NULL);
	OK(fi_trecv(b.ep, text, sizeof text, NULL, FI_ADDR_UNSPEC, 1, 0, &b));
	OK(fi_cancel(&b.ep->fid, &b));
	CHECK(end_next(&b, &a, NULL) == NULL);
	end_failed(&b, FI_ECANCELED, &error);
	CHECK(error.op_context == &b);
	CHECK_EQ(fi_cancel(&b.ep->fid, &b), -FI_ENOENT);
	end_close(&a);
	end_close(&b);
}

/* A peer that computes does not call the library for a while, not even before its first message: it is late, not
 * lost. */
TEST(peer_that_computes)
{
	struct end a, b;
	struct fi_cq_tagged_entry entry;
	char text[8] = "";
	skip_unless(!test_count(0, 1), "waits 11 s");
	end_open(&a, TAG_CAPS);
	end_open(&b, TAG_CAPS);
	CHECK_EQ(end_knows(&a, &b), 0);
	OK(fi_trecv(b.ep, text, sizeof text, NULL, FI_ADDR_UNSPEC, 1, 0, &b));
	OK(fi_tsend(a.ep, "late", 5, NULL, 0, 1, &a));
	for (uint64_t until = test_now_ms() + 11000; test_now_ms() < until; usleep(20000))
		CHECK_EQ(fi_cq_read(a.cq, &entry, 1), -FI_EAGAIN);
	CHECK(end_next(&a, &b, NULL) != NULL);
	CHECK(end_next(&b, &a, NULL) != NULL && strcmp(text, "late") == 0);
	end_close(&a);
	end_close(&b);
}

/* If the peer dies in the meantime, the call does not wait for it. */
TEST(peer_that_dies_unanswered)
{
	struct end a, b;
	struct fi_cq_tagged_entry entry;
	struct fi_cq_err_entry error;
	char name[sizeof b.name];
	fi_addr_t index;
	int pipes[2];
	pid_t child;
	CHECK_EQ(pipe(pipes), 0);
	child = fork();
	if (child == 0) {
		end_open(&b, TAG_CAPS);
		for (ssize_t told = write(pipes[1], b.name, sizeof b.name); told == (ssize_t)sizeof b.name;)
			pause();
		_exit(1);
	}
	CHECK(child > 0 && read(pipes[0], name, sizeof name) == (ssize_t)sizeof name);
	end_open(&a, TAG_CAPS);
	CHECK_EQ(fi_av_insert(a.av, name, 1, &index, 0, NULL), 1);
	OK(fi_tsend(a.ep, "lost", 5, NULL, index, 1, &a));
	for (uint64_t until = test_now_ms() + 300; test_now_ms() < until; usleep(10000))
		CHECK_EQ(fi_cq_read(a.cq, &entry, 1), -FI_EAGAIN);
	kill(child, SIGKILL);
	CHECK_EQ(waitpid(child, NULL, 0), child);
	CHECK(end_next(&a, &a, NULL) == NULL);
	end_failed(&a, FI_ECONNREFUSED, &error);
	CHECK(error.op_context == &a);
	end_close(&a);
	close(pipes[0]);
	close(pipes[1]);
}

/* One buffer for many messages, by a flag of the call or of the endpoint. */
static void multi(const void *arg)
{
	const bool by_default = arg != NULL;
	static char room[4096];
	struct end a, b;
	struct fi_info *hints = rdm_hints(FI_MSG | FI_MULTI_RECV);
	size_t least = 1000, len = sizeof least;
	struct iovec iov = {room, sizeof room};
	struct fi_msg msg = {.msg_iov = &iov, .iov_count = 1, .addr = FI_ADDR_UNSPEC, .context = &b};
	char *at = room;
	hints->rx_attr->op_flags = by_default ? FI_MULTI_RECV : 0;
	end_open_with(&b, hints, FI_AV_TABLE, 0);
	hints->rx_attr->op_flags = 0;
	end_open_with(&a, hints, FI_AV_TABLE, 0);
	fi_freeinfo(hints);
	CHECK_EQ(end_knows(&a, &b), 0);
	OK(fi_setopt(&b.ep->fid, FI_OPT_ENDPOINT, FI_OPT_MIN_MULTI_RECV, &least, len));
	least = 0;
	OK(fi_getopt(&b.ep->fid, FI_OPT_ENDPOINT, FI_OPT_MIN_MULTI_RECV, &least, &len));
	CHECK_EQ(least, 1000);
	if (by_default)
		OK(fi_recv(b.ep, room, sizeof room, NULL, FI_ADDR_UNSPEC, &b));
	else
		OK(fi_recvmsg(b.ep, &msg, FI_MULTI_RECV));
	for (int i = 0; i < 4; i++) {
		char out[900];
		memset(out, 'a' + i, sizeof out);
		OK(fi_send(a.ep, out, sizeof out, NULL, 0, &a));
		struct fi_cq_tagged_entry *done = end_next(&b, &a, NULL);
		CHECK(done && done->op_context == &b && done->len == 900);
		CHECK((char *)done->buf >= at && (char *)done->buf + 900 <= room + sizeof room);
		CHECK(memcmp(done->buf, out, sizeof out) == 0);
		at = (char *)done->buf + 900;
		CHECK_EQ(done->flags & FI_MULTI_RECV, room + sizeof room - at < 1000 ? FI_MULTI_RECV : 0);
		CHECK(end_next(&a, &b, NULL) != NULL);
	}
	end_close(&a);
	end_close(&b);
}

TEST(many_messages_in_one_buffer)
{
	multi(NULL);
}

TEST(many_messages_by_default)
{
	multi("");
}

/* Only operations that ask for an entry get one: for receives the endpoint's flags decide, as Open MPI uses them. */
TEST(selective_entries)
{
	struct end a, b;
	struct fi_info *hints = rdm_hints(FI_TAGGED | FI_MSG);
	char text[2][8];
	hints->tx_attr->op_flags = hints->rx_attr->op_flags = FI_COMPLETION;
	end_open_with(&b, hints, FI_AV_MAP, FI_SELECTIVE_COMPLETION);
	hints->tx_attr->op_flags = 0;
	end_open_with(&a, hints, FI_AV_MAP, FI_SELECTIVE_COMPLETION);
	fi_freeinfo(hints);
	CHECK_EQ(end_knows(&a, &b), 0);
	OK(fi_trecv(b.ep, text[0], 8, NULL, FI_ADDR_UNSPEC, 1, 0, text[0]));
	OK(fi_recv(b.ep, text[1], 8, NULL, FI_ADDR_UNSPEC, text[1]));
	OK(fi_tsend(a.ep, "one", 4, NULL, 0, 1, &a));
	CHECK(end_next(&b, &a, NULL)->op_context == text[0]);
	OK(fi_send(a.ep, "two", 4, NULL, 0, &a));
	CHECK(end_next(&b, &a, NULL)->op_context == text[1]);
	CHECK_EQ(fi_cq_read(a.cq, text, 1), -FI_EAGAIN);
	end_close(&a);
	end_close(&b);
}

/* RMA, with counters. */
TEST(writes_and_reads_with_counters)
{
	struct end a, b;
	struct fid_cntr *cntr;
	struct fid_mr *mr;
	struct fi_cntr_attr attr = {.events = FI_CNTR_EVENTS_COMP};
	static char target[4096];
	char text[8] = "", back[8] = "";
	struct fi_cq_tagged_entry *done;
	struct fi_info *hints = rdm_hints(FI_MSG | FI_RMA);
	end_open(&b, FI_MSG | FI_RMA);
	end_open_with(&a, hints, FI_AV_TABLE, 0);
	fi_freeinfo(hints);
	CHECK_EQ(end_knows(&a, &b), 0);
	OK(fi_mr_reg(b.domain, target, sizeof target, FI_REMOTE_READ | FI_REMOTE_WRITE, 0, 0, FI_RMA_EVENT, &mr, NULL));
	OK(fi_cntr_open(b.domain, &attr, &cntr, NULL));
	OK(fi_mr_bind(mr, &cntr->fid, FI_REMOTE_WRITE));
	OK(fi_mr_enable(mr));
	strcpy(text, "hello");
	OK(fi_write(a.ep, text, 6, NULL, 0, (uintptr_t)target, fi_mr_key(mr), &a));
	done = end_next(&a, &b, NULL);
	CHECK(done && done->op_context == &a && done->flags == (FI_RMA | FI_WRITE));
	OK(fi_read(a.ep, back, 6, NULL, 0, (uintptr_t)target, fi_mr_key(mr), &b));
	done = end_next(&a, &b, NULL);
	CHECK(done && done->op_context == &b && strcmp(back, "hello") == 0);
	OK(fi_inject_writedata(a.ep, text, 6, 17, 0, (uintptr_t)target, fi_mr_key(mr)));
	done = end_next(&b, &a, NULL);
	CHECK(done && done->data == 17 && done->flags & FI_REMOTE_WRITE);
	for (uint64_t until = test_now_ms() + 10000; fi_cntr_read(cntr) < 2 && test_now_ms() < until;)
		fi_cq_read(a.cq, NULL, 0);
	CHECK_EQ(fi_cntr_read(cntr), 2);
	CLOSE(mr);
	CLOSE(cntr);
	end_close(&a);
	end_close(&b);
}

/* The requests of Sandia OpenSHMEM: it chooses keys, offsets begin at 0, and it binds counters to regions that are
 * registered, and endpoints that are enabled, already. */
TEST(what_a_shmem_asks_for)
{
	struct end a, b;
	struct fid_cntr *wrote, *read_, *arrived;
	struct fid_mr *mr;
	static uint64_t target[512];
	uint64_t one = 7, back = 0;
	struct fi_info *hints = rdm_hints(FI_RMA | FI_ATOMIC | FI_RMA_EVENT);
	hints->domain_attr->mr_mode = FI_MR_RMA_EVENT;
	hints->domain_attr->mr_key_size = 1;
	hints->tx_attr->op_flags = FI_DELIVERY_COMPLETE;
	end_open_with(&a, hints, FI_AV_TABLE, FI_SELECTIVE_COMPLETION);
	end_open_with(&b, hints, FI_AV_TABLE, FI_SELECTIVE_COMPLETION);
	fi_freeinfo(hints);
	CHECK_EQ(a.info->domain_attr->mr_mode, 0);
	CHECK_EQ(end_knows(&a, &b), 0);
	OK(fi_mr_reg(b.domain, target, sizeof target, FI_REMOTE_READ | FI_REMOTE_WRITE, 0, 1, 0, &mr, NULL));
	OK(fi_cntr_open(b.domain, NULL, &arrived, NULL));
	OK(fi_mr_bind(mr, &arrived->fid, FI_REMOTE_WRITE));
	OK(fi_cntr_open(a.domain, NULL, &wrote, NULL));
	OK(fi_cntr_open(a.domain, NULL, &read_, NULL));
	OK(fi_ep_bind(a.ep, &wrote->fid, FI_WRITE));
	OK(fi_ep_bind(a.ep, &read_->fid, FI_READ));
	CHECK_EQ(fi_ep_bind(a.ep, &read_->fid, FI_READ), -FI_EBUSY);
	for (uint64_t i = 0; i < 10; i++) {
		OK(fi_inject_write(a.ep, &one, 8, 0, 8 * i, 1));
		OK(fi_inject_atomic(a.ep, &one, 1, 0, 8 * i, 1, FI_UINT64, FI_SUM));
		OK(fi_read(a.ep, &back, 8, NULL, 0, 8 * i, 1, NULL));
		for (uint64_t until = test_now_ms() + 10000; (fi_cntr_read(read_) <= i || fi_cntr_read(wrote) < 2 * i + 2) && test_now_ms() < until;)
			fi_cntr_read(arrived);
		CHECK(fi_cntr_read(read_) == i + 1 && fi_cntr_read(wrote) == 2 * i + 2);
		OK(fi_cntr_wait(arrived, 2 * i + 2, test_ms(10000)));
		CHECK_EQ(fi_cntr_read(arrived), 2 * i + 2);
		CHECK_EQ(target[i], 14);
	}
	CLOSE(mr);
	CLOSE(arrived);
	end_close(&b);
	CLOSE(a.ep);
	CLOSE(wrote);
	CLOSE(read_);
	CLOSE(a.av);
	CLOSE(a.cq);
	CLOSE(a.domain);
	CLOSE(a.fabric);
	fi_freeinfo(a.info);
}

/* FI_INJECT as the endpoint's default: the buffer is the caller's again at once, and longer ones are refused. */
TEST(injected_by_default)
{
	struct end a, b;
	struct fi_info *hints = rdm_hints(FI_TAGGED | FI_MSG | FI_RMA);
	struct fid_mr *mr;
	static char target[64], in[3][16], huge[1 << 20];
	char word[16];
	end_open_with(&b, hints, FI_AV_TABLE, 0);
	hints->tx_attr->op_flags = FI_INJECT;
	end_open_with(&a, hints, FI_AV_TABLE, 0);
	fi_freeinfo(hints);
	CHECK_EQ(end_knows(&a, &b), 0);
	OK(fi_mr_reg(b.domain, target, sizeof target, FI_REMOTE_READ | FI_REMOTE_WRITE, 0, 0, 0, &mr, NULL));
	strcpy(word, "tagged");
	OK(fi_tsend(a.ep, word, sizeof word, NULL, 0, 1, &in[0]));
	strcpy(word, "sent");
	OK(fi_send(a.ep, word, sizeof word, NULL, 0, &in[1]));
	strcpy(word, "written");
	OK(fi_write(a.ep, word, sizeof word, NULL, 0, (uintptr_t)target, fi_mr_key(mr), &in[2]));
	memset(word, 'x', sizeof word);
	for (int i = 0; i < 3; i++)
		CHECK(end_next(&a, &b, NULL) != NULL);
	CHECK_EQ(strcmp(target, "written"), 0);
	OK(fi_trecv(b.ep, in[0], sizeof in[0], NULL, FI_ADDR_UNSPEC, 1, 0, in[0]));
	CHECK(end_next(&b, &a, NULL)->op_context == in[0] && strcmp(in[0], "tagged") == 0);
	OK(fi_recv(b.ep, in[1], sizeof in[1], NULL, FI_ADDR_UNSPEC, in[1]));
	CHECK(end_next(&b, &a, NULL)->op_context == in[1] && strcmp(in[1], "sent") == 0);
	/* For a read the flag has no meaning. */
	OK(fi_read(a.ep, in[2], sizeof in[2], NULL, 0, (uintptr_t)target, fi_mr_key(mr), in[2]));
	CHECK(end_next(&a, &b, NULL)->op_context == in[2] && strcmp(in[2], "written") == 0);
	CHECK_EQ(fi_send(a.ep, huge, a.info->tx_attr->inject_size + 1, NULL, 0, NULL), -FI_EMSGSIZE);
	CLOSE(mr);
	end_close(&a);
	end_close(&b);
}
