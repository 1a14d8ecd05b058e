/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Lets programs that are also built against the header of an older gdrfab (quick.py --base) make the calls of this one. Include
 * it after gdrfab.h. */
#ifndef OLDER_H
#define OLDER_H

#ifndef GDRFAB_PATHS_MAX /* before 0.2 */
#define gdrfab_mem_alloc(domain, iface, device, len, flags, addr) gdrfab_mem_alloc(domain, len, flags, addr)
#define gdrfab_cq_sread(cq, buf, count, timeout_ms) gdrfab_cq_sread(cq, buf, count, NULL, timeout_ms)
#define gdrfab_ep_query(ep, peer, key, info) gdrfab_ep_query(ep, key, info)
#define gdrfab_ep_explain(ep, peer, key, buf, len) gdrfab_ep_explain(ep, key, buf, len)
#endif

#endif
