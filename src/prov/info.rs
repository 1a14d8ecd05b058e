// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a provider offers as one candidate of discovery, and what discovery was asked.

use crate::error::Error;
use crate::mr::Paths;

pub const EP_MSG: u32 = 1;
pub const ADDR_STR: u32 = 9;
pub const THREAD_SAFE: u32 = 1;
pub const THREAD_DOMAIN: u32 = 3;
pub const PROGRESS_AUTO: u32 = 1;
pub const PROGRESS_MANUAL: u32 = 2;

/// The number in `info->handle`: a connection request that waits for its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RequestId(pub usize);

/// A candidate, or as hints a wish: there a zero or `None` means "any".
#[derive(Clone, Debug, Default)]
pub struct Info {
    pub caps: u64,
    /// What the provider asks of its user beyond libfabric's common rules.
    pub mode: u64,
    pub tx_op_flags: u64,
    pub msg_order: u64,
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
    /// Why this candidate was left out.
    pub reason: Option<Error>,
    pub request: Option<RequestId>,
    pub limits: Limits,
}

/// What hints are held against and the caller does not see: a candidate's attributes are what one gets without hints.
#[derive(Clone, Copy, Debug, Default)]
pub struct Limits {
    /// Default flags that the provider can honour.
    pub tx_op_flags: u64,
    /// Bits of `mr_mode` without which the provider cannot be used.
    pub mr_mode: u32,
    /// The most that hints may ask for; 0: what the candidate says.
    pub tx_size: usize,
    pub rx_size: usize,
    pub inject_size: usize,
}

/// What discovery was asked.
#[derive(Clone, Copy, Debug)]
pub struct Ask<'a> {
    pub node: Option<&'a str>,
    pub service: Option<&'a str>,
    /// Node and service are this side's.
    pub source: bool,
}
