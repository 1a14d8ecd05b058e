/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* gdrfab: two endpoints of one process, connected by their addresses; one writes to the other */
#include "bench.h"
#include "startup.h"
#include <gdrfab.h>

#define OK(x) do { \
	long r_ = (long)(x); \
	if (r_ < 0) \
		DIE("%s -> %s: %s", #x, gdrfab_strerror((int)r_), gdrfab_last_error()); \
} while (0)
const char startup_name[] = "gdrfab";

void startup_child(const char *prov, double t[STEPS])
{
	static char buf[8192];
	gdrfab_info h = { .struct_size = sizeof h }, *i;
	gdrfab_fabric *f;
	gdrfab_domain *d;
	gdrfab_eq *eq;
	gdrfab_cq *q;
	gdrfab_ep *e[2];
	gdrfab_mr *m;
	gdrfab_mr_info mi = { .struct_size = sizeof mi };
	gdrfab_eq_cm_entry ev;
	gdrfab_cq_entry ce;
	char name[2][GDRFAB_ADDR_MAX], provider[32];
	size_t len[2];
	uint32_t event;
	ssize_t r;

	snprintf(provider, sizeof provider, "%s", prov);
	h.caps = GDRFAB_MSG | GDRFAB_RMA;
	h.mr_mode = GDRFAB_MR_VIRT_ADDR | GDRFAB_MR_PROV_KEY;
	h.threading = GDRFAB_THREAD_DOMAIN;
	h.progress = GDRFAB_PROGRESS_MANUAL;
	h.prov_name = provider;
	OK(gdrfab_getinfo(GDRFAB_VERSION, NULL, NULL, 0, &h, &i));
	t[GETINFO] = now_ns();
	OK(gdrfab_fabric_open(i, NULL, &f));
	OK(gdrfab_domain_open(f, i, NULL, &d));
	t[DOMAIN] = now_ns();
	OK(gdrfab_eq_open(f, NULL, NULL, &eq));
	OK(gdrfab_cq_open(d, NULL, NULL, &q));
	for (int k = 0; k < 2; k++) {
		OK(gdrfab_ep_open(d, i, NULL, &e[k]));
		OK(gdrfab_ep_bind_eq(e[k], eq, 0));
		OK(gdrfab_ep_bind_cq(e[k], q, GDRFAB_SEND | GDRFAB_RECV));
		OK(gdrfab_ep_enable(e[k]));
	}
	t[ENDPOINT] = now_ns();
	for (int k = 0; k < 2; k++) {
		len[k] = sizeof name[k];
		OK(gdrfab_ep_getname(e[k], name[k], &len[k]));
	}
	for (int k = 0; k < 2; k++)
		OK(gdrfab_ep_connect_addr(e[k], name[!k], len[!k]));
	for (int k = 0; k < 2; k++) {
		r = gdrfab_eq_sread(eq, &event, &ev, sizeof ev, 10000, 0);
		OK(r);
		if (event != GDRFAB_CONNECTED)
			DIE("event %u instead of a connection", event);
	}
	t[CONNECT] = now_ns();
	OK(gdrfab_mr_reg(d, buf, sizeof buf, GDRFAB_READ | GDRFAB_WRITE | GDRFAB_REMOTE_READ | GDRFAB_REMOTE_WRITE, 0,
			 0, 0, NULL, &m));
	OK(gdrfab_mr_query(m, &mi));
	OK(gdrfab_write(e[0], buf, 8, gdrfab_mr_desc(m), GDRFAB_ADDR_UNSPEC, mi.base + 4096, mi.key, NULL));
	while ((r = gdrfab_cq_read(q, &ce, 1)) == -EAGAIN)
		;
	if (r != 1)
		DIE("gdrfab_cq_read: %s: %s", gdrfab_strerror((int)r), gdrfab_last_error());
	t[FIRST] = now_ns();
	OK(gdrfab_mr_close(m));
	for (int k = 0; k < 2; k++)
		OK(gdrfab_ep_close(e[k]));
	OK(gdrfab_cq_close(q));
	OK(gdrfab_eq_close(eq));
	OK(gdrfab_domain_close(d));
	OK(gdrfab_fabric_close(f));
	gdrfab_freeinfo(i);
	t[CLOSE] = now_ns();
}
