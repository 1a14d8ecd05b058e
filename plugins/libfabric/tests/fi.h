/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Declarations for the programs that drive a provider through libfabric. Two real processes each open the provider
 * and connect; waits for completions and events end with a message instead of hanging. None of these programs uses
 * gdrfab's own API, so that their claims hold for every client of libfabric.
 */
#ifndef FI_H
#define FI_H

#include "claim.h"
#include "pattern.h"

#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>
#include <sys/uio.h>

#define RMA_CAPS (FI_RMA | FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE)
#define ANY_ACCESS (FI_SEND | FI_RECV | FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE)
#define KNOWN_MR_MODES (FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY | FI_MR_RMA_EVENT)
#define ADDR_MAX 256
#define DATA_MAX 1024

/* The set-up of the two sides; a zero field means the default. */
struct setup {
	uint32_t version; /* 0: the header's */
	uint64_t caps;    /* 0: FI_MSG | FI_RMA */
	int mr_mode;      /* offered; 0: all that these programs know */
	bool no_mr_mode;  /* offer none */
	enum fi_threading threading;
	enum fi_progress progress;
	enum fi_cq_format format; /* 0: DATA */
	size_t cq_size;           /* 0: 1024 */
	size_t tx_size, rx_size;  /* 0: the provider's */
	enum fi_wait_obj cq_wait; /* 0: none */
	enum fi_wait_obj eq_wait; /* 0: UNSPEC */
	uint64_t cq_flags;        /* beside TRANSMIT|RECV when the CQ is bound */
	size_t rma_iov_limit;	  /* 0: the provider's */
	uint64_t tx_op_flags, rx_op_flags; /* FI_COMPLETION unless the CQ is selective */
	enum test_side victim;             /* this side is expected to be killed by SIGKILL */
};

struct node {
	enum test_side side;
	const struct setup *setup;
	const void *arg;
	int oob; /* a socket to the other side, without the library */
	pid_t peer;
	struct fi_info *info;
	struct fid_fabric *fabric;
	struct fid_eq *eq;
	struct fid_pep *pep;
	struct fid_domain *domain;
	struct fid_cq *cq;
	struct fid_ep *ep;
	uint32_t format; /* format of the server's address */
	size_t addrlen;
	unsigned char addr[ADDR_MAX];
	struct local *locals; /* regions made by local_desc() */
	uint64_t next_key;
	char data_room[64]; /* the buffer of receives posted for remote data */
};

typedef void (*side_fn)(struct node *n);

/* Forks both sides and gives each a node with nothing open. Returns when both have ended without a failure. */
void pair(const struct setup *setup, side_fn server, side_fn client, const void *arg);

/* --- the provider under test --- */

/* TEST_FI_PROVIDER, or gdrfab. */
const char *fi_provider(void);
bool is_gdrfab(void);
/* True if TEST_PROVIDER, the gdrfab provider under test, is `name`. */
bool is_carried_by(const char *name);
/* The host that both sides use (TEST_NODE), or NULL. */
const char *node_name(void);
void skip_unless(bool possible, const char *why);
/* True if the connection still works after an operation has failed at the peer, and the error entry is complete.
 * Otherwise the connection is over. */
bool survives_failures(void);
struct fi_info *hints_new(const struct setup *setup);
/* fi_getinfo for the provider under test alone. */
int provider_getinfo(const char *node, const char *service, uint64_t flags, struct fi_info *hints,
		     struct fi_info **info);

/* --- the two processes --- */

/* A single process: everything but an endpoint is opened, and it may listen. */
void node_alone(struct node *n, const struct setup *setup);
void node_open(struct node *n); /* info, fabric, EQ, domain, CQ; the server listens and tells the client where */
void node_up(struct node *n);   /* node_open(), and a connected endpoint */
struct fid_cq *cq_new(struct node *n, enum fi_cq_format format, size_t size, enum fi_wait_obj wait);
struct fid_ep *ep_bare(struct node *n, struct fi_info *info, void *context);
struct fid_ep *ep_new(struct node *n, struct fi_info *info, void *context); /* bound to n->cq and n->eq, enabled */
struct fid_pep *pep_new(struct node *n, struct fi_info *info, void *context); /* bound to n->eq, listening */
void node_listen(struct node *n);
/* One more connection; both sides call it. */
struct fid_ep *node_connect(struct node *n, void *context);
struct fi_info *await_request(struct node *n, const struct fid_pep *pep); /* the caller frees it */
void node_down(struct node *n);  /* meets the other side and closes everything */
void node_close(struct node *n); /* the same without the other side */
#define CLOSE(object) OK(fi_close(&(object)->fid))

/* Messages between the two sides beside the library. While a call waits it drives n->cq and n->eq, so that manual
 * progress does not stop. */
void oob_send(struct node *n, const void *data, size_t len);
void oob_recv(struct node *n, void *data, size_t len);
void barrier(struct node *n);
void drive(struct node *n);
void await_gone(struct node *n);

/* --- completions; the CQ must have format DATA --- */
typedef struct fi_cq_data_entry done;

/* 1: an entry; -1: an error entry is next; 0: nothing came within ms. */
int cq_next(struct fid_cq *cq, done *entry, int ms);
struct failure {
	struct fi_cq_err_entry entry;
	char words[256];
};
void cq_failure(const char *file, int line, struct fid_cq *cq, struct failure *f);
void expect_done(const char *file, int line, struct fid_cq *cq, const void *context, uint64_t flags, done *entry);
void expect_failed(const char *file, int line, struct fid_cq *cq, const void *context, int err, struct failure *f);
void expect_quiet(const char *file, int line, struct fid_cq *cq, int ms);
/* The next entry is this operation's success, with exactly these flags. entry may be NULL. */
#define DONE(cq, context, flags, entry) expect_done(__FILE__, __LINE__, cq, context, flags, entry)
/* The next entry is this operation's failure with this errno (0: any). f may be NULL. */
#define FAILED(cq, context, err, f) expect_failed(__FILE__, __LINE__, cq, context, err, f)
#define QUIET(cq, ms) expect_quiet(__FILE__, __LINE__, cq, ms)

/* Posts an operation. While the queue is full it reads the completion queue, which must bring no entries, and tries
 * again. */
#define POST(cq, call)                                                                                                 \
	do {                                                                                                           \
		test_at(__FILE__, __LINE__);                                                                           \
		uint64_t until_ = test_now_ms() + (uint64_t)test_ms(10000);                                            \
		ssize_t posted_;                                                                                       \
		while ((posted_ = (call)) == -FI_EAGAIN && test_now_ms() < until_)                                     \
			fi_cq_read(cq, NULL, 0);                                                                       \
		if (posted_ != 0)                                                                                      \
			test_fail(__FILE__, __LINE__, "%s is %s", #call, test_number(posted_));                        \
	} while (0)

/* --- events of n->eq; the wait drives n->cq too --- */
struct event {
	struct fi_info *info;
	size_t data_len;
	unsigned char data[DATA_MAX];
};
void expect_event(const char *file, int line, struct node *n, uint32_t event, const void *fid, struct event *out);
struct eq_failure {
	struct fi_eq_err_entry entry;
	unsigned char data[DATA_MAX];
	char words[256];
};
void expect_eq_failure(const char *file, int line, struct node *n, const void *fid, int err, int ms,
		       struct eq_failure *out);
void expect_no_event(const char *file, int line, struct node *n, int ms);
#define EVENT(n, event, object, out) expect_event(__FILE__, __LINE__, n, event, &(object)->fid, out)
#define EQ_FAILED(n, object, err, ms, out) expect_eq_failure(__FILE__, __LINE__, n, &(object)->fid, err, ms, out)
#define EQ_QUIET(n, ms) expect_no_event(__FILE__, __LINE__, n, ms)

/* --- memory --- */

/* The descriptor that operations need for a local buffer: NULL unless FI_MR_LOCAL. The region lasts as long as the
 * node, or until local_forget(), which must be called before the pages are freed. */
void *local_desc(struct node *n, const void *at, size_t len);
void **local_descs(struct node *n, const struct iovec *iov, size_t count, void **desc);
void local_forget(struct node *n, const void *at, size_t len);
void local_forget_all(struct node *n);
/* Page-aligned, so that no registration shares a page with another. */
void *pages(size_t len);
/* Registers memory for all access, with a new key if the caller chooses keys. */
struct fid_mr *mr_new(struct node *n, const void *at, size_t len, uint64_t access);

/* The part of a region that the other side needs. */
struct remote {
	uint64_t key, base, len;
};
void mr_publish(struct node *n, struct fid_mr *mr, const void *at, size_t len);
struct remote mr_fetch(struct node *n);

/* True if a peer's write with data takes a posted receive. If so, data_room() must have posted one before the peer
 * writes. */
bool data_takes_receive(const struct node *n);
void data_room(struct node *n);
/* The next entry must be that of a peer's write with data. */
void expect_data(const char *file, int line, struct node *n, done *entry);
#define DATA_CAME(n, entry) expect_data(__FILE__, __LINE__, n, entry)
uint64_t cq_data(const struct node *n, uint64_t value);

#endif
