/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * The declarations that the provider's files share. libfabric calls through the tables of operations of these
 * objects. Each function converts its arguments and calls gdrfab.h. The data path only casts, because gdrfab's bits,
 * errnos and entries have libfabric's values there.
 *
 *   init.c     entry point, our parameters                     mr.c       memory regions
 *   caller.c   the libfabric that calls, its log               eq.c       event queues
 *   info.c     fi_getinfo: hints against gdrfab's candidates   connreq.c  connection requests
 *   attr.c     candidates' attributes for libfabric            cm.c       connecting, listening
 *   hints.c    hints and infos for gdrfab                      wait.c     wait objects
 *   address.c  socket addresses and gdrfab's text              cq.c       completion queues
 *   nic.c      fi_info->nic                                    cntr.c     counters
 *   fabric.c   fabrics                                         ep.c       endpoints
 *   domain.c   domains                                         data.c     messages and RMA
 *   av.c       address vectors, names                          tagged.c   tagged messages
 *   missing.c  unsupported operations                          atomic.c   atomics
 */
#ifndef GDRFAB_FI_PROVIDER_H
#define GDRFAB_FI_PROVIDER_H

#include <gdrfab.h>

#include <rdma/fabric.h>
#include <rdma/fi_atomic.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_collective.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>
#include <rdma/fi_tagged.h>
#include <rdma/providers/fi_log.h>
#include <rdma/providers/fi_prov.h>

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

/* The version of libfabric's API that this source was written for. Features of newer versions are not used. */
#define PROVIDER_API FI_VERSION(1, 17)

/* ---- caller.c */

/* The kind of an endpoint: connected over one of gdrfab's providers or, KIND_RDM, connectionless over a set of them. */
enum kind { KIND_SHM, KIND_VERBS, KIND_TCP, KINDS, KIND_RDM = KINDS };
extern const char *const kind_names[KINDS + 1];
/* Prefix of a connectionless fabric's name. gdrfab's own name for it is that of the connected fabric if the set has
 * one lane. */
#define RDM_FABRIC "rdm:"
/* True if endpoints of this kind have socket addresses. */
static inline bool kind_has_sockets(enum kind kind)
{
	return kind == KIND_TCP || kind == KIND_RDM;
}
/* The kind that a fabric's name stands for. */
enum kind info_kind(const char *fabric_name);
/* The providers in the name of a set, such as "shm+tcp": a bit for each kind, and bit KINDS if a name is unknown. */
unsigned lanes_of(const char *set);

/* A libfabric that has loaded this file: its functions, and the provider that we registered with it. A process may
 * have several, and their symbols need not be visible to us: MPICH brings its own under another name, and Open MPI
 * loads its own privately. So nothing is linked, and no function of a libfabric is called after it has cleaned the
 * provider up. */
struct libfabric {
	struct fi_provider provider;
	void *base; /* address at which it is loaded */
	int loads;  /* number of times it loaded us without cleaning up; 0: its functions are gone */
	struct fi_info *(*dupinfo)(const struct fi_info *info);
	void (*freeinfo)(struct fi_info *info);
	int (*log_enabled)(const struct fi_provider *prov, enum fi_log_level level, enum fi_log_subsys subsys);
	void (*log)(const struct fi_provider *prov, enum fi_log_level level, enum fi_log_subsys subsys, const char *func,
		    int line, const char *fmt, ...);
	int (*param_define)(const struct fi_provider *prov, const char *name, enum fi_param_type type, const char *help,
			    ...);
	int (*param_get)(struct fi_provider *prov, const char *name, void *value);
	struct offer {
		enum kind order[KINDS];
		int count;
		const char *because; /* the reason, for the log */
	} offer; /* the gdrfab providers that are offered, in this order; decided once */
	pthread_once_t decided;
};
/* The libfabric whose call this thread is in. Each function that libfabric calls through an object, and that may log
 * or make an fi_info, first calls enter() with the object's libfabric. */
extern __thread struct libfabric *caller;
static inline void enter(struct libfabric *lib)
{
	caller = lib;
}

#define LOG_AT(level, subsys, ...)                                                                                     \
	((void)(caller->log_enabled(&caller->provider, level, subsys) &&                                               \
		(caller->log(&caller->provider, level, subsys, __func__, __LINE__, __VA_ARGS__), 0)))
/* As in libfabric, the caller ends each line with \n. */
#define WARN(subsys, ...) LOG_AT(FI_LOG_WARN, subsys, __VA_ARGS__)
#define INFO(subsys, ...) LOG_AT(FI_LOG_INFO, subsys, __VA_ARGS__)
/* Returns `result`, the result of a gdrfab call. If the call failed, logs gdrfab's error text. */
int told(int result, enum fi_log_subsys subsys, const char *doing);
/* Called when a libfabric has cleaned the provider up: none of its functions is called any more. */
void caller_gone(struct libfabric *lib);
/* Logs the reason and gives the negative errno for a bad argument. */
#define REFUSE(err, subsys, ...) (INFO(subsys, __VA_ARGS__), -(err))

const struct offer *offered(void);

/* ---- address.c */

/*
 * Addresses. libfabric's layers above this provider use socket addresses, gdrfab uses text: "tcp://host:port",
 * "verbs://host:port", "shm://name" and, for connectionless endpoints, "rdm://host:port". The shm name "fi-<port>"
 * becomes a sockaddr_in6. Its address part stands for this host since it was booted, so that an address of another
 * host is recognised, as it would be on a network.
 */

/* Bytes that hold any address. */
#define ADDRESS_MAX 256
/* The default format of connectionless endpoints' addresses: a gdrfab name or a socket address, filled up with 0 to
 * GDRFAB_NAME_LEN bytes. */
#define ADDR_NAME (FI_PROV_SPECIFIC | 0x6764u)

/* Converts gdrfab's text to the format in addr_format, in memory from malloc(). NULL: the address has no such form,
 * or there is no memory. A shm name that is not "fi-<port>" has port 0. */
void *address_export(const char *text, uint32_t addr_format, size_t *len);
/* Converts an address to gdrfab's text, of at most ADDRESS_MAX bytes. Returns -FI_EINVAL, with a line in the log, if
 * the address is not one of `kind`, or is another host's shm address. len 0: the family determines the length.
 * FI_FORMAT_UNSPEC: the first bytes determine the format. shm's port 0 becomes "shm://fi-0", a name that no endpoint
 * has. */
int address_import(enum kind kind, const void *addr, size_t len, uint32_t addr_format, char *text);
/* The format of an address: FI_ADDR_STR, or that of its family. */
uint32_t address_format(const void *addr, uint32_t addr_format);
/* The family of a format: AF_INET, AF_INET6, or AF_UNSPEC. */
int address_family(uint32_t addr_format);
/* Tells an IPv6 address that stands for a host of shm: this one or another. */
enum shm_place { SHM_NOT, SHM_HERE, SHM_ELSEWHERE };
struct in6_addr;
enum shm_place address_shm_place(const struct in6_addr *at);

/* ---- info.c, hints.c, attr.c, nic.c */

int info_get(uint32_t version, const char *node, const char *service, uint64_t flags, const struct fi_info *hints,
	     struct fi_info **info);

/* A gdrfab info for opening an object: a copy of a base with the threading, progress, mr_mode, sizes, flags and
 * addresses of a caller's info. The address strings are in `src` and `dest`, so the info is valid as long as this
 * struct. */
struct opening {
	gdrfab_info *info;
	char src[ADDRESS_MAX], dest[ADDRESS_MAX];
};
int opening_make(struct opening *opening, const gdrfab_info *base, const struct fi_info *info);
void opening_free(struct opening *opening);

/* The protocol number in ep_attr, one for each kind: peers that connect must have the same. */
#define PROTOCOL(kind) (FI_PROV_SPECIFIC | 0x67646600u | (uint32_t)(kind))
#define PROTOCOL_VERSION 1

/* Makes the gdrfab hints from a caller's hints (NULL: none). The strings stay the caller's. */
void hints_make(enum kind kind, uint32_t version, const struct fi_info *hints, gdrfab_info *want);
/* Makes an fi_info, without addresses, from a gdrfab candidate. Returns -FI_ENODATA, with a line in the log, if the
 * candidate does not fit the hints. */
int attr_make(enum kind kind, uint32_t version, const gdrfab_info *from, const struct fi_info *hints,
	      struct fi_info **made);

/* Makes fi_info->nic. NULL: the candidate has no device. */
struct fid_nic *nic_of(const gdrfab_info *info);
/* The two steps of nic_of(): nic_read() asks gdrfab (false: no device), nic_make() converts the answer. */
bool nic_read(const gdrfab_info *info, gdrfab_nic_attr *attr);
struct fid_nic *nic_make(const gdrfab_nic_attr *attr);

/* ---- objects: each begins with the structure that libfabric sees */

struct fabric {
	struct fid_fabric fabric;
	struct libfabric *lib;
	enum kind kind;
	gdrfab_info *info; /* any candidate of this fabric */
	gdrfab_fabric *it;
	pthread_mutex_t lock;
	struct connreq *requests; /* connection requests for which no endpoint has been opened yet */
	struct pep *peps;
};

/* Sizes for the tables of atomics: fi_atomic, fi_fetch_atomic, fi_compare_atomic; datatypes FI_INT8 to FI_DOUBLE. */
enum { ATOMIC_FORMS = 3, ATOMIC_TYPES = 10 };

struct domain {
	struct fid_domain domain;
	struct fabric *fabric;
	uint32_t addr_format; /* of the addresses in address vectors */
	bool hmem; /* FI_HMEM was requested: the memory interface that a registration names counts */
	gdrfab_info *info;
	gdrfab_domain *it;
	/* Atomics that the domain's endpoints support, by call and datatype: a bit for each operation, and the most
	 * elements. Protected by the fabric's lock. */
	struct {
		bool known;
		uint32_t ops[ATOMIC_FORMS][ATOMIC_TYPES];
		size_t count[ATOMIC_TYPES];
	} atomics;
};

struct mr {
	struct fid_mr mr;
	struct libfabric *lib;
	gdrfab_mr *it;
};

/* Bytes of an event that the application writes, at most. */
enum { WRITTEN_MAX = 4096 };

struct eq {
	struct fid_eq eq;
	struct libfabric *lib;
	bool old; /* the API version is below 1.5; see struct cq */
	gdrfab_eq *it;
	pthread_mutex_t lock; /* protects the fields below; no thread sleeps while holding it */
	bool holds;	      /* `held` has the next event */
	bool held_is_connection;
	uint32_t held_event;
	size_t held_len, held_least; /* bytes in `held`, and how many of them must be read together */
	unsigned char held[WRITTEN_MAX];
	bool failed;	      /* an error entry was taken from gdrfab's queue and has not been read yet */
	gdrfab_eq_err_entry error;
	unsigned char error_data[GDRFAB_CM_DATA_MAX]; /* private data of a peer that rejected */
	char words[512];			      /* text of the last error */
	unsigned char given[GDRFAB_CM_DATA_MAX];      /* the err_data that the reader was given */
	struct ep *ended;			      /* endpoints that this side shut down; events not read yet */
};

struct cq {
	struct fid_cq cq;
	struct libfabric *lib;
	bool rdm;
	bool old; /* the API version is below 1.5: error entries end before err_data_size */
	gdrfab_cq *it;
	pthread_mutex_t lock;	 /* protects the list */
	struct unreadable *lost; /* sends that failed in this provider and have not been read yet */
	char words[512];
};

struct cntr {
	struct fid_cntr cntr;
	struct libfabric *lib;
	gdrfab_cntr *it;
};

struct av {
	struct fid_av av;
	struct domain *domain;
	gdrfab_av *it;
};

struct ep {
	struct fid_ep ep;
	gdrfab_ep *it;
	uint64_t caps;
	struct av *av;
	struct domain *domain;
	struct eq *eq;
	struct cq *tx_cq;
	struct ep *next_ended;
	char src[ADDRESS_MAX], dest[ADDRESS_MAX]; /* addresses of the info that opened it */
	uint32_t addr_format;
	uint64_t tx_op_flags, rx_op_flags;
	size_t pieces; /* remote pieces beyond which an operation is posted as a list; SIZE_MAX: never */
};

struct pep {
	struct fid_pep pep;
	gdrfab_pep *it; /* NULL: an endpoint has taken its address over */
	struct pep *next;
	struct fabric *fabric;
	struct fi_info *info; /* connection requests get a copy */
	struct opening opening;
	struct eq *eq;
	bool picks; /* shm: no port was requested, so one is picked */
	bool listens;
};

/* A connection request. fi_info->handle points to it. */
struct connreq {
	struct fid fid;
	gdrfab_info *info;
	struct fabric *fabric;
	const struct pep *pep; /* the passive endpoint that received it; only compared */
	struct connreq *next;
};

int fabric_open(struct fi_fabric_attr *attr, struct fid_fabric **fabric, void *context);
int domain_open(struct fid_fabric *fabric, struct fi_info *info, struct fid_domain **domain, void *context);
int eq_open(struct fid_fabric *fabric, struct fi_eq_attr *attr, struct fid_eq **eq, void *context);
int pep_open(struct fid_fabric *fabric, struct fi_info *info, struct fid_pep **pep, void *context);
int cq_open(struct fid_domain *domain, struct fi_cq_attr *attr, struct fid_cq **cq, void *context);
int cntr_open(struct fid_domain *domain, struct fi_cntr_attr *attr, struct fid_cntr **cntr, void *context);
int ep_open(struct fid_domain *domain, struct fi_info *info, struct fid_ep **ep, void *context);
int av_open(struct fid_domain *domain, struct fi_av_attr *attr, struct fid_av **av, void *context);
extern struct fi_ops_mr mr_ops;
extern struct fi_ops_msg msg_ops;
extern struct fi_ops_rma rma_ops;
extern struct fi_ops_tagged tagged_ops;
extern struct fi_ops_atomic atomic_ops;
int atomic_query(struct fid_domain *domain, enum fi_datatype datatype, enum fi_op op, struct fi_atomic_attr *attr, uint64_t flags);
extern struct fi_ops_cm ep_cm_ops, rdm_cm_ops;

/* Logs the reason why a data call was refused, and returns its result. */
ssize_t data_refused(struct fid_ep *ep, ssize_t result, const char *call);
static inline ssize_t data_said(struct fid_ep *ep, ssize_t result, const char *call)
{
	return __builtin_expect(result < 0, 0) ? data_refused(ep, result, call) : result;
}

/* Copies an address to the caller as libfabric wants it: cut off, with -FI_ETOOSMALL, if there is no room. */
int address_give(const void *made, size_t len, void *addr, size_t *addrlen);

/* Adds an error entry for a send whose memory cannot be read. False: no memory for the entry. */
bool cq_add_unreadable(struct cq *q, void *context, uint64_t flags, size_t len, const char *words);
/* True if such an entry is the next one to read. */
static inline bool cq_has_unreadable(const struct cq *q)
{
	return __builtin_expect(__atomic_load_n(&q->lost, __ATOMIC_RELAXED) != NULL, 0);
}

/* Adds the event that this side has shut down the connection of `ep`. */
void eq_tell_end(struct eq *eq, struct ep *ep);
/* Removes the events of an endpoint that is being closed. */
void eq_forget(struct eq *eq, const struct fid *fid);

/* Takes a connection request from the list in order to answer it, and returns its info. NULL: the handle is no
 * request of the list, or none of `pep` (unless `pep` is NULL). */
gdrfab_info *connreq_take(struct fabric *fabric, const struct pep *pep, fid_t handle);
/* pep_is(): whether `handle` is a passive endpoint. pep_give_address(): makes it give up its address and copies that
 * to `src`; -FI_EINVAL if it cannot. */
bool pep_is(struct fabric *fabric, fid_t handle);
int pep_give_address(fid_t handle, char *src);
/* Gives the address back to the passive endpoint, because the endpoint that was to use it was not opened. */
void pep_take_back(fid_t handle);
/* Makes a request. Owns `info`, even on failure (NULL). */
struct connreq *connreq_make(struct pep *pep, gdrfab_info *info);
/* A copy of the passive endpoint's info with the request as handle, and with the peer's address. */
struct fi_info *connreq_info(struct pep *pep, struct connreq *request);

/* Converts a wait object. -FI_ENOSYS: gdrfab has no such one. */
int wait_object(enum fi_wait_obj wanted, uint32_t *wait_obj);
/* Handles FI_GETWAIT and FI_GETWAITOBJ of a queue whose descriptor is `fd` (or a negative errno). */
int wait_control(int command, void *arg, int fd);

/* ---- missing.c */

int no_bind(struct fid *fid, struct fid *other, uint64_t flags);
int no_control(struct fid *fid, int command, void *arg);
int no_ops_open(struct fid *fid, const char *name, uint64_t flags, void **ops, void *context);
int no_tostr(const struct fid *fid, char *buf, size_t len);
int no_ops_set(struct fid *fid, const char *name, uint64_t flags, void *ops, void *context);
#define NO_FID_EXTRAS .ops_open = no_ops_open, .tostr = no_tostr, .ops_set = no_ops_set
extern struct fi_ops_tagged no_tagged;
extern struct fi_ops_collective no_collective;
int no_av_open(struct fid_domain *domain, struct fi_av_attr *attr, struct fid_av **av, void *context);
int no_scalable_ep(struct fid_domain *domain, struct fi_info *info, struct fid_ep **sep, void *context);
int no_poll_open(struct fid_domain *domain, struct fi_poll_attr *attr, struct fid_poll **pollset);
int no_stx_ctx(struct fid_domain *domain, struct fi_tx_attr *attr, struct fid_stx **stx, void *context);
int no_srx_ctx(struct fid_domain *domain, struct fi_rx_attr *attr, struct fid_ep **rx_ep, void *context);
int no_query_collective(struct fid_domain *domain, enum fi_collective_op coll, struct fi_collective_attr *attr,
			uint64_t flags);
int no_tx_ctx(struct fid_ep *sep, int index, struct fi_tx_attr *attr, struct fid_ep **tx_ep, void *context);
int no_rx_ctx(struct fid_ep *sep, int index, struct fi_rx_attr *attr, struct fid_ep **rx_ep, void *context);
ssize_t no_size_left(struct fid_ep *ep);
int no_setname(fid_t fid, void *addr, size_t addrlen);
int no_listen(struct fid_pep *pep);
int no_reject(struct fid_pep *pep, fid_t handle, const void *param, size_t paramlen);
int no_getpeer(struct fid_ep *ep, void *addr, size_t *addrlen);
int no_connect(struct fid_ep *ep, const void *addr, const void *param, size_t paramlen);
int no_accept(struct fid_ep *ep, const void *param, size_t paramlen);
int no_shutdown(struct fid_ep *ep, uint64_t flags);
int no_join(struct fid_ep *ep, const void *addr, uint64_t flags, struct fid_mc **mc, void *context);
ssize_t no_cancel(fid_t fid, void *context);
int no_wait_open(struct fid_fabric *fabric, struct fi_wait_attr *attr, struct fid_wait **waitset);

#endif
