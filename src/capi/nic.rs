// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The NIC behind an info.

use super::boundary::{ExtensibleStruct, control, output_sized, write_sized};
use super::hmem::field;
use super::info::{gdrfab_info, import};
use crate::fabric::{self, Nic};
use libc::{c_char, c_int};

// == Discovery ==

// gdrfab_nic_attr.state.
/// Not known.
pub const GDRFAB_LINK_UNKNOWN: u32 = 0;
/// Nothing can be sent.
pub const GDRFAB_LINK_DOWN: u32 = 1;
/// The port is active.
pub const GDRFAB_LINK_UP: u32 = 2;

// gdrfab_nic_attr.odp: the uses of memory for which on-demand paging is possible.
/// It is possible at all.
pub const GDRFAB_ODP_SUPPORTED: u32 = 1;
/// Of the whole address space as one region.
pub const GDRFAB_ODP_IMPLICIT: u32 = 2;
/// Of regions that are sent from.
pub const GDRFAB_ODP_SEND: u32 = 4;
/// Of regions that are received into.
pub const GDRFAB_ODP_RECV: u32 = 8;
/// Of regions that are written to or from.
pub const GDRFAB_ODP_WRITE: u32 = 16;
/// Of regions that are read from or into.
pub const GDRFAB_ODP_READ: u32 = 32;
/// Of regions that are targets of atomics.
pub const GDRFAB_ODP_ATOMIC: u32 = 64;

// gdrfab_nic_attr.near: the place of the accelerator that the info names.
/// near_iface is 0.
pub const GDRFAB_NEAR_UNASKED: u32 = 0;
/// Below the same PCIe switch.
pub const GDRFAB_NEAR_SWITCH: u32 = 1;
/// Below the same PCIe root complex.
pub const GDRFAB_NEAR_ROOT: u32 = 2;
/// In the same NUMA node.
pub const GDRFAB_NEAR_NODE: u32 = 3;
/// In another NUMA node, or unknown.
pub const GDRFAB_NEAR_FAR: u32 = 4;

/// The device and the port behind an info, as they describe themselves (mirrors fi_info->nic, flattened).
#[repr(C)]
pub struct gdrfab_nic_attr {
    /// sizeof(gdrfab_nic_attr), set by the caller
    pub struct_size: usize,
    /// Bits per second; 0: unknown.
    pub speed: u64,
    /// The node's GUID.
    pub guid: u64,
    /// Bytes of the largest region.
    pub max_mr_size: u64,
    /// Regions of the whole device.
    pub max_mr: u64,
    /// Bytes of the largest message.
    pub max_message: u64,
    /// GDRFAB_LINK_*
    pub state: u32,
    /// Number of the port, from 1.
    pub port: u32,
    /// Bytes of the largest packet.
    pub mtu: u32,
    /// Local identifier on InfiniBand; otherwise 0.
    pub lid: u32,
    /// Index of the GID in the port's table.
    pub gid_index: u32,
    /// NUMA node; -1: unknown.
    pub numa_node: i32,
    /// PCI vendor.
    pub vendor_id: u32,
    /// The vendor's number of the part.
    pub vendor_part_id: u32,
    /// The vendor's version of the hardware.
    pub hw_version: u32,
    /// Atomics: 0 none, 1 among this device's, 2 with the CPUs' as well.
    pub atomics: u32,
    /// GDRFAB_ODP_*
    pub odp: u32,
    /// 0: dma-bufs can be registered, by trial; else its negative errno.
    pub dmabuf: c_int,
    /// GDRFAB_NEAR_* to the accelerator that the info names.
    pub near: u32,
    /// Queue pairs (endpoints) of the device.
    pub max_qp: u32,
    /// Work requests of a queue.
    pub max_qp_wr: u32,
    /// Completion queues.
    pub max_cq: u32,
    /// Entries of a completion queue.
    pub max_cqe: u32,
    /// Pieces of a work request.
    pub max_sge: u32,
    /// Protection domains.
    pub max_pd: u32,
    /// Reads of a peer that one connection serves at once.
    pub max_reads_in: u32,
    /// Reads of its own that one connection has under way at once.
    pub max_reads_out: u32,
    /// 0
    pub reserved: u32,
    /// Name of the device, "mlx5_0".
    pub device: [c_char; 64],
    /// Version of the firmware.
    pub firmware: [c_char; 64],
    /// The GID, as an IPv6 address is written.
    pub gid: [c_char; 48],
    /// "InfiniBand", "RoCE v1", "RoCE v2" or "iWARP".
    pub gid_type: [c_char; 16],
    /// IP address for rdma_cm; empty: connect by exchanged addresses.
    pub address: [c_char; 48],
    /// Network interface; empty: none, or unknown.
    pub netdev: [c_char; 16],
    /// "InfiniBand" or "Ethernet".
    pub link: [c_char; 16],
    /// PCI address, "0000:3b:00.0"; empty: not on a PCI bus.
    pub pci: [c_char; 16],
}

// SAFETY: repr(C), size first, integers and arrays of them.
unsafe impl ExtensibleStruct for gdrfab_nic_attr {
    const FIRST: usize = 424;
}

const _: () = assert!(size_of::<gdrfab_nic_attr>() == 424);

fn to_c(nic: &Nic) -> gdrfab_nic_attr {
    gdrfab_nic_attr {
        struct_size: 0,
        speed: nic.speed,
        guid: nic.guid,
        max_mr_size: nic.max_mr_size,
        max_mr: nic.max_mr,
        max_message: nic.max_message,
        state: if nic.up { GDRFAB_LINK_UP } else { GDRFAB_LINK_DOWN },
        port: u32::from(nic.port),
        mtu: nic.mtu,
        lid: u32::from(nic.lid),
        gid_index: u32::from(nic.gid_index),
        numa_node: nic.numa.map_or(-1, |n| n as i32),
        vendor_id: nic.vendor_id,
        vendor_part_id: nic.vendor_part_id,
        hw_version: nic.hw_version,
        atomics: nic.atomics,
        odp: nic.odp,
        dmabuf: nic.dmabuf.as_ref().map_or_else(|e| -e.errno, |()| 0),
        near: nic.near.map_or(GDRFAB_NEAR_UNASKED, |n| n as u32),
        max_qp: nic.max_qp,
        max_qp_wr: nic.max_qp_wr,
        max_cq: nic.max_cq,
        max_cqe: nic.max_cqe,
        max_sge: nic.max_sge,
        max_pd: nic.max_pd,
        max_reads_in: nic.reads_in,
        max_reads_out: nic.reads_out,
        reserved: 0,
        device: field(&nic.device),
        firmware: field(&nic.firmware),
        gid: field(&nic.gid),
        gid_type: field(nic.gid_type),
        address: field(nic.address.as_deref().unwrap_or("")),
        netdev: field(nic.netdev.as_deref().unwrap_or("")),
        link: field(nic.link),
        pci: field(nic.pci.as_deref().unwrap_or("")),
    }
}

/// Describes the NIC behind an info: opens its device, asks, and closes it. Mirrors fi_info->nic.
///
/// @param info of a list of gdrfab_getinfo(); also one that does not fit (GDRFAB_GETINFO_ALL), if its
///   domain_name is complete
/// @return 0, or
///   -ENODATA the provider has no NIC (shm); -EINVAL also an info without a complete domain_name;
///   -ENODEV the device is gone; -EADDRNOTAVAIL the port has lost the address;
///   -ENOSYS no libibverbs; -EACCES, -EMFILE the device cannot be opened
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gdrfab_info_nic(info: *const gdrfab_info, attr: *mut gdrfab_nic_attr) -> c_int {
    // SAFETY: the C caller says that info is live with strings that end, and attr writable for its size.
    control(|| unsafe {
        let out = output_sized(attr, "attr")?;
        let nic = fabric::nic(&import(info, "info")?)?;
        write_sized(out, &to_c(&nic));
        Ok(())
    })
}
