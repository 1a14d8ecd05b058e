// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The attributes of the device and port behind a candidate, for `gdrfab_info`.

use super::info::DevicePort;
use crate::error::Result;
use crate::prov::info::{Info, Near, Nic};
use crate::prov::verbs::device::context::{Atomics, Context, LinkLayer, Odp};
use crate::prov::verbs::device::distance;
use crate::prov::verbs::device::gid::Gid;
use std::ffi::CStr;
use std::net::Ipv6Addr;

/// Opens the device that `info` names, reads its attributes and closes the device. `near` is the PCI address of an
/// accelerator, whose distance from the device the result then contains.
pub fn nic(info: &Info, near: Option<&str>) -> Result<Nic> {
    let DevicePort { context, port, gid } = DevicePort::of(info)?;
    let count = |n: i32| n.max(0) as u32;
    let attr = &context.attr;
    Ok(Nic {
        device: context.name.clone(),
        netdev: gid.netdev.clone(),
        pci: context.topology.pci.clone(),
        numa: context.topology.numa,
        firmware: firmware(&context),
        guid: context.guid,
        vendor_id: attr.vendor_id,
        vendor_part_id: attr.vendor_part_id,
        hw_version: attr.hw_ver,
        port: port.number,
        up: port.active,
        state: port.state,
        link: match port.link {
            LinkLayer::InfiniBand => "InfiniBand",
            LinkLayer::Ethernet => "Ethernet",
        },
        speed: port.speed,
        mtu: port.mtu,
        lid: port.lid,
        gid_index: gid.index,
        gid: words_of(&gid),
        gid_type: gid.kind.words(),
        address: gid.ip.map(|ip| ip.to_string()),
        atomics: match context.atomics() {
            Atomics::None => 0,
            Atomics::Device => 1,
            Atomics::Global => 2,
        },
        odp: context.odp().map_or(0, bits),
        dmabuf: context.dmabuf(),
        max_mr_size: attr.max_mr_size,
        max_mr: u64::from(count(attr.max_mr)),
        max_message: u64::from(port.max_message),
        max_qp: count(attr.max_qp),
        max_qp_wr: count(attr.max_qp_wr),
        max_cq: count(attr.max_cq),
        max_cqe: count(attr.max_cqe),
        max_sge: count(attr.max_sge),
        max_pd: count(attr.max_pd),
        reads_in: u32::from(context.reads_in()),
        reads_out: u32::from(context.reads_out()),
        near: near.map(|pci| Near::from(distance::between(&context.topology, &distance::of_pci(pci)))),
    })
}

/// The GID as text, written like an IPv6 address, as other RDMA tools do.
fn words_of(gid: &Gid) -> String {
    Ipv6Addr::from(gid.raw).to_string()
}

/// The bits of [`Nic::odp`].
fn bits(odp: Odp) -> u32 {
    let all = [odp.supported, odp.implicit, odp.send, odp.recv, odp.write, odp.read, odp.atomic];
    all.iter().enumerate().fold(0, |sum, (i, on)| sum | u32::from(*on) << i)
}

fn firmware(context: &Context) -> String {
    let bytes = context.attr.fw_ver.map(|c| c as u8);
    CStr::from_bytes_until_nul(&bytes).map_or(String::new(), |text| text.to_string_lossy().into_owned())
}
