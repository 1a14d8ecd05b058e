// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A candidate of discovery, as a provider offers it, and the question that discovery was asked.

use super::flags;
use super::op::IOV_LIMIT;
use crate::config;
use crate::error::{Error, Result, errno};
use crate::hmem::Site;
use crate::mr::{MR_IOV_LIMIT, Paths};
use std::sync::Arc;
use zeroize::Zeroizing;

/// The most bytes of private data of any connection.
pub const CM_DATA_MAX: usize = 256;
/// The most bytes of an address, with its NUL.
pub const ADDR_MAX: usize = 256;

pub const EP_MSG: u32 = 1;
pub const EP_RDM: u32 = 3;
pub const ADDR_STR: u32 = 9;
pub const THREAD_SAFE: u32 = 1;
pub const THREAD_DOMAIN: u32 = 3;
pub const PROGRESS_AUTO: u32 = 1;
pub const PROGRESS_MANUAL: u32 = 2;

/// The number in `info->handle`: a connection request that waits to be accepted or rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RequestId(pub usize);

/// A candidate, or the caller's hints. In hints, zero and `None` mean "any".
#[derive(Clone, Debug, Default)]
pub struct Info {
    pub caps: u64,
    /// Requirements of the provider beyond libfabric's common rules.
    pub mode: u64,
    pub tx_op_flags: u64,
    pub rx_op_flags: u64,
    pub msg_order: u64,
    pub comp_order: u64,
    pub paths: Paths,
    pub mr_mode: u32,
    pub ep_type: u32,
    pub threading: u32,
    pub progress: u32,
    pub addr_format: u32,
    pub cq_data_size: usize,
    pub inject_size: usize,
    pub tx_size: usize,
    pub rx_size: usize,
    pub tx_iov_limit: usize,
    pub rx_iov_limit: usize,
    pub rma_iov_limit: usize,
    pub mr_iov_limit: usize,
    pub max_msg_size: usize,
    pub mr_key_size: usize,
    pub mr_cnt: usize,
    pub cm_data_size: usize,
    pub src_addr: Option<String>,
    pub dest_addr: Option<String>,
    pub prov_name: Option<String>,
    pub fabric_name: Option<String>,
    pub domain_name: Option<String>,
    /// The reason why this candidate was left out.
    pub reason: Option<Error>,
    pub request: Option<RequestId>,
    /// The accelerator whose nearest NICs come first.
    pub near: Option<Site>,
    /// The secret key that both sides of a connection must have.
    pub auth_key: Option<Secret>,
    /// The paths on which the provider moves lists by its own means.
    pub list_paths: Paths,
    pub limits: Limits,
}

/// The paths among a provider's own that `GDRFAB_PATHS` permits.
pub fn permitted(own: Paths) -> Paths {
    own & Paths::from_bits_truncate(config::get().paths.0)
}

/// Fails if `GDRFAB_PATHS` permits none of a provider's paths.
pub fn check_permitted(own: Paths) -> Result<()> {
    match permitted(own).is_empty() {
        true => Err(Error::new(errno::ENODATA, format!("GDRFAB_PATHS rules out all paths of this provider ({})", own.words()))),
        false => Ok(()),
    }
}

impl Info {
    /// True if messages are matched by source and tag, in `rdm` above the providers.
    pub fn is_matched(&self) -> bool {
        self.ep_type == EP_RDM || self.caps & flags::MATCHED != 0
    }

    /// The flags that may be chosen for receives posted without flags.
    pub fn rx_op_flags_limit(&self) -> u64 {
        flags::COMPLETION | if self.is_matched() { flags::MULTI_RECV } else { 0 }
    }

    /// The common info of connected endpoints of a provider whose bytes are moved by the CPU and the kernel.
    pub fn of_cpu(name: &str) -> Info {
        let name = Some(name.to_string());
        let rma = flags::RMA | flags::READ | flags::WRITE | flags::REMOTE_READ | flags::REMOTE_WRITE;
        Info {
            caps: flags::MSG | flags::SEND | flags::RECV | rma,
            mr_mode: flags::MR_MODE_VIRT_ADDR | flags::MR_MODE_PROV_KEY,
            ep_type: EP_MSG,
            threading: THREAD_SAFE,
            progress: PROGRESS_MANUAL,
            addr_format: ADDR_STR,
            cq_data_size: 8,
            tx_iov_limit: IOV_LIMIT,
            rx_iov_limit: IOV_LIMIT,
            rma_iov_limit: IOV_LIMIT,
            mr_iov_limit: MR_IOV_LIMIT,
            mr_key_size: 8,
            cm_data_size: CM_DATA_MAX,
            prov_name: name.clone(),
            fabric_name: name.clone(),
            domain_name: name,
            limits: Limits {
                tx_op_flags: flags::COMPLETION
                    | flags::INJECT
                    | flags::INJECT_COMPLETE
                    | flags::TRANSMIT_COMPLETE
                    | flags::DELIVERY_COMPLETE,
                ..Limits::default()
            },
            ..Info::default()
        }
    }
}

/// A secret key. Its bytes appear nowhere but in `bytes()`; `Debug` shows only their number.
#[derive(Clone)]
pub struct Secret(Arc<Zeroizing<Vec<u8>>>);

impl Secret {
    pub const MIN: usize = 16;
    pub const MAX: usize = 1024;

    pub fn new(bytes: &[u8]) -> Result<Secret> {
        match bytes.len() {
            Secret::MIN..=Secret::MAX => Ok(Secret(Arc::new(bytes.to_vec().into()))),
            n => Err(Error::invalid(format!("auth_key_size: {n}; a key must have {} to {} bytes", Secret::MIN, Secret::MAX))),
        }
    }

    pub fn bytes(&self) -> &[u8] {
        &self.0
    }
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Secret({} bytes)", self.0.len())
    }
}

/// Limits for hints, which the caller does not see. A candidate's attributes are the values that the caller gets
/// without hints; the limits are the values that hints can ask for at most.
#[derive(Clone, Copy, Debug, Default)]
pub struct Limits {
    /// Default flags that the provider can honour.
    pub tx_op_flags: u64,
    /// Bits of `mr_mode` without which the provider cannot be used.
    pub mr_mode: u32,
    /// The largest values that hints may ask for; 0: the candidate's attribute.
    pub tx_size: usize,
    pub rx_size: usize,
    pub inject_size: usize,
}

/// The arguments of discovery.
#[derive(Clone, Copy, Debug)]
pub struct Ask<'a> {
    pub node: Option<&'a str>,
    pub service: Option<&'a str>,
    /// Node and service are this side's address.
    pub source: bool,
    /// The only domain whose candidates are needed.
    pub domain: Option<&'a str>,
    /// PCI address of the accelerator whose nearest NICs come first.
    pub near: Option<&'a str>,
}

/// The distance of a NIC from an accelerator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u32)]
pub enum Near {
    /// Below one PCIe switch.
    Switch = 1,
    /// Below one root complex.
    RootComplex = 2,
    /// In one NUMA node.
    Node = 3,
    Far = 4,
}

impl Near {
    pub fn words(self) -> &'static str {
        match self {
            Near::Switch => "same PCIe switch",
            Near::RootComplex => "same root complex",
            Near::Node => "same NUMA node",
            Near::Far => "another NUMA node, or unknown",
        }
    }
}

/// The NIC behind a candidate, as its device and port describe themselves.
#[derive(Clone, Debug)]
pub struct Nic {
    pub device: String,
    pub netdev: Option<String>,
    pub pci: Option<String>,
    pub numa: Option<u32>,
    pub firmware: String,
    pub guid: u64,
    pub vendor_id: u32,
    pub vendor_part_id: u32,
    pub hw_version: u32,
    pub port: u8,
    pub up: bool,
    /// "active", "down" and the like.
    pub state: &'static str,
    /// "InfiniBand" or "Ethernet".
    pub link: &'static str,
    /// Bits per second; 0: unknown.
    pub speed: u64,
    /// Bytes of the largest packet.
    pub mtu: u32,
    pub lid: u16,
    pub gid_index: u8,
    /// In the text form of an IPv6 address.
    pub gid: String,
    /// "RoCE v2" and the like.
    pub gid_type: &'static str,
    /// The address by which rdma_cm finds the device.
    pub address: Option<String>,
    /// 0: none, 1: atomic among operations of this device, 2: atomic with the CPUs' as well.
    pub atomics: u32,
    /// Bits of on-demand paging: 0 supported, 1 whole address spaces, 2 send, 3 receive, 4 write, 5 read, 6 atomics.
    pub odp: u32,
    /// Success, or the reason why dma-bufs cannot be registered, found out by trying.
    pub dmabuf: Result<()>,
    pub max_mr_size: u64,
    pub max_mr: u64,
    pub max_message: u64,
    pub max_qp: u32,
    pub max_qp_wr: u32,
    pub max_cq: u32,
    pub max_cqe: u32,
    pub max_sge: u32,
    pub max_pd: u32,
    /// For one connection, the most reads of the peer that are served at once, and the most reads that this side may have
    /// outstanding.
    pub reads_in: u32,
    pub reads_out: u32,
    /// The distance to the accelerator that was asked about, if one was.
    pub near: Option<Near>,
}
