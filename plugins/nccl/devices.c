/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Finds the devices and describes them to NCCL. A provider is listed if gdrfab finds it usable; a device supports
 * memory of accelerators if a region of such memory could really be registered.
 */
#include "plugin.h"

#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Protects the ways' fabrics and domains. */
static pthread_mutex_t way_lock = PTHREAD_MUTEX_INITIALIZER;

/* ---- the interface on which tcp listens */

/* True if a list in the form of NCCL_SOCKET_IFNAME names an interface: "eth,ib" are prefixes, "=eth0" is a whole
 * name, and "^" in front negates the list. */
static bool named(const char *list, const char *name)
{
	bool not = *list == '^', whole;
	list += not;
	whole = *list == '=';
	list += whole;
	while (*list) {
		size_t length = strcspn(list, ",");
		if (strncmp(list, name, length) == 0 && (!whole || !name[length]))
			return !not;
		list += length + (list[length] == ',');
	}
	return not;
}

/* Chooses tcp's address and interface: the interface that NCCL_SOCKET_IFNAME names, else the first that is up and
 * leads out of this host. Returns false if the library chooses the address itself: GDRFAB_TCP_IFACE is set, or only
 * the loopback is left. */
static bool tcp_place(char *node, size_t node_size, char *iface, size_t iface_size)
{
	const char *own = getenv("GDRFAB_TCP_IFACE"), *want = getenv("NCCL_SOCKET_IFNAME");
	struct ifaddrs *list, *best = NULL;
	int best_rank = 0;
	if (own && *own) {
		snprintf(iface, iface_size, "%s", own);
		return false;
	}
	snprintf(iface, iface_size, "lo");
	if (getifaddrs(&list))
		return false;
	for (struct ifaddrs *i = list; i; i = i->ifa_next) {
		if (!i->ifa_addr || !(i->ifa_flags & IFF_UP) || !(i->ifa_flags & IFF_RUNNING))
			continue;
		int family = i->ifa_addr->sa_family;
		const struct sockaddr_in6 *v6 = (const void *)i->ifa_addr;
		if (family != AF_INET && (family != AF_INET6 || IN6_IS_ADDR_LINKLOCAL(&v6->sin6_addr)))
			continue;
		/* The loopback and container bridges lead to no other host. */
		bool wanted = want && *want && named(want, i->ifa_name);
		bool inner = (i->ifa_flags & IFF_LOOPBACK) || strncmp(i->ifa_name, "docker", 6) == 0;
		int rank = (want && *want ? wanted * 8 : 0) + !inner * 4 + (family == AF_INET) * 2;
		if (want && *want && !wanted)
			rank = 0;
		if (rank > best_rank)
			best = i, best_rank = rank;
	}
	if (best) {
		const void *at = best->ifa_addr->sa_family == AF_INET
					 ? (const void *)&((const struct sockaddr_in *)(const void *)best->ifa_addr)->sin_addr
					 : (const void *)&((const struct sockaddr_in6 *)(const void *)best->ifa_addr)->sin6_addr;
		inet_ntop(best->ifa_addr->sa_family, at, node, (socklen_t)node_size);
		snprintf(iface, iface_size, "%s", best->ifa_name);
	}
	freeifaddrs(list);
	return best != NULL;
}

/* ---- capabilities of a way */

static struct way *way_add(struct inventory *it, enum kind kind, gdrfab_info *info)
{
	if (it->ways_count == MAX_DEVICES) {
		gdrfab_freeinfo(info);
		return NULL;
	}
	struct way *way = &it->ways[it->ways_count];
	way->of = it;
	way->number = it->ways_count++;
	way->kind = kind;
	way->info = info;
	return way;
}

ncclResult_t way_open(struct way *way)
{
	ncclResult_t result = ncclSuccess;
	pthread_mutex_lock(&way_lock);
	if (!way->fabric && gdrfab_fabric_open(way->info, NULL, &way->fabric) < 0) {
		WARN("%s: fabric: %s", way->info->domain_name, gdrfab_last_error());
		way->fabric = NULL;
		result = ncclSystemError;
	} else if (!way->domain && gdrfab_domain_open(way->fabric, way->info, NULL, &way->domain) < 0) {
		WARN("%s: domain: %s", way->info->domain_name, gdrfab_last_error());
		way->domain = NULL;
		result = ncclSystemError;
	}
	pthread_mutex_unlock(&way_lock);
	return result;
}

void way_close(struct way *way)
{
	if (way->domain && gdrfab_domain_close(way->domain) < 0)
		INFO("%s stays open: %s", way->info->domain_name, gdrfab_last_error());
	else if (way->fabric && gdrfab_fabric_close(way->fabric) < 0)
		INFO("%s stays open: %s", way->info->fabric_name, gdrfab_last_error());
	gdrfab_freeinfo(way->info);
}

bool copies_elsewhere(gdrfab_ep *ep)
{
	uint32_t calls = 0;
	return gdrfab_ep_setopt(ep, GDRFAB_OPT_ENDPOINT, GDRFAB_OPT_DRIVER_CALLS, &calls, sizeof calls) == 0;
}

/* Paths by which a card reads and writes the memory itself. */
enum { BY_CARD = GDRFAB_PATH_DMABUF | GDRFAB_PATH_PEER_MEM };

/* True if memory that no card reaches may be copied through this way. By default another process must copy: a driver
 * call in this process may wait for running kernels, and NCCL's kernels wait for the copies. */
static bool may_copy(struct way *way, uint64_t paths, char *words, size_t size)
{
	gdrfab_ep *ep = NULL;
	bool may = false;
	switch (way->of->settings.gpu) {
	case GPU_HERE:
		return true;
	case GPU_BY_NOBODY:
		snprintf(words, size, "GDRFAB_NCCL_GDR=0 forbids every way to copy it");
		return false;
	default:
		break;
	}
	if (!no_ll())
		snprintf(words, size, "NCCL's LL protocol sends from host memory into memory of GPUs, which no other process copies "
				      "(set NCCL_PROTO=^LL to use GPU memory)");
	else if (!(paths & GDRFAB_PATH_IPC))
		snprintf(words, size, "no other process can map it, and this one must not call the driver to copy it while NCCL's "
				      "kernels wait for that (GDRFAB_NCCL_GDR=1 allows it)");
	else if (gdrfab_ep_open(way->domain, way->info, NULL, &ep) < 0 || !copies_elsewhere(ep))
		snprintf(words, size, "no process copies it: %s", gdrfab_last_error());
	else
		may = true;
	if (ep)
		gdrfab_ep_close(ep);
	return may;
}

/* Registers a region of an accelerator's memory for trial, as NCCL's buffers will need it. */
static bool try_device_memory(struct way *way, uint32_t device, bool dmabuf, char *words, size_t size)
{
	gdrfab_mr_dmabuf file = {.fd = -1};
	gdrfab_mr_attr attr = {.struct_size = sizeof attr, .iov_count = 1, .iface = GDRFAB_HMEM_CUDA, .device = device};
	struct iovec iov = {NULL, 65536};
	gdrfab_mr *mr = NULL;
	gdrfab_mr_info made_of = {.struct_size = sizeof made_of};
	bool made = false;
	if (way_open(way) != ncclSuccess ||
	    gdrfab_mem_alloc(way->domain, GDRFAB_HMEM_CUDA, device, iov.iov_len, 0, &iov.iov_base) < 0) {
		snprintf(words, size, "%s", gdrfab_last_error());
		return false;
	}
	attr.access = GDRFAB_READ | GDRFAB_WRITE | GDRFAB_REMOTE_READ | GDRFAB_REMOTE_WRITE;
	attr.mr_iov = &iov;
	attr.dmabuf = &file;
	if (dmabuf && gdrfab_hmem_export_dmabuf(iov.iov_base, iov.iov_len, 0, &file) < 0)
		snprintf(words, size, "%s", gdrfab_last_error());
	else if (gdrfab_mr_regattr(way->domain, &attr, dmabuf ? GDRFAB_MR_DMABUF : 0, &mr) < 0)
		snprintf(words, size, "%s", gdrfab_last_error());
	else if (gdrfab_mr_query(mr, &made_of) < 0)
		snprintf(words, size, "%s", gdrfab_last_error());
	else
		made = (made_of.paths & BY_CARD) || may_copy(way, made_of.paths, words, size);
	if (mr)
		gdrfab_mr_close(mr);
	if (file.fd >= 0)
		close(file.fd);
	gdrfab_mem_free(way->domain, iov.iov_base);
	return made;
}

/* Finds a GPU that this process uses already. Any other GPU would need a new context in this process. */
static bool device_in_use(uint32_t *device, gdrfab_hmem_info *info, char *words, size_t size)
{
	memset(info, 0, sizeof *info);
	info->struct_size = sizeof *info;
	if (gdrfab_hmem_query(GDRFAB_HMEM_CUDA, UINT32_MAX, info) < 0) {
		snprintf(words, size, "%s", gdrfab_last_error());
		return false;
	}
	for (uint32_t i = 0, n = info->devices; i < n; i++) {
		memset(info, 0, sizeof *info);
		info->struct_size = sizeof *info;
		if (gdrfab_hmem_query(GDRFAB_HMEM_CUDA, i, info) == 0 && info->active) {
			*device = i;
			return true;
		}
	}
	snprintf(words, size, "this process uses no GPU yet");
	return false;
}

static int probe(struct way *way, bool *peers)
{
	char words[600] = "";
	gdrfab_hmem_info gpu;
	uint32_t device;
	int support = NCCL_PTR_HOST;
	*peers = false;
	if (!device_in_use(&device, &gpu, words, sizeof words)) {
		INFO("%s: host memory only: %s", way->info->domain_name, words);
		return support;
	}
	*peers = gpu.peers != 0;
	if (!try_device_memory(way, device, false, words, sizeof words)) {
		INFO("%s: host memory only, GPU %u: %s", way->info->domain_name, device, words);
		return support;
	}
	way->sees_devices = true;
	support |= NCCL_PTR_CUDA;
	/* Only a card needs a dma-buf. Other ways find memory by its address, so NCCL need not export it. */
	if (way->kind == KIND_VERBS) {
		if (try_device_memory(way, device, true, words, sizeof words))
			support |= NCCL_PTR_DMABUF;
		else
			INFO("%s: no dma-bufs from NCCL: %s", way->info->domain_name, words);
	}
	return support;
}

/* ---- devices */

static struct device *device_add(struct way *way, const char *name)
{
	struct inventory *it = way->of;
	if (it->devices_count == MAX_DEVICES)
		return NULL;
	struct device *device = &it->devices[it->devices_count++];
	device->of = it;
	snprintf(device->name, sizeof device->name, "%s", name);
	device->ways[device->ways_count++] = way;
	device->guid = 0x67647266ull << 32 | (uint64_t)it->devices_count;
	device->max_bytes = way->info->max_msg_size < NCCL_MAX_NET_SIZE_BYTES ? way->info->max_msg_size
									    : NCCL_MAX_NET_SIZE_BYTES;
	return device;
}

/* True if further rails are configured. Messages and answers that a lost rail carried are sent again when both sides
 * call the library, but NCCL does not call for requests that are done: progress must then be automatic. */
static bool has_rails(enum kind kind)
{
	const char *list = kind == KIND_SHM ? NULL : getenv(kind == KIND_TCP ? "GDRFAB_TCP_RAILS" : "GDRFAB_VERBS_RAILS");
	return list && *list;
}

static gdrfab_info *ask(enum kind kind, const char *node, const char *domain)
{
	gdrfab_info *hints = gdrfab_dupinfo(NULL), *list = NULL;
	if (!hints)
		return NULL;
	/* Without GDRFAB_MSG, cards keep receives of their own for writes with data. */
	hints->caps = GDRFAB_RMA | GDRFAB_HMEM;
	hints->mr_mode = GDRFAB_MR_LOCAL | GDRFAB_MR_VIRT_ADDR | GDRFAB_MR_PROV_KEY | GDRFAB_MR_HMEM;
	hints->threading = GDRFAB_THREAD_SAFE;
	hints->progress = has_rails(kind) ? GDRFAB_PROGRESS_AUTO : GDRFAB_PROGRESS_MANUAL;
	hints->prov_name = (char *)(uintptr_t)kind_names[kind];
	hints->domain_name = (char *)(uintptr_t)domain;
	if (gdrfab_getinfo(GDRFAB_VERSION, node, NULL, GDRFAB_SOURCE, hints, &list) < 0)
		INFO("no %s device: %s", kind_names[kind], gdrfab_last_error());
	/* gdrfab_freeinfo() must not free the strings set above. */
	hints->prov_name = hints->domain_name = NULL;
	gdrfab_freeinfo(hints);
	return list;
}

static long from_file(const char *iface, const char *what)
{
	char path[256];
	long value = -1;
	snprintf(path, sizeof path, "/sys/class/net/%s/%s", iface, what);
	FILE *file = fopen(path, "r");
	if (file) {
		if (fscanf(file, "%ld", &value) != 1)
			value = -1;
		fclose(file);
	}
	return value;
}

/* Finds the directory of the PCI function behind a link of sysfs: the link's target, or the nearest parent that is a
 * PCI function (a virtio device is not one itself). */
static void pci_dir(const char *link, char *to, size_t size)
{
	char *path = realpath(link, NULL), *end;
	while (path && (end = strrchr(path, '/')) && end > path) {
		char name[512];
		snprintf(name, sizeof name, "%s/subsystem", path);
		char *subsystem = realpath(name, NULL);
		bool pci = subsystem && strcmp(subsystem, "/sys/bus/pci") == 0;
		free(subsystem);
		if (pci && strlen(path) < size)
			strcpy(to, path);
		if (pci)
			break;
		*end = 0;
	}
	free(path);
}

/* Gbit/s, the most that NCCL assumes for a GPU's link to its host. No device counts as faster. */
enum { HOST_LINK = 384 };

/* Number of times that NCCL is offered the first way. NCCL gives a send and its receive one channel for each device that it
 * needs to fill that link, and since 2.28.3 no variable changes this. For wide communicators the first way is
 * therefore offered as often as they have channels. */
static int times_offered(const struct inventory *it, bool gpus)
{
	bool tuned = tune_width() && (tune_way() == TUNE_GPUS) == gpus;
	return !tuned ? 1 : gpus ? tune_width() : it->settings.threads;
}

/* Repeats the first device as often as its way says. NCCL uses the fastest devices only, so the others are made to
 * count as slower than each of these. */
static void repeat_first(struct inventory *it)
{
	struct device *first = it->devices, *others;
	int count = first->ways[0]->times, room = MAX_DEVICES - it->devices_count + 1;
	count = count < room ? count : room;
	if (count < 2)
		return;
	others = first + count;
	memmove(others, first + 1, (size_t)(it->devices_count - 1) * sizeof *first);
	it->devices_count += count - 1;
	first->speed = HOST_LINK * 1000 / count;
	for (int i = count - 1; i >= 0; i--) {
		first[i] = *first;
		first[i].guid += (uint64_t)i << 8;
		snprintf(first[i].name + strlen(first->name), sizeof first->name - strlen(first->name), ":%d", i);
	}
	for (; others < first + it->devices_count; others++)
		if (others->speed > first->speed / 2)
			others->speed = first->speed / 2;
}

static void offer_shm(struct inventory *it)
{
	gdrfab_info *info = ask(KIND_SHM, NULL, NULL);
	struct way *way = info ? way_add(it, KIND_SHM, info) : NULL;
	bool peers;
	if (!way)
		return;
	int support = probe(way, &peers);
	/* The speed of a core that copies or, between GPUs, of NVLink, which is faster than the GPU's link to its
	 * host. */
	bool between = peers && (support & NCCL_PTR_CUDA);
	struct device *device = device_add(way, "shm");
	if (!device)
		return;
	way->times = times_offered(it, between);
	device->ptr_support = support;
	device->speed = between ? 1600000 : 100000;
	device->latency = between ? 6 : 2;
}

static void offer_tcp(struct inventory *it)
{
	char node[INET6_ADDRSTRLEN] = "", iface[64], link[128], name[80];
	bool placed = tcp_place(node, sizeof node, iface, sizeof iface), peers;
	gdrfab_info *info = ask(KIND_TCP, placed ? node : NULL, NULL);
	struct way *way = info ? way_add(it, KIND_TCP, info) : NULL;
	snprintf(name, sizeof name, "tcp:%s", iface);
	if (!way)
		return;
	struct device *device = device_add(way, name);
	if (!device)
		return;
	long speed = from_file(iface, "speed");
	snprintf(link, sizeof link, "/sys/class/net/%s/device", iface);
	/* If shm is offered too, tcp is a single device. */
	way->times = it->settings.offered == 1 ? times_offered(it, false) : 1;
	device->ptr_support = probe(way, &peers);
	device->speed = speed > 0 ? (int)speed : 10000;
	device->latency = 15;
	pci_dir(link, device->pci, sizeof device->pci);
	if (strcmp(iface, "lo") && !info->auth_key && !getenv("GDRFAB_TCP_KEY_FILE"))
		INFO("tcp listens at %s without a key: whoever reads NCCL's bootstrap may connect (GDRFAB_TCP_KEY_FILE)",
		     placed ? node : iface);
}

/* Adds one device for each working port. A port that is listed under several domain names is added once. */
static void offer_verbs(struct inventory *it)
{
	gdrfab_info *list = ask(KIND_VERBS, NULL, NULL);
	char seen[MAX_DEVICES][80];
	int seen_count = 0;
	for (gdrfab_info *i = list; i && seen_count < MAX_DEVICES; i = i->next) {
		gdrfab_nic_attr nic = {.struct_size = sizeof nic};
		char name[80], link[128];
		int known = 0;
		bool peers;
		if (gdrfab_info_nic(i, &nic) < 0 || nic.state != GDRFAB_LINK_UP || !nic.address[0])
			continue;
		snprintf(name, sizeof name, "%s:%u", nic.device, nic.port);
		while (known < seen_count && strcmp(seen[known], name))
			known++;
		if (known < seen_count)
			continue;
		gdrfab_info *info = ask(KIND_VERBS, nic.address, i->domain_name);
		struct way *way = info ? way_add(it, KIND_VERBS, info) : NULL;
		struct device *device = way ? device_add(way, name) : NULL;
		if (!device)
			continue;
		memcpy(seen[seen_count++], name, sizeof name);
		device->ptr_support = probe(way, &peers);
		device->speed = nic.speed ? (int)(nic.speed / 1000000) : 10000;
		device->latency = 0;
		device->guid = nic.guid;
		device->port = (int)nic.port;
		snprintf(link, sizeof link, "/sys/bus/pci/devices/%s", nic.pci);
		if (nic.pci[0])
			pci_dir(link, device->pci, sizeof device->pci);
	}
	gdrfab_freeinfo(list);
}

/* Adds the second way to each device: shm, for peers of this host; to a shm device the first network, for peers on
 * other hosts. */
static void join_ways(struct inventory *it)
{
	struct way *shm = NULL, *wire = NULL;
	for (int i = 0; i < it->ways_count; i++) {
		if (it->ways[i].kind == KIND_SHM)
			shm = &it->ways[i];
		else if (!wire)
			wire = &it->ways[i];
	}
	for (int i = 0; i < it->devices_count; i++) {
		struct device *device = &it->devices[i];
		if (device->ways[0] != shm && shm) {
			device->ways[1] = device->ways[0];
			device->ways[0] = shm;
			device->ways_count = 2;
			if (device->ways[1]->sees_devices && !shm->sees_devices)
				device->ptr_support &= ~NCCL_PTR_CUDA & ~NCCL_PTR_DMABUF;
		} else if (device->ways[0] == shm && wire) {
			device->ways[device->ways_count++] = wire;
		}
	}
}

void devices_find(struct inventory *it)
{
	const struct settings *chosen = &it->settings;
	bool shm = false, cards = false;
	for (int i = 0; i < chosen->offered; i++) {
		int before = it->devices_count;
		switch (chosen->order[i]) {
		case KIND_SHM:
			offer_shm(it);
			shm = true;
			break;
		case KIND_VERBS:
			offer_verbs(it);
			cards = it->devices_count > before;
			break;
		default:
			/* If there are cards, tcp is offered only if the user named it. */
			if (chosen->named || !cards)
				offer_tcp(it);
		}
	}
	/* shm is then no device of its own but a faster way of the others. */
	if (chosen->may[KIND_SHM] && !shm) {
		gdrfab_info *info = ask(KIND_SHM, NULL, NULL);
		struct way *way = info ? way_add(it, KIND_SHM, info) : NULL;
		bool peers;
		if (way)
			probe(way, &peers);
	}
	/* Not with cards: peers of shm may then be on other hosts, and the cards' ports share the channels. */
	if (it->devices_count && !cards)
		repeat_first(it);
	join_ways(it);
	for (int i = 0; i < it->devices_count; i++) {
		const struct device *d = &it->devices[i];
		INFO("device %d: %s, %d Mbit/s, memory:%s%s%s, ways: %s%s%s", i, d->name, d->speed,
		     d->ptr_support & NCCL_PTR_HOST ? " host" : "", d->ptr_support & NCCL_PTR_CUDA ? " cuda" : "",
		     d->ptr_support & NCCL_PTR_DMABUF ? " dma-buf" : "", kind_names[d->ways[0]->kind],
		     d->ways_count > 1 ? " within the host, then " : "", d->ways_count > 1 ? kind_names[d->ways[1]->kind] : "");
	}
}
