/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Waits for completions and events. A wait that takes too long fails the claim with a message. CQs must have format DATA. */
#ifndef FAB_WAIT_H
#define FAB_WAIT_H

#include "fab_data.h"

#ifdef __cplusplus
extern "C" {
#endif

/* 1: an entry; -1: an error entry is next; 0: nothing within ms. */
int cq_next(gdrfab_cq *cq, done *entry, int ms);
void cq_failure(const char *file, int line, gdrfab_cq *cq, struct failure *f);
void expect_done(const char *file, int line, gdrfab_cq *cq, const void *context, uint64_t flags, done *entry);
void expect_failed(const char *file, int line, gdrfab_cq *cq, const void *context, int err, int prov,
		   struct failure *f);
/* Drives progress for ms; an entry fails the claim. */
void expect_quiet(const char *file, int line, gdrfab_cq *cq, int ms);

/* The next entry must be the success of this operation, with all these flags. entry may be NULL. */
#define DONE(cq, context, flags, entry) expect_done(__FILE__, __LINE__, cq, context, flags, entry)
/* The next entry must be the failure of this operation, with this errno and provider code. f may be NULL. */
#define FAILED(cq, context, err, prov, f) expect_failed(__FILE__, __LINE__, cq, context, err, prov, f)
/* Takes the entries of `lists` lists that ended early: each is a success, or a failure with this errno that names one of the
 * list's blocks. Returns the number of failures. */
int expect_given_up(const char *file, int line, gdrfab_cq *cq, int lists, int err, size_t blocks);
#define GIVEN_UP(cq, lists, err, blocks) expect_given_up(__FILE__, __LINE__, cq, lists, err, blocks)
#define QUIET(cq, ms) expect_quiet(__FILE__, __LINE__, cq, ms)

/* Posts; while the queue is full (-EAGAIN) it drives progress and tries again. */
#define POST(cq, call)                                                                                                 \
	do {                                                                                                           \
		test_at(__FILE__, __LINE__);                                                                           \
		uint64_t until_ = test_now_ms() + (uint64_t)test_ms(10000);                                            \
		ssize_t posted_;                                                                                       \
		while ((posted_ = (call)) == -EAGAIN && test_now_ms() < until_)                                        \
			gdrfab_cq_read(cq, NULL, 0);                                                                   \
		if (posted_ != 0)                                                                                      \
			test_fail(__FILE__, __LINE__, "%s is %s%s", #call, test_number(posted_),                       \
				  test_words(posted_));                                                                \
	} while (0)

/* For a peer's write with data, which consumes a posted receive with some providers (GDRFAB_RX_CQ_DATA): data_room() posts a
 * receive if it is needed, before the peer writes; DATA_CAME takes the entry. */
bool data_takes_receive(const struct node *n);
void data_room(struct node *n);
void expect_data(const char *file, int line, struct node *n, done *entry);
#define DATA_CAME(n, entry) expect_data(__FILE__, __LINE__, n, entry)
/* The value, cut to the size of remote CQ data. */
uint64_t cq_data(const struct node *n, uint64_t value);

/* 1: an event; -1: an error, with its text; 0: nothing. */
int eq_next(gdrfab_eq *eq, uint32_t *event, struct event *e, struct eq_failure *f);

/* Counts the reports about rails in the event queue: a loss is an error whose text must contain `words`, a return is an
 * event. */
struct rail_news {
	int lost, back;
};
void rails_told(struct node *n, struct rail_news *news, const char *words);
/* Called by both sides: each sends this text, of 63 bytes at most, and receives the other's. */
void text_both_ways(struct node *n, const char *text);
/* TEST_RAIL_ROUNDS, or `usual` if it is not set. */
int rail_rounds(int usual);
void expect_event(const char *file, int line, gdrfab_eq *eq, uint32_t event, const void *object, struct event *out);
void expect_eq_failure(const char *file, int line, gdrfab_eq *eq, const void *object, int err, int ms,
		       struct eq_failure *out);
#define EVENT(eq, event, object, out) expect_event(__FILE__, __LINE__, eq, event, object, out)
#define EQ_FAILED(eq, object, err, ms, out) expect_eq_failure(__FILE__, __LINE__, eq, object, err, ms, out)

#ifdef __cplusplus
}
#endif
#endif
