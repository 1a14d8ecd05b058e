/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * fi_info->nic: the device and the port behind a candidate. libfabric copies and frees the structure through the
 * operations of this file, so all its parts are on the heap.
 */
#include "provider.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void nic_free(struct fid_nic *nic)
{
	if (nic->device_attr) {
		free(nic->device_attr->name);
		free(nic->device_attr->device_id);
		free(nic->device_attr->device_version);
		free(nic->device_attr->vendor_id);
		free(nic->device_attr->driver);
		free(nic->device_attr->firmware);
	}
	if (nic->link_attr) {
		free(nic->link_attr->address);
		free(nic->link_attr->network_type);
	}
	free(nic->device_attr);
	free(nic->bus_attr);
	free(nic->link_attr);
	free(nic);
}

static int nic_close(struct fid *fid)
{
	nic_free((struct fid_nic *)fid);
	return 0;
}

static int nic_control(struct fid *fid, int command, void *arg);

static const char *or_none(const char *text)
{
	return text ? text : "(null)";
}

/* Appends to the text in `buf`, because fi_tostr() prints a whole fi_info into it. */
static int nic_tostr(const struct fid *fid, char *buf, size_t len)
{
	static const char *const states[] = {"unknown", "down", "up"};
	const struct fid_nic *nic = (const struct fid_nic *)fid;
	const struct fi_device_attr *device = nic->device_attr;
	const struct fi_link_attr *link = nic->link_attr;
	const struct fi_pci_attr *pci = &nic->bus_attr->attr.pci;
	size_t used = strnlen(buf, len);
	if (used == len)
		return 0;
	used += (size_t)snprintf(buf + used, len - used,
				 "nic:\n    device: %s, id %s, version %s, vendor %s, firmware %s\n"
				 "    link: address %s, mtu %zu, speed %zu, %s, %s\n",
				 or_none(device->name), or_none(device->device_id), or_none(device->device_version),
				 or_none(device->vendor_id), or_none(device->firmware), or_none(link->address),
				 link->mtu, link->speed, states[link->state], or_none(link->network_type));
	if (nic->bus_attr->bus_type == FI_BUS_PCI && used < len)
		snprintf(buf + used, len - used, "    pci: %04x:%02x:%02x.%x\n", pci->domain_id, pci->bus_id,
			 pci->device_id, pci->function_id);
	return 0;
}

static struct fi_ops nic_ops = {
	.size = sizeof nic_ops,
	.close = nic_close,
	.bind = no_bind,
	.control = nic_control,
	.ops_open = no_ops_open,
	.tostr = nic_tostr,
	.ops_set = no_ops_set,
};

static struct fid_nic *nic_new(void)
{
	struct fid_nic *nic = calloc(1, sizeof *nic);
	if (!nic)
		return NULL;
	nic->fid.fclass = FI_CLASS_NIC;
	nic->fid.ops = &nic_ops;
	nic->device_attr = calloc(1, sizeof *nic->device_attr);
	nic->bus_attr = calloc(1, sizeof *nic->bus_attr);
	nic->link_attr = calloc(1, sizeof *nic->link_attr);
	if (nic->device_attr && nic->bus_attr && nic->link_attr)
		return nic;
	nic_free(nic);
	return NULL;
}

/* Copies a string; NULL stays NULL. False: no memory. */
static bool text_copy(char **to, const char *from)
{
	*to = from ? strdup(from) : NULL;
	return *to || !from;
}

static int nic_control(struct fid *fid, int command, void *arg)
{
	const struct fid_nic *from = (const struct fid_nic *)fid;
	const struct fi_device_attr *device = from->device_attr;
	struct fid_nic *nic;
	bool whole;
	if (command != FI_DUP)
		return -FI_ENOSYS;
	nic = nic_new();
	if (!nic)
		return -FI_ENOMEM;
	*nic->bus_attr = *from->bus_attr;
	nic->link_attr->mtu = from->link_attr->mtu;
	nic->link_attr->speed = from->link_attr->speed;
	nic->link_attr->state = from->link_attr->state;
	whole = text_copy(&nic->device_attr->name, device->name) &&
		text_copy(&nic->device_attr->device_id, device->device_id) &&
		text_copy(&nic->device_attr->device_version, device->device_version) &&
		text_copy(&nic->device_attr->vendor_id, device->vendor_id) &&
		text_copy(&nic->device_attr->driver, device->driver) &&
		text_copy(&nic->device_attr->firmware, device->firmware) &&
		text_copy(&nic->link_attr->address, from->link_attr->address) &&
		text_copy(&nic->link_attr->network_type, from->link_attr->network_type);
	if (!whole) {
		nic_free(nic);
		return -FI_ENOMEM;
	}
	*(struct fid_nic **)arg = nic;
	return 0;
}

static bool number(char **to, const char *format, uint32_t value)
{
	char text[16];
	snprintf(text, sizeof text, format, value);
	return text_copy(to, text);
}

/* Parses an address such as "0000:3b:00.0". */
static void bus(struct fi_bus_attr *attr, const char *pci)
{
	unsigned domain, bus, device, function;
	if (sscanf(pci, "%x:%x:%x.%x", &domain, &bus, &device, &function) != 4)
		return;
	attr->bus_type = FI_BUS_PCI;
	attr->attr.pci.domain_id = (uint16_t)domain;
	attr->attr.pci.bus_id = (uint8_t)bus;
	attr->attr.pci.device_id = (uint8_t)device;
	attr->attr.pci.function_id = (uint8_t)function;
}

static enum fi_link_state link_state(uint32_t state)
{
	return state == GDRFAB_LINK_UP ? FI_LINK_UP : state == GDRFAB_LINK_DOWN ? FI_LINK_DOWN : FI_LINK_UNKNOWN;
}

bool nic_read(const gdrfab_info *info, gdrfab_nic_attr *attr)
{
	int result;
	memset(attr, 0, sizeof *attr);
	attr->struct_size = sizeof *attr;
	result = gdrfab_info_nic(info, attr);
	/* The absence of a NIC is not worth a log line. */
	if (result && result != -FI_ENODATA)
		told(result, FI_LOG_FABRIC, "asking the device of a candidate");
	return result == 0;
}

struct fid_nic *nic_make(const gdrfab_nic_attr *attr)
{
	struct fid_nic *nic = nic_new();
	const char *address = attr->address[0] ? attr->address : attr->gid;
	bool whole;
	if (!nic)
		return NULL;
	bus(nic->bus_attr, attr->pci);
	nic->link_attr->mtu = attr->mtu;
	nic->link_attr->speed = attr->speed;
	nic->link_attr->state = link_state(attr->state);
	/* gdrfab does not report the driver's name. */
	whole = text_copy(&nic->device_attr->name, attr->device) &&
		number(&nic->device_attr->device_id, "0x%04x", attr->vendor_part_id) &&
		number(&nic->device_attr->device_version, "%u", attr->hw_version) &&
		number(&nic->device_attr->vendor_id, "0x%04x", attr->vendor_id) &&
		text_copy(&nic->device_attr->firmware, attr->firmware[0] ? attr->firmware : NULL) &&
		text_copy(&nic->link_attr->address, address[0] ? address : NULL) &&
		text_copy(&nic->link_attr->network_type, attr->link[0] ? attr->link : NULL);
	if (!whole) {
		nic_free(nic);
		return NULL;
	}
	return nic;
}

struct fid_nic *nic_of(const gdrfab_info *info)
{
	gdrfab_nic_attr attr;
	return nic_read(info, &attr) ? nic_make(&attr) : NULL;
}
