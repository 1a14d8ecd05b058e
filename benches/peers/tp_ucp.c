/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* UCX (UCP): put, get, tag-matched messages; UCX_TLS in the environment selects the transports.
 * arg: [heap] expose plain heap memory (CMA) instead of memory that UCX allocates (direct store) */
#include "bench.h"
#include "transport.h"
#include <sys/socket.h>
#include <ucp/api/ucp.h>

#define OK(x) do { \
	ucs_status_t s_ = (x); \
	if (s_ != UCS_OK) \
		DIE("%s:%d %s -> %s", __FILE__, __LINE__, #x, ucs_status_string(s_)); \
} while (0)
#define TAG 1

struct up {
	struct tp tp;
	ucp_context_h ctx;
	ucp_worker_h wk;
	ucp_ep_h ep;
	ucp_mem_h mh, ms;
	ucp_rkey_h rkey;
	uint64_t rbase;
	int done;
};

static const char *u_version(void)
{
	return ucp_get_version_string();
}

static void xfer(int fd, const void *m, size_t ml, void **y)
{
	uint32_t mine = (uint32_t)ml, n;

	if (send(fd, &mine, 4, 0) != 4 || send(fd, m, ml, 0) != (ssize_t)ml)
		DIE("oob");
	if (recv(fd, &n, 4, MSG_WAITALL) != 4)
		DIE("oob");
	*y = malloc(n);
	if (recv(fd, *y, n, MSG_WAITALL) != (ssize_t)n)
		DIE("oob");
}

static void sent(void *req, ucs_status_t s, void *u)
{
	struct up *p = u;

	if (s != UCS_OK)
		DIE("ucp operation: %s", ucs_status_string(s));
	p->done++;
	ucp_request_free(req);
}

static void received(void *req, ucs_status_t s, const ucp_tag_recv_info_t *info, void *u)
{
	struct up *p = u;

	(void)info;
	if (s != UCS_OK)
		DIE("ucp receive: %s", ucs_status_string(s));
	p->tp.received++;
	ucp_request_free(req);
}

static void *map(struct up *p, size_t n, int heap, ucp_mem_h *h)
{
	ucp_mem_map_params_t m = { .field_mask = UCP_MEM_MAP_PARAM_FIELD_LENGTH | UCP_MEM_MAP_PARAM_FIELD_FLAGS };
	ucp_mem_attr_t a = { .field_mask = UCP_MEM_ATTR_FIELD_ADDRESS };

	m.length = n;
	if (heap) {
		m.field_mask |= UCP_MEM_MAP_PARAM_FIELD_ADDRESS;
		m.address = mem_anon(n, 1);
	} else {
		m.flags = UCP_MEM_MAP_ALLOCATE;
	}
	OK(ucp_mem_map(p->ctx, &m, h));
	OK(ucp_mem_query(*h, &a));
	return a.address;
}

static int u_progress(struct tp *t)
{
	struct up *p = (void *)t;
	int d;

	ucp_worker_progress(p->wk);
	d = p->done;
	p->done = 0;
	return d;
}

static struct tp *u_open(const struct tp_open *o)
{
	struct up *p = calloc(1, sizeof *p);
	ucp_params_t pr = { .field_mask = UCP_PARAM_FIELD_FEATURES };
	ucp_worker_params_t wp = { .field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE };
	ucp_ep_params_t epp = { .field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS };
	ucp_config_t *cf;
	ucp_address_t *ad;
	size_t al, rl;
	void *addr, *key, *base, *rb;
	uint64_t mine;
	char a = 0, b;

	pr.features = o->msg ? UCP_FEATURE_TAG : UCP_FEATURE_RMA | (o->atomic ? UCP_FEATURE_AMO64 : 0);
	wp.thread_mode = UCS_THREAD_MODE_SINGLE;
	OK(ucp_config_read(NULL, NULL, &cf));
	OK(ucp_init(&pr, cf, &p->ctx));
	ucp_config_release(cf);
	OK(ucp_worker_create(p->ctx, &wp, &p->wk));
	p->tp.exposed = map(p, o->bytes, has_opt(o->arg, "heap"), &p->mh);
	p->tp.source = map(p, o->bytes, 1, &p->ms);
	memset(p->tp.exposed, 0, o->bytes);
	OK(ucp_worker_get_address(p->wk, &ad, &al));
	xfer(o->oob, ad, al, &addr);
	OK(ucp_rkey_pack(p->ctx, p->mh, &rb, &rl));
	xfer(o->oob, rb, rl, &key);
	mine = (uint64_t)p->tp.exposed;
	xfer(o->oob, &mine, sizeof mine, &base);
	memcpy(&p->rbase, base, sizeof p->rbase);
	epp.address = addr;
	OK(ucp_ep_create(p->wk, &epp, &p->ep));
	OK(ucp_ep_rkey_unpack(p->ep, key, &p->rkey));
	if (!o->side && getenv("TP_VERBOSE"))
		ucp_ep_print_info(p->ep, stderr);
	if (send(o->oob, &a, 1, 0) != 1)
		DIE("oob");
	while (recv(o->oob, &b, 1, MSG_DONTWAIT) != 1)
		u_progress(&p->tp);
	return &p->tp;
}

static int post(struct up *p, ucs_status_ptr_t s)
{
	if (UCS_PTR_IS_ERR(s))
		DIE("ucp: %s", ucs_status_string(UCS_PTR_STATUS(s)));
	if (!s)		/* done at once, no callback */
		p->done++;
	return 1;
}

static ucp_request_param_t prm(struct up *p)
{
	return (ucp_request_param_t){
		.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_MEMH,
		.cb.send = sent, .user_data = p, .memh = p->ms };
}

static int u_put(struct tp *t, size_t l, size_t r, size_t n)
{
	struct up *p = (void *)t;
	ucp_request_param_t q = prm(p);

	return post(p, ucp_put_nbx(p->ep, t->source + l, n, p->rbase + r, p->rkey, &q));
}

static int u_get(struct tp *t, size_t l, size_t r, size_t n)
{
	struct up *p = (void *)t;
	ucp_request_param_t q = prm(p);

	return post(p, ucp_get_nbx(p->ep, t->source + l, n, p->rbase + r, p->rkey, &q));
}

static int u_fadd(struct tp *t, size_t l, size_t r)
{
	static const uint64_t one = 1;
	struct up *p = (void *)t;
	ucp_request_param_t q = { .op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA |
		UCP_OP_ATTR_FIELD_DATATYPE | UCP_OP_ATTR_FIELD_REPLY_BUFFER, .cb.send = sent, .user_data = p,
		.datatype = ucp_dt_make_contig(8), .reply_buffer = t->source + l };

	return post(p, ucp_atomic_op_nbx(p->ep, UCP_ATOMIC_OP_ADD, &one, 1, p->rbase + r, p->rkey, &q));
}

static int u_send(struct tp *t, size_t off, size_t n)
{
	struct up *p = (void *)t;
	ucp_request_param_t q = prm(p);

	return post(p, ucp_tag_send_nbx(p->ep, t->source + off, n, TAG, &q));
}

static int u_recv(struct tp *t, size_t off, size_t n)
{
	struct up *p = (void *)t;
	ucp_request_param_t q = prm(p);
	ucs_status_ptr_t s;

	q.cb.recv = received;
	s = ucp_tag_recv_nbx(p->wk, t->source + off, n, TAG, (ucp_tag_t)-1, &q);
	if (UCS_PTR_IS_ERR(s))
		DIE("ucp: %s", ucs_status_string(UCS_PTR_STATUS(s)));
	if (!s)
		t->received++;
	return 1;
}

static void u_flush(struct tp *t)
{
	struct up *p = (void *)t;
	ucp_request_param_t q = { 0 };
	ucs_status_ptr_t s = ucp_ep_flush_nbx(p->ep, &q);

	if (!s)
		return;
	if (UCS_PTR_IS_ERR(s))
		DIE("ucp flush: %s", ucs_status_string(UCS_PTR_STATUS(s)));
	while (ucp_request_check_status(s) == UCS_INPROGRESS)
		ucp_worker_progress(p->wk);
	ucp_request_free(s);
}

static void u_close(struct tp *t)
{
	(void)t;	/* the process ends next */
}

const struct tp_ops tp_ucp = {
	"ucp", "UCX: [heap]; UCX_TLS selects transports", u_version, NULL, u_open, u_put, u_get, u_send, u_recv,
	NULL, u_fadd, u_progress, NULL, u_flush, u_close
};
