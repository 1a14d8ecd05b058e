/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Counters: fi_cntr calls on gdrfab's counters. */
#include "provider.h"

#include <stdlib.h>

static int cntr_close(struct fid *fid)
{
	enter(((struct cntr *)fid)->lib);
	struct cntr *c = (struct cntr *)fid;
	int result = told(gdrfab_cntr_close(c->it), FI_LOG_CNTR, "closing a counter");
	if (result == 0)
		free(c);
	return result;
}

static int cntr_control(struct fid *fid, int command, void *arg)
{
	enter(((struct cntr *)fid)->lib);
	int fd = -1, result = gdrfab_cntr_fd(((struct cntr *)fid)->it, &fd);
	return wait_control(command, arg, result < 0 ? result : fd);
}

static uint64_t cntr_read(struct fid_cntr *cntr)
{
	return gdrfab_cntr_read(((struct cntr *)cntr)->it);
}

static uint64_t cntr_readerr(struct fid_cntr *cntr)
{
	return gdrfab_cntr_readerr(((struct cntr *)cntr)->it);
}

static int cntr_add(struct fid_cntr *cntr, uint64_t value)
{
	return gdrfab_cntr_add(((struct cntr *)cntr)->it, value);
}

static int cntr_set(struct fid_cntr *cntr, uint64_t value)
{
	return gdrfab_cntr_set(((struct cntr *)cntr)->it, value);
}

static int cntr_adderr(struct fid_cntr *cntr, uint64_t value)
{
	return gdrfab_cntr_adderr(((struct cntr *)cntr)->it, value);
}

static int cntr_seterr(struct fid_cntr *cntr, uint64_t value)
{
	return gdrfab_cntr_seterr(((struct cntr *)cntr)->it, value);
}

static int cntr_wait(struct fid_cntr *cntr, uint64_t threshold, int timeout)
{
	return gdrfab_cntr_wait(((struct cntr *)cntr)->it, threshold, timeout);
}

static struct fi_ops fid_ops = {
	.size = sizeof fid_ops,
	.close = cntr_close,
	.bind = no_bind,
	.control = cntr_control,
	NO_FID_EXTRAS,
};

static struct fi_ops_cntr ops = {
	.size = sizeof ops,
	.read = cntr_read,
	.readerr = cntr_readerr,
	.add = cntr_add,
	.set = cntr_set,
	.wait = cntr_wait,
	.adderr = cntr_adderr,
	.seterr = cntr_seterr,
};

int cntr_open(struct fid_domain *domain, struct fi_cntr_attr *attr, struct fid_cntr **cntr, void *context)
{
	enter(((struct domain *)domain)->fabric->lib);
	gdrfab_cntr_attr to = {.struct_size = sizeof to};
	struct cntr *c;
	int result;
	if (attr && attr->events != FI_CNTR_EVENTS_COMP)
		return REFUSE(FI_ENOSYS, FI_LOG_CNTR, "fi_cntr_open: attr->events: %d; counters count completions\n",
			      (int)attr->events);
	if (attr && attr->flags)
		return REFUSE(FI_EBADFLAGS, FI_LOG_CNTR, "fi_cntr_open: attr->flags: %#llx\n", (unsigned long long)attr->flags);
	result = attr ? wait_object(attr->wait_obj, &to.wait_obj) : 0;
	if (result < 0)
		return result;
	c = calloc(1, sizeof *c);
	if (!c)
		return -FI_ENOMEM;
	result = told(gdrfab_cntr_open(((struct domain *)domain)->it, &to, NULL, &c->it), FI_LOG_CNTR, "opening a counter");
	if (result < 0) {
		free(c);
		return result;
	}
	c->lib = caller;
	c->cntr.fid.fclass = FI_CLASS_CNTR;
	c->cntr.fid.context = context;
	c->cntr.fid.ops = &fid_ops;
	c->cntr.ops = &ops;
	*cntr = &c->cntr;
	return 0;
}
